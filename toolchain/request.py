"""What the user asked for: values from the command line, the environment, the file and the defaults, in that order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from toolchain import option_values as reading
from toolchain.cache import Cache
from toolchain.catalog.base_ref import BaseRef, parse_base
from toolchain.catalog.stages import CAMPAIGNS
from toolchain.options import Declared, declared, option

if TYPE_CHECKING:
    from toolchain.sources.spec import SourceSpec
    from toolchain.sources.tree import Source


class HeldSource(Protocol):
    """A source of a lock, as far as a request looks at it: the commit that a tag was."""

    @property
    def ref(self) -> str:
        """The commit."""

    @property
    def tag(self) -> str:
        """The tag that was asked for."""

    @property
    def repository(self) -> str:
        """Where it was fetched from."""


class HeldLock(Protocol):
    """The lock that a request is held to; `lock.file.Lock` is the one that there is."""

    def source(self, name: str) -> HeldSource | None:
        """The source or wheel of that name."""


DEFAULT_BASE = BaseRef(recipe="debian13")
DEFAULT_GLIBC = "2.31"  # llvm-config/floors.toml


def _cache(path: Path | str) -> Cache:
    where = Cache(Path(path).absolute())
    where.check(write=False)
    return where


@dataclass(frozen=True, kw_only=True)
class Request:
    """One invocation, resolved. Every verb gets this and nothing else.

    A field with an option is that option: a new one is a new field here, and a use of it somewhere.

    Args:
        base: a recipe (`debian13`) or a local image.
        glibc: of the oldest system that the LLVM layer must link on (`catalog.floors`); empty for a layer that is
            bound to `base`.
        arch: OCI architectures, sorted.
        sources: overrides by source name.
        patches: patch files by source name, in order.
        gpus: LLVM names (`gfx942`), sorted.
        rocm: major versions, in the order of the data; empty for the default.
        allow_binary, drop_binary: prebuilt things that may come in, and those that are left out, by name or path.
        wheels: stages of wheels above Triton, in the order of the data; empty for every one.
        calls: the user's own for a Triton cache, as JSON; None for those of the data.
        pythons: versions (`3.13`) to build wheels for; empty for the base's own.
        jobs: compile jobs, 0 for as many as cores and memory allow.
        runner: starts the containers of checks and kernels; no input, since what comes out is the same.
        mirrors: prefixes of URLs and what to ask in their place; no input, since digests name what is fetched.
        shard: which part of how many.
        lock: with `locked` or a `lock_file`, the only things that may come in.
        check: of how many kernels the numbers are checked: 0 for all, None for none. No input: the bytes are the same.
        kernel_key: signs what is added to the kernel store; what is taken must be signed by it.
        shards: kernel stores that the kernels must come from; nothing is compiled for them.
    """

    base: BaseRef = field(
        default=DEFAULT_BASE,
        metadata=option(
            "base", place="oci", is_input=True, lock="always", explicit=True, read=parse_base,
            known=reading.known_bases,
            help="Base recipe, or a local image as oci:DIR[:TAG|@DIGEST]; LLVM is then for this base alone."
            " \\[default: debian13, and a portable LLVM]",
        ),
    )  # fmt: skip
    glibc: str = field(
        default="",
        metadata=option(
            "glibc", metavar="FLOOR", is_input=True, lock="changed", explicit=True, known=reading.known_floors,
            help="The oldest glibc that a portable LLVM links with. \\[default: 2.31]",
        ),
    )  # fmt: skip
    arch: tuple[str, ...] = field(
        default=("amd64",),
        metadata=option(
            "arch", kind="commas", help="OCI architectures, with commas between them.", is_input=True, lock="always",
            read=reading.arches, known=reading.known_arches,
        ),
    )  # fmt: skip
    sources: Mapping[str, SourceSpec] = field(
        default_factory=dict,
        metadata=option(
            "source", panel="Versions and sources",
            kind="pairs", metavar="NAME=WHERE", place="pair", of=reading.SOURCES, is_input=True, lock="changed",
            help="NAME=PATH, URL@COMMIT, archive:COMMIT, distro:PACKAGE or pypi:VERSION; from a bundle also"
            " stored:NAME@sha256:DIGEST. Again for each source.",
            example=["llvm=../llvm-project"], is_path=reading.is_path, read=reading.sources,
        ),
    )  # fmt: skip
    patches: dict[str, tuple[Path, ...]] = field(
        default_factory=dict,
        metadata=option(
            "patch", panel="Versions and sources",
            kind="pairs", metavar="NAME=FILE", place="pair", of=reading.SOURCES, is_input=True, lock="changed",
            help="Patch for a source; again for each.", example=["triton=my.patch"], read=reading.patches,
        ),
    )  # fmt: skip
    triton: str | None = field(
        default=None,
        metadata=option(
            "triton", panel="Versions and sources",
            metavar="VERSION|COMMIT|FOLDER", example="3.7.1", is_input=True, lock="changed", place="path",
            is_path=reading.is_triton_path, known=reading.known_tritons,
            help="Triton from source, and its LLVM: a version, a commit, or a checkout. For llvm a pin file too.",
        ),
    )  # fmt: skip
    aotriton: str | None = field(
        default=None,
        metadata=option(
            "aotriton", panel="Versions and sources",
            help="AOTriton release: it decides the commits of Triton and LLVM.", example="0.13b",
            is_input=True, lock="changed", known=reading.known_aotritons,
        ),
    )  # fmt: skip
    gpus: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "gpu", kind="commas", help="GPUs as gfx942,gfx1100 or by market name; ',' or ';' between."
            " \\[default: gfx942, and gfx1100 too for flash-attn]",
            example="gfx942,gfx1100", is_input=True, lock="changed", read=reading.gpus,
            known=reading.known_gpus,
        ),
    )  # fmt: skip
    rocm: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "rocm", kind="commas", metavar="MAJOR", example="6,7", is_input=True, lock="changed", read=reading.rocms,
            known=reading.known_rocms, help="The ROCms that AOTriton's library is linked for. \\[default: 6,7]",
        ),
    )  # fmt: skip
    without: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "without", panel="Kernels",
            kind="commas", metavar="COMPILER", example="flydsl", is_input=True, lock="changed",
            read=reading.without, known=reading.known_foreign,
            help="Leave out the kernels of AOTriton that another compiler than Triton makes: flydsl, from 0.14 on.",
        ),
    )  # fmt: skip
    select: str | None = field(
        default=None,
        metadata=option(
            "select", panel="Kernels",
            help="Only kernels that match this shell pattern.", example="attn_fwd*", is_input=True,
            lock="changed",
        ),
    )  # fmt: skip
    limit: int | None = field(
        default=None,
        metadata=option(
            "limit", panel="Kernels",
            kind="count", least=1, example=100, is_input=True, lock="changed",
            help="Take kernels until there are this many; a cluster is taken whole.",
        ),
    )  # fmt: skip
    keep_going: bool = field(
        default=False,
        metadata=option(
            "keep-going", panel="Kernels",
            kind="flag", is_input=True, lock="changed",
            help="Continue when kernels fail, and mark them as known bad; the exit code is then 12.",
        ),
    )  # fmt: skip
    check: int | None = field(
        default=None,
        metadata=option(
            "check", panel="Kernels",
            metavar="N|all", read=reading.check, example="300", file=True,
            help="Check the numbers of N kernels on the CPU, without a GPU; a wrong one fails the build with 24.",
        ),
    )  # fmt: skip
    kernel_timeout: float | None = field(
        default=None,
        metadata=option(
            "kernel-timeout", panel="Kernels",
            kind="seconds", least=1, help="Seconds for one kernel; an hour by default.", example=900,
            is_input=True, lock="changed",
        ),
    )  # fmt: skip
    kernel_memory: int | None = field(
        default=None,
        metadata=option(
            "kernel-memory", panel="Kernels",
            kind="count", metavar="MB", least=64, example=4000, is_input=True, lock="changed",
            help="Megabytes of memory for one kernel; by default they share what the machine has.",
        ),
    )  # fmt: skip
    shard: tuple[int, int] | None = field(
        default=None,
        metadata=option(
            "shard", panel="Kernels",
            metavar="K/N", environment=True, file=False, is_input=True, read=reading.shard,
            help="Only the K-th of N parts of the kernels, in whole clusters; `kernels merge` joins them.",
        ),
    )  # fmt: skip
    kernel_store: str | None = field(
        default=None,
        metadata=option(
            "kernel-store", panel="Kernels",
            metavar="WHERE", place="path", is_path=reading.is_store_folder,
            read=reading.kernel_store, example="kernel-store",
            help="Share kernels with other campaigns by a folder, oci:DIR or REGISTRY/NAME: take what is there, add the"
            " rest.",
        ),
    )  # fmt: skip
    kernel_key: Path | None = field(
        default=None,
        metadata=option(
            "kernel-key", panel="Kernels", kind="path", place="path", example="kernels-key.pub",
            help="Key in PEM for `--kernel-store`: what is taken must be signed by it, and a private one signs what is"
            " added.",
        ),
    )  # fmt: skip
    scheduler: str | None = field(
        default=None,
        metadata=option(
            "scheduler", panel="Kernels",
            metavar="ADDRESS", example="tcp://127.0.0.1:8786", read=reading.scheduler,
            help="Compile kernels by the workers of a Dask scheduler, at tls://HOST:PORT or a loopback tcp://;"
            " needs --kernel-store.",
        ),
    )  # fmt: skip
    allow_binary: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "allow-binary", panel="Trust",
            kind="names", metavar="NAME", help="Allow a prebuilt thing by name.",
            example=["libdevice"], is_input=True, lock="changed",
        ),
    )  # fmt: skip
    drop_binary: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "drop-binary", panel="Trust",
            kind="names", metavar="NAME", example=["libdevice"], is_input=True, lock="changed",
            help="Leave a prebuilt file of a source out, by name or path.",
        ),
    )  # fmt: skip
    pythons: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "python", kind="commas", help="Python versions of Triton's wheels, as 3.11,3.13.", example="3.11,3.13",
            is_input=True, lock="changed", read=reading.pythons,
        ),
    )  # fmt: skip
    wheels: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "wheel", kind="commas", help="Wheels above Triton for `all` and `wheels`, as flash-attn,vllm.",
            example="flash-attn,vllm", is_input=True, lock="changed", read=reading.wheels, known=reading.known_wheels,
        ),
    )  # fmt: skip
    calls: str | None = field(
        default=None,
        metadata=option(
            "calls", panel="Kernels",
            metavar="FILE", place="path", is_path=reading.is_calls_file, read=reading.calls, example="calls.toml",
            is_input=True, lock="changed",
            help="Calls of a wheel whose kernels `triton-cache` compiles, in place of its own list: TOML, tables of"
            " `call`.",
        ),
    )  # fmt: skip
    only: str = field(
        default="distribution",
        metadata=option(
            "only", is_input=True, lock="changed", known=lambda: reading.PARTS,
            read=reading.only,
            help="A part of LLVM: `tablegen` (the table generators), `mlir-tblgen` alone, or `support` (libraries).",
        ),
    )  # fmt: skip
    jobs: int = field(
        default=0,
        metadata=option(
            "jobs", panel="Machine", kind="count", short="j", least=0, help="Jobs; 0 for what cores and memory allow."
        ),
    )
    runner: Literal["buildah", "docker", "podman"] = field(
        default="buildah",
        metadata=option(
            "runner", panel="Machine",
            metavar="PROGRAM", known=lambda: reading.RUNNERS, read=reading.runner, example="docker",
            help="What runs contract checks and kernel workers: buildah, docker or podman. buildah builds the layers.",
        ),
    )  # fmt: skip
    fresh: bool = field(
        default=False,
        metadata=option("fresh", panel="Machine", kind="flag", help="Use no compiler cache and no earlier tree."),
    )
    offline: bool = field(
        default=False, metadata=option("offline", panel="Machine", kind="flag", help="Use no network.")
    )
    contract: bool = field(
        default=True,
        metadata=option(
            "contract", panel="Trust",
            kind="flag", negated=True, environment=False, file=False, is_input=True,
            help="Check that the layer serves Triton before it is used.",
        ),
    )  # fmt: skip
    mirrors: tuple[tuple[str, str], ...] = field(
        default=(),
        metadata=option(
            "mirror", panel="Machine",
            kind="names", metavar="URL=URL", read=reading.mirrors,
            help="Fetch git and archives whose URL begins with the first from the second; again for each.",
            example=["https://github.com/=https://git.example/github/"],
        ),
    )  # fmt: skip
    locked: bool = field(
        default=False,
        metadata=option("locked", panel="Trust", kind="flag", help="Use only what is in toolchain.lock."),
    )
    lock_file: Path | None = field(
        default=None,
        metadata=option(
            "lock-file", panel="Trust",
            kind="path", place="path", help="The lock, ./toolchain.lock otherwise; implies --locked.",
            example="toolchain.lock",
        ),
    )  # fmt: skip
    cache: Cache = field(
        metadata=option(
            "cache", panel="Machine",
            kind="path", place="path", help="The tool's own folder.", example="/var/cache/toolchain",
            read=_cache,
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
            help="Data on standard output, as JSON.",
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
            known[name, spec] = locate(name, spec, cache=self.cache, offline=self.offline)
        return known[name, spec]

    def takes_tests(self, name: str) -> bool:
        """Whether a source's own tests come along: a patch may change them."""
        return bool(self.patches.get(name))


# Few builds need these; `kernels run` has them as options.
NOT_OF_BUILD = (
    "select", "limit", "keep_going", "kernel_timeout", "kernel_memory", "shard", "kernel_store", "kernel_key",
    "scheduler", "runner", "mirrors", "calls", "glibc", "lock_file",
)  # fmt: skip
"""Fields that `build` takes from the environment and toolchain.toml alone."""


def options() -> tuple[Declared, ...]:
    """The options of a request."""
    return declared(Request)


def build_command(stage: str, words: Sequence[str]) -> list[str]:
    """A call that builds a stage with these options: by `kernels run` or the environment where `build` lacks one."""
    options_elsewhere = {one.option.flag: one.option for one in options() if one.field in NOT_OF_BUILD}
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
