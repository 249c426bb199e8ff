"""The bases that have a name: data of containerfiles/base/bases.toml, checked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from toolchain.data import read_toml, typed_row
from toolchain.errors import ConfigError, UnsupportedError
from toolchain.recipe import digests, root

DATA = "containerfiles/base/bases.toml"
_INSTALLER = "containerfiles/base/install.sh"
_BY_DIGEST = re.compile(r"[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)+@sha256:[0-9a-f]{64}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class BaseRecipe:
    """The recipe of a base for one architecture.

    Args:
        name: as `--base` takes it, and part of image names.
        kind: `mmdebstrap` or `containerfile`.
        arch: the OCI architecture that `image` and `links` are for.
        suite: Debian's code name; empty for a Containerfile.
        variant: mmdebstrap's variant; empty for a Containerfile.
        packages: what mmdebstrap installs besides the variant, sorted; empty for a Containerfile.
        sysroot: what is unpacked of it to compile for this architecture on another one, sorted; empty if that is
            not possible. No part of the base itself.
        links: absolute path in the base to the target of the link that must be there.
        containerfile: path below the recipe root; empty for mmdebstrap.
        image: `repository@sha256:…` that the Containerfile starts from; empty for mmdebstrap.
        tag: what `image` was called when its digest was written down.
        seen: when that was, `YYYY-MM-DD`.
        os_release: `id` and `version_id` of the finished base.
        tools: versions by tool; of an untested base only what the recipe itself decides.
        allocator: library of its packages that processes which compile kernels take their memory from, as LD_PRELOAD
            takes it; empty for the C library's own.
        hip: whether its HIP serves AOTriton.
        tested: whether the base was really made and used.
        note: for display.
    """

    name: str
    kind: Literal["mmdebstrap", "containerfile"]
    arch: str
    suite: str = ""
    variant: str = ""
    packages: tuple[str, ...] = ()
    sysroot: tuple[str, ...] = ()
    links: Mapping[str, str]
    containerfile: str = ""
    image: str
    tag: str = ""
    seen: str = ""
    os_release: Mapping[str, str]
    tools: Mapping[str, str]
    allocator: str = ""
    hip: bool
    tested: bool
    note: str

    def as_inputs(self) -> dict[str, Any]:
        """The parts of the recipe that decide the base's content, as JSON values."""
        if self.kind == "mmdebstrap":
            return {
                "kind": self.kind,
                "arch": self.arch,
                "suite": self.suite,
                "variant": self.variant,
                "packages": list(self.packages),
                "links": dict(self.links),
            }
        folder = PurePosixPath(self.containerfile).parent.as_posix()
        return {"kind": self.kind, "arch": self.arch, "image": self.image, "files": digests(folder, _INSTALLER)}

    def check(self) -> None:
        """Whether the values fit the kind and each other; a ValueError says which do not."""
        debian: dict[str, object] = {"suite": self.suite, "variant": self.variant, "packages": self.packages}
        image: dict[str, object] = {"containerfile": self.containerfile, "tag": self.tag, "seen": self.seen}
        needed, strange = (
            (debian, {**image, "image": self.image})
            if self.kind == "mmdebstrap"
            else (image, {**debian, "links": self.links, "sysroot": self.sysroot})
        )
        for key, value in needed.items():
            if not value:
                raise ValueError(f"kind {self.kind} needs {key!r}")
        for key, value in strange.items():
            if value:
                raise ValueError(f"kind {self.kind} has no {key!r}")
        for package in (*self.packages, *self.sysroot):
            if not _PACKAGE.fullmatch(package):
                raise ValueError(f"{package!r} is not a package name")
        if self.image and not _BY_DIGEST.fullmatch(self.image):
            raise ValueError(f"{self.image!r} is not REPOSITORY@sha256:DIGEST")
        for path in self.links:
            if not path.startswith("/") or ".." in PurePosixPath(path).parts:
                raise ValueError(f"{path!r} is not an absolute path")


def load_bases(arch: str = "amd64", *, path: Path | None = None) -> dict[str, BaseRecipe]:
    """Every base of the data, by name, in its order; also those that `base_recipe` refuses for want of a digest.

    Args:
        arch: OCI architecture that images and links are taken for.
        path: another data file.

    Raises:
        ConfigError: the data cannot be read, has an unknown key or a value that does not fit.
    """
    source = path or root() / DATA
    return {name: _recipe(name, row, arch, source) for name, row in read_toml(source).items()}


def _recipe(name: str, content: Any, arch: str, source: Path) -> BaseRecipe:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{source}: {name!r} is not a name for a base",
            why="it becomes part of image names",
            fix="use letters, digits and single . _ - between them",
        )
    if isinstance(content, dict):
        row = {key: value for key, value in content.items() if key not in {"images", "links"}}
        links, image = content.get("links", {}).get(arch, {}), content.get("images", {}).get(arch, "")
        content = {**row, "name": name, "arch": arch, "links": links, "image": image}
    recipe = typed_row(BaseRecipe, content, name, source)
    try:
        recipe.check()
    except ValueError as error:
        raise ConfigError(
            f"{source}: bad value for {name!r}", why=str(error), fix="correct or remove the key"
        ) from error
    return replace(recipe, packages=tuple(sorted(recipe.packages)), sysroot=tuple(sorted(recipe.sysroot)))


def base_recipe(name: str, arch: str = "amd64", *, path: Path | None = None) -> BaseRecipe:
    """The base called `name`, for `arch`.

    Raises:
        ConfigError: see `load_bases`.
        UnsupportedError: there is no such base, or no image digest of it is known for this architecture.
    """
    bases = load_bases(arch, path=path)
    recipe = bases.get(name)
    if recipe is None:
        near = difflib.get_close_matches(name.lower(), bases, n=1, cutoff=0.5)
        raise UnsupportedError(
            f"unknown base {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
            why=f"known bases: {', '.join(bases)}",
            fix="name one of these, or give a local image with --base oci:DIR",
        )
    if recipe.kind == "containerfile" and not recipe.image:
        raise UnsupportedError(
            f"base {name} has no image pinned for {arch}",
            why=f"{DATA} names no digest, and a tag can be moved to other content",
            fix=f"add images.{arch} = REPOSITORY@sha256:DIGEST there, or give a local image with --base oci:DIR",
        )
    return recipe
