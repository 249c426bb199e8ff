"""Which stages a goal needs, for which architecture."""

from __future__ import annotations

from dataclasses import replace

from toolchain.catalog.architectures import this_machine
from toolchain.errors import UnsupportedError
from toolchain.request import Request
from toolchain.stages.base import BaseStage
from toolchain.stages.kernels import KernelsStage
from toolchain.stages.llvm import LlvmStage
from toolchain.stages.stage import Stage
from toolchain.stages.sysroot import SysrootStage
from toolchain.stages.triton_source import TritonSourceStage, from_source
from toolchain.stages.triton_wheel import TritonWheelStage

GOALS = ("base", "sysroot", "llvm", "triton", "kernels", "aotriton", "all")


def stages_of(goal: str, request: Request) -> tuple[Stage, ...]:
    """The stages that `goal` needs for the request's one architecture, lowest first.

    LLVM for another machine than this one is built in this one's base, against the other's system; a portable one
    against an old system. Triton from source rests on the LLVM layer, a wheel from the index does not. `all` is
    everything that the request names sources for: AOTriton where a release or a source of it is given, else the
    FlashAttention kernels.

    Raises:
        UnsupportedError: no such stage, or not for this architecture.
    """
    if goal not in GOALS:
        raise UnsupportedError(f"no such stage: {goal!r}", fix=f"one of {', '.join(GOALS)}")
    (arch,) = request.arch
    foreign = arch != this_machine()
    system: tuple[Stage, ...] = (SysrootStage(),) if foreign or request.glibc else ()
    if goal == "base":
        return system if foreign else (BaseStage(),)
    if goal == "sysroot":
        if not system:
            raise UnsupportedError(
                f"LLVM for {arch} on base {request.base} is compiled against that base itself",
                fix="leave --base out for a portable LLVM, which is compiled against an old system",
            )
        return system
    if goal == "llvm":
        return (BaseStage(), *system, LlvmStage())
    if arch != "amd64" or foreign:
        raise UnsupportedError(
            f"{goal} is not built for {arch}",
            why="Triton and AOTriton, and the kernels they compile, are built for amd64 alone, on amd64;"
            " other architectures get their LLVM layer",
            fix=f"toolchain build llvm --arch {arch}, and {goal} with --arch amd64",
        )
    built = from_source(request)
    triton: Stage = TritonSourceStage() if built else TritonWheelStage()
    llvm: tuple[Stage, ...] = (*system, LlvmStage()) if built or goal == "all" else ()
    top: tuple[Stage, ...] = ()
    if goal == "aotriton" or (goal == "all" and (request.aotriton or "aotriton" in request.sources)):
        from toolchain.stages.aotriton import AotritonStage  # noqa: PLC0415 - brings the campaign in

        top = (AotritonStage(),)
    elif goal in {"kernels", "all"}:
        top = (KernelsStage(),)
    return (BaseStage(), *llvm, triton, *top)


def by_arch(request: Request) -> list[Request]:
    """The request for each of its architectures alone, in the order of their names."""
    return [replace(request, arch=(arch,)) for arch in sorted(request.arch)]


def request_of(stage: Stage, request: Request) -> Request:
    """The base is what builds run in, so it is for this machine whatever they are for."""
    return replace(request, arch=(this_machine(),)) if stage.name == "base" else request
