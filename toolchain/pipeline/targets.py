"""Find the stages that a target needs, for each architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from toolchain.catalog import stages as catalog
from toolchain.catalog.architectures import this_machine
from toolchain.catalog.stages import ALL, StageRow
from toolchain.core.errors import UnsupportedError, did_you_mean
from toolchain.request.model import Request
from toolchain.stages.makers import cross_machines, make, stands_on
from toolchain.stages.stage import Stage

_Value = TypeVar("_Value")


def stages_of(target: str, request: Request) -> tuple[Stage, ...]:
    """Return the stages that `target` needs for the request's one architecture, lowest first.

    Stages for another machine are built in this machine's base, against the sysroot of the other machine.

    The target `all` stands for Triton; for AOTriton if the request names a release or a source of it, and otherwise for
    the FlashAttention kernels; for the wheels if the request names any; and for LLVM if Triton is built on it, or if
    the request names a source, a patch or a part of LLVM.

    UnsupportedError is raised if there is no such target, if it cannot be built for the architecture or the base, or if
    the request needs no stage for it.
    """
    if target not in catalog.targets():
        near = did_you_mean(target, catalog.targets())
        raise UnsupportedError(
            "unknown-stage", f"{target!r} is not a stage{near}", fix=f"use one of {', '.join(catalog.targets())}"
        )
    (arch,) = request.arch
    foreign = arch != this_machine()
    # A base only exists for this machine. For another machine, the target `base` stands for the sysroot, against which
    # LLVM is compiled.
    named = "sysroot" if target == "base" and foreign else target
    rows = [stage for stage in catalog.STAGES if (_in_all(stage, request) if target == ALL else stage.name == named)]
    for row in rows:
        cross = cross_machines(row, request)
        if row.machines and (arch not in cross if foreign else arch not in row.machines):
            raise UnsupportedError(
                "stage-not-for-architecture",
                f"{target} is not built for {arch}",
                why="LLVM is built for every architecture, and Triton from source on a portable LLVM also for arm64;"
                " kernels, AOTriton and wheels are built only for amd64, on amd64",
                fix=f"toolchain build llvm --arch {arch}, and {target} with --arch {','.join(row.machines)}",
            )
    made: dict[str, Stage] = {}
    for row in rows:
        _add(row, request, made)
    if not made:
        raise UnsupportedError(
            "stage-not-for-base",
            f"{target} is not needed for {arch}, because builds are compiled against the base {request.base} itself",
            fix="leave --base out for a portable LLVM, which is compiled against an old system",
        )
    return tuple(made.values())


def _add(row: StageRow, request: Request, made: dict[str, Stage]) -> None:
    """Add a stage to `made` after the stages below it, unless it is there already or the request does not need it."""
    stage: Stage | None = None if row.name in made else make(row.name, request)
    if stage is None:
        return
    for name in stands_on(row, request):
        _add(catalog.row(name), request, made)
    made[row.name] = stage


def below(stage: Stage, request: Request, stages: Mapping[str, _Value]) -> dict[str, _Value]:
    """Return the entries of `stages` for the base and for the stages on which `stage` is built.

    Other stages of the same target are not included, so that a stage is the same for every target.

    Args:
        stages: a value for each stage that comes earlier in the target, by the stage's name.
    """
    names = {"base", *stands_on(catalog.row(stage.name), request)}
    return {name: value for name, value in stages.items() if name in names}


def _in_all(row: StageRow, request: Request) -> bool:
    with_, without = row.all_with, row.all_without
    if not row.in_all or (with_ and not _given(with_, request)) or (without and _given(without, request)):
        return False
    if not row.all_under or row.name in stands_on(catalog.row(row.all_under), request):
        return True
    return row.name in request.sources or row.name in request.patches or request.only != Request.only


def _given(name: str, request: Request) -> bool:
    return name in request.sources or bool(getattr(request, name, None))


def by_arch(request: Request) -> list[Request]:
    """Return a request for each architecture of `request`, sorted by the names of the architectures."""
    return [replace(request, arch=(arch,)) for arch in sorted(request.arch)]


def request_of(stage: Stage, request: Request) -> Request:
    """Return the request with which a stage is planned and built.

    The base is always requested for this machine's architecture, because builds run in the base.
    """
    return replace(request, arch=(this_machine(),)) if stage.name == "base" else request
