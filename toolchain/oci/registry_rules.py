"""Look up the rules of known registries for uploads, sizes and repository names in data/registries.toml."""

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
    """The rules for a kind of registry.

    Args:
        hosts: the patterns of its hosts, without a port; empty if users host it under their own names.
        location: a part of its upload URLs that identifies the registry; empty if there is none.
        chunk: the size of a chunk in bytes.
        position: how to find out how much of a blob arrived: from the `Range` header (`range`), or by adding up the
            accepted chunks (`sent`), for a registry that does not report a position.
        last: how an upload in chunks ends: by an `empty` request, or by a request with the last `piece`.
        layer_limit, manifest_limit: the largest layer and the largest manifest that the registry accepts, in bytes; 0
            if unknown.
        least_parts, most_parts: the minimum and maximum number of components of a repository's name; 0 for no limit.
        names: the form of a repository's name in messages, e.g. `OWNER/NAME`.
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


# These are the rules for a registry that is not in `_DATA`.
UNKNOWN = Rules(name="unknown")


@lru_cache
def known() -> tuple[Rules, ...]:
    rows = read_toml(_DATA, error=RegistryError).get("registry", [])
    return tuple(typed_row(Rules, row, f"registry.{at}", _DATA, error=RegistryError) for at, row in enumerate(rows))


def for_host(host: str) -> Rules:
    """Return the rules for a host, which may have a port; `UNKNOWN` if the host is not listed."""
    name = host.partition(":")[0].lower()
    return next((rules for rules in known() if any(fnmatchcase(name, pattern) for pattern in rules.hosts)), UNKNOWN)


def for_location(location: str) -> Rules:
    """Return the rules for the registry that sent an upload URL; `UNKNOWN` if the URL matches no rules."""
    return next((rules for rules in known() if rules.location and rules.location in location), UNKNOWN)


def check_repository(rules: Rules, host: str, repository: str) -> None:
    """Raise ConfigError if the name of a repository has too few or too many components for a registry."""
    parts = repository.count("/") + 1
    if parts < rules.least_parts or 0 < rules.most_parts < parts:
        raise ConfigError(
            "repository-name-refused",
            f"{rules.name} does not allow the repository {repository!r}",
            why=f"the name has {parts} components, but its form must be {rules.names}",
            fix=f"publish to {host}/{rules.names}",
        )


def check_sizes(rules: Rules, items: Iterable[Descriptor]) -> None:
    """Raise RegistryError if a blob or manifest is larger than the registry accepts."""
    for item in items:
        is_manifest = item.media_type in media.MANIFESTS
        kind, limit = ("manifest", rules.manifest_limit) if is_manifest else ("layer", rules.layer_limit)
        if 0 < limit < item.size:
            raise RegistryError(
                "registry-size-limit",
                f"the {kind} {item.digest} is too large for {rules.name}",
                why=f"it has {item.size} bytes, and the limit is {limit}",
                fix="publish to another registry, or to oci:DIR",
            )
