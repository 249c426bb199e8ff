"""Build Triton from source on the LLVM layer.

The results are wheels, which are put into the store as files, and an image with the base and one of the wheels. The
image for another machine contains only the wheel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain.catalog.bases import base_recipe
from toolchain.catalog.components import check_files
from toolchain.core import recipe, strict_json
from toolchain.core.errors import BuildError, ContractError, UnsupportedError
from toolchain.core.filesystem import emptied, read_built
from toolchain.core.recipe import COMPILER_CACHE, Mount, Recipe, digests
from toolchain.oci.image import read_layers
from toolchain.oci.layer_files import layer_files
from toolchain.oci.layout import Layout
from toolchain.request.model import Request
from toolchain.sources.local import check_tree_form
from toolchain.sources.scan import Finding
from toolchain.sources.tree import FetchedSource
from toolchain.stages.codegen_llvm import compare_pins
from toolchain.stages.inputs import source_inputs, stage_inputs
from toolchain.stages.llvm import refined as refined_llvm
from toolchain.stages.prebuilt import Intake, choices, names_allowed, take_in
from toolchain.stages.stage import Built, ContractCheck, ImageParts, LayerContent, Planned, Workspace
from toolchain.stages.triton import TritonDetails, refined
from toolchain.stages.triton_edits import check_edits
from toolchain.stages.triton_report import lit
from toolchain.stages.triton_tree import check_no_download, check_setup, check_tree, require_tree
from toolchain.stages.triton_wheel import SITE, unzip
from toolchain.stages.unpacked import own_python, versions_of
from toolchain.stages.wheels import SBOM_WRITER, TRITON, keep_wheel, wheel_folder, wheel_sources, wheels_with_sbom

# The contract check compiles a kernel for each of these AMD GPUs.
CONTRACT_GPUS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151")
# This is the measured size, in bytes, of the copy of the source, the build tree and the unpacked wheel together.
_DISK = 6_000_000_000
_WEIGHTS = {"configure": 30.0, "compile": 1800.0, "lit": 200.0}


@dataclass(frozen=True)
class TritonSourceStage:
    """The stage that builds Triton for a base's C library and Python."""

    name: str = "triton"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[TritonDetails]:
        details = TritonDetails.of(request, dependencies, request.pythons)
        if details.bindings.project != "pybind11":
            raise UnsupportedError(
                "stage-not-for-base",
                f"a Triton that uses {details.bindings.project} is not built for a base",
                why="only the portable recipe builds its wheel",
                fix="leave out --base",
            )
        _check_pythons(request)
        return plan_from_source(
            request, dependencies, details, recipe=digests(COMPILER_CACHE, "containerfiles/triton"), more={}
        )

    def build(self, planned: Planned[TritonDetails], dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        taken = take_source(planned, dependencies, workspace)
        args = {"PYTHONS": " ".join(planned.details.pythons)}
        out, wheels = build_wheels("triton", taken, args=args, contexts={})
        own = read_built(out, "python").strip()
        return finish(
            taken,
            out,
            for_python(wheels, own),
            wheels=wheels,
            check=lambda image: {"contract": check_compiles(workspace, image)},
        )


def _check_pythons(request: Request) -> None:
    """Raise UnsupportedError if the request names a Python that its Debian base does not contain.

    Other bases are not checked here, because the build checks them.
    """
    if request.base.image is not None or base_recipe(request.base.recipe).os_release["id"] != "debian":
        return
    own = own_python(request)
    if absent := [version for version in versions_of(request) if version != own]:
        raise UnsupportedError(
            "python-not-in-base",
            f"base {request.base} has no Python {', '.join(absent)}",
            why=f"a wheel that is bound to a base is for the base's own Python, {own}",
            fix=f"use --python {own}, or leave out --base: portable wheels are built for each Python that is named",
        )


def plan_from_source(
    request: Request,
    dependencies: Mapping[str, Planned],
    details: TritonDetails,
    *,
    recipe: Mapping[str, str],
    more: Mapping[str, Any],
) -> Planned[TritonDetails]:
    """Return the plan for building Triton from source.

    An error is raised if an available tree is unusable or does not match the request, or if the LLVM layer is only a
    part of LLVM.
    """
    source, tree = details.source, details.tree
    check_tree_form(source, "Triton")
    if source.path is not None and source.path.is_dir():
        require_tree(source.path, source.ref)
    # An available tree is checked now, because building LLVM takes hours.
    # A patched tree is checked after its patches are applied, because a patch may remove what is refused here.
    if tree is not None and dependencies["llvm"].sources and not request.patches.get("triton"):
        require_tree(tree, source.ref)
        check_setup(tree)
        check_tree(tree, request, dependencies["llvm"].sources[0])
        check_no_download(tree, details.rules)
    if dependencies["llvm"].partial:
        raise ContractError(
            "llvm-layer-unfit",
            f"Triton cannot be built on {dependencies['llvm'].image}",
            why=f"that layer is only a part of LLVM: {dependencies['llvm'].partial}",
            fix="leave out --only, or use a wheel of the index: --source triton=pypi:VERSION",
        )
    wheels = wheel_sources(details.bindings.projects(TRITON))
    under = {name: planned.input_digest for name, planned in dependencies.items()}
    resolved = {**under, "sources": source_inputs([source, *wheels], request.patches)}
    more = {
        "recipe": dict(recipe),
        "pythons": list(details.pythons),
        **more,
        "binaries": choices("triton", request),
        "site": SITE,
        "sbom": SBOM_WRITER,
    }
    return Planned(
        name="triton",
        image=f"triton-{source.short_id}-{dependencies['base'].details.name}",
        inputs=stage_inputs("triton", request, resolved, more),
        sources=(source, *wheels),
        binaries=names_allowed("triton", request),
        disk=_DISK,
        engine=True,
        has_contract_check=True,
        details=details,
    )


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A source of Triton that was fetched and checked, and what the stage is built with.

    Args:
        planned: the plan, completed with the binaries and the bindings of the fetched tree.
        intake, findings: the decisions on the prebuilt files in the source, and these files (see `stages.prebuilt`).
    """

    planned: Planned[TritonDetails]
    source: FetchedSource
    intake: Intake
    findings: Sequence[Finding]
    dependencies: Mapping[str, Built]
    workspace: Workspace


def take_source(planned: Planned[TritonDetails], dependencies: Mapping[str, Built], workspace: Workspace) -> Taken:
    """Fetch Triton's source; raise an error if it or the LLVM layer does not match the request and the plan."""
    workspace.step("source")
    source = workspace.fetch(planned.sources[0])
    require_tree(source.path, source.ref)
    check_setup(source.path)
    check_tree(source.path, workspace.request, dependencies["llvm"].planned.sources[0])
    check_edits(workspace.request)
    rules = planned.details.rules
    revisions = {rule.target: str(dependencies[rule.stage].facts["codegen"]["revision"]) for rule in rules}
    named = [rule.target for rule in rules if rule.llvm in workspace.request.sources]
    compare_pins(source.path, revisions, named=named)
    check_no_download(source.path, rules)
    details = refined(planned.details, source.path)
    check_llvm(workspace, dependencies["llvm"])
    intake, findings = take_in("triton", source.path, workspace.request)
    planned = replace(planned, binaries=intake.binaries(planned.binaries), details=details)
    return Taken(
        planned=planned, source=source, intake=intake, findings=findings, dependencies=dependencies, workspace=workspace
    )


def build_wheels(
    recipe_name: str, taken: Taken, *, args: Mapping[str, str], contexts: Mapping[str, Path]
) -> tuple[Path, list[Path]]:
    """Build Triton's wheels with the recipe in `containerfiles/<recipe_name>`; raise BuildError if there is no wheel.

    Args:
        args, contexts: build arguments and contexts, in addition to those of every recipe for Triton.

    Returns:
        the folder with the recipe's output, and copies of the wheels with an SBOM inside each.
    """
    planned, intake, dependencies, workspace = taken.planned, taken.intake, taken.dependencies, taken.workspace
    out = workspace.build(
        Recipe(
            name="triton",
            containerfile=f"containerfiles/{recipe_name}/Containerfile",
            base=workspace.image(dependencies["base"]),
            images={"LLVM": workspace.image(dependencies["llvm"])},
            args={
                "PREFIX": str(dependencies["llvm"].facts["prefix"]),
                "DROP": ";".join(intake.dropped),
                "REPLACE": ";".join(f"{path}={glob}" for path, glob in sorted(intake.replaced.items())),
                "LIT": "ON" if workspace.request.contract else "OFF",
                "JOBS": str(workspace.jobs("compile")),
                "LINK_JOBS": str(workspace.jobs("link")),
                "INPUT_DIGEST": str(planned.input_digest),
                **args,
            },
            contexts={"triton": taken.source.path, "wheels": wheel_folder(planned.sources[1:], workspace), **contexts},
            cache_key=planned.tree_key,
            steps=_WEIGHTS,
        )
    )
    libraries = [dependencies[rule.stage] for rule in planned.details.rules]
    wheels = wheels_with_sbom(out, planned, [dependencies["llvm"], *libraries], workspace)
    if not wheels:
        raise BuildError("wheel-not-built", "Triton's build left no wheel", fix="see the log")
    return out, wheels


def finish(
    taken: Taken,
    out: Path,
    wheel: Path,
    *,
    wheels: Sequence[Path],
    check: Callable[[str], Mapping[str, Any]],
    facts: Mapping[str, Any] | None = None,
    with_base: bool = True,
) -> Built:
    """Put all wheels into the store, make an image with one of them, and return the finished stage.

    Args:
        wheel: the wheel for the image, which is unpacked below `SITE`.
        with_base: whether the image contains the base's layers; False for wheels for another machine. If it is False,
            the report of upstream's lit tests may be missing.
    """
    workspace = taken.workspace
    known = {
        "wheels": [keep_wheel(file, workspace.cache) for file in wheels],
        "auditwheel": read_built(out, "auditwheel.txt"),
        "lit": lit(out, required=workspace.request.contract and with_base),
        "found_binaries": taken.intake.rows(taken.findings),
        **(facts or {}),
    }
    workspace.step("layer")
    tree = emptied(workspace.work() / "tree")
    unzip(wheel, tree / SITE.lstrip("/"))
    return workspace.finish(
        taken.planned,
        LayerContent(tree=tree, compress=False),
        ImageParts(revision=taken.source.ref, binaries=True, under=taken.dependencies["base"] if with_base else None),
        facts=known,
        check=ContractCheck(run=check, on=taken.dependencies["base"]),
    )


def check_compiles(workspace: Workspace, image: str) -> dict[str, Any]:
    """Compile a kernel for every GPU in `CONTRACT_GPUS` with the Triton in an image, as `run_contract` does."""
    return run_contract(
        workspace,
        image,
        ["python3"],
        mounts=(),
        env={"PYTHONPATH": SITE},
        name="this Triton",
        dead="Triton does not start in its image",
    )


def run_contract(
    workspace: Workspace,
    image: str,
    python: Sequence[str],
    *,
    mounts: Sequence[Mount],
    env: Mapping[str, str],
    name: str,
    dead: str,
) -> dict[str, Any]:
    """Run aotriton/triton_contract.py in a fresh container of an image, and return the result that it prints.

    The script compiles a kernel for every GPU in `CONTRACT_GPUS` and needs no GPU. ContractError is raised if it prints
    no result or reports a failure. It is not a failure if Triton does not support a GPU.

    Args:
        python: the command that runs a Python with this Triton.
    """
    workspace.step("contract")
    done = workspace.runner.run(
        image,
        [*python, "/recipe/aotriton/triton_contract.py", *CONTRACT_GPUS],
        mounts=[Mount(recipe.root() / "aotriton", "/recipe/aotriton"), *mounts],
        env={"HOME": "/tmp", **env},  # noqa: S108 - the path is in a container
        log=workspace.log,
        capture=True,
        check=False,
    )
    try:
        result: dict[str, Any] = strict_json.read((done.stdout.strip().splitlines() or [""])[-1])
        result["failed"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        why = "\n".join(done.tail[-40:])
        missing = re.search(r"undefined symbol: (\S+)", why)
        fix = f"its library needs {missing[1]}, which no loaded library defines" if missing else "see the log"
        raise ContractError("triton-check-failed", dead, why=why, fix=fix) from None
    if done.returncode != 0 or result["failed"]:
        raise ContractError(
            "triton-check-failed",
            f"{name} does not compile for " + ", ".join(sorted(result["failed"])),
            why="\n".join(f"{gpu}: {why}" for gpu, why in sorted(result["failed"].items())),
            fix="see the log; this Triton may not fit the LLVM that it was built with",
        )
    return result


def for_python(wheels: Sequence[Path], version: str) -> Path:
    """Return the wheel for a version of CPython, such as `3.13`; raise BuildError if no wheel supports it.

    A wheel for the stable ABI supports the version in its name and all later ones.
    """
    tag, minor = f"-cp{version.replace('.', '')}-", int(version.partition(".")[2])
    for wheel in wheels:
        stable = re.search(r"-cp3([0-9]+)-abi3-", wheel.name)
        if tag in wheel.name or (stable and int(stable[1]) <= minor):
            return wheel
    raise BuildError(
        "wheel-not-built",
        f"no wheel was built for the base's own Python {version}",
        why="the image runs this Python, and the wheels are " + ", ".join(wheel.name for wheel in wheels),
        fix=f"add {version} to --python",
    )


def check_llvm(workspace: Workspace, llvm: Built) -> None:
    """Raise ContractError if an LLVM layer lacks files that the request's Triton needs."""
    layout, prefix = Layout(workspace.cache.images), str(llvm.facts["prefix"]).strip("/") + "/"
    top = read_layers(layout, layout.resolve(llvm.manifest))[-1].descriptor
    files = {file.path.removeprefix(prefix) for file in layer_files(layout.blob(top.digest), top.media_type)}
    details = refined_llvm(llvm.planned.details, str(llvm.facts["version"]), workspace.request)
    check_files(files, details.needs, where=llvm.planned.image, consumer="this Triton")
