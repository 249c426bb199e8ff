"""The values that stages pass to an engine, and the place of the recipe files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Unpack

from toolchain.core.digest import sha256_file
from toolchain.core.errors import ConfigError
from toolchain.core.process import Result, RunOptions

PARTS = ("containerfiles", "llvm-config", "aotriton")
"""The folders of the recipe root, which are the context of builds."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A build in a container, as a stage requests it and an engine runs it.

    Args:
        name: the name for display, such as `llvm`.
        containerfile: path below the recipe root.
        base: key of the base image (see `engine.buildah.Buildah.ensure_image`), passed to the build as `BASE`.
        images: further images by build argument, with keys as in `base`.
        args: further build arguments.
        contexts: named read-only trees, each a `--build-context`.
        cache_key: replaces the id of the tree cache (`toolchain-<name>-tree`), so that a killed build finds its tree.
        compiler_cache: the key of its compiler cache, added to the id `toolchain-ccache`; empty for none.
        network: whether the build may use a network; only base and fetch do.
        steps: relative weight of each `@step` that the script announces, for the estimate.
        ninja: for a `@step` that runs ninja, the average seconds of one of its steps on one core, in the measure of
            `engine.estimate.cost`.
    """

    name: str
    containerfile: str
    base: str
    images: Mapping[str, str] = field(default_factory=dict)
    args: Mapping[str, str] = field(default_factory=dict)
    contexts: Mapping[str, Path] = field(default_factory=dict)
    cache_key: str = ""
    compiler_cache: str = ""
    network: bool = False
    steps: Mapping[str, float] = field(default_factory=dict)
    ninja: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Mount:
    """A folder or file of this machine inside a container.

    Args:
        source: its path on this machine.
        target: absolute path inside.
        read_only: whether the container may not write to it.
        links: whether a container that may write to it may create links and pipes, which readers must not follow.
    """

    source: Path
    target: str
    read_only: bool = True
    links: bool = False

    def arguments(self) -> list[str]:
        """Return the option for `buildah run` and `docker run`."""
        source = os.fspath(self.source.absolute())
        if ":" not in source + self.target:
            return ["--volume", f"{source}:{self.target}:{'ro' if self.read_only else 'rw'}"]
        if "," in source + self.target:
            raise ConfigError(
                "unmountable-path",
                f"{source} cannot be mounted",
                why="engines accept no path with both a colon and a comma",
                fix="rename the folder",
            )
        return ["--mount", f"type=bind,source={source},target={self.target}" + (",ro" if self.read_only else "")]


def plain_files(mounts: Sequence[Mount]) -> bool:
    """Return whether a container with these mounts may create only files and folders."""
    writable = [mount for mount in mounts if not mount.read_only]
    return bool(writable) and not any(mount.links for mount in writable)


class Runner(Protocol):
    """Runs a command in a fresh container, by buildah or docker."""

    def run(
        self,
        image: str,
        argv: Sequence[str],
        *,
        mounts: Sequence[Mount] = (),
        network: bool = False,
        **how: Unpack[RunOptions],
    ) -> Result:
        """Run `argv` in a container of `image`; the container is always removed."""


COMPILER_CACHE = "containerfiles/ccache.conf"
"""The configuration of the compiler cache of every recipe."""
CCACHE_MOUNT = "toolchain-ccache"
"""The id of the mount of the compiler cache in Containerfiles."""


def root() -> Path:
    """Return the folder with the recipe files: the top of a checkout, or a folder in the installed package."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package.parent, package / "_recipes"):
        if (candidate / "containerfiles").is_dir() and (candidate / "llvm-config").is_dir():
            return candidate
    raise ConfigError(
        "recipes-missing",
        "the recipe files are missing",
        why=f"there is no containerfiles/ next to {package}",
        fix="install toolchain again",
    )


def digests(*below: str) -> dict[str, str]:
    """Return the SHA-256 of every recipe file below the given files or folders, by its path below the recipe root."""
    top = root()
    by_path: dict[str, str] = {}
    for name in below:
        start = top / name
        for path in [start] if start.is_file() else sorted(start.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                by_path[path.relative_to(top).as_posix()] = sha256_file(path)
    return by_path
