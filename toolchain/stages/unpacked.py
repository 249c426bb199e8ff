"""Unpack packages of a distribution: headers and libraries to compile against, CPythons, and PyTorch.

No program of the packages is run, so packages for another machine need no emulator.

- `sysroot` contains headers, libc and libstdc++. For a portable layer they come from an old system (`catalog.floors`).
  For a layer that is bound to a base and is for another machine, they come from the base's distribution.
- `python` contains a root folder for each version, with headers (`/3.13/usr/include/python3.13`) and the interpreter.
  Its C library is only for the interpreter, because wheels are linked with the C library of `sysroot`.
- `torch` is a layer for use above a base of the same suite. It repeats some files of this base.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolchain.catalog.architectures import machine_of, this_machine
from toolchain.catalog.base_ref import BaseRef
from toolchain.catalog.bases import base_recipe
from toolchain.catalog.floors import floor_of
from toolchain.catalog.pythons import check_version, python_of
from toolchain.catalog.wheel_rows import torch_row
from toolchain.core import process
from toolchain.core.digest import sha256_json
from toolchain.core.errors import PinError, UnsupportedError
from toolchain.core.filesystem import emptied
from toolchain.request.model import Request
from toolchain.stages.base import package_inputs, parse_packages, read_packages, write_packages
from toolchain.stages.mmdebstrap import run_mmdebstrap
from toolchain.stages.stage import Built, ImageParts, LayerContent, Planned, Workspace

# This command lists the archives before mmdebstrap removes them. Its variant `extract` does not register packages in
# dpkg's database, so dpkg cannot list them.
_LIST_ARCHIVES = (
    'for deb in "$1"/var/cache/apt/archives/*.deb; do dpkg-deb -f "$deb" Package Version Architecture'
    ' && sha256sum <"$deb" | sed "s/^/SHA256: /; s/ *-$//" && echo; done'
)
# These folders are left out, because they contain no headers or libraries that are needed.
_NOT_WANTED = ("boot", "dev", "etc", "home", "media", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "var")
# Builds do not need these files of Python packages.
_NOT_OF_PYTHON = ("*.a", "./usr/share/*", "./usr/lib/python*/test", "./usr/lib/python*/config-*")
# These paths are left out: folders that are links in the base, and files that programs neither run nor import.
_NOT_OF_TORCH = (
    "./bin", "./lib", "./lib32", "./lib64", "./libx32", "./sbin", "*.a", "./usr/include/*", "./usr/share/doc/*",
    "./usr/share/locale/*", "./usr/share/man/*",
)  # fmt: skip
PARTIAL = "unpacked to compile against, not installed"


@dataclass(frozen=True, kw_only=True)
class System:
    """Packages that are unpacked with all their dependencies.

    Args:
        name: the name of the system, for messages. For the stage `sysroot`, it is also the name of the `Unpacked`
            content.
        relative: whether absolute links are made relative.
    """

    name: str
    arch: str
    suite: str
    packages: tuple[str, ...]
    relative: bool = False

    def as_inputs(self) -> dict[str, Any]:
        """Return the values that determine which packages and files are unpacked, as JSON values."""
        inputs = {"kind": "sysroot", "arch": self.arch, "suite": self.suite, "packages": list(self.packages)}
        return {**inputs, "without": list(_NOT_WANTED), **({"links": "relative"} if self.relative else {})}


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """The content of a stage that unpacks packages.

    Args:
        name: the name of the content, with which the name of the stage's image ends.
        title: the name of the content in the image's title.
        suite: the suite of Debian, or several suites separated by spaces.
        systems: the systems by their folder in the layer. For `sysroot` and `torch`, which have only one system, the
            folder name is an empty string.
        digest: the digest of the values that determine what is unpacked. A stored package list is valid only for
            this digest.
        links: the links to make in the layer: the target of each link, by its path.
        leave_out: patterns of paths that tar leaves out, in addition to the folders in `_NOT_WANTED`.
    """

    name: str
    title: str
    suite: str
    systems: Mapping[str, System]
    digest: str
    links: Mapping[str, str] = field(default_factory=dict)
    leave_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class UnpackedStage:
    """The stage that unpacks the packages of `sysroot`, `python` or `torch`."""

    name: str

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[Unpacked]:
        content = _CONTENT[self.name](request)
        lock = read_packages(request.cache.package_list(self.name, content.name, request.arch[0]), content.digest)
        return Planned(
            name=self.name,
            image=f"toolchain-{self.name}-{content.name}",
            inputs=None if lock is None else package_inputs(self.name, content.name, lock, request),
            partial=PARTIAL,
            online=True,
            details=content,
        )

    def build(self, planned: Planned[Unpacked], dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        content, request, tree = planned.details, workspace.request, emptied(workspace.work() / "tree")
        packages: dict[tuple[str, ...], dict[str, str]] = {}
        for folder, system in content.systems.items():
            workspace.step("packages")
            for package in _unpack(system, tree / folder, workspace, leave_out=content.leave_out):
                packages[package["name"], package["version"], package.get("architecture", "")] = package
            if folder:
                _merge_usr(tree / folder)
        for link, target in content.links.items():
            (tree / link).unlink(missing_ok=True)
            (tree / link).symlink_to(target)
        rows = [packages[key] for key in sorted(packages)]
        lock = {"recipe": content.digest, "packages": rows}
        resolved = replace(planned, inputs=package_inputs(self.name, content.name, lock, request))
        facts: dict[str, Any] = {"packages": len(rows)}
        if self.name == "torch":
            facts["torch"] = next((row["version"] for row in rows if row["name"] == "python3-torch"), "")
        built = workspace.finish(
            resolved, LayerContent(tree=tree, compress=False), ImageParts(title=content.title), facts=facts
        )
        write_packages(workspace.cache.package_list(self.name, content.name, request.arch[0]), lock)
        return built


def sysroot_stage(name: str, request: Request) -> UnpackedStage | None:
    """Return the stage if LLVM is portable or for another machine; None if LLVM is compiled against the base."""
    return UnpackedStage(name) if request.glibc or request.arch[0] != this_machine() else None


def python_stage(name: str, request: Request) -> UnpackedStage | None:
    """Return the stage if Triton is built from source on a portable LLVM, otherwise None."""
    from toolchain.stages.triton_origin import from_source  # noqa: PLC0415 - only the stage `python` needs it

    return UnpackedStage(name) if request.glibc and from_source(request) else None


def sysroot_of(request: Request) -> Unpacked:
    """Return the system to compile against for the request's architecture: an old system, or that of the base.

    UnsupportedError is raised if there is no suitable system, for example because the base is a local image.
    """
    arch = request.arch[0]
    if request.glibc:
        floor = floor_of(request.glibc)
        system = System(name=floor.name, arch=arch, suite=floor.suite, packages=floor.packages, relative=True)
    else:
        system = _of_base(request.base, arch)
    digest = sha256_json(system.as_inputs())
    return Unpacked(name=system.name, title=system.name, suite=system.suite, systems={"": system}, digest=digest)


def _of_base(base: BaseRef, arch: str) -> System:
    here = this_machine()
    if base.image is not None:
        raise UnsupportedError(
            "base-not-for-architecture",
            f"nothing is built for {arch} on the local image {base}",
            why=f"a build for {arch} on {here} needs libraries for {arch}, which a local image does not provide",
            fix=f"name a base that is made from packages, such as debian13, or build on a machine for {arch}",
        )
    recipe = base_recipe(base.recipe, arch)
    if not recipe.sysroot:
        raise UnsupportedError(
            "base-not-for-architecture",
            f"nothing is built for {arch} on base {recipe.name}",
            why=f"its recipe names no packages for a build on {here}",
            fix=f"use --base debian13, or build on a machine for {arch}",
        )
    return System(name=recipe.name, arch=arch, suite=recipe.suite, packages=recipe.sysroot)


def pythons_of(request: Request) -> Unpacked:
    """Return the CPythons of the request's architecture for which wheels are built."""
    rows, arch = [python_of(version) for version in versions_of(request)], request.arch[0]
    systems = {
        row.version: System(name=f"python-{row.version}", arch=arch, suite=row.suite, packages=row.packages)
        for row in rows
    }
    inputs = {version: system.as_inputs() for version, system in systems.items()}
    asked = {"kind": "python", "links": "relative, merged", "without": list(_NOT_OF_PYTHON), "asked": inputs}
    return Unpacked(
        name="-".join(systems),
        title=", ".join(systems),
        suite=" ".join(dict.fromkeys(row.suite for row in rows)),
        systems={version: replace(system, relative=True) for version, system in systems.items()},
        digest=sha256_json(asked),
        leave_out=_NOT_OF_PYTHON,
    )


def torch_of(request: Request) -> Unpacked:
    """Return the packages of PyTorch for the request's base; raise UnsupportedError if none are known."""
    if request.base.image is not None:
        raise UnsupportedError(
            "base-without-pytorch",
            f"no PyTorch is known for the local image {request.base}",
            why="PyTorch is unpacked from packages of the base's suite, which is unknown for a local image",
            fix="use --base debian13",
        )
    row = torch_row(request.base.recipe)
    system = System(name=f"torch-{row.name}", arch=request.arch[0], suite=row.suite, packages=row.packages)
    asked = {**system.as_inputs(), "kind": "torch", "beside": list(_NOT_OF_TORCH), "links": dict(row.links)}
    return Unpacked(
        name=row.name,
        title=row.name,
        suite=row.suite,
        systems={"": system},
        digest=sha256_json(asked),
        links=row.links,
        leave_out=_NOT_OF_TORCH,
    )


_CONTENT = {"sysroot": sysroot_of, "python": pythons_of, "torch": torch_of}


def _unpack(system: System, tree: Path, workspace: Workspace, *, leave_out: tuple[str, ...]) -> list[dict[str, str]]:
    """Unpack a system into the new folder `tree`; return a row for each package, with the SHA-256 of its file."""
    work = workspace.work()
    tar, listing = work / "rootfs.tar", work / "packages"
    run_mmdebstrap(
        workspace,
        tar,
        suite=system.suite,
        variant="extract",
        packages=system.packages,
        what=f"the headers and libraries of {system.name} for {system.arch}",
        options=[
            f"--architectures={machine_of(system.arch).debian}",
            f"--extract-hook={{ {_LIST_ARCHIVES}; }} >{shlex.quote(str(listing))}",
        ],
    )
    emptied(tree)
    left_out = [f"--exclude={pattern}" for pattern in (*(f"./{name}" for name in _NOT_WANTED), *leave_out)]
    process.run(["tar", "--extract", "--file", tar, "--directory", tree, *left_out], log=workspace.log)
    tar.unlink()
    if system.relative:
        make_links_relative(tree)
    return parse_packages(listing.read_text(encoding="utf-8"))


def make_links_relative(tree: Path) -> None:
    """Make absolute links relative, so that on the build machine they lead to files below `tree`."""
    for folder, names, files in os.walk(tree):
        for path in (Path(folder, name) for name in (*names, *files)):
            if path.is_symlink() and (target := path.readlink()).is_absolute():
                path.unlink()
                path.symlink_to(os.path.relpath(tree / target.relative_to("/"), path.parent))


def _merge_usr(root: Path) -> None:
    """Link `lib` and `lib64` of a root to the folders in `usr`, because programs find their loader by these paths."""
    for folder in ("lib", "lib64"):
        if (root / "usr" / folder).is_dir() and not (root / folder).exists():
            (root / folder).symlink_to(f"usr/{folder}")


def own_python(request: Request) -> str:
    """Return the version of the base's Python, such as `3.13`; raise PinError for a local image."""
    if request.base.image is not None:
        raise PinError(
            "base-python-unknown",
            f"the Python of {request.base} is unknown before it runs",
            fix="name the versions: --python 3.13",
        )
    return ".".join(base_recipe(request.base.recipe).tools["python"].split(".")[:2])


def versions_of(request: Request) -> tuple[str, ...]:
    """Return the versions of CPython for which wheels are built, lowest first: the requested ones, or the base's."""
    versions = {check_version(version) for version in request.pythons} or {own_python(request)}
    return tuple(sorted(versions, key=lambda version: int(version.partition(".")[2])))
