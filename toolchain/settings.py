"""What the user asked for: values from the command line, the environment, the file and the defaults, in that order."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from toolchain.digest import write_atomically
from toolchain.errors import ConfigError

if TYPE_CHECKING:
    from toolchain.lock.file import Lock

_TAG = "Signature: 8a477f597d28d172789f06886806bc55"  # as the specification has it
EPOCH = 1767225600  # 2026-01-01T00:00:00Z: the one timestamp of all layers
DEFAULT_BASE = "debian13"
DEFAULT_GLIBC = "2.31"  # llvm-config/floors.toml
FORMAT = 1  # raised when the same inputs would make other bytes


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
        """What is kept of a finished stage."""
        return self.records / f"{input_digest.removeprefix('sha256:')}.json"

    def package_list(self, stage: str, base: str, arch: str) -> Path:
        """What the packages of a base, or of another machine's side of it, were resolved to.

        Args:
            stage: `base` or `sysroot`.
        """
        return self.root / "locked" / f"{stage}-{base}-{arch}.json"

    @property
    def engine(self) -> Path:
        """The engine's own storage, apart from the user's."""
        return self.root / "engine"

    @property
    def work(self) -> Path:
        """Unfinished work and cache mounts; TMPDIR of every child."""
        return self.root / "work"

    @property
    def logs(self) -> Path:
        """Full logs."""
        return self.root / "logs"

    @property
    def locks(self) -> Path:
        """Lock files."""
        return self.root / "locks"

    @property
    def use(self) -> Path:
        """Held by every invocation that works in this folder, together; alone by one that removes from it."""
        return self.locks / "use.lock"

    def make(self) -> None:
        """Make the folder, marked as one whose content comes back: backups leave it out, and `cache prune` knows it.

        Raises:
            OSError: it cannot be made.
        """
        self.locks.mkdir(parents=True, exist_ok=True)
        # Without it everything works but `cache prune`.
        with contextlib.suppress(OSError):
            if not self.tag.exists():
                write_atomically(
                    self.tag, f"{_TAG}\n# The folder of `toolchain`; see https://bford.info/cachedir/\n".encode()
                )

    @property
    def tag(self) -> Path:
        """The file that says that this folder is a cache."""
        return self.root / "CACHEDIR.TAG"

    def check(self, *, write: bool = True) -> None:
        """See that the folder is, or can be made, one that we may write to.

        Args:
            write: whether that matters.

        Raises:
            ConfigError: it is not.
        """
        place = self.root
        while not os.path.lexists(place):
            place = place.parent
        why = "it may not be written to" if write and not os.access(place, os.W_OK | os.X_OK) else ""
        if not place.is_dir():
            why = "it is no folder"
        if why:
            raise ConfigError(
                f"the cache cannot lie in {self.root}", why=f"{place}: {why}", fix="name another: --cache"
            )


def default_cache() -> Path:
    """`TOOLCHAIN_CACHE`, else below the user's cache folder."""
    if named := os.environ.get("TOOLCHAIN_CACHE"):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolchain"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One invocation, resolved. Every verb gets this and nothing else.

    Args:
        base: recipe name (`debian13`) or a local OCI image (`oci:DIR`, `oci:DIR:TAG` or `docker-archive`-like ref).
        glibc: of the oldest system that the LLVM layer must link on (`toolchain.catalog.floors`); empty for a layer that is
            bound to `base`.
        arch: OCI architectures, sorted.
        sources: overrides by source name: a path, `URL@SHA` or `distro:PACKAGE`.
        patches: patch files by source name, in order.
        gpus: LLVM names (`gfx942`), sorted.
        allow_binary, drop_binary: prebuilt things that may come in, and those that are left out, by name or path.
        pythons: versions (`3.13`) to build wheels for; empty for the base's own.
        jobs: compile jobs, 0 for as many as cores and memory allow.
        lock: with --locked, the only things that may come in.
    """

    cache: Cache
    base: str = DEFAULT_BASE
    glibc: str = ""
    arch: tuple[str, ...] = ("amd64",)
    sources: dict[str, str] = field(default_factory=dict)
    patches: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    triton: str | None = None
    aotriton: str | None = None
    gpus: tuple[str, ...] = ()
    select: str | None = None
    limit: int | None = None
    keep_going: bool = False
    kernel_timeout: float | None = None
    allow_binary: tuple[str, ...] = ()
    drop_binary: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    only: str = "distribution"
    jobs: int = 0
    offline: bool = False
    compression: Literal["gzip", "zstd"] = "gzip"
    contract: bool = True
    lock: Lock | None = None
    json: bool = False
