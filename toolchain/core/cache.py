"""The cache folder of this tool, and the paths in it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from toolchain.core.digest import write_atomically
from toolchain.core.errors import ConfigError
from toolchain.core.filesystem import make_private, read_regular

# See https://bford.info/cachedir/.
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# The folder of `toolchain`\n"
LEDGER, NINJA_LOG = "ledger.sqlite", "ninja.log"
LARGEST_NINJA_LOG = 64 << 20  # bytes; LLVM's has one million
_MARK = b"All in this folder is toolchain's. `toolchain cache prune` removes what is old.\n"


@dataclass(frozen=True)
class Cache:
    """The cache folder. Everything in it can be deleted, and is then fetched or built again."""

    root: Path

    @property
    def store(self) -> Path:
        """Sources by digest."""
        return self.root / "store"

    @property
    def images(self) -> Path:
        """The OCI layout with all built images."""
        return self.root / "images"

    @property
    def records(self) -> Path:
        """One JSON file for each finished stage, named by input digest."""
        return self.root / "records"

    def record(self, input_digest: str) -> Path:
        """Return the path of a stage's record."""
        return self.records / f"{input_digest.removeprefix('sha256:')}.json"

    def package_list(self, stage: str, base: str, arch: str) -> Path:
        """Return the path of the resolved package list of a base, or of its sysroot for another machine.

        Args:
            stage: `base` or `sysroot`.
        """
        return self.root / "locked" / f"{stage}-{base}-{arch}.json"

    def probed(self, digest: str, key: str) -> Path:
        """Return the path of what was found in a user's own base image."""
        return self.root / "probed" / f"{digest.removeprefix('sha256:')}-{key}.json"

    @property
    def apt(self) -> Path:
        """Package lists of the distribution's mirrors."""
        return self.root / "apt"

    @property
    def compiler_caches(self) -> Path:
        """A JSON file for each compiler cache, with its owner; the file's time is that of the last use."""
        return self.root / "compiler-caches"

    @property
    def engine(self) -> Path:
        """The storage of the container engine, apart from the user's own."""
        return self.root / "engine"

    @property
    def work(self) -> Path:
        """Unfinished work."""
        return self.root / "work"

    @property
    def mounts(self) -> Path:
        """Cache mounts of builds and temporary files of the engine. They belong to the user ids of containers."""
        return self.work / "containers"

    @property
    def logs(self) -> Path:
        """Logs of builds."""
        return self.root / "logs"

    def kept(self, work: str, name: str) -> Path:
        """Return the path of a file of finished work that `report` reads: `NINJA_LOG` or `LEDGER`."""
        return self.logs / f"{work}.{name}"

    @property
    def locks(self) -> Path:
        """Lock files."""
        return self.root / "locks"

    @property
    def use(self) -> Path:
        """The lock file that every invocation holds, shared while it works and exclusive while it removes files."""
        return self.locks / "use.lock"

    def make(self) -> None:
        """Create the folder with access for its owner only, and mark it as a cache of this tool.

        Backup programs skip a folder with the first mark, and `cache prune` needs the second one. A folder that already
        holds something else gets no mark and keeps its mode, because its content may belong to others; then the tool's
        own folders in it are private.
        """
        # The lookup of sources may already have created these folders.
        early = {self.locks.name, self.store.name, self.apt.name}
        fresh = not self.root.is_dir() or {path.name for path in self.root.iterdir()} <= early
        if fresh or self.is_ours:
            make_private(self.root)
        if self.root.stat().st_mode & 0o077:
            for folder in self._contents:
                make_private(folder)
        if self.store.is_dir():
            make_private(self.store)
        self.locks.mkdir(parents=True, exist_ok=True)
        # Only `cache prune` needs the marks.
        with contextlib.suppress(OSError):
            if fresh:
                write_atomically(self.mark, _MARK)
                write_atomically(self.root / "CACHEDIR.TAG", _TAG)

    @property
    def _contents(self) -> tuple[Path, ...]:
        """The folders that may hold a user's sources, or files that were made from them."""
        others = (self.root / "archives", self.root / "reproduce")
        return (self.store, self.images, self.records, self.work, self.logs, self.engine, *others)

    @property
    def mark(self) -> Path:
        """The file that marks the folder as a cache of this tool."""
        return self.root / "toolchain-cache"

    @property
    def is_ours(self) -> bool:
        """Whether the folder is marked, so that `cache prune` may remove old files in it."""
        try:
            return read_regular(self.mark, len(_MARK)) == _MARK
        except OSError:
            return False

    def check(self, *, write: bool = True) -> None:
        """Check that the folder exists or can be created, and with `write` that it is writable."""
        place = self.root
        while not os.path.lexists(place):
            place = place.parent
        why = "" if os.access(place, os.X_OK) else "it belongs to another user, and only that user may enter it"
        if write and not why and not os.access(place, os.W_OK):
            why = "it may not be written to"
        if not place.is_dir():
            why = "it is not a folder"
        if why:
            raise ConfigError(
                "cache-unusable",
                f"the cache cannot be in {self.root}",
                why=f"{place}: {why}",
                fix="name another: --cache",
            )


def cache_of(folder: Path | str | None = None) -> Cache:
    """Return the cache in a folder, or the default one. An existing cache becomes private to its owner."""
    cache = Cache(Path(folder or default_cache()).absolute())
    cache.check(write=False)
    if cache.is_ours:
        make_private(cache.root)
    return cache


def default_cache() -> Path:
    """Return the folder `TOOLCHAIN_CACHE`, or `toolchain` in the user's cache folder."""
    if named := os.environ.get("TOOLCHAIN_CACHE"):
        return Path(named).absolute()
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "toolchain"
    try:
        return Path.home() / ".cache" / "toolchain"
    except RuntimeError as error:
        raise ConfigError(
            "no-home",
            "there is no folder for the cache",
            why="this user has no home: HOME is not set",
            fix="name one: --cache",
        ) from error
