"""CPythons of Debian's suites, unpacked, to compile and try a portable Triton wheel.

The image holds a root for each version: `/3.13/usr/include/python3.13` and all that the interpreter needs. The C
library in it serves the interpreter alone; a wheel links the one of the glibc floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain.catalog.bases import base_recipe
from toolchain.catalog.pythons import check_version, python_of
from toolchain.core.digest import sha256_json
from toolchain.core.errors import PinError
from toolchain.core.filesystem import emptied
from toolchain.request.model import Request
from toolchain.stages.stage import Built, Planned, Workspace
from toolchain.stages.sysroot import (
    System,
    Unpacked,
    finish_packages,
    make_links_relative,
    plan_packages,
    unpack_system,
)

# Neither compiled in nor imported; the static library alone is half of the rest.
_LEFT_OUT = ("*.a", "./usr/share/*", "./usr/lib/python*/test", "./usr/lib/python*/config-*")


@dataclass(frozen=True)
class PythonStage:
    """Unpacks the CPythons of portable wheels. It runs none of them, so it needs no emulator."""

    name: str = "python"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[Unpacked]:
        return plan_packages(self.name, pythons(request), request)

    def build(self, planned: Planned[Unpacked], dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        wanted, tree = planned.details, emptied(workspace.work() / "tree")
        packages: dict[tuple[str, ...], dict[str, str]] = {}
        for version, system in wanted.systems.items():
            workspace.step("packages")
            root = tree / version
            for package in unpack_system(system, root, workspace, leave_out=_LEFT_OUT):
                packages[package["name"], package["version"], package.get("architecture", "")] = package
            _merge_usr(root)
            make_links_relative(root)
        rows = [packages[key] for key in sorted(packages)]
        return finish_packages(planned, tree, rows, workspace, of=", ".join(wanted.systems))


def _merge_usr(root: Path) -> None:
    """Give a newer system the links of its top folder, which an installation makes and unpacking does not.

    Its programs name their loader below `/lib` or `/lib64`.
    """
    for folder in ("lib", "lib64"):
        if (root / "usr" / folder).is_dir() and not (root / folder).exists():
            (root / folder).symlink_to(f"usr/{folder}")


def pythons(request: Request) -> Unpacked:
    """The interpreters for the request's one architecture.

    Raises:
        PinError: one of the versions is invalid, or the base is the user's own and none is named.
        UnsupportedError: no row knows one of them.
    """
    rows, arch = [python_of(version) for version in versions_of(request)], request.arch[0]
    systems = {
        row.version: System(name=f"python-{row.version}", arch=arch, suite=row.suite, packages=row.packages)
        for row in rows
    }
    inputs = {version: system.as_inputs() for version, system in systems.items()}
    asked = {"kind": "python", "links": "relative, merged", "without": list(_LEFT_OUT), "asked": inputs}
    suites = " ".join(dict.fromkeys(row.suite for row in rows))
    return Unpacked(name="-".join(systems), suite=suites, systems=systems, digest=sha256_json(asked))


def own_python(request: Request) -> str:
    """The Python that the base has: `3.13`.

    Raises:
        PinError: the base is an image of the user's, of which no data tells.
    """
    if request.base.image is not None:
        raise PinError(
            f"which Python {request.base} has is not known before it runs", fix="name the versions: --python 3.13"
        )
    return ".".join(base_recipe(request.base.recipe).tools["python"].split(".")[:2])


def versions_of(request: Request) -> tuple[str, ...]:
    """The versions that wheels are built for, the lowest first: those asked for, else the base's own."""
    versions = {check_version(version) for version in request.pythons} or {own_python(request)}
    return tuple(sorted(versions, key=lambda version: int(version.partition(".")[2])))
