"""An LLVM that Triton makes code for a GPU with: one target's code generator, no MLIR, as one portable layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolchain.catalog.architectures import emulator, this_machine
from toolchain.catalog.codegen import Codegen
from toolchain.catalog.costs import ninja_of
from toolchain.core.errors import UnsupportedError
from toolchain.core.recipe import Recipe, digests
from toolchain.request.model import Request
from toolchain.sources.local import check_tree_form
from toolchain.sources.resolve import part_of
from toolchain.sources.tree import require
from toolchain.stages.codegen_choice import codegen_source
from toolchain.stages.llvm import PORTABLE_RECIPE, floor_labels, recipe_files, take_in_llvm
from toolchain.stages.stage import (
    Built,
    ContractCheck,
    ImageParts,
    LayerContent,
    Planned,
    Workspace,
    image_labels,
    source_inputs,
    stage_inputs,
)

RECIPE = "containerfiles/llvm-codegen"
# Tree, ccache and installed copy together: estimated from 22.1.8, whose steps it has nearly half of.
_DISK = 6_000_000_000
_WEIGHTS = {"configure": 40.0, "compile": 2200.0, "install": 30.0}
_CROSS_WEIGHTS = {**_WEIGHTS, "configure": 400.0}
# Programs that building it for another machine runs.
_GENERATORS = ("llvm-min-tblgen", "llvm-tblgen")


@dataclass(frozen=True, kw_only=True)
class CodegenLlvmDetails:
    """The decisions about an LLVM for a GPU.

    Args:
        revision: what the library that is built on it answers.
    """

    prefix: str
    cross: bool
    revision: str


@dataclass(frozen=True)
class CodegenLlvmStage:
    """See `Stage`."""

    rule: Codegen

    @property
    def name(self) -> str:
        """`llvm-amdgpu`."""
        return self.rule.llvm

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[CodegenLlvmDetails]:
        rule, arch = self.rule, request.arch[0]
        source, revision = codegen_source(rule, request)
        check_tree_form(source, "LLVM")
        prefix, cross = f"/usr/lib64/{rule.llvm}-{source.short_id}", arch != this_machine()
        if source.path is not None and source.path.is_dir():  # a checkout: look before the base is made
            require(source.path, "llvm/CMakeLists.txt")
        under = {name: dependencies[name].input_digest for name in ("base", "sysroot")}
        more = {
            "parts": list(part_of(self.name, tests=True).taken),
            "recipe": {**recipe_files(arch, cross=cross), **digests(*PORTABLE_RECIPE, RECIPE)},
            "prefix": prefix,
            "targets": [rule.target],
            "components": list(rule.components),
            "libraries": sorted(rule.links),
            "glibc": request.glibc,
            **({"native": list(_GENERATORS)} if cross else {}),
        }
        return Planned(
            name=self.name,
            image=f"{rule.llvm}-{source.short_id}",
            inputs=stage_inputs(
                self.name, request, {**under, "sources": source_inputs([source], request.patches)}, more
            ),
            sources=(source,),
            disk=_DISK,
            engine=True,
            has_contract_check=True,
            details=CodegenLlvmDetails(prefix=prefix, cross=cross, revision=revision),
        )

    def build(
        self, planned: Planned[CodegenLlvmDetails], dependencies: Mapping[str, Built], workspace: Workspace
    ) -> Built:
        request, rule, details = workspace.request, self.rule, planned.details
        arch, cross, prefix = request.arch[0], details.cross, details.prefix
        emulate = emulator(arch) if cross and request.contract else None
        workspace.step("source")
        source = workspace.fetch(planned.sources[0])
        require(source.path, "llvm/CMakeLists.txt")
        planned, intake_facts = take_in_llvm(source.path, request, planned)
        system = workspace.unpack(dependencies["sysroot"])
        tree = workspace.build(
            Recipe(
                name=rule.llvm,
                containerfile=f"{RECIPE}/Containerfile",
                base=workspace.image(dependencies["base"]),
                args={
                    "PREFIX": prefix,
                    "ARCH": arch,
                    "TARGETS": rule.target,
                    "COMPONENTS": ";".join(rule.components),
                    "ROOTS": ";".join(sorted(rule.links)),
                    **({"NATIVE": " ".join(_GENERATORS)} if cross else {}),
                    "GLIBC": request.glibc,
                    "JOBS": str(workspace.jobs("compile")),
                    "LINK_JOBS": str(workspace.jobs("link")),
                    "INPUT_DIGEST": str(planned.input_digest),
                },
                contexts={"llvm": source.path, "sysroot": system},
                cache_key=planned.tree_key,
                steps=_CROSS_WEIGHTS if cross else _WEIGHTS,
                ninja=ninja_of("llvm-codegen"),
            )
        )

        def check(image: str) -> Mapping[str, Any]:
            from toolchain.stages.contract import CrossTarget, check_part  # noqa: PLC0415 - only after hours

            workspace.step("contract")
            report = check_part(
                workspace.runner, image, prefix, "codegen", sorted(rule.links),
                log=workspace.log, on=CrossTarget(arch, emulate, system) if emulate else None, floor=system,
            )  # fmt: skip
            return {"contract": report.as_json()}

        return workspace.finish(
            planned,
            LayerContent(tree=tree),
            ImageParts(labels=image_labels(planned, revision=source.ref, more=floor_labels(request.glibc))),
            facts={"prefix": prefix, **intake_facts},
            check=ContractCheck(run=check, on=dependencies["base"]) if request.contract else None,
        )


def require_portable(rule: Codegen, request: Request) -> None:
    """Check that a request is for a portable LLVM.

    Raises:
        UnsupportedError: it is for a base.
    """
    if not request.glibc:
        raise UnsupportedError(
            f"{rule.llvm} and {rule.stage} are not built for a base",
            why="they are compiled against an old system, so that one of each serves every later one",
            fix="leave --base out",
        )
