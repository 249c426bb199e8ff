"""Read and write cosign's signatures and attestations under the tags `sha256-<hex>.sig` and `sha256-<hex>.att`.

Such a tag points to a manifest with a layer for each signature or attestation. The config of the manifest lists the
digests of the layers as `diff_ids`, because some programs require this key.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolchain.core.errors import RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor, check_digest
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import parse_object
from toolchain.oci.referrers import readable

LOG = logging.getLogger(__name__)
Kind = Literal["sig", "att"]
_NEVER = "0001-01-01T00:00:00Z"  # the creation time in the configs that cosign writes
_TAKEN = "publish to your own repository, or delete that tag if it is not needed"
_OF_IMAGES = (media.LAYER, media.DOCKER_LAYER_GZIP, media.DOCKER_LAYER)


def about_tag(subject: str, kind: Kind) -> str:
    """Return the tag under which cosign looks for the signatures (`sig`) or attestations (`att`) of an image."""
    return f"{check_digest(subject).replace(':', '-')}.{kind}"


def _same(wanted: Descriptor, there: Descriptor) -> bool:
    return wanted.digest == there.digest and dict(wanted.annotations).items() <= dict(there.annotations).items()


@dataclass(frozen=True)
class Tagged:
    """Layers, with their annotations, to add to the manifest under cosign's tag for an image (see `about_tag`)."""

    subject: str
    kind: Kind
    layers: tuple[Descriptor, ...]

    @property
    def tag(self) -> str:
        return about_tag(self.subject, self.kind)

    def missing(self, value: Mapping[str, Any] | None) -> list[Descriptor]:
        """Return the layers that the manifest `value` lacks; `value` is None if there is no manifest under the tag."""
        there = list(readable((value or {}).get("layers", ())))
        return [layer for layer in self.layers if not any(_same(layer, present) for present in there)]


def read_layers_under(content: bytes, name: str) -> dict[str, Any]:
    """Parse the manifest under one of cosign's tags.

    RegistryError is raised if it is an image or has no list of layers, so that it is not overwritten.
    """
    value = parse_object(content, name)
    layers = value.get("layers")
    if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
        raise RegistryError(
            "statements-tag-taken", f"{name} is not a list of signatures", why="it has no list of layers", fix=_TAKEN
        )
    if any(str(layer.get("mediaType", "")).startswith(_OF_IMAGES) for layer in layers):
        raise RegistryError(
            "statements-tag-taken",
            f"{name} is an image",
            why="cosign stores the signatures of an image under this tag",
            fix=_TAKEN,
        )
    return value


def manifest_with(value: Mapping[str, Any] | None, missing: Sequence[Descriptor], layout: Layout) -> dict[str, Any]:
    """Return a manifest with the layers of `value` and the missing layers; store its config in the layout.

    The subject, the artifact type and the annotations of `value` are dropped, because another publisher may have
    written them.
    """
    layers = [*(value or {}).get("layers", ()), *(layer.as_json() for layer in missing)]
    config = {
        "architecture": "",
        "created": _NEVER,
        "history": [{"created": _NEVER}] * len(layers),
        "os": "",
        "rootfs": {"type": "layers", "diff_ids": [str(layer.get("digest")) for layer in layers]},
        "config": {},
    }
    return {
        "schemaVersion": 2,
        "mediaType": media.MANIFEST,
        "config": layout.put_json(config, media.CONFIG).as_json(),
        "layers": layers,
    }
