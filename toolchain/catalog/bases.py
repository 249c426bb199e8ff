"""The recipes of base images, from containerfiles/base/bases.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from toolchain.core.errors import ConfigError, UnsupportedError, did_you_mean
from toolchain.core.recipe import digests, root
from toolchain.data import read_toml, typed_row

DATA = "containerfiles/base/bases.toml"
_INSTALLER = "containerfiles/base/install.sh"
_PINNED = re.compile(r"[^@]+@sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class BaseRecipe:
    """The recipe of a base for one architecture. The file `DATA` documents the fields that are not listed here.

    Args:
        name: the name in `--base` and in image names.
        arch: the OCI architecture that `image` is for.
        image: the image (`repository@sha256:…`) that the Containerfile starts from; empty if mmdebstrap makes the base,
            or if no image is pinned for `arch`.
    """

    name: str
    kind: Literal["mmdebstrap", "containerfile"]
    arch: str
    suite: str = ""
    variant: str = ""
    packages: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    sysroot: tuple[str, ...] = ()
    containerfile: str = ""
    image: str
    tag: str = ""
    seen: str = ""
    os_release: Mapping[str, str]
    tools: Mapping[str, str]
    allocator: str = ""
    tested: bool
    note: str

    def as_inputs(self) -> dict[str, Any]:
        """Return the parts of the recipe that determine the base's content, as JSON values."""
        if self.kind == "mmdebstrap":
            return {
                "kind": self.kind,
                "arch": self.arch,
                "suite": self.suite,
                "variant": self.variant,
                "packages": list(self.packages),
                "exclude": list(self.exclude),
            }
        folder = PurePosixPath(self.containerfile).parent.as_posix()
        return {"kind": self.kind, "arch": self.arch, "image": self.image, "files": digests(folder, _INSTALLER)}


def load_bases(arch: str = "amd64") -> dict[str, BaseRecipe]:
    """Return the recipes of all bases for an OCI architecture, by name, including bases without a pinned image."""
    source = root() / DATA
    return {name: _recipe(name, row, arch, source) for name, row in read_toml(source).items()}


def _recipe(name: str, row: dict[str, Any], arch: str, source: Path) -> BaseRecipe:
    plain = {key: value for key, value in row.items() if key != "images"}
    image = row.get("images", {}).get(arch, "")
    recipe = typed_row(BaseRecipe, {**plain, "image": image, "name": name, "arch": arch}, name, source)
    if "python" not in recipe.tools:
        raise ConfigError(
            "base-without-python",
            f"{source}: base {name} has no Python version",
            why="wheels are built for the Python of the base",
            fix='add the version to the table of the base: tools.python = "3.13.5"',
        )
    return replace(recipe, packages=tuple(sorted(recipe.packages)), sysroot=tuple(sorted(recipe.sysroot)))


def base_recipe(name: str, arch: str = "amd64") -> BaseRecipe:
    """Return the recipe of a base; raise an UnsupportedError if it is unknown, or lacks the image that it needs."""
    bases = load_bases(arch)
    recipe = bases.get(name)
    if recipe is None:
        raise UnsupportedError(
            "unknown-base",
            f"unknown base {name!r}{did_you_mean(name, bases, cutoff=0.5)}",
            why=f"known bases: {', '.join(bases)}",
            fix="use a known base, or give a local image with --base oci:DIR",
        )
    if recipe.kind == "containerfile" and not _PINNED.fullmatch(recipe.image):
        raise UnsupportedError(
            "base-without-image",
            f"base {name} has no image pinned for {arch}",
            why=f"{DATA} has no digest for it, and a tag could be moved to other content",
            fix=f"add images.{arch} = REPOSITORY@sha256:DIGEST to that file, or give a local image with --base oci:DIR",
        )
    return recipe
