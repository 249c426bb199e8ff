"""The stages, each described once: targets, help texts, sources, licences, labels, publishing and archives follow.

What builds a stage is named by text, `module:function`, and loaded when it is needed: the table is for every call.
A stage is a row here, a module below `stages/`, and what that runs in a container. Each LLVM with which Triton makes
code for a GPU (`catalog.codegen`) has two rows: that LLVM, and the library on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

from toolchain.catalog.codegen import codegens

ALL = "all"
WITH_KERNELS = ("kernels", "aotriton")
"""Those that compile kernels, or take them from where they were compiled."""


@dataclass(frozen=True, kw_only=True)
class StageRow:
    """A stage.

    Args:
        name: as in `plan`.
        make: `module:function`; of a request the stage, or None where the request needs none. In `module:function:word`
            the function gets that word first.
        on: the stages that it may stand on, lowest first.
        on_for: `module:function`; of a request those of them that it does stand on; empty for all.
        sources: the names of its sources, as `--source` takes them, with the SPDX expression of the project's licence.
        license: SPDX expression of what is in its layer; empty where the layer holds packages of many.
        title: of its image; empty where the image's own name is its title.
        machines: the OCI architectures that it is built for, on a machine of the same; empty for any, on any.
        cross: `module:function`; of a request the architectures that it is built for on other machines; empty for none.
        packages: whether it is a distribution's packages, resolved when it is made, which locks and bundles list.
        in_all: whether `all` goes up to it.
        all_with, all_without: only where this option or source is given, or is not.
        published_with: the targets besides itself with which `publish` takes it along.
        archive: `module:function` that writes its plain form; empty where it has none.
        costs: the stage whose rows of data/costs.toml are its own too; empty for itself.
    """

    name: str
    make: str
    on: tuple[str, ...] = ()
    on_for: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    license: str = ""
    title: str = ""
    machines: tuple[str, ...] = ()
    cross: str = ""
    packages: bool = False
    in_all: bool = False
    all_with: str = ""
    all_without: str = ""
    published_with: tuple[str, ...] = ()
    archive: str = ""
    costs: str = ""


_LLVM_LICENSE = "Apache-2.0 WITH LLVM-exception"
_CODEGEN_LLVMS = tuple(
    StageRow(
        name=one.llvm,
        make=f"toolchain.stages.codegen_llvm:of_request:{one.name}",
        on=("base", "sysroot"),
        sources={one.llvm: _LLVM_LICENSE},
        license=_LLVM_LICENSE,
        machines=("amd64",),
        cross="toolchain.stages.triton:cross_machines",
        costs="llvm-codegen",
    )
    for one in codegens()
)
_CODEGEN_LIBRARIES = tuple(
    StageRow(
        name=one.stage,
        make=f"toolchain.stages.codegen_library:of_request:{one.name}",
        on=("base", "sysroot", one.llvm),
        sources={"triton": "MIT"},
        license=f"MIT AND {_LLVM_LICENSE}",
        machines=("amd64",),
        cross="toolchain.stages.triton:cross_machines",
        costs="codegen",
    )
    for one in codegens()
)

STAGES: tuple[StageRow, ...] = (
    StageRow(name="base", make="toolchain.stages.base:of_request", title="base {}", packages=True),
    StageRow(
        name="sysroot",
        make="toolchain.stages.sysroot:of_request",
        title="headers and libraries of {}",
        packages=True,
        published_with=("base",),
    ),
    StageRow(
        name="python",
        make="toolchain.stages.python:of_request",
        title="CPython {}",
        packages=True,
    ),
    StageRow(
        name="llvm",
        make="toolchain.stages.llvm:of_request",
        on=("base", "sysroot"),
        sources={"llvm": _LLVM_LICENSE, "profile": "NOASSERTION"},
        license=_LLVM_LICENSE,
        in_all=True,
        published_with=(ALL,),
        archive="toolchain.publish.files:llvm",
    ),
    *_CODEGEN_LLVMS,
    *_CODEGEN_LIBRARIES,
    StageRow(
        name="triton",
        make="toolchain.stages.triton:of_request",
        on=("base", "sysroot", "python", "llvm", *(one.name for one in (*_CODEGEN_LLVMS, *_CODEGEN_LIBRARIES))),
        on_for="toolchain.stages.triton:stands_on",
        sources={"triton": "MIT"},
        license="MIT",
        machines=("amd64",),
        cross="toolchain.stages.triton:cross_machines",
        in_all=True,
        archive="toolchain.publish.files:wheels",
    ),
    StageRow(
        name="llvm-instrumented",
        make="toolchain.stages.llvm:instrumented",
        on=("base", "sysroot"),
        sources={"llvm": _LLVM_LICENSE},
        license=_LLVM_LICENSE,
        machines=("amd64",),
    ),
    StageRow(
        name="triton-instrumented",
        make="toolchain.stages.triton_portable:instrumented",
        on=("base", "sysroot", "python", "llvm-instrumented"),
        sources={"triton": "MIT"},
        license="MIT",
        machines=("amd64",),
    ),
    StageRow(
        name="profile",
        make="toolchain.stages.profile:of_request",
        on=("base", "llvm-instrumented", "triton-instrumented"),
        sources={"flash-attn": "BSD-3-Clause"},
        license="NOASSERTION",
        machines=("amd64",),
        archive="toolchain.publish.files:profile",
    ),
    StageRow(
        name="kernels",
        make="toolchain.stages.kernels:of_request",
        on=("triton",),
        sources={"flash-attn": "BSD-3-Clause"},
        license="BSD-3-Clause",
        machines=("amd64",),
        in_all=True,
        all_without="aotriton",
        published_with=(ALL,),
    ),
    StageRow(
        name="aotriton",
        make="toolchain.stages.aotriton:of_request",
        on=("base", "triton"),
        sources={"aotriton": "MIT"},
        license="MIT",
        machines=("amd64",),
        in_all=True,
        all_with="aotriton",
        published_with=(ALL,),
        archive="toolchain.publish.files:aotriton",
    ),
    StageRow(
        name="worker",
        make="toolchain.stages.worker:of_request",
        on=("triton",),
        sources={"flash-attn": "BSD-3-Clause", "aotriton": "MIT"},
        machines=("amd64",),
    ),
)


def row(name: str) -> StageRow:
    """The stage of that name.

    Raises:
        KeyError: there is none.
    """
    for one in STAGES:
        if one.name == name:
            return one
    raise KeyError(name)


def targets() -> tuple[str, ...]:
    """What can be asked for: every stage, and `all`."""
    return (*(one.name for one in STAGES), ALL)


def choice(*without: str) -> str:
    """The targets, as help texts list them."""
    *names, last = (name for name in targets() if name not in without)
    return f"{', '.join(names)} or {last}."


def source_names() -> tuple[str, ...]:
    """The names that `--source` and `--patch` know."""
    return tuple(sorted({name for one in STAGES for name in one.sources}))


def source_license(name: str) -> str:
    """SPDX expression of a source's project, not of where the source came from; empty where none is known."""
    return next((one.sources[name] for one in STAGES if name in one.sources), "")


def involves(target: str, name: str) -> bool:
    """Whether a target is a stage, or may stand on it, directly or not."""
    if target == ALL:
        return True
    known = {one.name: one for one in STAGES}
    return target == name or (target in known and any(involves(other, name) for other in known[target].on))


def of_packages() -> tuple[str, ...]:
    """The stages that are a distribution's packages, the base first."""
    return tuple(one.name for one in STAGES if one.packages)


def published(target: str) -> tuple[str, ...]:
    """The stages that `publish` takes for a target: the one asked for, and those that go with it."""
    return tuple(one.name for one in STAGES if target in {one.name, *one.published_with})


def loaded(reference: str) -> Any:
    """What a text `module:function` names; of `module:function:word` the function with the word as first argument."""
    module, name, *words = reference.split(":")
    found = getattr(import_module(module), name)
    return partial(found, *words) if words else found
