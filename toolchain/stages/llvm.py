"""Build LLVM, by default at the commit that Triton pins, as a layer with the prefix `/usr/lib64/llvm-triton-<id>`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain.catalog.architectures import emulator, this_machine
from toolchain.catalog.components import LlvmRequirements, check_generation
from toolchain.catalog.costs import ninja_of
from toolchain.catalog.floors import floor_of
from toolchain.core import console
from toolchain.core.digest import sha256_json
from toolchain.core.filesystem import source_text
from toolchain.core.recipe import COMPILER_CACHE, Recipe, digests
from toolchain.core.recipe import root as recipe_root
from toolchain.oci import labels
from toolchain.request.model import Request
from toolchain.sources.local import check_tree_form
from toolchain.sources.resolve import part_of
from toolchain.sources.tree import FetchedSource, Source, require
from toolchain.stages.contract import CrossTarget, Expected, check_layer
from toolchain.stages.inputs import source_inputs, stage_inputs
from toolchain.stages.llvm_choice import llvm_needs, llvm_source, triton_of
from toolchain.stages.llvm_subset import MLIR_TBLGEN, SUPPORT, TABLEGEN, LlvmSubset, subset_of
from toolchain.stages.llvm_version import major, major_of, version_of_tree
from toolchain.stages.prebuilt import take_in
from toolchain.stages.stage import Built, ContractCheck, ImageParts, LayerContent, Planned, Workspace

# The layer is built with NDEBUG. Without it, LLVM's headers declare some types with different members. Triton's default
# build type does not define NDEBUG, so users must build Triton with this environment variable.
NDEBUG_ADVICE = "TRITON_APPEND_CMAKE_ARGS=-DCMAKE_BUILD_TYPE=Release"
_EDITS = "llvm-config/edits.cmake"
# These recipe files are inputs of every LLVM layer. Those of the contract check are not inputs, so the check can
# change without a rebuild.
_RECIPE = (
    COMPILER_CACHE,
    "containerfiles/llvm",
    "llvm-config/archive_index.py",
    "llvm-config/closure.py",
    "llvm-config/common.cmake",
    _EDITS,
    "llvm-config/packages.py",
    "llvm-config/pch.cmake",
    "llvm-config/pch-headers.cmake",
    "llvm-config/pch-launcher.sh",
    "llvm-config/pch-scan.py",
)
COMPONENTS = "llvm-config/components.toml"
_EDIT = re.compile(r'^ *"([^|"]+)\|[^|"]+\|([^|"]+)\|([^|"]+)"$', re.MULTILINE)
_CROSS_RECIPE = ("llvm-config/cross.cmake",)
PORTABLE_RECIPE = ("containerfiles/llvm-portable", "llvm-config/portable.cmake")
# These are the relative durations of the steps of a first build.
_WEIGHTS = {"configure": 40.0, "compile": 6500.0, "install": 60.0}
# Configuring a cross build takes longer, because it also builds the source generators for this machine.
_CROSS_WEIGHTS = {**_WEIGHTS, "configure": 840.0}


@dataclass(frozen=True, kw_only=True)
class LlvmDetails:
    """The decisions about an LLVM.

    Args:
        by_version: whether the version of the LLVM determines which Triton's needs apply; see `triton_of`.
        version: the LLVM's major version. It may be None until the tree is fetched; then `needs` and `part` may change.
    """

    needs: LlvmRequirements
    by_version: bool
    version: int | None
    part: LlvmSubset
    cross: bool
    folder: str

    @property
    def serves(self) -> str:
        """The Triton for which the components of this LLVM were chosen.

        It is an empty string while the LLVM's version determines this Triton and is unknown.
        """
        return "" if self.by_version and self.version is None else self.needs.serves

    @property
    def note(self) -> str:
        """A description of how the parts of LLVM were chosen, for display; empty for the part `support`."""
        if self.part.name == SUPPORT:
            return ""
        return "parts by its own version" if self.version is None else f"parts for Triton {self.needs.serves}"

    def check(self, source: Source) -> None:
        """Raise an error if this LLVM is too old or too new for its Triton.

        Nothing is checked while the version of the LLVM is unknown, or for the part `support`.
        """
        if self.version is not None and self.part.name != SUPPORT:
            check_generation(self.needs, self.version, where=source.ref)


def refined(details: LlvmDetails, version: str, request: Request) -> LlvmDetails:
    """Return the details with the version of a fetched tree.

    If `by_version` is set and the version is not the planned one, the needs and the part are determined again.
    """
    number = major(version)
    if not details.by_version or number == details.version:
        return replace(details, version=number)
    needs = llvm_needs(request, number)
    return replace(details, version=number, needs=needs, part=subset_of(request.only, needs))


@dataclass(frozen=True)
class LlvmStage:
    """The stage that builds LLVM or a part of it.

    A portable layer is for an old system and all newer ones. Any other layer is for a base.
    """

    name: str = "llvm"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[LlvmDetails]:
        spec = request.sources.get("llvm")
        # These files are checked first, because reading the whole tree takes longer.
        if spec is not None and spec.path is not None and spec.path.is_dir():
            require(spec.path, "llvm/CMakeLists.txt", "mlir/CMakeLists.txt")
        source = llvm_source(request)
        check_tree_form(source, "LLVM")
        known = major_of(source)
        needs = llvm_needs(request, known)
        part, cross = subset_of(request.only, needs), request.arch[0] != this_machine()
        details = LlvmDetails(
            needs=needs,
            by_version=triton_of(request) is None,
            version=known,
            part=part,
            cross=cross,
            folder=next(iter(part.recipe), f"containerfiles/{'llvm-portable' if request.glibc else 'llvm'}"),
        )
        prefix = "" if source.pending else f"/usr/lib64/llvm-triton-{source.short_id}"
        details.check(source)
        if source.path is not None and source.path.is_dir():  # a wrong checkout is refused before the base is made
            _require(source.path, needs)
        against = ("sysroot",) if cross or request.glibc else ()
        under = {name: dependencies[name].input_digest for name in ("base", *against)}
        portable = PORTABLE_RECIPE if request.glibc else ()
        more = {
            "parts": list(part_of("llvm", tests=True).taken),
            "recipe": {**recipe_files(request.arch[0], cross=cross), **digests(*portable, *part.recipe)},
            "prefix": prefix,
            "projects": list(part.projects),
            "components": list(part.components) if part.target == "distribution" else [],
            "libraries": {"roots": needs.roots, "keep": needs.keep, "drop": needs.drop} if part.whole else {},
            # While it is unknown which Triton this LLVM is for, all of components.toml is an input, because the version
            # of the fetched tree determines which rows apply.
            **({} if details.serves else {"by_version": digests(COMPONENTS)}),
            "goal": part.target,
            **({"headers": list(part.headers)} if part.headers else {}),
            **({"glibc": request.glibc} if request.glibc else {}),
            **({"native": list(part.native)} if cross else {}),
        }
        bound = "" if request.glibc else f"-{dependencies['base'].details.name}"
        return Planned(
            name=self.name,
            image=f"{part.stem}-{source.short_id}{bound}",
            inputs=stage_inputs(
                self.name, request, {**under, "sources": source_inputs([source], request.patches)}, more
            ),
            sources=(source,),
            partial=part.label,
            disk=part.disk,
            engine=True,
            has_contract_check=_proves(part, cross),
            prefix=prefix,
            serves=details.serves,
            note=details.note if details.by_version else "",
            details=details,
        )

    def build(self, planned: Planned[LlvmDetails], dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        request, cross = workspace.request, planned.details.cross
        proved = request.contract and planned.has_contract_check
        emulate = emulator(request.arch[0]) if cross and proved else None
        workspace.step("source")
        source = workspace.fetch(planned.sources[0])
        version = version_of_tree(source.path)
        details = refined(planned.details, version, request)
        needs, part = details.needs, details.part
        details.check(source)
        _require(source.path, needs)
        if details.note:
            console.note(f"{source.ref} is LLVM {version}: {details.note}")
        libraries = {
            "ROOTS": ";".join(needs.roots),
            "KEEP_LIBRARIES": ",".join(needs.keep),
            "DROP_LIBRARIES": ",".join(needs.drop),
        }
        recipe = Recipe(
            name="llvm",
            containerfile=f"{details.folder}/Containerfile",
            base=workspace.image(dependencies["base"]),
            args={
                "PROJECTS": ";".join(part.projects),
                "COMPONENTS": ";".join(part.components),
                **(libraries if part.whole else {}),
                **({"CONTRACT": "OFF"} if part.whole and not proved else {}),
                **({"HEADERS": " ".join(part.headers)} if part.headers else {}),
                **({"NATIVE": " ".join(part.native)} if cross else {}),
                "GOAL": part.target,
            },
            steps=_CROSS_WEIGHTS if cross else _WEIGHTS,
            ninja=ninja_of("llvm", part.name),
        )
        expected = Expected.of_needs(needs) if part.whole else Expected.of_part(part.name, part.libraries)
        facts = {"version": version, "serves": needs.serves}
        return build_llvm(
            planned, dependencies, workspace, source, recipe,
            expected=expected if proved else None, emulate=emulate, facts=facts,
        )  # fmt: skip


def build_llvm(
    planned: Planned[Any],
    dependencies: Mapping[str, Built],
    workspace: Workspace,
    source: FetchedSource,
    recipe: Recipe,
    *,
    expected: Expected | None,
    emulate: Path | None,
    facts: Mapping[str, Any],
) -> Built:
    """Build an LLVM, make its image, and return the finished stage.

    Args:
        recipe: the recipe, without the arguments and contexts that are common to every LLVM.
        expected: what the contract check expects of the layer; None to skip the check.
        emulate: the emulator that runs the check's programs for another machine; None if the layer is for this machine
            or is not checked.
    """
    request, arch = workspace.request, workspace.request.arch[0]
    for file in unknown_to_edits(source.path):
        console.note(
            f"{source.ref}: llvm-config/edits.cmake finds no text to edit in {file}, so the file is not edited, and "
            "the layer's bytes may depend on the machine (`toolchain reproduce IMAGE --vary` shows whether they do)"
        )
    planned, intake_facts = take_in_llvm(source.path, request, planned)
    system = workspace.unpack(dependencies["sysroot"]) if "sysroot" in dependencies else None
    tree = workspace.build(
        replace(
            recipe,
            args={
                "PREFIX": planned.prefix,
                "ARCH": arch,
                **recipe.args,
                **({"GLIBC": request.glibc} if request.glibc else {}),
                "JOBS": str(workspace.jobs("compile")),
                "LINK_JOBS": str(workspace.jobs("link")),
                "INPUT_DIGEST": str(planned.input_digest),
            },
            contexts={"llvm": source.path, **({"sysroot": system} if system else {})},
            cache_key=planned.tree_key,
        )
    )

    def checked(image: str) -> Mapping[str, Any]:
        assert expected is not None  # noqa: S101 - without a check, `finish` gets no `checked`
        workspace.step("contract")
        where = CrossTarget(arch, emulate, system) if emulate and system else None
        floor, log = system if request.glibc else None, workspace.log
        report = check_layer(workspace.runner, image, planned.prefix, expected, log=log, on=where, floor=floor)
        return {"contract": report}

    return workspace.finish(
        planned,
        LayerContent(tree=tree),
        ImageParts(revision=source.ref, labels=floor_labels(request.glibc)),
        facts={"prefix": planned.prefix, **facts, **intake_facts},
        check=ContractCheck(run=checked, on=dependencies["base"]) if expected is not None else None,
    )


def recipe_files(arch: str, *, cross: bool) -> dict[str, str]:
    """Return the digests of the recipe files that every LLVM layer for an architecture depends on."""
    return digests(*_RECIPE, *(_CROSS_RECIPE if cross else ()), f"llvm-config/targets/{arch}.cmake")


def floor_labels(glibc: str) -> dict[str, str]:
    """Return the labels of a portable layer, which name the oldest supported system and describe how to build Triton.

    If `glibc` is empty, the layer is not portable and has no such labels.
    """
    if not glibc:
        return {}
    floor = floor_of(glibc)
    return {
        labels.GLIBC: floor.glibc,
        labels.GLIBCXX: floor.glibcxx,
        labels.BUILD_TYPE: "Release",
        labels.TRITON_BUILD: NDEBUG_ADVICE,
    }


def take_in_llvm(tree: Path, request: Request, planned: Planned) -> tuple[Planned, dict[str, Any]]:
    """Decide on the prebuilt files in LLVM's source.

    Returns:
        the plan with the names of the allowed files, and facts for the record that list the files. For the files in
        folders of LLVM's own tests, the facts contain only their number and a digest.
    """
    intake, findings = take_in("llvm", tree, request, tests=("test", "unittests"), whole=True)
    tests = [finding.as_json() for finding in findings if finding.file in intake.tests]
    listed = [finding for finding in findings if finding.file not in intake.tests]
    facts = {"found_binaries": intake.rows(listed), "found_in_tests": {"count": len(tests), "list": sha256_json(tests)}}
    return replace(planned, binaries=intake.binaries(planned.binaries)), facts


def unknown_to_edits(tree: Path) -> list[str]:
    """Return the files in a tree that llvm-config/edits.cmake names, but in which it finds no text to edit.

    Files that already contain the replacement text, and files that the tree lacks, are not returned.
    """
    known: dict[str, list[str]] = {}
    for file, *texts in _EDIT.findall((recipe_root() / _EDITS).read_text(encoding="utf-8")):
        known.setdefault(file, []).extend(texts)
    return [
        file
        for file, texts in known.items()
        if (tree / file).is_file() and not any(text in source_text(tree, file) for text in texts)
    ]


def _proves(part: LlvmSubset, cross: bool) -> bool:
    """Return whether the contract check is run for a part of LLVM.

    It is not run for table generators for this machine, because the builds that use them run them anyway.
    """
    return part.name not in {TABLEGEN, MLIR_TBLGEN} or cross


def _require(tree: Path, needs: LlvmRequirements) -> None:
    require(tree, "llvm/CMakeLists.txt", *(f"{project}/CMakeLists.txt" for project in needs.projects))
