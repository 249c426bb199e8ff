"""The cache folder of this tool, and the paths in it."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from toolchain.core.digest import write_atomically
from toolchain.core.errors import ConfigError
from toolchain.core.filesystem import make_private, read_regular
from toolchain.core.home import expanded

# This content of CACHEDIR.TAG begins with the signature that https://bford.info/cachedir/ specifies.
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# The folder of `toolchain`\n"
LEDGER, NINJA_LOG = "ledger.sqlite", "ninja.log"
LARGEST_NINJA_LOG = 64 << 20  # bytes; the log of an LLVM build is about 1 MB
_MARK = b"All in this folder is toolchain's. `toolchain cache prune` removes what is old.\n"


@dataclass(frozen=True)
class Cache:
    """The cache folder, and the paths of the files and folders in it."""

    root: Path

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def images(self) -> Path:
        """Return the folder of the OCI layout that contains the images of finished stages."""
        return self.root / "images"

    @property
    def records(self) -> Path:
        """Return the folder that contains a JSON file for each finished stage, named after the stage's input digest."""
        return self.root / "records"

    def record(self, input_digest: str) -> Path:
        return self.records / f"{input_digest.removeprefix('sha256:')}.json"

    def package_list(self, stage: str, base: str, arch: str) -> Path:
        """Return the path of the list of packages that was resolved for a stage.

        Args:
            stage: a stage that resolves packages, such as `base` or `sysroot`.
        """
        return self.root / "locked" / f"{stage}-{base}-{arch}.json"

    def probed(self, digest: str, key: str) -> Path:
        """Return the path of the file with the result of checking the user's own base image.

        Args:
            digest: the digest of the image.
            key: a string that identifies the other inputs of the check.
        """
        return self.root / "probed" / f"{digest.removeprefix('sha256:')}-{key}.json"

    @property
    def apt(self) -> Path:
        """Return the folder of package lists that were downloaded from the distributions' mirrors."""
        return self.root / "apt"

    @property
    def compiler_caches(self) -> Path:
        """Return the folder of JSON files that describe the compiler caches; using a cache touches its file."""
        return self.root / "compiler-caches"

    @property
    def engine(self) -> Path:
        """Return the folder of the container engine's storage and settings."""
        return self.root / "engine"

    @property
    def work(self) -> Path:
        """Return the folder of unfinished builds and campaigns, and of temporary files."""
        return self.root / "work"

    @property
    def mounts(self) -> Path:
        """Return the folder of the cache mounts and temporary files of the engine; users in containers may own them."""
        return self.work / "containers"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def kept(self, work: str, name: str) -> Path:
        """Return the path where a file of finished work is kept for the verb `report`.

        Args:
            work: the name of the work folder that contained the file.
            name: `NINJA_LOG` or `LEDGER`.
        """
        return self.logs / f"{work}.{name}"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def use(self) -> Path:
        """Return the path of the lock file that invocations hold: shared while working, exclusive while pruning."""
        return self.locks / "use.lock"

    def make(self) -> None:
        """Create the folder, make it private to its owner, and mark it as a cache of this tool.

        The marks are CACHEDIR.TAG, which makes backup programs skip the folder, and the file `toolchain-cache`, without
        which `cache prune` removes nothing. An unmarked folder that contains more than `locks`, `store` and `apt` gets
        no marks and keeps its permissions. If that folder is not private, the folders in it that may contain the user's
        sources become private.
        """
        # Looking up a source may have created these folders already, so the cache is still new if it contains only
        # them.
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
        # An unmarked cache still works, so a failure to write the marks is ignored.
        with contextlib.suppress(OSError):
            if fresh:
                write_atomically(self.mark, _MARK)
                write_atomically(self.root / "CACHEDIR.TAG", _TAG)

    @property
    def _contents(self) -> tuple[Path, ...]:
        """Return the folders that may contain the user's sources, or files built from them."""
        others = (self.root / "archives", self.root / "reproduce")
        return (self.store, self.images, self.records, self.work, self.logs, self.engine, *others)

    @property
    def mark(self) -> Path:
        return self.root / "toolchain-cache"

    @property
    def is_ours(self) -> bool:
        """Return whether the folder is marked as a cache of this tool."""
        try:
            return read_regular(self.mark, len(_MARK)) == _MARK
        except OSError:
            return False

    def check(self, *, write: bool = True) -> None:
        """Raise a ConfigError unless `root` is a folder that this user can enter and, with `write`, write to.

        If the folder does not exist, the nearest existing folder above it is checked. With `write`, the path must also
        be one line of UTF-8, because the Containerfile that proves the isolation of builds contains it.
        """
        place = self.root
        while not os.path.lexists(place):
            place = place.parent
        why = "" if os.access(place, os.X_OK) else "this user has no permission to enter it"
        if write and not why and not os.access(place, os.W_OK):
            why = "this user has no permission to write to it"
        if not place.is_dir():
            why = "it is not a folder"
        if write and re.search(r"[\r\n\ud800-\udfff]", os.fspath(self.root)):
            why = "its path contains a line end, or is not UTF-8"
        if why:
            raise ConfigError(
                "cache-unusable",
                f"{self.root} cannot be used as the cache",
                why=f"{place}: {why}",
                fix="choose another folder with --cache",
            )


def cache_of(folder: Path | str | None = None) -> Cache:
    """Return the cache in `folder`, or in `default_cache()` if `folder` is None or empty.

    A folder that is already marked as a cache of this tool becomes private to its owner. Raise a ConfigError if the
    folder cannot be used, or if there is no default folder.
    """
    cache = Cache(Path(folder or default_cache()).absolute())
    cache.check(write=False)
    if cache.is_ours:
        make_private(cache.root)
    return cache


def default_cache() -> Path:
    """Return `$TOOLCHAIN_CACHE`, or else the folder `toolchain` in `$XDG_CACHE_HOME` or `~/.cache`.

    Raise a ConfigError if neither environment variable is set and the user has no home folder.
    """
    if named := os.environ.get("TOOLCHAIN_CACHE"):
        return Path(expanded(named)).absolute()
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "toolchain"
    try:
        return Path.home() / ".cache" / "toolchain"
    except RuntimeError as error:
        raise ConfigError(
            "no-home",
            "there is no default folder for the cache",
            why="this user has no home folder, and HOME is not set",
            fix="choose a folder with --cache",
        ) from error
