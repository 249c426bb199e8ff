"""Build Triton's wheels on a portable LLVM layer, for each requested CPython and for the same old system as LLVM.

Objects whose sources include no Python header are compiled once for all wheels. A wheel for another machine is
cross-compiled, and its check runs in an emulator.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain.catalog.architectures import emulator, this_machine
from toolchain.catalog.codegen import Codegen
from toolchain.catalog.pythons import check_range
from toolchain.core import recipe
from toolchain.core.errors import UnsupportedError
from toolchain.core.filesystem import emptied
from toolchain.core.recipe import COMPILER_CACHE, Mount, digests
from toolchain.request.model import Request
from toolchain.sources.edits import users_own
from toolchain.stages.codegen_library import where
from toolchain.stages.stage import Built, Planned, Workspace
from toolchain.stages.triton import TritonDetails
from toolchain.stages.triton_source import (
    build_wheels,
    check_compiles,
    finish,
    for_python,
    plan_from_source,
    run_contract,
    take_source,
)
from toolchain.stages.triton_tree import python_requires, setup_text
from toolchain.stages.triton_wheel import unzip
from toolchain.stages.unpacked import own_python

RECIPE = "triton-portable"


@dataclass(frozen=True)
class TritonPortableStage:
    """The stage that builds Triton's wheels for the requested Pythons on the portable LLVM."""

    name: str = "triton"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[TritonDetails]:
        details = TritonDetails.of(request, dependencies, tuple(dependencies["python"].details.systems))
        # A user's patch may change setup.py, so a tree with such a patch is checked after a fetch.
        if details.tree is not None and not users_own(request.patches.get("triton", ())):
            check_pythons(details.pythons, details.tree, details.source.ref)
        cross = request.arch[0] != this_machine()
        details = replace(
            details, cross=cross, held=details.pythons[-1] if cross else _own_among(request, details.pythons)
        )
        files = [
            COMPILER_CACHE,
            f"containerfiles/{RECIPE}",
            "containerfiles/triton/setup.sh",
            "llvm-config/cross.cmake" if cross else "llvm-config/portable.cmake",
        ]
        more = {"glibc": request.glibc, **({"stable_abi": True} if details.bindings.stable else {})}
        return plan_from_source(request, dependencies, details, recipe=digests(*files), more=more)

    def build(self, planned: Planned[TritonDetails], dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        from toolchain.stages.binary_checks import check_carried, check_wheel  # noqa: PLC0415 - plans read no wheels

        request = workspace.request
        arch = request.arch[0]
        emulate = emulator(arch, proof=False) if planned.details.cross else None
        taken = take_source(planned, dependencies, workspace)
        details = taken.planned.details
        versions, cross, rules = details.pythons, details.cross, details.rules
        check_pythons(versions, taken.source.path, taken.source.ref)
        contexts = {
            "sysroot": workspace.unpack(dependencies["sysroot"]),
            "pythons": workspace.unpack(dependencies["python"]),
        }
        if emulate is not None:
            contexts["emulator"] = _folder_of(emulate, workspace)
        libraries = [dict(dependencies[rule.stage].facts["codegen"]) for rule in rules]
        if rules:
            contexts["codegen"] = _lay_libraries(rules, dependencies, workspace)
        args = {
            "PYTHONS": " ".join(versions),
            "ARCH": arch,
            "BINDINGS": details.bindings.project,
            **({"STABLE_ABI": "ON"} if details.bindings.stable else {}),
        }
        out, made = build_wheels(RECIPE, taken, args=args, contexts=contexts)
        wheels = {version: for_python(made, version) for version in versions}
        carried = {rule.installed: str(library["sha256"]) for rule, library in zip(rules, libraries, strict=True)}
        for wheel in wheels.values():
            check_carried(wheel, carried)
        facts: dict[str, Any] = {
            "checked_wheels": {
                version: check_wheel(wheel, python=version, arch=arch, glibc=request.glibc)
                for version, wheel in wheels.items()
            },
            **({"codegen": libraries} if libraries else {}),
        }

        def check(image: str) -> Mapping[str, Any]:
            tried = {
                version: check_wheel_compiles(workspace, image, wheel, version, contexts)
                for version, wheel in wheels.items()
            }
            return {"contract": {"pythons": tried, **({} if cross else {"image": check_compiles(workspace, image)})}}

        return finish(taken, out, wheels[details.held], wheels=made, check=check, facts=facts, with_base=not cross)


def _lay_libraries(rules: Sequence[Codegen], dependencies: Mapping[str, Built], workspace: Workspace) -> Path:
    """Return a new folder with the code generator libraries for Triton's build.

    Below `tree`, the libraries are at the paths where Triton's build finds them. The file `variables` sets the
    environment variables that name these paths.
    """
    folder = emptied(workspace.work() / "codegen")
    lines = []
    for rule in rules:
        built = dependencies[rule.stage]
        library = workspace.unpack(built) / where(rule).lstrip("/") / rule.library
        place = folder / "tree" / rule.place / rule.library
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)
        lines.append(f"{rule.variable}={rule.place}/{rule.library}\n")
    (folder / "variables").write_text("".join(lines), encoding="utf-8")
    return folder


def _own_among(request: Request, versions: Sequence[str]) -> str:
    """Return the version of the base's own Python; raise UnsupportedError if it is not in `versions`."""
    own = own_python(request)
    if own not in versions:
        raise UnsupportedError(
            "python-left-out",
            f"--python {','.join(versions)} leaves out Python {own}",
            why=f"the image contains base {request.base} and a wheel, and runs the Python of the base",
            fix=f"use --python {','.join([*versions, own])}; most objects are compiled once for all versions",
        )
    return own


def check_pythons(versions: Sequence[str], tree: Path, name: str) -> None:
    """Raise an error if `versions` contains a Python for which no wheel of Triton can be built and tested."""
    requires = python_requires(tree)
    for version in versions:
        check_range(version, requires, name=f"Triton {name}")
    if "3.9" in versions and "importlib-metadata" in setup_text(tree):
        raise UnsupportedError(
            "python-not-built",
            f"no wheel of Triton {name} is built for CPython 3.9",
            why="the wheel needs importlib-metadata there, and the version in Debian 11 is too old to test the wheel",
            fix="leave 3.9 out of --python",
        )


def check_wheel_compiles(
    workspace: Workspace, image: str, wheel: Path, version: str, contexts: Mapping[str, Path]
) -> dict[str, Any]:
    """Check in a fresh container that a CPython can import a wheel and compile kernels with it; return the result.

    The result is that of `run_contract`, which raises ContractError if the import or a compilation fails.

    Args:
        image: an image with a shell; its own Python is not used.
        contexts: folders by name: `pythons` contains the root of each CPython; `emulator` contains QEMU's user-mode
            emulator, and is present only if the wheel is for another architecture.
    """
    # A killed run may have left a part of the wheel.
    tree = emptied(workspace.work() / f"wheel-{version}")
    unzip(wheel, tree)
    mounts = [
        Mount(recipe.root() / "containerfiles" / RECIPE, "/recipe/python"),
        Mount(contexts["pythons"], "/pythons"),
        Mount(tree, "/wheel"),
    ]
    env = {"PYTHONPATH": "/wheel", "LD_BIND_NOW": "1"}
    if (emulator_folder := contexts.get("emulator")) is not None:
        mounts.append(Mount(emulator_folder, "/emulator"))
        env["EMULATOR"] = "/emulator/emulator"
    return run_contract(
        workspace,
        image,
        ["sh", "/recipe/python/python.sh", version],
        mounts=mounts,
        env=env,
        name=wheel.name,
        dead=f"{wheel.name} does not start with Python {version}",
    )


def _folder_of(emulate: Path, workspace: Workspace) -> Path:
    """Return a folder that contains only the emulator, under the same name for every architecture."""
    folder = emptied(workspace.work() / "emulator")
    copy = folder / "emulator"
    copy.write_bytes(emulate.read_bytes())
    copy.chmod(0o755)
    return folder
