"""Define the descriptors and the media types of OCI content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolchain.core.errors import RegistryError

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
LAYER_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LAYER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"

PREDICATE_TYPE = "in-toto.io/predicate-type"  # the annotation that contains the predicate type of an attestation

# These are Docker's media types, each with OCI's equivalent.
AS_OCI = {
    DOCKER_INDEX: INDEX,
    DOCKER_MANIFEST: MANIFEST,
    DOCKER_CONFIG: CONFIG,
    DOCKER_LAYER_GZIP: LAYER_GZIP,
    DOCKER_LAYER: LAYER,
}

INDEXES = frozenset({INDEX, DOCKER_INDEX})
IMAGES = frozenset({MANIFEST, DOCKER_MANIFEST})
MANIFESTS = INDEXES | IMAGES

# This is the largest accepted depth of nested indexes. Without a limit, a hostile image could exhaust the stack.
DEEPEST = 8

# cosign stores signatures and attestations as layers of these types, in a manifest whose tag contains the digest of the
# image.
SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
DSSE = "application/vnd.dsse.envelope.v1+json"
STATEMENTS = frozenset({SIMPLE_SIGNING, DSSE})
IN_TOTO = "application/vnd.in-toto+json"  # the type of layers in the attestations of docker buildx
ABOUT_TAG = re.compile(r"sha256-[0-9a-f]{64}\.(sig|att)")
# Some programs list the referrers of an image in an index with this tag.
REFERRERS_TAG = re.compile(r"sha256-[0-9a-f]{64}")

REF_NAME = "org.opencontainers.image.ref.name"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def check_digest(text: str) -> str:
    """Return a digest unchanged; raise RegistryError if it is malformed, because digests become parts of paths."""
    if not _DIGEST.fullmatch(text):
        raise RegistryError(
            "not-a-digest",
            f"{text[:120]!r} is not a valid digest",
            why="expected sha256: and 64 hexadecimal digits",
            fix="give sha256: and all 64 digits",
        )
    return text


def _text(value: Any, key: str, *, needed: bool = False) -> str:
    text = value[key] if needed else value.get(key)
    if not isinstance(text, str | None):
        raise TypeError(f"{key} is not a string")
    return text or ""


@dataclass(frozen=True, order=True)
class Platform:
    """The platform of an image, with OCI's names, such as `linux` and `amd64`."""

    os: str
    arch: str
    variant: str = ""

    def as_json(self) -> dict[str, str]:
        value = {"architecture": self.arch, "os": self.os}
        if self.variant:
            value["variant"] = self.variant
        return value

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.arch, self.variant) if part)


def _platform(value: Any) -> Platform:
    os, arch = (_text(value, key, needed=True) for key in ("os", "architecture"))
    return Platform(os, arch, _text(value, "variant"))


@dataclass(frozen=True)
class Descriptor:
    """The media type, digest and size in bytes of a blob; optionally its platform, annotations and artifact type."""

    media_type: str
    digest: str
    size: int
    platform: Platform | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    artifact_type: str = ""

    def __hash__(self) -> int:
        return hash((self.media_type, self.digest, self.size, self.platform))

    @property
    def plain(self) -> Descriptor:
        """Return the descriptor with only its media type, digest and size."""
        return Descriptor(self.media_type, self.digest, self.size)

    def annotated(self, annotations: Mapping[str, str]) -> Descriptor:
        return replace(self, annotations={**self.annotations, **annotations})

    def as_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.platform is not None:
            value["platform"] = self.platform.as_json()
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        if self.artifact_type:
            value["artifactType"] = self.artifact_type
        return value

    @classmethod
    def from_json(cls, value: Any) -> Descriptor:
        """Parse a descriptor; raise RegistryError if it is malformed.

        If `mediaType` is missing, the media type is `MANIFEST`.
        """
        try:
            platform = value.get("platform")
            size = value["size"]
            if type(size) is not int or not 0 <= size < 1 << 63:  # the specification demands 64 bits
                raise ValueError("size")
            annotations = value.get("annotations") or {}
            return cls(
                _text(value, "mediaType") or MANIFEST,
                check_digest(_text(value, "digest", needed=True)),
                size,
                _platform(platform) if platform else None,
                {key: _text(annotations, key) for key in annotations},
                _text(value, "artifactType"),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RegistryError(
                "descriptor-malformed",
                "a descriptor is malformed",
                why="a field is missing or has the wrong type",
                fix="publish or export the image again, or report the error to its publisher",
            ) from error
