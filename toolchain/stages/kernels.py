"""Compile the FlashAttention kernels of a source tree to code objects, in containers of the Triton image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from toolchain.core import recipe
from toolchain.core.digest import write_atomically
from toolchain.core.recipe import digests
from toolchain.oci import labels
from toolchain.request.model import Request
from toolchain.sources.scan import Finding
from toolchain.sources.spec import SourceSpec
from toolchain.sources.tree import Source, require
from toolchain.stages.inputs import source_inputs, stage_inputs, triton_id
from toolchain.stages.kernel_check import check_numbers
from toolchain.stages.kernel_workers import (
    RECIPE,
    SCRATCH,
    WORKER_FILES,
    KernelProject,
    campaign_facts,
    campaign_inputs,
    compiling,
    limits,
    part_of_kernels,
)
from toolchain.stages.prebuilt import Intake, take_in
from toolchain.stages.stage import Built, ImageParts, LayerContent, Planned, Workspace
from toolchain.stages.triton_wheel import SITE

DEFAULT_GPUS = ("gfx1100", "gfx942")
# This is the folder of the code objects in the image.
PREFIX = "/usr/lib64/flash-attn-kernels"
_RULES = "aotriton/flash-attn.toml"
PROJECT = KernelProject(
    source="/src/kernels",
    path=(SITE, f"{RECIPE}/aotriton/standin"),
    environment={},
    recipe=(*WORKER_FILES, "aotriton/standin"),
    search=("",),
)


@dataclass(frozen=True)
class KernelsStage:
    """The stage that compiles AMD's FlashAttention Triton kernels from the flash-attn sdist."""

    name: str = "kernels"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[tuple[str, ...]]:
        source, gpus = sdist_source(request), request.gpus or DEFAULT_GPUS
        part = part_of_kernels(request)
        resolved = {"triton": dependencies["triton"].input_digest, "sources": source_inputs([source], request.patches)}
        more = {"recipe": digests(_RULES, *PROJECT.recipe), **campaign_inputs(request, gpus)}
        stem = "flash-attn-kernels-partial" if part else "flash-attn-kernels"
        triton = triton_id(dependencies["triton"])
        return Planned(
            name=self.name,
            image=f"{stem}-{source.short_id}-triton-{triton}-{dependencies['base'].details.name}",
            inputs=stage_inputs(self.name, request, resolved, more),
            sources=(source,),
            binaries=dependencies["triton"].binaries,
            partial=part,
            prefix=PREFIX,
            engine=True,
            details=gpus,
        )

    def build(
        self, planned: Planned[tuple[str, ...]], dependencies: Mapping[str, Built], workspace: Workspace
    ) -> Built:
        from toolchain.kernels.ledger import Ledger  # noqa: PLC0415 - a plan compiles nothing
        from toolchain.kernels.rules import load_rules  # noqa: PLC0415
        from toolchain.kernels.shards import shard_of  # noqa: PLC0415

        request = workspace.request
        workspace.step("source")
        source = workspace.fetch(planned.sources[0])
        intake, findings = take_in_sdist(source.path, request)
        planned = replace(planned, binaries=intake.binaries(planned.binaries))
        gpus = planned.details
        rules = load_rules(recipe.root() / _RULES, source.path, gpus, select=request.select, limit=request.limit)
        work = workspace.work()
        tree = work / "tree"
        out = tree / PREFIX.lstrip("/")
        out.mkdir(parents=True, exist_ok=True)
        at = PROJECT.compile_setup(source.path, dependencies["triton"], out, workspace, scratch=work / SCRATCH)
        workspace.step("compile")
        shared = workspace.shared_results(at.naming)
        with Ledger(work / "ledger.sqlite") as ledger:
            shard = shard_of(rules, request.shard, shared, limits(request))
            with compiling(at, workspace, shared) as workers:
                result = workers.run(shard.rules, ledger)
            shard.finish(shared, result.entries)
            numbers = check_numbers(result, rules.rules, out, ledger, workspace)
        if result.bad:
            parts = [planned.partial] if planned.partial else []
            planned = replace(planned, partial=", ".join([*parts, f"{len(result.bad)} kernels known bad"]))
        licence = next((p for p in (source.path / "LICENSE", source.path / "LICENSE.txt") if p.is_file()), None)
        if licence is not None:
            # A worker may have made a link at this path. `write_atomically` replaces the link and does not follow it.
            write_atomically(out / "LICENSE", licence.read_bytes())
        workspace.step("layer")
        return workspace.finish(
            planned,
            LayerContent(tree=tree),
            ImageParts(binaries=True, labels={labels.KERNELS: json.dumps(result.counts(), sort_keys=True)}),
            facts={
                **campaign_facts(result, request, gpus),
                "found_binaries": intake.rows(findings),
                "prefix": PREFIX,
                **({"numbers": numbers} if numbers else {}),
            },
        )


def take_in_sdist(tree: Path, request: Request) -> tuple[Intake, tuple[Finding, ...]]:
    """Check that a fetched sdist contains the kernels; return the decisions on its prebuilt files, and these files."""
    require(tree, "flash_attn/flash_attn_triton_amd")
    return take_in("flash-attn", tree, request, whole=True)


def sdist_source(request: Request) -> Source:
    """Return the source that the request names, or else the pinned sdist, without using the network."""
    spec = request.sources.get("flash-attn", SourceSpec(kind="pypi", where="flash-attn"))
    return request.locate("flash-attn", spec)
