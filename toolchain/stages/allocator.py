"""mimalloc, from source: a compiler that takes its memory from it needs up to a tenth less CPU time for a kernel.

It is preloaded into the processes that compile kernels on this machine. It changes no byte of a code object, so what
they make does not depend on it; their record names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolchain.errors import BuildError, ContractError
from toolchain.recipe import Mount, Recipe, digests
from toolchain.request import Request
from toolchain.sources.resolve import locate
from toolchain.sources.spec import SourceSpec
from toolchain.sources.tree import require
from toolchain.stages.base import base_label
from toolchain.stages.stage import Built, Planned, Stage, Workspace, common_inputs, image_labels, source_inputs

SOURCE = "mimalloc"
STAGE = "allocator"
PREFIX = "/usr/lib/toolchain/allocator"
LIBRARY = "libmimalloc.so"
RECIPE = "containerfiles/allocator"
_DISK = 200_000_000
_WEIGHTS = {"configure": 3.0, "compile": 4.0}
# Whose malloc a preloaded process has, and what that says of itself.
_ASK = """
import ctypes, os
here, own = ctypes.CDLL(None), ctypes.CDLL(os.environ["LD_PRELOAD"])
here.malloc.restype, own.mi_is_in_heap_region.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
own.mi_is_in_heap_region.restype = ctypes.c_bool
print("allocator", own.mi_version() if own.mi_is_in_heap_region(here.malloc(100)) else "is not used")
"""


@dataclass(frozen=True)
class AllocatorStage:
    """See `Stage`."""

    name: str = STAGE

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned:
        spec = request.sources.get(SOURCE, SourceSpec(kind="distro", where=SOURCE))
        source = locate(SOURCE, spec, cache=request.cache, offline=request.offline)
        sources, base = source_inputs([source], request.patches), dependencies["base"].input_digest
        inputs: dict[str, Any] | None = None
        if sources is not None and base is not None:
            inputs = {
                **common_inputs(self.name, request),
                "base": base,
                "sources": sources,
                "recipe": digests(RECIPE),
            }
        return Planned(
            name=self.name,
            image=f"mimalloc-{source.short_id}-{base_label(request)}",
            inputs=inputs,
            sources=(source,),
            disk=_DISK,
            engine=True,
            has_contract_check=True,
        )

    def build(self, planned: Planned, dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        workspace.require_disk(_DISK)
        workspace.step("source")
        source = workspace.fetch(planned.sources[0])
        require(source.path, "CMakeLists.txt", "include/mimalloc.h")
        out = workspace.build(
            Recipe(
                name=self.name,
                containerfile=f"{RECIPE}/Containerfile",
                base=workspace.image(dependencies["base"]),
                args={
                    "PREFIX": PREFIX,
                    "JOBS": str(workspace.jobs("compile")),
                    "INPUT_DIGEST": str(planned.input_digest),
                },
                contexts={SOURCE: source.path},
                steps=_WEIGHTS,
            )
        )
        if not _library(out).is_file():
            raise BuildError(f"building mimalloc left no {LIBRARY}", fix="see the log")
        return workspace.finish(
            planned,
            tree=out,
            facts={"bytes": _library(out).stat().st_size},
            labels=image_labels(planned, revision=source.ref),
            check=_check(workspace, _library(out)) if workspace.request.contract else None,
            check_on=dependencies["base"],
        )


def of_request(_: Request) -> Stage:
    """The stage; every request has it."""
    return AllocatorStage()


def under_kernels(request: Request) -> tuple[str, ...]:
    """What the `kernels` stage stands on: on the allocator where the request names its source."""
    return ("triton", *_asked(request))


def under_aotriton(request: Request) -> tuple[str, ...]:
    """What the `aotriton` stage stands on; alike."""
    return ("base", "triton", *_asked(request))


def _asked(request: Request) -> tuple[str, ...]:
    return (STAGE,) if SOURCE in request.sources else ()


@dataclass(frozen=True)
class Preload:
    """What a compile process is given to take its memory from an allocator; nothing of both without one."""

    mounts: tuple[Mount, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


NOTHING = Preload()


def facts(dependencies: Mapping[str, Built]) -> dict[str, Any]:
    """What the record of a stage tells of the allocator that its workers had; nothing without one.

    Returns:
        `{"allocator": {"version", "input_digest"}}`.
    """
    built = dependencies.get(STAGE)
    if built is None:
        return {}
    (source,) = built.planned.sources
    return {"allocator": {"version": f"mimalloc {source.version}".strip(), "input_digest": built.input_digest}}


def preload(dependencies: Mapping[str, Built], workspace: Workspace) -> Preload:
    """The preload of a stage that stands on the allocator; of any other one an empty one."""
    built = dependencies.get(STAGE)
    return NOTHING if built is None else _preload(_library(workspace.unpack(built)))


def _preload(library: Path) -> Preload:
    place = f"{PREFIX}/{LIBRARY}"
    return Preload((Mount(library, place, read_only=True),), {"LD_PRELOAD": place})


def _library(tree: Path) -> Path:
    return tree / PREFIX.lstrip("/") / LIBRARY


def _check(workspace: Workspace, library: Path) -> Callable[[str], Mapping[str, Any]]:
    def check(image: str) -> Mapping[str, Any]:
        workspace.step("contract")
        given = _preload(library)
        done = workspace.runner.run(
            image, ["python3", "-c", _ASK], env=given.variables, log=workspace.log, capture=True, check=False
        )
        said = (done.stdout.strip().splitlines() or [""])[-1]
        if done.returncode != 0 or not said.startswith("allocator ") or said.endswith("is not used"):
            raise ContractError(
                "a process cannot take its memory from this mimalloc",
                why="\n".join(done.tail),
                fix=f"leave --source {SOURCE} out; it saves time and changes nothing else. The log: {workspace.log}",
            )
        return {"contract": {"version": said.removeprefix("allocator ")}}

    return check
