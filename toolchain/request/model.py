"""The options of an invocation, as a `Request` that `cli.build_options` makes from the values that the user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from toolchain.catalog.aotriton_generations import foreign_compilers
from toolchain.catalog.architectures import MACHINES
from toolchain.catalog.base_ref import BaseRef, parse_base
from toolchain.catalog.bases import load_bases
from toolchain.catalog.floors import load_floors
from toolchain.catalog.gpus import known_gpus
from toolchain.catalog.release_data import aotriton_releases
from toolchain.catalog.rocm import parse_rocms, rocms
from toolchain.catalog.stages import CAMPAIGNS
from toolchain.catalog.wheel_rows import wheel_rows
from toolchain.core.cache import Cache, cache_of
from toolchain.request import option_values as reading
from toolchain.request.declaration import Option, declared, option

if TYPE_CHECKING:
    from toolchain.engine.variation import Variation
    from toolchain.sources.spec import SourceSpec
    from toolchain.sources.tree import Source


class HeldSource(Protocol):
    """A source in a lock."""

    @property
    def ref(self) -> str:
        """Return the string that identifies the source (see `sources.tree.Source.ref`)."""

    @property
    def digest(self) -> str:
        """Return the digest, in the form of `sources.tree.Source.digest`."""

    @property
    def tag(self) -> str:
        """Return the requested tag; an empty string if none was requested."""

    @property
    def repository(self) -> str:
        """Return the URL of the source's repository or archive, or `debian`, `pypi` or `local`."""


class HeldLock(Protocol):
    """A lock that restricts the inputs of a request; `pipeline.lockfile.Lock` implements it."""

    def source(self, name: str) -> HeldSource | None:
        """Return the source or wheel with this name; None if the lock does not list it."""


DEFAULT_BASE = BaseRef(recipe="debian13")
DEFAULT_GLIBC = "2.31"  # a floor in llvm-config/floors.toml
_LONGEST = 10**9  # seconds; Python's timers accept at most about ten times as many


@dataclass(frozen=True, kw_only=True)
class Request:
    """The resolved options of an invocation. Each field made by `option(...)` declares an option.

    Args:
        base: a recipe (`debian13`) or a local image.
        glibc: the glibc version of the oldest system that the LLVM layer supports (`catalog.floors`); empty for a layer
            that works only on `base`.
        arch: the OCI architectures, sorted.
        sources: the user's sources, by the name of the default source that each replaces.
        patches: the patch files of each source, in the order in which they are applied.
        gpus: LLVM's names for the GPUs (such as `gfx942`), sorted; empty for the default of the stage.
        rocm: the major versions of ROCm, in the order of data/hip.toml; empty for the default ones.
        wheels: the stages of the wheels, in the order of data/wheels.toml; empty for the default of the target.
        calls: the user's calls for a Triton cache, as JSON; None for the built-in calls.
        pythons: the Python versions (such as `3.13`) to build wheels for; empty for the Python of the base.
        runner: the program that starts containers for checks and kernels.
        mirrors: pairs of a URL prefix and its replacement.
        shard: the number of the part of the kernels to compile, and the number of parts; None for all kernels.
        lock: the lock of `--locked` or `--lock-file`; inputs that it does not contain are refused.
        check: the number of kernels whose results a check tries: 0 for all, None for none.
        shards: the kernel stores to take all kernels from, without compiling any; empty for a normal build.
        variation: changed build conditions that the built bytes must not depend on (`reproduce --vary`).
        looked_up: the sources that the current plan has already looked up; None if they are not remembered.
    """

    base: BaseRef = option(
        "base", default=DEFAULT_BASE, place="oci", is_input=True, lock="always", explicit=True, read=parse_base,
        known=load_bases,
        help="Base image: a recipe, or oci:DIR[:TAG|@DIGEST]. LLVM is then built for this base only."
        " \\[default: debian13, with a portable LLVM]",
    )  # fmt: skip
    glibc: str = option(
        "glibc", default="", found=True, metavar="FLOOR", is_input=True, lock="changed", explicit=True,
        known=load_floors, help="Oldest glibc that the portable LLVM supports. \\[default: 2.31]",
    )  # fmt: skip
    arch: tuple[str, ...] = option(
        "arch", default=("amd64",), found=True, kind="commas", is_input=True, lock="always", read=reading.arches,
        known=lambda: MACHINES, help="OCI architectures, comma-separated.",
    )  # fmt: skip
    sources: Mapping[str, SourceSpec] = option(
        "source", factory=dict, panel="Versions and sources",
        kind="pairs", metavar="NAME=WHERE", place="pair", of=reading.SOURCES, is_input=True, lock="changed",
        help="Where a source comes from: PATH, URL@COMMIT, archive:COMMIT, distro:PACKAGE, pypi:VERSION, or"
        " stored:NAME@sha256:DIGEST from a bundle. Repeatable.", is_path=reading.is_path, read=reading.sources,
    )  # fmt: skip
    patches: dict[str, tuple[Path, ...]] = option(
        "patch", factory=dict, panel="Versions and sources",
        kind="pairs", metavar="NAME=FILE", place="pair", of=reading.SOURCES, is_input=True, lock="changed",
        help="Patch to apply to a source. Repeatable.", read=reading.patches,
    )  # fmt: skip
    triton: str | None = option(
        "triton", default=None, found=True, panel="Versions and sources",
        metavar="VERSION|COMMIT|FOLDER", is_input=True, lock="changed", place="path",
        is_path=reading.is_triton_path, known=reading.known_tritons,
        help="Triton to build from source, with the LLVM that it pins: a version, commit or checkout. For `llvm`"
        " also a pin file.",
    )  # fmt: skip
    aotriton: str | None = option(
        "aotriton", default=None, found=True, panel="Versions and sources",
        help="AOTriton release; it sets the commits of Triton and LLVM.",
        is_input=True, lock="changed", known=lambda: [row.name for row in aotriton_releases()],
    )  # fmt: skip
    gpus: tuple[str, ...] = option(
        "gpu", default=(), found=True, kind="commas", is_input=True, lock="changed", read=reading.gpus,
        known=known_gpus, help="GPUs by LLVM name or market name, separated by ',' or ';'."
        " \\[default: gfx942; for flash-attn gfx942,gfx1100]",
    )  # fmt: skip
    rocm: tuple[str, ...] = option(
        "rocm", default=(), found=True, kind="commas", metavar="MAJOR", is_input=True, lock="changed",
        read=parse_rocms, known=lambda: [row.major for row in rocms()],
        help="ROCm major versions to link AOTriton's library for. \\[default: 6,7]",
    )  # fmt: skip
    without: tuple[str, ...] = option(
        "without", default=(), found=True, panel="Kernels",
        kind="commas", metavar="COMPILER", is_input=True, lock="changed",
        closed=True, known=foreign_compilers,
        help="Skip the AOTriton kernels that a compiler other than Triton makes: flydsl, since 0.14.",
    )  # fmt: skip
    select: str | None = option(
        "select", default=None, campaign=True, found=True, panel="Kernels",
        is_input=True, lock="changed", help="Compile only kernels that match this shell pattern.",
    )  # fmt: skip
    limit: int | None = option(
        "limit", default=None, campaign=True, found=True, panel="Kernels",
        kind="count", least=1, is_input=True, lock="changed",
        help="Limit the number of kernels, which is rounded up to whole clusters.",
    )  # fmt: skip
    keep_going: bool = option(
        "keep-going", default=False, campaign=True, panel="Kernels",
        kind="flag", is_input=True, lock="changed",
        help="Continue when kernels fail, mark them as known bad, and exit with 12.",
    )  # fmt: skip
    check: int | None = option(
        "check", default=None, panel="Kernels",
        metavar="N|all", read=reading.check,
        help="Check the results of N kernels by emulation on the CPU; a wrong result fails the build with 24.",
    )  # fmt: skip
    kernel_timeout: float | None = option(
        "kernel-timeout", default=None, campaign=True, found=True, panel="Kernels",
        kind="seconds", least=1, most=_LONGEST, is_input=True, lock="changed",
        help="Time limit for one kernel, in seconds. \\[default: 3600]",
    )  # fmt: skip
    kernel_memory: int | None = option(
        "kernel-memory", default=None, campaign=True, found=True, panel="Kernels",
        kind="count", metavar="MB", least=64, is_input=True, lock="changed",
        help="Memory limit for one kernel, in MB. \\[default: no limit for a single kernel]",
    )  # fmt: skip
    shard: tuple[int, int] | None = option(
        "shard", default=None, campaign=True, panel="Kernels",
        metavar="K/N", file=False, is_input=True, read=reading.shard,
        help="Compile only part K of N, in whole clusters; `kernels merge` joins the parts.",
    )  # fmt: skip
    kernel_store: Path | None = option(
        "kernel-store", default=None, campaign=True, panel="Kernels", kind="path", metavar="DIR", place="path",
        read=reading.kernel_store,
        help="Share results with other campaigns through a folder: reuse its results, and add new ones.",
    )  # fmt: skip
    kernel_key: Path | None = option(
        "kernel-key", default=None, campaign=True, never_empty=True, panel="Kernels", kind="path", place="path",
        help="Key (PEM) for --kernel-store: only results signed by it are used; a private key also signs new ones.",
    )  # fmt: skip
    scheduler: str | None = option(
        "scheduler", default=None, campaign=True, panel="Kernels", metavar="ADDRESS", read=reading.scheduler,
        help="Compile on the workers of a Dask scheduler: tls://HOST:PORT, or tcp:// on loopback.",
    )  # fmt: skip
    allow_binary: tuple[str, ...] = option(
        "allow-binary", default=(), panel="Trust",
        kind="names", metavar="NAME", is_input=True, lock="changed",
        help="Accept a prebuilt input by name. Repeatable.",
    )  # fmt: skip
    drop_binary: tuple[str, ...] = option(
        "drop-binary", default=(), panel="Trust",
        kind="names", metavar="NAME", is_input=True, lock="changed",
        help="Remove a prebuilt file from a source, by name or path. Repeatable.",
    )  # fmt: skip
    pythons: tuple[str, ...] = option(
        "python", default=(), found=True, kind="commas", help="Python versions to build Triton wheels for.",
        is_input=True, lock="changed", read=reading.pythons,
    )  # fmt: skip
    wheels: tuple[str, ...] = option(
        "wheel", default=(), found=True, kind="commas", is_input=True, lock="changed", closed=True,
        known=lambda: [row.name for row in wheel_rows()],
        help="Wheels to build on Triton. \\[default: all for `wheels`, flash-attn for `triton-cache`, none for `all`]",
    )  # fmt: skip
    calls: str | None = option(
        "calls", default=None, panel="Kernels",
        metavar="FILE", place="path", is_path=reading.is_calls_file, read=reading.calls,
        is_input=True, lock="changed",
        help="TOML file of `call` tables: the calls that `triton-cache` compiles kernels for, instead of the"
        " built-in list.",
    )  # fmt: skip
    only: str = option(
        "only", default="distribution", found=True, is_input=True, lock="changed", closed=True,
        known=lambda: ("distribution", *reading.PARTS),
        help="Build only a part of LLVM: `tablegen` (all table generators), `mlir-tblgen`, or `support`"
        " (libraries).",
    )  # fmt: skip
    jobs: int = option(
        "jobs", default=0, found=True, panel="Machine", kind="count", short="j", least=0,
        help="Parallel jobs; 0 for as many as cores and memory allow.",
    )  # fmt: skip
    runner: Literal["buildah", "docker"] = option(
        "runner", default="buildah", panel="Machine",
        metavar="PROGRAM", known=lambda: ("buildah", "docker"), closed=True,
        help="Program that runs contract checks and kernel workers: buildah or docker. Layers are always built by"
        " buildah.",
    )  # fmt: skip
    fresh: bool = option(
        "fresh", default=False, panel="Machine", kind="flag",
        help="Build without the compiler cache, in a new build tree.",
    )  # fmt: skip
    offline: bool = option("offline", default=False, panel="Machine", kind="flag", help="Do not use the network.")
    contract: bool = option(
        "contract", default=True, panel="Trust",
        kind="flag", negated=True, environment=False, file=False, is_input=True,
        help="Test each finished layer with the contract check; a layer that fails is rejected.",
    )  # fmt: skip
    mirrors: tuple[tuple[str, str], ...] = option(
        "mirror", default=(), panel="Machine",
        kind="names", metavar="URL=URL", read=reading.mirrors,
        help="Fetch git repositories and archives whose URL begins with the first URL from the second. Repeatable.",
    )  # fmt: skip
    locked: bool = option(
        "locked", default=False, panel="Trust", kind="flag", help="Refuse inputs that are not in toolchain.lock."
    )
    lock_file: Path | None = option(
        "lock-file", default=None, panel="Trust",
        kind="path", place="path", help="Lock file; implies --locked. \\[default: toolchain.lock]",
    )  # fmt: skip
    cache: Cache = option(
        "cache", panel="Machine", kind="path", place="path", help="Cache folder of this tool.", read=cache_of
    )
    json: bool = option(
        "json", default=False, panel="Machine", kind="flag", environment=False, file=False,
        help="Print JSON on standard output.",
    )  # fmt: skip
    lock: HeldLock | None = None
    shards: tuple[Path, ...] = ()
    variation: Variation | None = None
    looked_up: dict[tuple[str, SourceSpec], Source] | None = field(default=None, compare=False, repr=False)

    def locate(self, name: str, spec: SourceSpec) -> Source:
        """Return a source as `sources.resolve.locate` does, but look it up only once if `looked_up` is set."""
        from toolchain.sources.resolve import locate  # noqa: PLC0415 - many commands use no sources

        known = {} if self.looked_up is None else self.looked_up
        if (name, spec) not in known:
            held = self.lock.source(name) if self.lock is not None else None
            in_lock = (held.ref, held.digest) if held is not None else ("", "")
            known[name, spec] = locate(name, spec, cache=self.cache, held=in_lock)
        return known[name, spec]

    def takes_tests(self, name: str) -> bool:
        """Return whether a source is fetched with its tests; only a patched one is, because a patch may change them."""
        return bool(self.patches.get(name))


def options() -> tuple[Option, ...]:
    """Return all options that the fields of `Request` declare."""
    return declared(Request)


def option_named(name: str) -> Option:
    """Return the option of `Request` with a name such as `lock-file`."""
    return next(option for option in options() if option.name == name)


def build_command(stage: str, words: Sequence[str]) -> list[str]:
    """Return the command that builds a stage with the options in `words`.

    The command is `kernels run` if the stage has kernel campaigns and `words` contains options for them. For a stage
    without campaigns, those options are omitted.
    """
    known, rest = {option.flag: option for option in options()}, iter(words)
    of_campaign, others = False, []
    for word in rest:
        option = known.get(word)
        # The value of an option may look like another option.
        value = [next(rest, "")] if option is not None and option.kind != "flag" else []
        if option is not None and option.campaign:
            of_campaign = True
        else:
            others += [word, *value]
    if of_campaign and stage in CAMPAIGNS:
        return ["toolchain", "kernels", "run", stage, *words]
    return ["toolchain", "build", stage, *others]
