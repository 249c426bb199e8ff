"""What the JSON of manifests and indexes says."""

from __future__ import annotations

import json
from typing import Any

from toolchain.errors import RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor

_OTHER = "check the name; if it is right, publish it again, or ask who did"


def parse_object(content: bytes, name: str) -> dict[str, Any]:
    """JSON bytes that must hold an object.

    Raises:
        RegistryError: they do not.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RegistryError(f"{name} is not JSON", why=str(error), fix=_OTHER) from error
    if not isinstance(value, dict):
        raise RegistryError(f"{name} is not a JSON object", fix=_OTHER)
    return value


def media_type_of(value: dict[str, Any]) -> str:
    """The media type of a manifest's JSON: what it says, else what it looks like."""
    if isinstance(said := value.get("mediaType"), str):
        return said
    if isinstance(value.get("manifests"), list):
        return media.INDEX
    return media.MANIFEST if "layers" in value else media.CONFIG


def children_of(value: dict[str, Any], descriptor: Descriptor) -> tuple[Descriptor, ...]:
    """What the JSON of a manifest or index names directly.

    Raises:
        RegistryError: malformed.
    """
    try:
        if descriptor.media_type in media.INDEXES:
            return tuple(Descriptor.from_json(entry) for entry in value["manifests"])
        return tuple(Descriptor.from_json(entry) for entry in [value["config"], *value["layers"]])
    except (KeyError, TypeError) as error:
        raise RegistryError(f"{descriptor.digest} is not a manifest", why=f"it lacks {error}", fix=_OTHER) from error
