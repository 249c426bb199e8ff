"""The maker of each stage of the table. A module is imported with its stage: plans need few of them."""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from toolchain.catalog.architectures import this_machine
from toolchain.catalog.codegen import Codegen, codegens
from toolchain.catalog.stages import StageRow
from toolchain.catalog.wheel_rows import WheelRow, wheel_rows
from toolchain.request.model import Request
from toolchain.stages.stage import Stage


def make(name: str, request: Request) -> Stage | None:
    """The stage of that name; None if the request needs none of it.

    Raises:
        ToolchainError: the request has no such stage.
    """
    return MAKERS[name](request)


def stands_on(row: StageRow, request: Request) -> tuple[str, ...]:
    """The stages that one stands on for a request, lowest first."""
    if row.name == "wheels":
        from toolchain.stages.wheel import stands_on as under_wheels

        return under_wheels(request)
    if row.name == "triton-cache":
        from toolchain.stages.triton_cache import stands_on as under_cache

        return under_cache(request)
    if row.name != "triton":
        return row.on
    from toolchain.stages import triton

    return triton.stands_on(request)


def cross_machines(row: StageRow, request: Request) -> tuple[str, ...]:
    """The architectures that a stage with machines of its own is built for on other machines."""
    if not row.cross:
        return ()
    from toolchain.stages import triton

    return triton.cross_machines(request)


def _base(_: Request) -> Stage:
    from toolchain.stages.base import BaseStage

    return BaseStage()


def _sysroot(request: Request) -> Stage | None:
    """For LLVM of another machine and for a portable one; the base serves the others."""
    from toolchain.stages.sysroot import SysrootStage

    return SysrootStage() if request.glibc or request.arch[0] != this_machine() else None


def _python(request: Request) -> Stage | None:
    """For Triton from source on a portable LLVM; a base has its own Python."""
    from toolchain.stages.python import PythonStage
    from toolchain.stages.triton_origin import from_source

    return PythonStage() if request.glibc and from_source(request) else None


def _llvm(_: Request) -> Stage:
    from toolchain.stages.llvm import LlvmStage

    return LlvmStage()


def _triton(request: Request) -> Stage:
    from toolchain.stages import triton

    return triton.of_request(request)


def _kernels(_: Request) -> Stage:
    from toolchain.stages.kernels import KernelsStage

    return KernelsStage()


def _hip(request: Request) -> Stage | None:
    """For a library that is bound to no base; a named base has its own HIP."""
    from toolchain.stages.aotriton_library import refuse_rocm
    from toolchain.stages.hip import HipStage

    refuse_rocm(request)
    return HipStage() if request.glibc else None


def _aotriton(request: Request) -> Stage:
    from toolchain.stages.aotriton import AotritonStage
    from toolchain.stages.aotriton_library import refuse_unbuildable

    # Told here, before the pins of what it stands on.
    refuse_unbuildable(request)
    return AotritonStage()


def _torch(_: Request) -> Stage:
    from toolchain.stages.torch import TorchStage

    return TorchStage()


def _wheel(row: WheelRow, _: Request) -> Stage:
    from toolchain.stages.wheel import WheelStage

    return WheelStage(row)


def _wheels(_: Request) -> Stage:
    from toolchain.stages.wheel import WheelsStage

    return WheelsStage()


def _triton_cache(_: Request) -> Stage:
    from toolchain.stages.triton_cache import TritonCacheStage

    return TritonCacheStage()


def _codegen_llvm(rule: Codegen, request: Request) -> Stage:
    from toolchain.stages.codegen_llvm import CodegenLlvmStage, require_portable

    require_portable(rule, request)
    return CodegenLlvmStage(rule)


def _codegen_library(rule: Codegen, request: Request) -> Stage:
    from toolchain.stages.codegen_library import CodegenLibraryStage
    from toolchain.stages.codegen_llvm import require_portable

    require_portable(rule, request)
    return CodegenLibraryStage(rule)


MAKERS: dict[str, Callable[[Request], Stage | None]] = {
    "base": _base,
    "sysroot": _sysroot,
    "python": _python,
    "llvm": _llvm,
    "triton": _triton,
    "kernels": _kernels,
    "hip": _hip,
    "aotriton": _aotriton,
    "torch": _torch,
    **{row.name: partial(_wheel, row) for row in wheel_rows()},
    "wheels": _wheels,
    "triton-cache": _triton_cache,
    **{rule.llvm: partial(_codegen_llvm, rule) for rule in codegens()},
    **{rule.stage: partial(_codegen_library, rule) for rule in codegens()},
}
