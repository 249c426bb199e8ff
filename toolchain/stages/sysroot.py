"""The other machine's side of a cross build: headers, libc and libstdc++ of the same distribution, unpacked."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolchain import process
from toolchain.catalog.architectures import machine_of, this_machine
from toolchain.catalog.bases import BaseRecipe, base_recipe
from toolchain.digest import sha256_json
from toolchain.errors import UnsupportedError
from toolchain.settings import Request
from toolchain.stages.base import parse_packages, read_packages, run_mmdebstrap, write_packages
from toolchain.stages.stage import Built, Planned, Shop, common_inputs

# Runs before mmdebstrap takes the archives away: what dpkg would say of packages that it had installed.
_LIST_ARCHIVES = (
    'for deb in "$1"/var/cache/apt/archives/*.deb; do dpkg-deb -f "$deb" Package Version Architecture'
    ' && sha256sum <"$deb" | sed "s/^/SHA256: /; s/ *-$//" && echo; done'
)
# Neither headers nor libraries; of some the content is this machine's.
_NOT_WANTED = ("boot", "dev", "etc", "home", "media", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "var")
PARTIAL = "unpacked to compile against, not installed"


@dataclass(frozen=True)
class SysrootStage:
    """See `Stage`. No program of the other machine is run for it, so it needs no emulator."""

    name: str = "sysroot"

    def plan(self, request: Request, below: Mapping[str, Planned]) -> Planned:
        """See `Stage.plan`."""
        recipe = sysroot_recipe(request)
        path = request.cache.package_list(self.name, recipe.name, recipe.arch)
        return _planned(request, read_packages(path, sysroot_digest(recipe)))

    def build(self, planned: Planned, below: Mapping[str, Built], shop: Shop) -> Built:
        """See `Stage.build`."""
        request = shop.request
        recipe = sysroot_recipe(request)
        arch = recipe.arch
        work = shop.work()
        tar, listing, tree = work / "rootfs.tar", work / "packages", work / "tree"
        shop.step("packages")
        run_mmdebstrap(
            shop,
            tar,
            suite=recipe.suite,
            variant="extract",
            packages=recipe.sysroot,
            what=f"the headers and libraries of {recipe.name} for {arch}",
            options=[
                f"--architectures={machine_of(arch).debian}",
                f"--extract-hook={{ {_LIST_ARCHIVES}; }} >{shlex.quote(str(listing))}",
            ],
        )
        lock = {"recipe": sysroot_digest(recipe), "packages": parse_packages(listing.read_text(encoding="utf-8"))}
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir()
        left_out = [f"--exclude=./{name}" for name in _NOT_WANTED]
        process.run(["tar", "--extract", "--file", tar, "--directory", tree, *left_out], log=shop.log)
        built = shop.finish(
            _planned(request, lock),
            tree=tree,
            facts={"packages": len(lock["packages"])},
            compress=False,
            labels={"org.opencontainers.image.title": f"headers and libraries of {recipe.name}"},
        )
        write_packages(shop.cache.package_list(self.name, recipe.name, arch), lock)
        return built


def sysroot_recipe(request: Request) -> BaseRecipe:
    """The base whose packages for the request's one architecture are unpacked.

    Raises:
        UnsupportedError: it cannot be made from packages, or names none to compile against.
    """
    arch, here = request.arch[0], this_machine()
    if request.base.startswith("oci:"):
        raise UnsupportedError(
            f"nothing is built for {arch} on the local image {request.base}",
            why=f"on a machine for {here} it would need that system's headers and libraries for {arch} beside it",
            fix=f"name a base that is made from packages, such as debian13, or build on a machine for {arch}",
        )
    recipe = base_recipe(request.base, arch)
    if not recipe.sysroot:
        raise UnsupportedError(
            f"nothing is built for {arch} on base {recipe.name}",
            why=f"its recipe names no packages to compile against on a machine for {here}",
            fix=f"use --base debian13, or build on a machine for {arch}",
        )
    return recipe


def sysroot_digest(recipe: BaseRecipe) -> str:
    """Of all that decides what is asked for; what it then holds is in its package list."""
    inputs = {"kind": "sysroot", "arch": recipe.arch, "suite": recipe.suite, "packages": list(recipe.sysroot)}
    return sha256_json({**inputs, "without": list(_NOT_WANTED)})


def _planned(request: Request, lock: Mapping[str, Any] | None) -> Planned:
    recipe = sysroot_recipe(request)
    inputs: dict[str, Any] | None = None
    if lock is not None:
        inputs = {**common_inputs("sysroot", request), "base": recipe.name, "packages": sha256_json(dict(lock))}
    return Planned(
        name="sysroot", image=f"toolchain-sysroot-{recipe.name}", inputs=inputs, partial=PARTIAL, online=True
    )
