"""Build the library with which Triton generates code for GPUs of one vendor.

The library is built from some files of Triton and links an LLVM of its own. Other files of Triton are not inputs.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain.catalog.architectures import this_machine
from toolchain.catalog.codegen import Codegen
from toolchain.core.digest import sha256_file
from toolchain.core.errors import BuildError, ContractError, HostileInputError, PolicyError, SourceError
from toolchain.core.filesystem import copy_built, emptied, read_built
from toolchain.core.recipe import COMPILER_CACHE, Recipe, digests
from toolchain.request.model import Request
from toolchain.stages.codegen_llvm import require_portable, triton_here
from toolchain.stages.inputs import stage_inputs
from toolchain.stages.prebuilt import choices, take_in
from toolchain.stages.stage import Built, ContractCheck, ImageParts, LayerContent, Planned, Workspace
from toolchain.stages.triton_origin import triton_source

RECIPE = "containerfiles/triton-codegen"
# The recipe of Triton's wheels uses these files too.
_TOOLCHAIN = (
    COMPILER_CACHE,
    "containerfiles/triton-portable/toolchain.cmake",
    "llvm-config/portable.cmake",
    "llvm-config/cross.cmake",
)
_DISK = 1_000_000_000
_WEIGHTS = {"configure": 10.0, "compile": 60.0}
_ASK = """
import ctypes, sys
answer = getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])
answer.restype = ctypes.c_char_p
print("answers", answer().decode())
"""


@dataclass(frozen=True)
class CodegenLibraryStage:
    """The stage that builds the library that a Triton loads to generate code for GPUs of one vendor."""

    rule: Codegen

    @property
    def name(self) -> str:
        return self.rule.stage

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned:
        rule, source, llvm = self.rule, triton_source(request), dependencies[self.rule.llvm]
        tree = triton_here(request)
        under = {name: dependencies[name].input_digest for name in ("base", "sysroot", rule.llvm)}
        patches = [sha256_file(path) for path in request.patches.get("triton", ())]
        files = None
        if tree is not None:
            # The patches are not applied to this tree, so the digests of the patches are inputs too.
            files = {name: sha256_file(tree / name) for name in read_files(tree, rule, patched=bool(patches))}
        more = {
            **({"patches": patches} if patches else {}),
            "recipe": digests(RECIPE, *_TOOLCHAIN),
            "rule": [rule.project, rule.library, rule.exports, rule.revision],
            "revision": llvm.details.revision,
            "glibc": request.glibc,
            "binaries": choices("triton", request),
        }
        return Planned(
            name=self.name,
            image=f"triton-{rule.stage}-{llvm.sources[0].short_id}",
            inputs=stage_inputs(self.name, request, {**under, "files": files}, more),
            sources=(source,),
            disk=_DISK,
            engine=True,
            has_contract_check=True,
        )

    def build(self, planned: Planned, dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        from toolchain.stages.binary_checks import check_codegen  # noqa: PLC0415 - plans read no ELF

        request, rule, arch = workspace.request, self.rule, workspace.request.arch[0]
        revision = dependencies[rule.llvm].planned.details.revision
        workspace.step("source")
        source = workspace.fetch(planned.sources[0])
        files = take_files(source.path, rule, workspace.work() / "triton")
        intake, findings = take_in("triton", files, request)
        if findings:
            raise PolicyError(
                "prebuilt-in-library",
                f"the files of Triton from which {rule.library} is built include prebuilt files",
                why=", ".join(finding.file for finding in findings),
                fix="remove these files from the source, because the library is built only from source",
            )
        out = workspace.build(
            library_recipe(
                rule,
                base=workspace.image(dependencies["base"]),
                llvm=workspace.image(dependencies[rule.llvm]),
                prefix=str(dependencies[rule.llvm].facts["prefix"]),
                revision=revision,
                arch=arch,
                files=files,
                sysroot=workspace.unpack(dependencies["sysroot"]),
                jobs=str(workspace.jobs("compile")),
                input_digest=str(planned.input_digest),
                cache_key=planned.tree_key,
            )
        )
        library = out / rule.library
        if not library.is_file():
            raise BuildError("library-missing", f"building {rule.library} left no such file", fix="see the log")
        facts = check_codegen(
            library, revision=revision, exports=exported_by(out / rule.exports), arch=arch, glibc=request.glibc
        )
        tree = emptied(workspace.work() / "tree")
        place = tree / where(rule).lstrip("/")
        place.mkdir(parents=True)
        for name in (rule.library, rule.exports, "LICENSE"):
            if (out / name).is_file():
                copy_built(out, name, place / name)

        def check(image: str) -> Mapping[str, Any]:
            workspace.step("contract")
            return {"contract": {"answers": _answer(workspace, image, rule, revision)}}

        return workspace.finish(
            replace(planned, binaries=intake.binaries(planned.binaries)),
            LayerContent(tree=tree),
            ImageParts(revision=source.ref),
            facts={"codegen": facts},
            # A library for another machine cannot be loaded here.
            check=ContractCheck(run=check, on=dependencies["base"])
            if request.contract and arch == this_machine()
            else None,
        )


def codegen_stage(name: str, request: Request) -> CodegenLibraryStage:
    return CodegenLibraryStage(require_portable(name, request))


def where(rule: Codegen) -> str:
    """Return the folder that contains the library in its image."""
    return f"/usr/lib/toolchain/{rule.stage}"


def read_files(tree: Path, rule: Codegen, *, patched: bool = False) -> list[str]:
    """Return the files of Triton that the build of the library reads, as sorted paths relative to the tree.

    SourceError is raised if one of them is missing or is not a plain file.

    Args:
        patched: whether patches will be applied to the tree. If so, missing files are not an error, because a patch may
            add them.
    """
    names = set()
    for name in rule.reads:
        path = tree / name
        inside = [path] if path.is_file() else [file for file in path.rglob("*") if not file.is_dir()]
        if not inside and not patched:
            raise SourceError(
                "codegen-source-missing",
                f"this Triton has no {name}, from which {rule.library} is built",
                why=f"its {rule.pin_file} says that it uses this library",
                fix="give a complete checkout; if Triton has moved these files, correct toolchain/data/codegen.toml",
            )
        names |= {file.relative_to(tree).as_posix() for file in inside}
    if links := [name for name in sorted(names) if (tree / name).is_symlink() or not (tree / name).is_file()]:
        raise SourceError(
            "codegen-source-link",
            f"{links[0]} of this Triton is not a plain file",
            why=f"{rule.library} is built from it",
            fix="give a checkout that contains the file itself",
        )
    return sorted(names)


def library_recipe(
    rule: Codegen,
    *,
    base: str,
    llvm: str,
    prefix: str,
    revision: str,
    files: Path,
    sysroot: Path,
    cache_key: str,
    arch: str = "amd64",
    jobs: str = "",
    input_digest: str = "",
) -> Recipe:
    """Return the recipe that builds the library.

    Args:
        base, llvm: the engine's names for the images of the base and the LLVM.
        files: the result of `take_files`.
        sysroot: the folder with the headers and libraries of the oldest system on which the library must run.
        jobs: the number of compile jobs; if it is empty, ninja decides.
    """
    return Recipe(
        name=rule.stage,
        containerfile=f"{RECIPE}/Containerfile",
        base=base,
        images={"LLVM": llvm},
        args={
            "PREFIX": prefix,
            "ARCH": arch,
            "PROJECT": rule.project,
            "LIBRARY": rule.library,
            "EXPORTS": rule.exports,
            "REVISION": f"{rule.revision}={revision}",
            "JOBS": jobs,
            "INPUT_DIGEST": input_digest,
        },
        contexts={"triton": files, "sysroot": sysroot},
        cache_key=cache_key,
        steps=_WEIGHTS,
    )


def take_files(tree: Path, rule: Codegen, into: Path) -> Path:
    """Copy the files that `read_files` returns into the folder `into`, and return this folder.

    The build gets only this copy, so it cannot read Triton's other files.
    """
    emptied(into)
    for name in read_files(tree, rule):
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tree / name, into / name)
    return into


def _answer(workspace: Workspace, image: str, rule: Codegen, revision: str) -> str:
    """Return the revision that the library reports in a fresh container.

    ContractError is raised if the library does not load, or if it reports a revision other than `revision`.
    """
    words = ["python3", "-c", _ASK, f"{where(rule)}/{rule.library}", rule.answers]
    done = workspace.runner.run(image, words, log=workspace.log, capture=True, check=False, env={"LD_BIND_NOW": "1"})
    last = (done.stdout.strip().splitlines() or [""])[-1]
    answer = last.removeprefix("answers ") if done.returncode == 0 and last.startswith("answers ") else ""
    if not answer:
        raise ContractError(
            "library-not-loadable", f"{rule.library} does not load", why="\n".join(done.tail[-10:]), fix="see the log"
        )
    if answer != revision:
        raise ContractError(
            "codegen-revision-differs",
            f"{rule.library} reports a different revision from the one it was built for",
            why=f"{rule.answers}() returns {answer}, not {revision}",
            fix=f"see how {rule.project} uses {rule.revision}",
        )
    return answer


_SCRIPT = re.compile(r"\{\s*global:((?:\s*[A-Za-z_][A-Za-z0-9_]*;)+)\s*local:\s*\*;\s*\};?\s*")


def exported_by(script: Path) -> tuple[str, ...]:
    """Return the global symbols of a version script, sorted.

    ContractError is raised unless the script lists each global symbol by its full name and makes all others local.
    """
    try:
        match = _SCRIPT.fullmatch(read_built(script.parent, script.name).strip())
    except HostileInputError:
        match = None
    if match is None:
        raise ContractError(
            "codegen-version-script",
            f"the build of the library left no version script {script.name} in the expected form",
            why="the script must list each global symbol by its full name, and make all others local",
            fix="check whether Triton now writes another script, and correct toolchain/data/codegen.toml",
        )
    return tuple(sorted(name.strip() for name in match[1].split(";") if name.strip()))
