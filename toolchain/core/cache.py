"""The tool's own folder, and the paths in it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from toolchain.core.digest import write_atomically
from toolchain.core.errors import ConfigError
from toolchain.core.filesystem import make_private, read_regular

# As https://bford.info/cachedir/ has it.
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# The folder of `toolchain`\n"
LEDGER, NINJA_LOG = "ledger.sqlite", "ninja.log"
LARGEST_NINJA_LOG = 64 << 20  # bytes; LLVM's has one million
_MARK = b"All in this folder is toolchain's. `toolchain cache prune` removes what is old.\n"


@dataclass(frozen=True)
class Cache:
    """The tool's own folder. Everything in it can be deleted; it comes back at the cost of time."""

    root: Path

    @property
    def store(self) -> Path:
        """Sources by digest."""
        return self.root / "store"

    @property
    def images(self) -> Path:
        """The OCI layout of all that was built here."""
        return self.root / "images"

    @property
    def records(self) -> Path:
        """One JSON file for each finished stage, by input digest."""
        return self.root / "records"

    def record(self, input_digest: str) -> Path:
        """The path of a stage's record."""
        return self.records / f"{input_digest.removeprefix('sha256:')}.json"

    def package_list(self, stage: str, base: str, arch: str) -> Path:
        """The path of the resolved packages of a base, or of another machine's side of it.

        Args:
            stage: `base` or `sysroot`.
        """
        return self.root / "locked" / f"{stage}-{base}-{arch}.json"

    def probed(self, digest: str, key: str) -> Path:
        """The path of an own base's probe result, by its image's digest and the needs."""
        return self.root / "probed" / f"{digest.removeprefix('sha256:')}-{key}.json"

    @property
    def apt(self) -> Path:
        """Lists of the distribution's mirrors."""
        return self.root / "apt"

    @property
    def compiler_caches(self) -> Path:
        """A JSON file for each compiler cache, by its key: whose it is; its time says when it was last used."""
        return self.root / "compiler-caches"

    @property
    def engine(self) -> Path:
        """The engine's own storage, apart from the user's."""
        return self.root / "engine"

    @property
    def work(self) -> Path:
        """Unfinished work."""
        return self.root / "work"

    @property
    def mounts(self) -> Path:
        """Cache mounts of builds, and the engine's temporary files; all of it belongs to the ids of containers."""
        return self.work / "containers"

    @property
    def logs(self) -> Path:
        """Full logs."""
        return self.root / "logs"

    def kept(self, work: str, name: str) -> Path:
        """Files of a finished work that stay for `report`: its folder's name, and `NINJA_LOG` or `LEDGER`."""
        return self.logs / f"{work}.{name}"

    @property
    def locks(self) -> Path:
        """Lock files."""
        return self.root / "locks"

    @property
    def use(self) -> Path:
        """Held by every invocation that works in this folder, together; alone by one that removes from it."""
        return self.locks / "use.lock"

    def make(self) -> None:
        """Make the folder for its owner alone, and mark it as a cache of this tool.

        Backups leave out a folder with the first mark, and `cache prune` removes nothing without the second one. A
        folder that holds something else already gets no mark and keeps its mode, because its content may belong to
        others; then the tool's own folders in it are for their owner alone.
        """
        # Finding sources, which comes first, leaves the mirrors' lists and what it downloaded.
        early = {self.locks.name, self.store.name, self.apt.name}
        fresh = not self.root.is_dir() or {path.name for path in self.root.iterdir()} <= early
        if fresh or self.is_ours:
            make_private(self.root)
        # It belongs to others, or only another user may change its mode.
        if self.root.stat().st_mode & 0o077:
            for folder in self._contents:
                make_private(folder)
        if self.store.is_dir():
            make_private(self.store)
        self.locks.mkdir(parents=True, exist_ok=True)
        # Without them everything works but `cache prune`.
        with contextlib.suppress(OSError):
            if fresh:
                write_atomically(self.mark, _MARK)
                write_atomically(self.root / "CACHEDIR.TAG", _TAG)

    @property
    def _contents(self) -> tuple[Path, ...]:
        """The folders that may hold files of a user's sources, or what was made of them."""
        others = (self.root / "archives", self.root / "reproduce")
        return (self.store, self.images, self.records, self.work, self.logs, self.engine, *others)

    @property
    def mark(self) -> Path:
        """The file that says that all in this folder is this tool's."""
        return self.root / "toolchain-cache"

    @property
    def is_ours(self) -> bool:
        """Whether all in this folder is this tool's, to be removed when it is old."""
        try:
            return read_regular(self.mark, len(_MARK)) == _MARK
        except OSError:
            return False

    def check(self, *, write: bool = True) -> None:
        """See that the folder is, or can be made, one that we may write to.

        Args:
            write: whether that matters.
        """
        place = self.root
        while not os.path.lexists(place):
            place = place.parent
        why = "" if os.access(place, os.X_OK) else "it belongs to another user, and only that user may enter it"
        if write and not why and not os.access(place, os.W_OK):
            why = "it may not be written to"
        if not place.is_dir():
            why = "it is not a folder"
        if why:
            raise ConfigError(f"the cache cannot be in {self.root}", why=f"{place}: {why}", fix="name another: --cache")


def cache_of(folder: Path | str | None = None) -> Cache:
    """The cache in a folder, else the default one. An existing cache of this tool becomes its owner's alone."""
    cache = Cache(Path(folder or default_cache()).absolute())
    cache.check(write=False)
    if cache.is_ours:
        make_private(cache.root)
    return cache


def default_cache() -> Path:
    """`TOOLCHAIN_CACHE`, else below the user's cache folder."""
    if named := os.environ.get("TOOLCHAIN_CACHE"):
        return Path(named).absolute()
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "toolchain"
    try:
        return Path.home() / ".cache" / "toolchain"
    except RuntimeError as error:
        raise ConfigError(
            "there is no folder for the cache", why="this user has no home: HOME is not set", fix="name one: --cache"
        ) from error
