"""Keep a compiler cache for each set of sources, so that no build reads a cache that a build of other sources wrote.

The code of a source can write anything into the compiler cache of its build, so only builds with the same key share a
cache (see `key_of`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain.catalog.stages import row
from toolchain.core import console, strict_json
from toolchain.core.cache import Cache
from toolchain.core.digest import canonical, sha256_json, write_atomically
from toolchain.core.locks import free, kept
from toolchain.request.model import Request
from toolchain.sources.tree import Source
from toolchain.stages.inputs import source_inputs
from toolchain.stages.stage import Built, Planned

LIMIT = 20_000_000_000
"""The total size in bytes above which caches are removed, and the limit of each cache in containerfiles/ccache.conf."""
NONE = "none"
"""The key that records and provenance contain for a build without a compiler cache."""


@dataclass(frozen=True)
class CompilerCache:
    """A compiler cache on disk.

    Args:
        key: the key, 16 hexadecimal digits.
        sources: the names of the sources, for display; empty if `note` cannot be read.
        used: the Unix time at which a build last began to use the cache; the current time if `note` cannot be read.
        places: the folders of the cache; empty until a build has created one.
        note: the file that contains `sources`, and whose modification time is `used`.
    """

    key: str
    sources: str
    used: float
    places: tuple[Path, ...]
    note: Path


def key_of(request: Request, planned: Planned, dependencies: Mapping[str, Built]) -> str:
    """Return the key of a stage's compiler cache; `none` with `--fresh` or while a source has no digest.

    The key depends on the base, because the base's compiler writes the objects. It does not depend on other stages that
    consist of a distribution's packages, because they contain no code that was built from the sources.
    """
    sources = source_inputs(planned.sources, request.patches)
    if request.fresh or sources is None:
        return NONE
    below = {
        name: built.input_digest for name, built in dependencies.items() if name == "base" or not row(name).packages
    }
    trust = {source.name: source.locked for source in planned.sources}
    return sha256_json({"sources": sources, "locked": trust, "below": below}).removeprefix("sha256:")[:16]


@contextlib.contextmanager
def using(cache: Cache, key: str, sources: Sequence[Source]) -> Iterator[None]:
    """Mark a compiler cache as in use during the block; do nothing if the key is `none`.

    Before the block, remove the least recently used caches if all caches together exceed the limit. A cache that a
    build is using is never removed, because every compilation of that build would then fail.

    Args:
        sources: the sources whose names describe the cache in listings.
    """
    if key == NONE:
        yield
        return
    about = {"sources": ", ".join(source.ref for source in sources)}
    cache.compiler_caches.mkdir(parents=True, exist_ok=True)
    with kept(_lock(cache, key)):
        write_atomically(_note(cache, key), canonical(about))
        trim(cache, keep=key)
        yield


def remove_unused(cache: Cache, key: str) -> bool:
    """Remove a compiler cache and return True.

    Return False if a build is using it, if a part of it cannot be removed, or if the key is `none`.
    """
    from toolchain.engine.storage import cache_mounts, ccache_mount, discard  # noqa: PLC0415 - a plan starts no engine

    if key == NONE:
        return False
    with free(_lock(cache, key)) as unused:
        left = [place for place in cache_mounts(cache, ccache_mount(key)) if not discard(place)] if unused else []
        if unused and not left:
            _note(cache, key).unlink(missing_ok=True)
        return unused and not left


def _note(cache: Cache, key: str) -> Path:
    return cache.compiler_caches / f"{key}.json"


def _lock(cache: Cache, key: str) -> Path:
    path = cache.locks / f"compiler-cache-{key}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def trim(cache: Cache, *, keep: str = "", limit: int = LIMIT) -> list[CompilerCache]:
    """Remove the least recently used compiler caches if all caches together exceed a limit; return the removed ones.

    Caches that a build is using are not removed, so the total may still exceed the limit.

    Args:
        keep: the key of a cache that is always kept.
        limit: the largest total size in bytes.
    """
    from toolchain.engine.resources import disk_bytes  # noqa: PLC0415 - a plan starts no engine

    gone: list[CompilerCache] = []
    total = 0
    for known in sorted(compiler_caches(cache), key=lambda known: (known.key != keep, -known.used)):
        total += sum(disk_bytes(place) for place in known.places)
        if total <= limit or known.key == keep:
            continue
        if remove_unused(cache, known.key):
            gone.append(known)
    if gone:
        console.note(f"compiler caches removed: {len(gone)}; the limit for all of them is {console.size(limit)}")
    return gone


def compiler_caches(cache: Cache) -> Iterator[CompilerCache]:
    """Yield the compiler caches that belong to a cache folder, sorted by key."""
    from toolchain.engine.storage import cache_mounts, ccache_mount  # noqa: PLC0415 - a plan starts no engine

    for path in sorted(cache.compiler_caches.glob("*.json")) if cache.compiler_caches.is_dir() else []:
        try:
            sources = str(strict_json.read(path.read_bytes())["sources"])
            used = path.stat().st_mtime
        except (OSError, ValueError, KeyError, TypeError):
            sources, used = "", time.time()
        places = tuple(cache_mounts(cache, ccache_mount(path.stem)))
        yield CompilerCache(path.stem, sources, used, places, path)
