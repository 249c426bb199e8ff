"""Rules of known registries (data/registries.toml): how to upload, limits, names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal, TypeAlias

from toolchain.core.errors import ConfigError, RegistryError
from toolchain.data import FOLDER, read_toml, typed_row
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor

Upload: TypeAlias = Literal["whole", "chunks"]
CHUNK = 64 << 20
_DATA = FOLDER / "registries.toml"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """A kind of registry.

    Args:
        hosts: patterns of its hosts, without a port; empty if it is self-hosted under any name.
        location: a part of its upload URLs that identifies it; empty without one.
        upload: whether blobs go in one piece or in chunks.
        chunk: bytes of a chunk.
        position: `range`: answers say how much arrived; `sent`: they do not, so accepted chunks are added up.
        last: the end of an upload in chunks: an `empty` request, or the last `piece`.
        layer_limit, manifest_limit: bytes; 0 if unknown.
        least_parts, most_parts: limits for the number of a name's parts between slashes; 0 without a limit.
        names: the form of a repository's name, e.g. `OWNER/NAME`.
    """

    name: str
    hosts: tuple[str, ...] = ()
    location: str = ""
    upload: Upload = "whole"
    chunk: int = CHUNK
    position: Literal["range", "sent"] = "range"
    last: Literal["empty", "piece"] = "empty"
    layer_limit: int = 0
    manifest_limit: int = 0
    least_parts: int = 0
    most_parts: int = 0
    names: str = "unknown"


# Every registry accepts a blob in one piece.
UNKNOWN = Rules(name="unknown")


@lru_cache
def known() -> tuple[Rules, ...]:
    """Return all rules, in the order of the file."""
    rows = read_toml(_DATA, error=RegistryError).get("registry", [])
    return tuple(typed_row(Rules, row, f"registry.{at}", _DATA, error=RegistryError) for at, row in enumerate(rows))


def for_host(host: str) -> Rules:
    """Return the rules of a host, with or without a port; `UNKNOWN` if there are none."""
    name = host.partition(":")[0].lower()
    return next((rules for rules in known() if any(fnmatchcase(name, pattern) for pattern in rules.hosts)), UNKNOWN)


def for_location(location: str) -> Rules:
    """Return the rules of the registry with this upload URL; `UNKNOWN` if none fits."""
    return next((rules for rules in known() if rules.location and rules.location in location), UNKNOWN)


def check_repository(rules: Rules, host: str, repository: str) -> None:
    """Refuse a repository name that the registry cannot have."""
    parts = repository.count("/") + 1
    if parts < rules.least_parts or 0 < rules.most_parts < parts:
        raise ConfigError(
            "repository-name-refused",
            f"{rules.name} has no repository {repository!r}",
            why=f"the name has {parts} parts; there it is {rules.names}",
            fix=f"publish to {host}/{rules.names}",
        )


def check_sizes(rules: Rules, items: Iterable[Descriptor]) -> None:
    """Refuse blobs and manifests that are larger than the registry accepts."""
    for item in items:
        is_manifest = item.media_type in media.MANIFESTS
        kind, limit = ("manifest", rules.manifest_limit) if is_manifest else ("layer", rules.layer_limit)
        if 0 < limit < item.size:
            raise RegistryError(
                "registry-size-limit",
                f"{rules.name} takes no {kind} as large as {item.digest}",
                why=f"{item.size} bytes; its limit is {limit}",
                fix="publish to another registry, or to oci:DIR",
            )
