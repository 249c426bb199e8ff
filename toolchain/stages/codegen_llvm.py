"""Choose the LLVMs with which a request's Triton generates code for GPUs, and build them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from toolchain.catalog.architectures import emulator, this_machine
from toolchain.catalog.codegen import Codegen, codegens
from toolchain.catalog.costs import ninja_of
from toolchain.catalog.pin_files import read_codegen_pins
from toolchain.catalog.release_data import CodegenPin
from toolchain.catalog.releases import aotriton_release, triton_release
from toolchain.core.errors import ConfigError, PinError, UnsupportedError
from toolchain.core.recipe import Recipe, digests
from toolchain.request.model import Request
from toolchain.sources.candidates import holder_of
from toolchain.sources.local import check_tree_form
from toolchain.sources.resolve import part_of
from toolchain.sources.spec import of_github
from toolchain.sources.store import Store
from toolchain.sources.tree import Source, require
from toolchain.stages.contract import Expected
from toolchain.stages.inputs import source_inputs, stage_inputs
from toolchain.stages.llvm import PORTABLE_RECIPE, build_llvm, recipe_files
from toolchain.stages.stage import Built, Planned, Workspace
from toolchain.stages.triton_origin import DEFAULT_TRITON, local_triton, triton_source
from toolchain.stages.triton_tree import Bindings, bindings_of

RECIPE = "containerfiles/llvm-codegen"
# This is the estimated size, in bytes, of the build tree, the ccache and the installed copy.
_DISK = 6_000_000_000
_WEIGHTS = {"configure": 40.0, "compile": 2200.0, "install": 30.0}
_CROSS_WEIGHTS = {**_WEIGHTS, "configure": 400.0}
# The build itself runs these programs. A build for another machine first builds them for this machine.
_GENERATORS = ("llvm-min-tblgen", "llvm-tblgen")


@dataclass(frozen=True, kw_only=True)
class CodegenLlvmDetails:
    """The decisions about an LLVM for GPUs of one vendor.

    Args:
        revision: the revision that the library built on this LLVM reports: `COMMIT-BUILD`.
    """

    cross: bool
    revision: str


@dataclass(frozen=True)
class CodegenLlvmStage:
    """The stage that builds the LLVM with which a Triton generates code for GPUs of one vendor."""

    rule: Codegen

    @property
    def name(self) -> str:
        return self.rule.llvm

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[CodegenLlvmDetails]:
        rule, arch = self.rule, request.arch[0]
        source, revision = codegen_source(rule, request)
        check_tree_form(source, "LLVM")
        prefix, cross = f"/usr/lib64/{rule.llvm}-{source.short_id}", arch != this_machine()
        if source.path is not None and source.path.is_dir():  # a wrong checkout is refused before the base is made
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
            prefix=prefix,
            details=CodegenLlvmDetails(cross=cross, revision=revision),
        )

    def build(
        self, planned: Planned[CodegenLlvmDetails], dependencies: Mapping[str, Built], workspace: Workspace
    ) -> Built:
        rule, request, cross = self.rule, workspace.request, planned.details.cross
        emulate = emulator(request.arch[0]) if cross and request.contract else None
        workspace.step("source")
        source = workspace.fetch(planned.sources[0])
        require(source.path, "llvm/CMakeLists.txt")
        recipe = Recipe(
            name=rule.llvm,
            containerfile=f"{RECIPE}/Containerfile",
            base=workspace.image(dependencies["base"]),
            args={
                "TARGETS": rule.target,
                "COMPONENTS": ";".join(rule.components),
                "ROOTS": ";".join(sorted(rule.links)),
                **({"NATIVE": " ".join(_GENERATORS)} if cross else {}),
            },
            steps=_CROSS_WEIGHTS if cross else _WEIGHTS,
            ninja=ninja_of("llvm-codegen"),
        )
        expected = Expected.of_part("codegen", sorted(rule.links))
        return build_llvm(
            planned, dependencies, workspace, source, recipe, expected=expected, emulate=emulate, facts={}
        )


def codegen_stage(name: str, request: Request) -> CodegenLlvmStage:
    return CodegenLlvmStage(require_portable(name, request))


def require_portable(name: str, request: Request) -> Codegen:
    """Return the rule of the stage with this name; raise UnsupportedError if the build is bound to a base."""
    rule = next(rule for rule in codegens() if name in {rule.llvm, rule.stage})
    if not request.glibc:
        raise UnsupportedError(
            "stage-not-for-base",
            f"{rule.llvm} and {rule.stage} are not built for a base",
            why="they are compiled against an old system, so that they run on all newer systems",
            fix="leave out --base",
        )
    return rule


def triton_here(request: Request) -> Path | None:
    """Return the tree of the request's Triton if it is a local folder or in the store, otherwise None."""
    if (folder := local_triton(request)) is not None:
        return folder
    spec = request.sources.get("triton")
    if spec is not None and spec.path is not None and not spec.path.exists():
        return None  # the plan of a stage that needs the folder reports the error
    source = triton_source(request)
    return Store(request.cache.store).stored_tree(source.digest) if source.digest is not None else None


def codegen_pins(request: Request) -> tuple[CodegenPin, ...]:
    """Return the pins of the LLVMs with which the request's Triton generates code for GPUs.

    The pins are read from the tree of Triton if it is available, otherwise from the tool's data.
    """
    tree = triton_here(request)
    return read_codegen_pins(tree) if tree is not None else _on_record(request)


def bindings(request: Request, tree: Path | None) -> Bindings:
    """Return the C++ bindings of the request's Triton.

    Args:
        tree: the tree of Triton, from which the bindings are read. If it is None, they are derived from the tool's
            data.
    """
    if tree is not None:
        return bindings_of(tree)
    # The first release with a separate LLVM for a GPU is also the first with nanobind and the stable ABI.
    return Bindings(project="nanobind", stable=True) if _on_record(request) else Bindings()


def _on_record(request: Request) -> tuple[CodegenPin, ...]:
    """Return the pins in the tool's data for the Triton of the request; an empty tuple if there are none."""
    wanted, spec = request.triton, request.sources.get("triton")
    if wanted is None and spec is None and not request.aotriton:
        wanted = DEFAULT_TRITON
    if wanted is None and request.aotriton:
        wanted = aotriton_release(request.aotriton, allow_unknown=True).triton or None
    if wanted is None and spec is not None and spec.kind == "git":
        wanted = spec.version
    try:
        return triton_release(wanted, allow_unknown=True).codegen if wanted else ()
    except UnsupportedError:
        return ()


def compare_pins(tree: Path, planned: Mapping[str, str], *, named: Collection[str] = ()) -> None:
    """Raise PinError if a fetched tree of Triton pins other LLVMs for GPUs than were planned.

    Args:
        planned: the planned revisions, `COMMIT-BUILD`, by target.
        named: the targets whose LLVM the user named. The tree must pin an LLVM for them, but at any revision.
    """
    pins = {pin.target: pin.revision for pin in read_codegen_pins(tree)}
    pins |= {target: revision for target, revision in planned.items() if target in named and target in pins}
    if pins == dict(planned):
        return
    differing = "; ".join(
        f"{target}: {pins.get(target, 'none')} in the tree, {planned.get(target, 'none')} planned"
        for target in sorted({*pins, *planned})
        if pins.get(target) != planned.get(target)
    )
    raise PinError(
        "plan-outdated",
        "the LLVMs for GPUs in this Triton's tree are not the planned ones",
        why=differing,
        fix="run the command again: the plan will then read the fetched tree",
    )


def rules_of(request: Request) -> tuple[Codegen, ...]:
    """Return the rules for the LLVMs that the request's Triton pins to generate code for GPUs."""
    return tuple(rule for pin in codegen_pins(request) for rule in codegens() if rule.target == pin.target)


def pin_of(rule: Codegen, request: Request) -> CodegenPin:
    """Return the pin of the LLVM for a rule's target in the request's Triton; raise UnsupportedError if it has none."""
    for pin in codegen_pins(request):
        if pin.target == rule.target:
            return pin
    raise UnsupportedError(
        "triton-without-codegen",
        f"this Triton uses no separate LLVM for {rule.target}",
        why=f"it has no {rule.pin_file}, because it generates this code with the LLVM that it links",
        fix=f"name a Triton that uses one, such as --triton 3.9.0, or an LLVM to try: --source {rule.llvm}=...",
    )


def codegen_source(rule: Codegen, request: Request) -> tuple[Source, str]:
    """Return the source of a rule's LLVM, and the revision that the library built on it reports.

    The network is not used, so the digest of the source is None while it is unknown which repository contains the
    commit. The revision is that of the pin. For an LLVM that the user names, it is the commit or else the short id of
    that LLVM, followed by `-0`.
    """
    spec, name = request.sources.get(rule.llvm), rule.llvm
    if spec is not None:
        source = request.locate(name, spec)
        commit = source.version if source.kind == "git" else source.commit
        return source, f"{commit or source.short_id}-0"
    pin = pin_of(rule, request)
    if pin.repository and pin.certainty == "verified":
        return request.locate(name, of_github(pin.repository, pin.llvm)), pin.revision
    named = dict.fromkeys([*([pin.repository] if pin.repository else []), *rule.repositories])
    urls = tuple(of_github(repository, pin.llvm).where for repository in named)
    held = request.lock.source(name) if request.lock is not None else None
    locked = held.repository if held is not None and held.ref == pin.llvm else ""
    parts = [part_of(name, tests=tests).name for tests in (False, True)]
    where = locked or holder_of(pin.llvm, urls, request.cache, parts=parts)
    located = request.locate(name, replace(of_github(rule.repositories[0], pin.llvm), where=where or urls[0]))
    return (located if where else replace(located, digest=None, locked=False, among=urls)), pin.revision


def refuse_unused(request: Request, rules: tuple[Codegen, ...]) -> None:
    """Raise ConfigError if the request names the source of an LLVM that has no rule in `rules`."""
    for rule in codegens():
        if rule.llvm in request.sources and rule not in rules:
            raise ConfigError(
                "source-unused",
                f"--source {rule.llvm}={request.sources[rule.llvm]} is not used by this Triton",
                why=f"it has no {rule.pin_file}: it generates code for {rule.target} with the LLVM that it links",
                fix="leave out this option, or name a Triton that uses such an LLVM; "
                f"to build only this LLVM: toolchain build {rule.llvm}",
            )
