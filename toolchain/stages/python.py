"""What a portable Triton wheel is compiled against and tried with: CPythons of Debian's suites, unpacked.

The image holds a root for each version: `/3.13/usr/include/python3.13` and all that the interpreter needs. The C
library in it serves the interpreter alone; a wheel links the one of the glibc floor.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain.catalog.bases import base_recipe
from toolchain.catalog.pythons import Python, check_version, python_of
from toolchain.digest import sha256_json
from toolchain.errors import PinError
from toolchain.request import Request
from toolchain.stages.stage import Built, Planned, Workspace
from toolchain.stages.sysroot import System, finish_packages, make_links_relative, plan_packages, unpack_system

# Neither compiled in nor imported; the static library alone is half of the rest.
_LEFT_OUT = ("*.a", "./usr/share/*", "./usr/lib/python*/test", "./usr/lib/python*/config-*")


@dataclass(frozen=True, kw_only=True)
class Pythons:
    """What is unpacked for a request.

    Args:
        arch: OCI architecture that the wheels are for.
        rows: the versions, the lowest first.
    """

    arch: str
    rows: tuple[Python, ...]

    @property
    def name(self) -> str:
        """Part of names: `3.11-3.13`."""
        return "-".join(row.version for row in self.rows)

    @property
    def suite(self) -> str:
        """Where they come from: `bookworm trixie`."""
        return " ".join(dict.fromkeys(row.suite for row in self.rows))

    def system(self, row: Python) -> System:
        """One of them as `stages.sysroot` unpacks it."""
        return System(name=f"python-{row.version}", arch=self.arch, suite=row.suite, packages=row.packages)

    @property
    def digest(self) -> str:
        """Of all that decides what is asked for; what it then holds is in its package list."""
        systems = {row.version: self.system(row).as_inputs() for row in self.rows}
        return sha256_json(
            {"kind": "python", "links": "relative, merged", "without": list(_LEFT_OUT), "asked": systems}
        )


@dataclass(frozen=True)
class PythonStage:
    """See `Stage`. None of the interpreters is run for it, so it needs no emulator."""

    name: str = "python"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned:
        wanted = pythons(request)
        return plan_packages(self.name, wanted.name, wanted.digest, request)

    def build(self, planned: Planned, dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        wanted = pythons(workspace.request)
        tree = workspace.work() / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        packages: dict[tuple[str, ...], dict[str, str]] = {}
        for row in wanted.rows:
            workspace.step("packages")
            root = tree / row.version
            for package in unpack_system(wanted.system(row), root, workspace, leave_out=_LEFT_OUT):
                packages[package["name"], package["version"], package.get("architecture", "")] = package
            _merge_usr(root)
            make_links_relative(root)
        rows, title = [packages[key] for key in sorted(packages)], wanted.name.replace("-", ", ")
        return finish_packages(planned, wanted.digest, tree, rows, workspace, name=wanted.name, of=title)


def _merge_usr(root: Path) -> None:
    """Give a newer system the links of its top folder, which an installation makes and unpacking does not.

    Its programs name their loader below `/lib` or `/lib64`.
    """
    for folder in ("lib", "lib64"):
        if (root / "usr" / folder).is_dir() and not (root / folder).exists():
            (root / folder).symlink_to(f"usr/{folder}")


def pythons(request: Request) -> Pythons:
    """The interpreters for the request's one architecture.

    Raises:
        PinError: one of the versions is invalid, or the base is the user's own and none is named.
        UnsupportedError: no row knows one of them.
    """
    return Pythons(arch=request.arch[0], rows=tuple(python_of(version) for version in versions_of(request)))


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
    """The versions that wheels are built for, the lowest first: those asked for, else the base's own.

    Raises:
        PinError: one of them is invalid.
    """
    versions = {check_version(version) for version in request.pythons} or {own_python(request)}
    return tuple(sorted(versions, key=lambda version: int(version.partition(".")[2])))
