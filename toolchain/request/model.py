"""The options of an invocation: from the command line, the environment, the file and the defaults, in that order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from toolchain.catalog.base_ref import BaseRef, parse_base
from toolchain.catalog.stages import CAMPAIGNS
from toolchain.core.cache import Cache, cache_of
from toolchain.request import option_values as reading
from toolchain.request.options import Declared, declared, option

if TYPE_CHECKING:
    from toolchain.sources.spec import SourceSpec
    from toolchain.sources.tree import Source


class HeldSource(Protocol):
    """A source of a lock, as far as a request looks at it: what a tag or a package was."""

    @property
    def ref(self) -> str:
        """The commit, or the package with its version."""

    @property
    def digest(self) -> str:
        """What its bytes must be."""

    @property
    def tag(self) -> str:
        """The tag that was requested."""

    @property
    def repository(self) -> str:
        """The repository that it was fetched from."""


class HeldLock(Protocol):
    """The lock that a request is held to; `lock.file.Lock` is the one that there is."""

    def source(self, name: str) -> HeldSource | None:
        """The source or wheel of that name."""


DEFAULT_BASE = BaseRef(recipe="debian13")
DEFAULT_GLIBC = "2.31"  # llvm-config/floors.toml


@dataclass(frozen=True, kw_only=True)
class Request:
    """One invocation, resolved. Every verb gets this and nothing else.

    A field with an option declares that option: add an option by adding a field here and using it.

    Args:
        base: a recipe (`debian13`) or a local image.
        glibc: of the oldest system that the LLVM layer must link on (`catalog.floors`); empty for a layer that is
            bound to `base`.
        arch: OCI architectures, sorted.
        sources: overrides by source name.
        patches: patch files by source name, in order.
        gpus: LLVM names (`gfx942`), sorted.
        rocm: major versions, in the order of the data; empty for the default.
        allow_binary, drop_binary: prebuilt inputs that are accepted, and those that are removed, by name or path.
        wheels: stages of wheels above Triton, in the order of the data; empty for every one.
        calls: the user's own calls for a Triton cache, as JSON; None for those of the data.
        pythons: versions (`3.13`) to build wheels for; empty for the base's own.
        jobs: compile jobs, 0 for as many as cores and memory allow.
        runner: starts the containers of checks and kernels; not part of the input digest, since the bytes are the same.
        mirrors: URL prefixes and their replacements; not part of the input digest, since digests name what is fetched.
        shard: which part of how many.
        lock: with `locked` or a `lock_file`, the only inputs that are accepted.
        check: number of kernels whose results are checked: 0 for all, None for none. Not part of the input digest.
        kernel_key: signs new results in the kernel store, and must have signed results that are used.
        shards: kernel stores that all kernels must come from; nothing is compiled.
    """

    base: BaseRef = field(
        default=DEFAULT_BASE,
        metadata=option(
            "base", place="oci", is_input=True, lock="always", explicit=True, read=parse_base,
            known=reading.known_bases,
            help="Base image: a recipe, or oci:DIR[:TAG|@DIGEST]. LLVM is then built for this base only."
            " \\[default: debian13, with a portable LLVM]",
        ),
    )  # fmt: skip
    glibc: str = field(
        default="",
        metadata=option(
            "glibc", metavar="FLOOR", is_input=True, lock="changed", explicit=True, known=reading.known_floors,
            example="2.31", help="Oldest glibc that the portable LLVM supports. \\[default: 2.31]",
        ),
    )  # fmt: skip
    arch: tuple[str, ...] = field(
        default=("amd64",),
        metadata=option(
            "arch", kind="commas", help="OCI architectures, comma-separated.", is_input=True, lock="always",
            read=reading.arches, known=reading.known_arches,
        ),
    )  # fmt: skip
    sources: Mapping[str, SourceSpec] = field(
        default_factory=dict,
        metadata=option(
            "source", panel="Versions and sources",
            kind="pairs", metavar="NAME=WHERE", place="pair", of=reading.SOURCES, is_input=True, lock="changed",
            help="Where a source comes from: PATH, URL@COMMIT, archive:COMMIT, distro:PACKAGE, pypi:VERSION, or"
            " stored:NAME@sha256:DIGEST from a bundle. Repeatable.",
            example=["llvm=../llvm-project"], is_path=reading.is_path, read=reading.sources,
        ),
    )  # fmt: skip
    patches: dict[str, tuple[Path, ...]] = field(
        default_factory=dict,
        metadata=option(
            "patch", panel="Versions and sources",
            kind="pairs", metavar="NAME=FILE", place="pair", of=reading.SOURCES, is_input=True, lock="changed",
            help="Patch to apply to a source. Repeatable.", example=["triton=my.patch"], read=reading.patches,
        ),
    )  # fmt: skip
    triton: str | None = field(
        default=None,
        metadata=option(
            "triton", panel="Versions and sources",
            metavar="VERSION|COMMIT|FOLDER", example="3.7.1", is_input=True, lock="changed", place="path",
            is_path=reading.is_triton_path, known=reading.known_tritons,
            help="Triton to build from source, with the LLVM that it pins: a version, commit or checkout. For `llvm`"
            " also a pin file.",
        ),
    )  # fmt: skip
    aotriton: str | None = field(
        default=None,
        metadata=option(
            "aotriton", panel="Versions and sources",
            help="AOTriton release; it sets the commits of Triton and LLVM.", example="0.13b",
            is_input=True, lock="changed", known=reading.known_aotritons,
        ),
    )  # fmt: skip
    gpus: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "gpu", kind="commas", help="GPUs by LLVM name or market name, separated by ',' or ';'."
            " \\[default: gfx942; for flash-attn gfx942,gfx1100]",
            example="gfx942,gfx1100", is_input=True, lock="changed", read=reading.gpus,
            known=reading.known_gpus,
        ),
    )  # fmt: skip
    rocm: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "rocm", kind="commas", metavar="MAJOR", example="6,7", is_input=True, lock="changed", read=reading.rocms,
            known=reading.known_rocms, help="ROCm major versions to link AOTriton's library for. \\[default: 6,7]",
        ),
    )  # fmt: skip
    without: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "without", panel="Kernels",
            kind="commas", metavar="COMPILER", example="flydsl", is_input=True, lock="changed",
            read=reading.without, known=reading.known_foreign,
            help="Skip the AOTriton kernels that a compiler other than Triton makes: flydsl, since 0.14.",
        ),
    )  # fmt: skip
    select: str | None = field(
        default=None,
        metadata=option(
            "select", panel="Kernels",
            help="Compile only kernels that match this shell pattern.", example="attn_fwd*", is_input=True,
            lock="changed",
        ),
    )  # fmt: skip
    limit: int | None = field(
        default=None,
        metadata=option(
            "limit", panel="Kernels",
            kind="count", least=1, example=100, is_input=True, lock="changed",
            help="Limit the number of kernels; rounded up to whole clusters.",
        ),
    )  # fmt: skip
    keep_going: bool = field(
        default=False,
        metadata=option(
            "keep-going", panel="Kernels",
            kind="flag", is_input=True, lock="changed",
            help="Continue when kernels fail, and mark them as known bad; exits with 12.",
        ),
    )  # fmt: skip
    check: int | None = field(
        default=None,
        metadata=option(
            "check", panel="Kernels",
            metavar="N|all", read=reading.check, example="300", file=True,
            help="Check the results of N kernels by emulation on the CPU; a wrong result fails the build with 24.",
        ),
    )  # fmt: skip
    kernel_timeout: float | None = field(
        default=None,
        metadata=option(
            "kernel-timeout", panel="Kernels",
            kind="seconds", least=1, read=reading.kernel_timeout, example=900, is_input=True, lock="changed",
            help="Time limit for one kernel, in seconds. \\[default: 3600]",
        ),
    )  # fmt: skip
    kernel_memory: int | None = field(
        default=None,
        metadata=option(
            "kernel-memory", panel="Kernels",
            kind="count", metavar="MB", least=64, example=4000, is_input=True, lock="changed",
            help="Memory limit for one kernel, in MB. \\[default: an equal share of the machine's memory]",
        ),
    )  # fmt: skip
    shard: tuple[int, int] | None = field(
        default=None,
        metadata=option(
            "shard", panel="Kernels",
            metavar="K/N", environment=True, file=False, is_input=True, read=reading.shard,
            help="Compile only part K of N, in whole clusters; `kernels merge` joins the parts.",
        ),
    )  # fmt: skip
    kernel_store: str | None = field(
        default=None,
        metadata=option(
            "kernel-store", panel="Kernels",
            metavar="WHERE", place="path", is_path=reading.is_store_folder,
            read=reading.kernel_store, example="kernel-store",
            help="Share results with other campaigns through a folder, oci:DIR or REGISTRY/NAME: reuse what is there,"
            " add the rest.",
        ),
    )  # fmt: skip
    kernel_key: Path | None = field(
        default=None,
        metadata=option(
            "kernel-key", panel="Kernels", kind="path", place="path", example="kernels-key.pub",
            help="Key (PEM) for --kernel-store: only results signed by it are used; a private key also signs new ones.",
        ),
    )  # fmt: skip
    scheduler: str | None = field(
        default=None,
        metadata=option(
            "scheduler", panel="Kernels",
            metavar="ADDRESS", example="tcp://127.0.0.1:8786", read=reading.scheduler,
            help="Compile on the workers of a Dask scheduler: tls://HOST:PORT, or tcp:// on loopback.",
        ),
    )  # fmt: skip
    allow_binary: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "allow-binary", panel="Trust",
            kind="names", metavar="NAME", help="Accept a prebuilt input by name. Repeatable.",
            example=["libdevice"], is_input=True, lock="changed",
        ),
    )  # fmt: skip
    drop_binary: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "drop-binary", panel="Trust",
            kind="names", metavar="NAME", example=["libdevice"], is_input=True, lock="changed",
            help="Remove a prebuilt file from a source, by name or path. Repeatable.",
        ),
    )  # fmt: skip
    pythons: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "python", kind="commas", help="Python versions to build Triton wheels for.", example="3.11,3.13",
            is_input=True, lock="changed", read=reading.pythons,
        ),
    )  # fmt: skip
    wheels: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "wheel", kind="commas", help="Wheels to build on Triton, for `all` and `wheels`. \\[default: all of them]",
            example="flash-attn,vllm", is_input=True, lock="changed", read=reading.wheels, known=reading.known_wheels,
        ),
    )  # fmt: skip
    calls: str | None = field(
        default=None,
        metadata=option(
            "calls", panel="Kernels",
            metavar="FILE", place="path", is_path=reading.is_calls_file, read=reading.calls, example="calls.toml",
            is_input=True, lock="changed",
            help="TOML file of `call` tables: the calls that `triton-cache` compiles kernels for, instead of the"
            " built-in list.",
        ),
    )  # fmt: skip
    only: str = field(
        default="distribution",
        metadata=option(
            "only", is_input=True, lock="changed", known=lambda: reading.PARTS,
            read=reading.only,
            help="Build only a part of LLVM: `tablegen` (all table generators), `mlir-tblgen`, or `support`"
            " (libraries).",
        ),
    )  # fmt: skip
    jobs: int = field(
        default=0,
        metadata=option(
            "jobs",
            panel="Machine",
            kind="count",
            short="j",
            least=0,
            help="Parallel jobs; 0 for as many as cores and memory allow.",
        ),
    )
    runner: Literal["buildah", "docker"] = field(
        default="buildah",
        metadata=option(
            "runner", panel="Machine",
            metavar="PROGRAM", known=lambda: reading.RUNNERS, read=reading.runner, example="docker",
            help="Program that runs contract checks and kernel workers: buildah or docker. Layers are always built by"
            " buildah.",
        ),
    )  # fmt: skip
    fresh: bool = field(
        default=False,
        metadata=option(
            "fresh", panel="Machine", kind="flag", help="Build without compiler cache, in a new build tree."
        ),
    )
    offline: bool = field(
        default=False, metadata=option("offline", panel="Machine", kind="flag", help="Do not use the network.")
    )
    contract: bool = field(
        default=True,
        metadata=option(
            "contract", panel="Trust",
            kind="flag", negated=True, environment=False, file=False, is_input=True,
            help="Test each finished layer with the contract check; a layer that fails is rejected.",
        ),
    )  # fmt: skip
    mirrors: tuple[tuple[str, str], ...] = field(
        default=(),
        metadata=option(
            "mirror", panel="Machine",
            kind="names", metavar="URL=URL", read=reading.mirrors,
            help="Fetch git repositories and archives whose URL begins with the first URL from the second. Repeatable.",
            example=["https://github.com/=https://git.example/github/"],
        ),
    )  # fmt: skip
    locked: bool = field(
        default=False,
        metadata=option("locked", panel="Trust", kind="flag", help="Refuse inputs that are not in toolchain.lock."),
    )
    lock_file: Path | None = field(
        default=None,
        metadata=option(
            "lock-file", panel="Trust",
            kind="path", place="path", help="Lock file; implies --locked. \\[default: toolchain.lock]",
            example="toolchain.lock",
        ),
    )  # fmt: skip
    cache: Cache = field(
        metadata=option(
            "cache", panel="Machine",
            kind="path", place="path", help="Cache folder of this tool.", example="/var/cache/toolchain",
            read=cache_of,
        ),
    )  # fmt: skip
    json: bool = field(
        default=False,
        metadata=option(
            "json",
            panel="Machine",
            kind="flag",
            environment=False,
            file=False,
            help="Print JSON on standard output.",
        ),
    )
    lock: HeldLock | None = None
    shards: tuple[str, ...] = ()
    looked_up: dict[tuple[str, SourceSpec], Source] | None = field(default=None, compare=False, repr=False)

    def locate(self, name: str, spec: SourceSpec) -> Source:
        """See `sources.resolve.locate`. In the request of a plan each source is looked up once.

        Raises:
            SourceError: see there.
        """
        from toolchain.sources.resolve import locate  # noqa: PLC0415 - help needs no sources

        known = {} if self.looked_up is None else self.looked_up
        if (name, spec) not in known:
            held = self.lock.source(name) if self.lock is not None else None
            in_lock = (held.ref, held.digest) if held is not None else ("", "")
            known[name, spec] = locate(name, spec, cache=self.cache, held=in_lock)
        return known[name, spec]

    def takes_tests(self, name: str) -> bool:
        """Whether a source's own tests come along: a patch may change them."""
        return bool(self.patches.get(name))


# Few builds need these; `kernels run` has them as options.
NOT_OF_BUILD = (
    "select", "limit", "keep_going", "kernel_timeout", "kernel_memory", "shard", "kernel_store", "kernel_key",
    "scheduler", "runner", "mirrors", "calls", "glibc", "lock_file",
)  # fmt: skip
"""Fields that `build` reads only from the environment and toolchain.toml."""


def options() -> tuple[Declared, ...]:
    """The options of a request."""
    return declared(Request)


def build_command(stage: str, words: Sequence[str]) -> list[str]:
    """A command that builds a stage with these options: `kernels run` or variables for those that `build` lacks."""
    options_elsewhere = {row.option.flag: row.option for row in options() if row.field in NOT_OF_BUILD}
    if options_elsewhere.keys().isdisjoint(words):
        return ["toolchain", "build", stage, *words]
    if stage in CAMPAIGNS:
        return ["toolchain", "kernels", "run", stage, *words]
    variables, others, rest = [], [], iter(words)
    for word in rest:
        if (option := options_elsewhere.get(word)) is None:
            others.append(word)
        else:
            variables.append(f"{option.variable}={1 if option.kind == 'flag' else next(rest)}")
    return ["env", *variables, "toolchain", "build", stage, *others]
