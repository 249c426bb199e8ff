"""Triton's wheels on a portable LLVM layer: one for each CPython asked for, against the same old system as LLVM.

Objects that no Python header reaches are compiled once. A wheel for another machine is cross-compiled, and tried by an
emulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import recipe
from toolchain.catalog.architectures import emulator, this_machine
from toolchain.catalog.pythons import check_range
from toolchain.errors import UnsupportedError
from toolchain.recipe import Mount, digests
from toolchain.request import Request
from toolchain.stages.python import own_python, versions_of
from toolchain.stages.stage import Built, Planned, Workspace
from toolchain.stages.triton_origin import triton_source
from toolchain.stages.triton_source import (
    build_wheels,
    check_compiles,
    finish,
    for_python,
    plan_from_source,
    run_contract,
    take_source,
    tree_here,
    wheels_in,
)
from toolchain.stages.triton_tree import python_requires
from toolchain.stages.triton_wheel import unzip

RECIPE = "triton-portable"


@dataclass(frozen=True)
class TritonPortableStage:
    """See `Stage`."""

    name: str = "triton"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned:
        versions, arch = versions_of(request), request.arch[0]
        source = triton_source(request)
        if (tree := source.path or tree_here(source, request)) is not None:
            check_pythons(versions, tree, source.ref)
        cross = arch != this_machine()
        if not cross:
            _require_own(request, versions)
        files = (f"containerfiles/{RECIPE}", "llvm-config/cross.cmake" if cross else "llvm-config/portable.cmake")
        more = {
            "pythons": list(versions),
            "glibc": request.glibc,
            **({"built_on": this_machine()} if cross else {}),
        }
        return plan_from_source(request, dependencies, recipe=digests(*files), more=more)

    def build(self, planned: Planned, dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        request = workspace.request
        from toolchain.stages.wheel_check import check_wheel  # noqa: PLC0415 - plans need no reader of ELF

        versions, arch = versions_of(request), request.arch[0]
        cross = arch != this_machine()
        emulate = emulator(arch) if cross else None
        taken = take_source(planned, dependencies, workspace)
        check_pythons(versions, taken.source.path, taken.source.ref)
        contexts = {
            "sysroot": workspace.unpack(dependencies["sysroot"]),
            "pythons": workspace.unpack(dependencies["python"]),
        }
        if emulate is not None:
            contexts["emulator"] = _folder_of(emulate, workspace)
        args = {"PYTHONS": " ".join(versions), "ARCH": arch}
        out = build_wheels(RECIPE, taken, dependencies, workspace, args=args, contexts=contexts)
        wheels = {version: for_python(wheels_in(out), version) for version in versions}
        facts = {
            "checked_wheels": {
                version: check_wheel(wheel, python=version, arch=arch, glibc=request.glibc)
                for version, wheel in wheels.items()
            }
        }

        def check(image: str) -> Mapping[str, Any]:
            tried = {
                version: check_wheel_compiles(workspace, image, wheel, version, contexts)
                for version, wheel in wheels.items()
            }
            return {"contract": {"pythons": tried, **({} if cross else {"image": check_compiles(workspace, image)})}}

        held = versions[-1] if cross else own_python(request)
        return finish(
            taken,
            out,
            wheels[held],
            dependencies,
            workspace,
            check=check,
            facts=facts,
            with_base=not cross,
            tested=not cross,
        )


def _require_own(request: Request, versions: Sequence[str]) -> None:
    """Insist that the base's own Python is among them: the image of base and wheel runs that one.

    Raises:
        UnsupportedError: it is not.
    """
    own = own_python(request) if request.base.image is None else ""
    if own and own not in versions:
        raise UnsupportedError(
            f"--python {','.join(versions)} leaves out Python {own}",
            why=f"the image of base {request.base} and the wheel runs that one",
            fix=f"--python {','.join([*versions, own])}; the objects that no Python header reaches are compiled once",
        )


def check_pythons(versions: Sequence[str], tree: Path, name: str) -> None:
    """Insist that a tree of Triton supports these Pythons.

    Raises:
        UnsupportedError: it says that it does not support one of them.
    """
    requires = python_requires(tree)
    for version in versions:
        check_range(version, requires, name=f"Triton {name}")


def check_wheel_compiles(
    workspace: Workspace, image: str, wheel: Path, version: str, contexts: Mapping[str, Path]
) -> dict[str, Any]:
    """Import a wheel with its own CPython and compile for every GPU, in a container of the image.

    Args:
        image: any with a shell; nothing of its Python is used.
        contexts: `pythons`, roots by version; `emulator`, with a qemu-user of that name, where the wheel is for another
            machine.

    Raises:
        ContractError: it does not start, asks for a symbol that nothing has, or does not compile for a GPU.
    """
    tree = workspace.work() / f"wheel-{version}"
    if not tree.exists():
        unzip(wheel, tree)
    mounts = [
        Mount(recipe.root() / "containerfiles" / RECIPE, "/recipe/python", read_only=True),
        Mount(contexts["pythons"], "/pythons", read_only=True),
        Mount(tree, "/wheel", read_only=True),
    ]
    env = {"PYTHONPATH": "/wheel", "LD_BIND_NOW": "1"}
    if (emulator_folder := contexts.get("emulator")) is not None:
        mounts.append(Mount(emulator_folder, "/emulator", read_only=True))
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
    """The emulator alone in a folder, under one name for every machine."""
    folder = workspace.work() / "emulator"
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "emulator"
    copy.write_bytes(emulate.read_bytes())
    copy.chmod(0o755)
    return folder
