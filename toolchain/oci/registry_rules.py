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
Tried: TypeAlias = Literal["real", "imitation", "nothing"]
CHUNK = 64 << 20
_DATA = FOLDER / "registries.toml"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """One kind of registry. Texts are for display; what is not known is `unknown`.

    Args:
        hosts: patterns of its hosts, without a port; empty if it is self-hosted under any name.
        location: what the address of an upload contains there and nowhere else; empty without such a mark.
        upload: the way a blob goes: in one piece, or in chunks.
        chunk: bytes of one.
        position: `range`: its answers say how much arrived; `sent`: they do not, so accepted chunks are added up.
        last: what ends an upload in chunks: an `empty` request, or the last `piece`.
        layer_limit, manifest_limit: bytes it takes at most; 0 where it is not known.
        least_parts, most_parts: of a repository's name, between slashes; 0 without a limit.
        names: how a repository is named, e.g. `OWNER/NAME`.
        upload_seconds: how long an upload may take; 0 where it is not known.
        tags, auth, mount, referrers, zstd, note: for display.
        tried: whether uploads have gone to a real one, to an imitation, or not at all.
        source: addresses that document it.
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
    upload_seconds: int = 0
    tags: str = "unknown"
    auth: str = "unknown"
    mount: str = "unknown"
    referrers: str = "unknown"
    zstd: str = "unknown"
    note: str = ""
    tried: Tried = "nothing"
    source: tuple[str, ...]


# Any registry takes a blob in one piece.
UNKNOWN = Rules(name="unknown", source=("https://github.com/opencontainers/distribution-spec/blob/main/spec.md",))


@lru_cache
def known() -> tuple[Rules, ...]:
    """All rules, in the order of the file."""
    rows = read_toml(_DATA, error=RegistryError).get("registry", [])
    return tuple(typed_row(Rules, row, f"registry.{at}", _DATA, error=RegistryError) for at, row in enumerate(rows))


def for_host(host: str) -> Rules:
    """The rules of a host (a port may follow); `UNKNOWN` if none is known."""
    name = host.partition(":")[0].lower()
    return next((rules for rules in known() if any(fnmatchcase(name, pattern) for pattern in rules.hosts)), UNKNOWN)


def for_location(location: str) -> Rules:
    """The rules of the registry that names uploads like this; `UNKNOWN` if no mark fits."""
    return next((rules for rules in known() if rules.location and rules.location in location), UNKNOWN)


def check_repository(rules: Rules, host: str, repository: str) -> None:
    """Whether the registry can have a repository of this name."""
    parts = repository.count("/") + 1
    if parts < rules.least_parts or 0 < rules.most_parts < parts:
        raise ConfigError(
            f"{rules.name} has no repository {repository!r}",
            why=f"the name has {parts} parts; there it is {rules.names}",
            fix=f"publish to {host}/{rules.names}",
        )


def check_sizes(rules: Rules, items: Iterable[Descriptor]) -> None:
    """Whether the registry takes blobs and manifests as large as these."""
    for item in items:
        is_manifest = item.media_type in media.MANIFESTS
        kind, limit = ("manifest", rules.manifest_limit) if is_manifest else ("layer", rules.layer_limit)
        if 0 < limit < item.size:
            raise RegistryError(
                f"{rules.name} takes no {kind} as large as {item.digest}",
                why=f"{item.size} bytes; its limit is {limit}",
                fix="publish to another registry, or to oci:DIR",
            )
