"""What the user asked for: values from the command line, the environment, the file and the defaults, in that order."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from toolchain import reading
from toolchain.digest import write_atomically
from toolchain.errors import ConfigError
from toolchain.options import Declared, declared, option

if TYPE_CHECKING:
    from toolchain.lock.file import Lock

_TAG = "Signature: 8a477f597d28d172789f06886806bc55"  # as the specification has it
EPOCH = 1767225600  # 2026-01-01T00:00:00Z: the one timestamp of all layers
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


def _cache(path: Path | str) -> Cache:
    where = Cache(Path(path).absolute())
    where.check(write=False)
    return where


@dataclass(frozen=True, kw_only=True)
class Request:
    """One invocation, resolved. Every verb gets this and nothing else.

    A field with an option is that option: a new one is a new field here, and a use of it somewhere.

    Args:
        base: recipe name (`debian13`) or a local OCI image (`oci:DIR`, `oci:DIR:TAG` or `docker-archive`-like ref).
        arch: OCI architectures, sorted.
        sources: overrides by source name: a path, `URL@SHA` or `distro:PACKAGE`.
        patches: patch files by source name, in order.
        gpus: LLVM names (`gfx942`), sorted.
        allow_binary, drop_binary: prebuilt things that may come in, and those that are left out, by name or path.
        pythons: versions (`3.13`) to build wheels for; empty for the base's own.
        jobs: compile jobs, 0 for as many as cores and memory allow.
        lock: with `locked` or a `lock_file`, the only things that may come in.
    """

    base: str = field(
        default="debian13",
        metadata=option(
            "base", help="Base recipe, or a local image as oci:DIR[:TAG|@DIGEST].", place="oci", counts=True,
            lock="always",
        ),
    )  # fmt: skip
    arch: tuple[str, ...] = field(
        default=("amd64",),
        metadata=option(
            "arch", kind="commas", help="OCI architectures, with commas between them.", counts=True, lock="always",
            read=reading.arches,
        ),
    )  # fmt: skip
    sources: dict[str, str] = field(
        default_factory=dict,
        metadata=option(
            "source", kind="pairs", metavar="NAME=WHERE", place="pair", of=reading.SOURCES, counts=True, lock="changed",
            help="NAME=PATH, NAME=URL@SHA or NAME=distro:PACKAGE; again for each source.",
            example=["llvm=../llvm-project"], read=reading.sources,
        ),
    )  # fmt: skip
    patches: dict[str, tuple[Path, ...]] = field(
        default_factory=dict,
        metadata=option(
            "patch", kind="pairs", metavar="NAME=FILE", place="pair", of=reading.SOURCES, counts=True, lock="changed",
            help="Patch for a source; again for each.", example=["triton=my.patch"], read=reading.patches,
        ),
    )  # fmt: skip
    triton: str | None = field(
        default=None,
        metadata=option(
            "triton", help="Triton version: it decides which LLVM is built, and with which components.",
            example="3.7.1", counts=True, lock="changed",
        ),
    )  # fmt: skip
    aotriton: str | None = field(
        default=None,
        metadata=option(
            "aotriton", help="AOTriton release: it decides the commits of Triton and LLVM.", example="0.11b",
            counts=True, lock="changed",
        ),
    )  # fmt: skip
    gpus: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "gpu", kind="commas", help="GPUs as gfx942,gfx1100 or by market name; ',' or ';' between.",
            example="gfx942,gfx1100", counts=True, lock="changed", read=reading.gpus,
        ),
    )  # fmt: skip
    select: str | None = field(
        default=None,
        metadata=option(
            "select", help="Only kernels that match this shell pattern.", example="attn_fwd*", counts=True,
            lock="changed",
        ),
    )  # fmt: skip
    limit: int | None = field(
        default=None,
        metadata=option(
            "limit", kind="count", least=1, help="At most this many kernels.", example=100, counts=True, lock="changed",
        ),
    )  # fmt: skip
    keep_going: bool = field(
        default=False,
        metadata=option(
            "keep-going", kind="flag", help="Record kernels that fail and go on.", counts=True, lock="changed",
        ),
    )  # fmt: skip
    kernel_timeout: float | None = field(
        default=None,
        metadata=option(
            "kernel-timeout", kind="seconds", least=1, help="Seconds for one kernel; no limit otherwise.", example=900,
            counts=True, lock="changed",
        ),
    )  # fmt: skip
    allow_binary: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "allow-binary", kind="names", metavar="NAME", help="Let a prebuilt thing in by name.",
            example=["libdevice"], counts=True, lock="changed",
        ),
    )  # fmt: skip
    drop_binary: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "drop-binary", kind="names", metavar="NAME", example=["libdevice"], counts=True, lock="changed",
            help="Leave a prebuilt file of a source out, by name or path.",
        ),
    )  # fmt: skip
    pythons: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "python", kind="commas", help="Python versions of Triton's wheels, as 3.13,3.12.", example="3.13,3.12",
            counts=True, lock="changed",
        ),
    )  # fmt: skip
    only: str = field(
        default="distribution",
        metadata=option(
            "only", counts=True, lock="changed",
            help="A part of LLVM: `tablegen`, the table generators alone, or `support`, LLVMSupport and LLVMDemangle.",
        ),
    )  # fmt: skip
    jobs: int = field(
        default=0,
        metadata=option("jobs", kind="count", short="j", least=0, help="Jobs; 0 for what cores and memory allow."),
    )
    offline: bool = field(default=False, metadata=option("offline", kind="flag", help="Never reach out."))
    compression: Literal["gzip", "zstd"] = field(
        default="gzip",
        metadata=option(
            "compression", help="gzip or zstd for published layers.", counts=True, lock="changed",
            read=reading.compression,
        ),
    )  # fmt: skip
    contract: bool = field(
        default=True,
        metadata=option(
            "contract", kind="flag", negated=True, environment=False, file=False, counts=True,
            help="Prove that the layer serves Triton before it counts.",
        ),
    )  # fmt: skip
    locked: bool = field(
        default=False, metadata=option("locked", kind="flag", help="Take in nothing that is not in toolchain.lock.")
    )
    lock_file: Path | None = field(
        default=None,
        metadata=option(
            "lock-file", kind="path", place="path", help="The lock, ./toolchain.lock otherwise; implies --locked.",
            example="toolchain.lock",
        ),
    )  # fmt: skip
    cache: Cache = field(
        metadata=option(
            "cache", kind="path", place="path", help="The tool's own folder.", example="/var/cache/toolchain",
            read=_cache,
        ),
    )  # fmt: skip
    json: bool = field(
        default=False,
        metadata=option("json", kind="flag", environment=False, file=False, help="Data on standard output, as JSON."),
    )
    lock: Lock | None = None


def options() -> tuple[Declared, ...]:
    """The options of a request."""
    return declared(Request)
