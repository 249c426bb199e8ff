"""Values that stages hand to an engine, and where the recipe files are."""

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
"""The folders of the recipe root: a build's context."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One containerised build, as a stage asks for it and an engine runs it.

    Args:
        name: for display, e.g. `llvm`.
        containerfile: path below the recipe root.
        base: key of the base image (see `engine.buildah.Buildah.ensure_image`), given to the build as `BASE`.
        images: further images by build argument, keys as in `base`.
        args: further build arguments.
        contexts: named read-only trees, each a `--build-context`.
        cache_key: replaces the id of the tree cache (`toolchain-<name>-tree`), so that a killed build finds its tree.
        compiler_cache: the key of its compiler cache, added to the id `toolchain-ccache`; empty for none.
        network: whether the build may reach out; only base and fetch do.
        steps: relative weight of each `@step` the in-image script announces, for the estimate.
        ninja: of a `@step` that is a run of ninja, the seconds of one core that a step of that takes on average, in the
            measure of `engine.estimate.cost`.
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
        source: where it is here.
        target: absolute path inside.
        read_only: whether the container may not write to it.
        links: whether a container that may write to it may make links and pipes, which readers must not follow.
    """

    source: Path
    target: str
    read_only: bool = True
    links: bool = False

    def arguments(self) -> list[str]:
        """The option for `buildah run` and `docker run`.

        Raises:
            ConfigError: the path holds both characters that the two forms of the option reserve.
        """
        source = os.fspath(self.source.absolute())
        if ":" not in source + self.target:
            return ["--volume", f"{source}:{self.target}:{'ro' if self.read_only else 'rw'}"]
        if "," in source + self.target:
            raise ConfigError(
                f"{source} cannot be mounted", why="no engine takes a path with a colon and a comma", fix="move it"
            )
        return ["--mount", f"type=bind,source={source},target={self.target}" + (",ro" if self.read_only else "")]


def plain_files(mounts: Sequence[Mount]) -> bool:
    """Whether a container with these mounts may make nothing but files and folders."""
    writable = [mount for mount in mounts if not mount.read_only]
    return bool(writable) and not any(mount.links for mount in writable)


class Runner(Protocol):
    """Runs a command in a fresh container: buildah, or docker."""

    def run(
        self,
        image: str,
        argv: Sequence[str],
        *,
        mounts: Sequence[Mount] = (),
        network: bool = False,
        **how: Unpack[RunOptions],
    ) -> Result:
        """Run `argv` in a container of `image`; the container is removed whatever happens."""


COMPILER_CACHE = "containerfiles/ccache.conf"
"""How every recipe's compiler cache is configured."""
CCACHE_MOUNT = "toolchain-ccache"
"""The id that Containerfiles give the mount of their compiler cache."""


def root() -> Path:
    """The folder that holds containerfiles/, llvm-config/ and aotriton/: in a checkout its top, else in the package."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package.parent, package / "_recipes"):
        if (candidate / "containerfiles").is_dir() and (candidate / "llvm-config").is_dir():
            return candidate
    raise ConfigError("the recipe files are missing", why=f"no containerfiles/ beside {package}", fix="reinstall")


def digests(*below: str) -> dict[str, str]:
    """SHA-256 of every recipe file below the given files or folders, by its path from the recipe root."""
    top = root()
    by_path: dict[str, str] = {}
    for name in below:
        start = top / name
        for path in [start] if start.is_file() else sorted(start.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                by_path[path.relative_to(top).as_posix()] = sha256_file(path)
    return by_path
