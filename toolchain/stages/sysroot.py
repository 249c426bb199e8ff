"""The sysroot that LLVM is compiled against: headers, libc and libstdc++, unpacked.

Of an old system (`catalog.floors`) for a layer that links everywhere later; of the base's own distribution for a
layer that is bound to it and for another machine.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolchain.catalog.architectures import machine_of, this_machine
from toolchain.catalog.base_ref import BaseRef
from toolchain.catalog.bases import base_recipe
from toolchain.catalog.floors import floor_of
from toolchain.core import process
from toolchain.core.digest import sha256_json
from toolchain.core.errors import UnsupportedError
from toolchain.core.filesystem import emptied
from toolchain.request.model import Request
from toolchain.stages.base import package_inputs, parse_packages, read_packages, run_mmdebstrap, write_packages
from toolchain.stages.stage import Built, ImageParts, LayerContent, Planned, Workspace, image_labels

# Runs before mmdebstrap removes the archives: what dpkg would report if the packages were installed.
_LIST_ARCHIVES = (
    'for deb in "$1"/var/cache/apt/archives/*.deb; do dpkg-deb -f "$deb" Package Version Architecture'
    ' && sha256sum <"$deb" | sed "s/^/SHA256: /; s/ *-$//" && echo; done'
)
# Neither headers nor libraries; of some the content is this machine's.
_NOT_WANTED = ("boot", "dev", "etc", "home", "media", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "var")
PARTIAL = "unpacked to compile against, not installed"


@dataclass(frozen=True, kw_only=True)
class System:
    """A system as its packages are unpacked.

    Args:
        name: of the base or floor it is for, part of names.
        arch: OCI architecture.
        suite, packages: of Debian.
        glibc: of an old system, whose links are made relative; empty for a base's own.
    """

    name: str
    arch: str
    suite: str
    packages: tuple[str, ...]
    glibc: str = ""

    def as_inputs(self) -> dict[str, Any]:
        """The inputs of its resolution, as JSON values."""
        inputs = {"kind": "sysroot", "arch": self.arch, "suite": self.suite, "packages": list(self.packages)}
        return {**inputs, "without": list(_NOT_WANTED), **({"links": "relative"} if self.glibc else {})}


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """The packages that a stage unpacks.

    Args:
        name: part of names.
        suite: where it comes from.
        systems: by the version that a stage with several has; by its name where it is one.
        digest: of the inputs of its resolution; what it then holds is in its package list.
        links: made in it, by their path.
    """

    name: str
    suite: str
    systems: Mapping[str, System]
    digest: str
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SysrootStage:
    """Unpacks headers and libraries to compile against. It runs none of their programs, so it needs no emulator."""

    name: str = "sysroot"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[Unpacked]:
        return plan_packages(self.name, sysroot_system(request), request)

    def build(self, planned: Planned[Unpacked], dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        (system,), tree = planned.details.systems.values(), workspace.work() / "tree"
        workspace.step("packages")
        packages = unpack_system(system, tree, workspace)
        if system.glibc:
            make_links_relative(tree)
        return finish_packages(planned, tree, packages, workspace)


def sysroot_system(request: Request) -> Unpacked:
    """The system that the request's one architecture is compiled against.

    Raises:
        UnsupportedError: no row knows the floor; or the base cannot be made from packages, or names none to compile
            against.
    """
    arch = request.arch[0]
    if request.glibc:
        floor = floor_of(request.glibc)
        system = System(name=floor.name, arch=arch, suite=floor.suite, packages=floor.packages, glibc=floor.glibc)
    else:
        system = _of_base(request.base, arch)
    asked = sha256_json(system.as_inputs())
    return Unpacked(name=system.name, suite=system.suite, systems={system.name: system}, digest=asked)


def _of_base(base: BaseRef, arch: str) -> System:
    here = this_machine()
    if base.image is not None:
        raise UnsupportedError(
            f"nothing is built for {arch} on the local image {base}",
            why=f"on a machine for {here} it would need that system's headers and libraries for {arch} beside it",
            fix=f"name a base that is made from packages, such as debian13, or build on a machine for {arch}",
        )
    recipe = base_recipe(base.recipe, arch)
    if not recipe.sysroot:
        raise UnsupportedError(
            f"nothing is built for {arch} on base {recipe.name}",
            why=f"its recipe names no packages to compile against on a machine for {here}",
            fix=f"use --base debian13, or build on a machine for {arch}",
        )
    return System(name=recipe.name, arch=arch, suite=recipe.suite, packages=recipe.sysroot)


def unpack_system(
    system: System, tree: Path, workspace: Workspace, *, leave_out: Sequence[str] = ()
) -> list[dict[str, str]]:
    """Unpack a system's packages and all that they depend on into a new folder; none of their programs is run.

    Args:
        leave_out: patterns of paths, as tar takes them, besides what no build reads.

    Returns:
        What was unpacked, with the SHA-256 of each package's file (`stages.base.parse_packages`).
    """
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
    return parse_packages(listing.read_text(encoding="utf-8"))


def make_links_relative(tree: Path) -> None:
    """Make links to absolute paths mean the same file below `tree` when this machine's programs follow them."""
    for folder, names, files in os.walk(tree):
        for path in (Path(folder, name) for name in (*names, *files)):
            if path.is_symlink() and (target := path.readlink()).is_absolute():
                path.unlink()
                path.symlink_to(os.path.relpath(tree / target.relative_to("/"), path.parent))


def plan_packages(stage: str, what: Unpacked, request: Request) -> Planned[Unpacked]:
    """The plan of a stage that unpacks packages: by the list that these were resolved to, where that is here."""
    lock = read_packages(request.cache.package_list(stage, what.name, request.arch[0]), what.digest)
    return Planned(
        name=stage,
        image=f"toolchain-{stage}-{what.name}",
        inputs=None if lock is None else package_inputs(stage, what.name, lock, request),
        partial=PARTIAL,
        online=True,
        details=what,
    )


def finish_packages(
    planned: Planned[Unpacked], tree: Path, packages: Sequence[Mapping[str, str]], workspace: Workspace,
    *, of: str = "", facts: Mapping[str, Any] | None = None,
) -> Built:  # fmt: skip
    """Make the image of unpacked packages, and keep their list.

    Args:
        of: what its title calls it, where that is not its name.
    """
    stage, what, request = planned.name, planned.details, workspace.request
    lock = {"recipe": what.digest, "packages": list(packages)}
    resolved = replace(planned, inputs=package_inputs(stage, what.name, lock, request))
    built = workspace.finish(
        resolved,
        LayerContent(tree=tree, compress=False),
        ImageParts(labels=image_labels(resolved, of=of or what.name)),
        facts={"packages": len(packages), **(facts or {})},
    )
    write_packages(workspace.cache.package_list(stage, what.name, request.arch[0]), lock)
    return built
