"""Parse the JSON of manifests, indexes and configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolchain.core import strict_json
from toolchain.core.errors import DocumentError, RegistryError
from toolchain.core.strict_json import Keys
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor

_PLATFORM: Keys = dict.fromkeys(("architecture", "os", "os.version", "os.features", "variant", "features"))
_DESCRIPTOR: Keys = {
    **dict.fromkeys(("mediaType", "digest", "size", "urls", "annotations", "data", "artifactType")),
    "platform": _PLATFORM,
}
# These are the known keys of manifests and indexes, including index.json and lists of referrers.
MANIFEST_KEYS: Keys = {
    **dict.fromkeys(("schemaVersion", "mediaType", "artifactType", "annotations")),
    **dict.fromkeys(("config", "layers", "manifests", "subject"), _DESCRIPTOR),
}
CONFIG_KEYS: Keys = {
    **_PLATFORM,
    **dict.fromkeys(("created", "author")),
    "config": dict.fromkeys(
        ("User", "ExposedPorts", "Env", "Entrypoint", "Cmd", "Volumes", "WorkingDir", "Labels", "StopSignal")
    ),
    "rootfs": dict.fromkeys(("type", "diff_ids")),
    "history": dict.fromkeys(("created", "created_by", "author", "comment", "empty_layer")),
}
_CONFIGS = frozenset({media.CONFIG, media.DOCKER_CONFIG})
_OTHER = "check the name; if it is right, publish the image again, or report the error to its publisher"


def keys_of(media_type: str) -> Keys:
    """Return the known keys of a JSON blob with the given media type (see `strict_json.read`)."""
    return CONFIG_KEYS if media_type in _CONFIGS else MANIFEST_KEYS


def parse_object(
    content: bytes, name: str, *, keys: Keys | None = MANIFEST_KEYS, limit: int = strict_json.LIMIT
) -> dict[str, Any]:
    """Parse bytes as a JSON object; for `keys` and `limit`, see `strict_json.read`.

    RegistryError is raised if the content is not a JSON object, and DocumentError if `strict_json` refuses it.
    """
    try:
        value = strict_json.read(content, name, keys=keys, limit=limit)
    except DocumentError:
        raise
    except ValueError as error:
        raise RegistryError("manifest-malformed", f"{name} is not valid JSON", fix=_OTHER) from error
    if not isinstance(value, dict):
        raise RegistryError("manifest-malformed", f"{name} is not a JSON object", fix=_OTHER)
    return value


def media_type_of(value: dict[str, Any]) -> str:
    """Return the media type of a manifest, index or config; without `mediaType`, it is derived from other keys."""
    if isinstance(own_type := value.get("mediaType"), str):
        return own_type
    if isinstance(value.get("manifests"), list):
        return media.INDEX
    return media.MANIFEST if "layers" in value else media.CONFIG


def subject_of(value: Mapping[str, Any]) -> str | None:
    """Return the digest of a manifest's subject; None if it has no subject with a digest."""
    subject = value.get("subject")
    digest = subject.get("digest") if isinstance(subject, dict) else None
    return digest if isinstance(digest, str) else None


def children_of(value: dict[str, Any], descriptor: Descriptor) -> tuple[Descriptor, ...]:
    """Return the entries of an index, or the config and the layers of a manifest.

    RegistryError is raised if the content is malformed, names another media type than the descriptor, or could be read
    both as an image and as an index.
    """
    own_type = value.get("mediaType")
    if own_type is not None and own_type != descriptor.media_type:
        raise RegistryError(
            "manifest-type-mismatch",
            f"{descriptor.digest} has the media type {str(own_type)[:100]!r}, but is listed as "
            f"{descriptor.media_type!r}",
            why="some programs use the first type, and others use the second",
            fix=_OTHER,
        )
    if "manifests" in value and value.keys() & {"config", "layers"}:
        raise RegistryError(
            "manifest-ambiguous",
            f"{descriptor.digest} is both an image and an index",
            why="some programs would read it as an image, and others as an index",
            fix=_OTHER,
        )
    notes = value.get("annotations") or {}
    if not isinstance(notes, dict) or not all(isinstance(text, str) for text in notes.values()):
        raise RegistryError(
            "manifest-malformed",
            f"{descriptor.digest} is not a valid manifest",
            why="its annotations are not an object of strings",
            fix=_OTHER,
        )
    try:
        if descriptor.media_type in media.INDEXES:
            return tuple(Descriptor.from_json(entry) for entry in value["manifests"])
        return tuple(Descriptor.from_json(entry) for entry in [value["config"], *value["layers"]])
    except (KeyError, TypeError) as error:
        raise RegistryError(
            "manifest-malformed", f"{descriptor.digest} is not a valid manifest", why="a key is missing", fix=_OTHER
        ) from error
