"""The table of stages, which determines targets, help texts, sources, licenses, labels and what is published together.

A stage consists of a row here, an entry in `stages/makers.py`, a module in `stages/`, and recipe files. Each LLVM
that Triton uses to generate code for a GPU (`catalog.codegen`) has two rows: the LLVM, and the library built on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolchain.catalog.codegen import codegens
from toolchain.catalog.wheel_rows import wheel_rows

ALL = "all"
WITH_KERNELS = ("kernels", "aotriton")
"""The stages that compile kernels, or take compiled kernels from kernel stores."""
CAMPAIGNS = (*WITH_KERNELS, "triton-cache")
"""The stages that accept the options of kernel campaigns."""


@dataclass(frozen=True, kw_only=True)
class StageRow:
    """A row of the table of stages.

    Args:
        name: the name of the stage as a target and in the output of `plan`.
        on: the stages that it may be built on, lowest first.
        sources: the names of its sources in `--source`, with the SPDX expression of each project's license.
        license: the SPDX expression of its layer's content; empty if none is declared.
        title: the title of its image, in which `{}` stands for a name or version, such as the name of the base; empty
            if the name of the image is the title.
        machines: the OCI architectures that it can be built for on a machine of the same architecture; empty for all.
        cross: whether it can also be built on a machine of another architecture (see `stages.makers.cross_machines`).
        packages: whether it consists of a distribution's packages, which locks and bundles list.
        in_all: whether the target `all` includes it.
        all_with: an option or source that must be given for `all` to include the stage.
        all_without: an option or source that must not be given for `all` to include the stage.
        all_under: another stage. `all` includes this stage only if the other one is built on it, or if the user gives a
            source, a patch or a part for this stage.
        published_with: the other targets that it is published with.
        costs: the `stage` of its rows in data/costs.toml; empty if that is its own name.
    """

    name: str
    on: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    license: str = ""
    title: str = ""
    machines: tuple[str, ...] = ()
    cross: bool = False
    packages: bool = False
    in_all: bool = False
    all_with: str = ""
    all_without: str = ""
    all_under: str = ""
    published_with: tuple[str, ...] = ()
    costs: str = ""


_LLVM_LICENSE = "Apache-2.0 WITH LLVM-exception"
_CODEGEN_LLVMS = tuple(
    StageRow(
        name=codegen.llvm,
        on=("base", "sysroot"),
        sources={codegen.llvm: _LLVM_LICENSE},
        license=_LLVM_LICENSE,
        machines=("amd64",),
        cross=True,
        costs="llvm-codegen",
    )
    for codegen in codegens()
)
_CODEGEN_LIBRARIES = tuple(
    StageRow(
        name=codegen.stage,
        on=("base", "sysroot", codegen.llvm),
        sources={"triton": "MIT"},
        license=f"MIT AND {_LLVM_LICENSE}",
        machines=("amd64",),
        cross=True,
        costs="codegen",
    )
    for codegen in codegens()
)

_WHEELS = tuple(
    StageRow(
        name=row.name,
        on=("base", "torch", "triton"),
        sources={row.name: row.license},
        license=row.license,
        machines=("amd64",),
        costs="wheel",
    )
    for row in wheel_rows()
)

STAGES: tuple[StageRow, ...] = (
    StageRow(name="base", title="base {}", packages=True),
    StageRow(name="sysroot", title="headers and libraries of {}", packages=True, published_with=("base",)),
    StageRow(name="python", title="CPython {}", packages=True),
    StageRow(
        name="llvm",
        on=("base", "sysroot"),
        sources={"llvm": _LLVM_LICENSE},
        license=_LLVM_LICENSE,
        in_all=True,
        all_under="triton",
        published_with=(ALL,),
    ),
    *_CODEGEN_LLVMS,
    *_CODEGEN_LIBRARIES,
    StageRow(
        name="triton",
        on=("base", "sysroot", "python", "llvm", *(row.name for row in (*_CODEGEN_LLVMS, *_CODEGEN_LIBRARIES))),
        sources={"triton": "MIT"},
        license="MIT",
        machines=("amd64",),
        cross=True,
        in_all=True,
    ),
    StageRow(
        name="kernels",
        on=("triton",),
        sources={"flash-attn": "BSD-3-Clause"},
        license="BSD-3-Clause",
        machines=("amd64",),
        in_all=True,
        all_without="aotriton",
        published_with=(ALL,),
    ),
    StageRow(
        name="hip",
        title="headers of HIP, and libraries to link with in its place, for ROCm {}",
        on=("base",),
        sources={"hip5": "MIT", "hip6": "MIT", "liblzma": "NOASSERTION"},
        machines=("amd64",),
    ),
    StageRow(
        name="aotriton",
        on=("base", "sysroot", "hip", "triton"),
        sources={"aotriton": "MIT", "aotriton-database": "MIT"},
        license="MIT",
        machines=("amd64",),
        in_all=True,
        all_with="aotriton",
        published_with=(ALL,),
    ),
    StageRow(name="torch", title="PyTorch for {}", machines=("amd64",), packages=True),
    *_WHEELS,
    StageRow(
        name="wheels",
        on=("base", "torch", "triton", *(row.name for row in _WHEELS)),
        license=" AND ".join(dict.fromkeys(row.license for row in _WHEELS)),
        machines=("amd64",),
        in_all=True,
        all_with="wheels",
        published_with=(ALL,),
        costs="wheel",
    ),
    StageRow(
        name="triton-cache",
        on=("base", "torch", "triton", *(row.name for row in _WHEELS)),
        license=" AND ".join(dict.fromkeys(row.license for row in _WHEELS)),
        machines=("amd64",),
    ),
)


def _by_name() -> dict[str, StageRow]:
    return {stage.name: stage for stage in STAGES}  # not cached, because tests add rows


def row(name: str) -> StageRow:
    return _by_name()[name]


def targets() -> tuple[str, ...]:
    """Return the targets that verbs accept: every stage, and `all`."""
    return (*(stage.name for stage in STAGES), ALL)


def choice() -> str:
    """Return text that lists all targets, for `--help`."""
    *names, last = targets()
    return f"{', '.join(names)} or {last}."


def source_names() -> tuple[str, ...]:
    """Return the source names that `--source` and `--patch` accept, sorted."""
    return tuple(sorted({name for stage in STAGES for name in stage.sources}))


def source_license(name: str) -> str:
    """Return the SPDX expression of a source's license; an empty string if no stage has the source."""
    return next((stage.sources[name] for stage in STAGES if name in stage.sources), "")


def involves(target: str, name: str) -> bool:
    """Return whether a target is the stage `name`, or may be built on it directly or indirectly; True for `all`."""
    if target == ALL:
        return True
    known = _by_name()
    return target == name or (target in known and any(involves(lower, name) for lower in known[target].on))


def of_packages() -> tuple[str, ...]:
    """Return the stages that consist of a distribution's packages, the base first."""
    return tuple(stage.name for stage in STAGES if stage.packages)


def published(target: str) -> tuple[str, ...]:
    """Return the stages to publish for a target: the stage with its name, and the stages published with it."""
    return tuple(stage.name for stage in STAGES if target in {stage.name, *stage.published_with})
