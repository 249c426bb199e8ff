"""Make the stages of the catalog by name.

Modules are imported when they are needed, because a plan needs few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from toolchain.catalog.codegen import codegens
from toolchain.catalog.stages import StageRow
from toolchain.catalog.wheel_rows import wheel_rows
from toolchain.request.model import Request
from toolchain.stages.stage import Stage

# This table names the class or the function that makes each stage. A class is called with the name of the stage. A
# function is called with the name and the request, and returns the stage, or None if the request needs no such stage.
MAKERS: dict[str, str] = {
    "base": "toolchain.stages.base:BaseStage",
    "sysroot": "toolchain.stages.unpacked:sysroot_stage",
    "python": "toolchain.stages.unpacked:python_stage",
    "llvm": "toolchain.stages.llvm:LlvmStage",
    "triton": "toolchain.stages.triton:triton_stage",
    "kernels": "toolchain.stages.kernels:KernelsStage",
    "hip": "toolchain.stages.hip:hip_stage",
    "aotriton": "toolchain.stages.aotriton:aotriton_stage",
    "torch": "toolchain.stages.unpacked:UnpackedStage",
    **{row.name: "toolchain.stages.wheel:WheelStage" for row in wheel_rows()},
    "wheels": "toolchain.stages.wheel:WheelsStage",
    "triton-cache": "toolchain.stages.triton_cache:TritonCacheStage",
    **{rule.llvm: "toolchain.stages.codegen_llvm:codegen_stage" for rule in codegens()},
    **{rule.stage: "toolchain.stages.codegen_library:codegen_stage" for rule in codegens()},
}
# These functions return the names of the stages below a stage, if these names depend on the request.
_STANDS_ON = {
    "triton": "toolchain.stages.triton:stands_on",
    "wheels": "toolchain.stages.wheel:stands_on",
    "triton-cache": "toolchain.stages.triton_cache:stands_on",
}


def make(name: str, request: Request) -> Stage | None:
    """Return the stage with this name; None if the request does not need it."""
    maker = _named(MAKERS[name])
    stage: Stage | None = maker(name) if isinstance(maker, type) else maker(name, request)
    return stage


def stands_on(row: StageRow, request: Request) -> tuple[str, ...]:
    """Return the names of the stages on which a stage is built for a request, lowest first."""
    if row.name not in _STANDS_ON:
        return row.on
    below: tuple[str, ...] = _named(_STANDS_ON[row.name])(request)
    return below


def cross_machines(row: StageRow, request: Request) -> tuple[str, ...]:
    """Return the architectures for which a stage with `cross` in its row can be cross-compiled; () for other stages."""
    if not row.cross:
        return ()
    from toolchain.stages.triton import cross_machines as of_triton  # noqa: PLC0415 - only rows with `cross` need it

    return of_triton(request)


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
