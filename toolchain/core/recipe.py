"""The values that stages pass to an engine, and the location of the recipe files."""

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
"""The folders of the recipe root that make up the build context."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A build in a container, which a stage requests and an engine runs.

    Args:
        name: the name in messages and in the ids of caches, such as `llvm`.
        containerfile: the path of the Containerfile below the recipe root.
        base: a reference to the base image, or its key (see `engine.buildah.Buildah.ensure_image`). The build gets it
            as the argument `BASE`.
        images: references to more images, or their keys, by the names of the build arguments that pass them.
        args: more build arguments.
        contexts: named read-only trees, each of which becomes a `--build-context`.
        cache_key: the key that is appended to the id of the cache for the build tree; empty for a build without such a
            cache.
        compiler_cache: the key that is appended to the id of the compiler cache; empty for a build without one.
        network: whether the build may use a network.
        steps: the relative duration of each `@step` that the script announces, for estimating the remaining time.
        ninja: for each `@step` that runs ninja, the mean seconds of one ninja step on one core, as
            `engine.estimate.cost` estimates them.
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
    """A folder or file of the host that a container can access.

    Args:
        target: the absolute path in the container.
        links: whether the container may create links and pipes in the folder.
    """

    source: Path
    target: str
    read_only: bool = True
    links: bool = False

    def arguments(self) -> list[str]:
        """Return the option of `buildah run` and `docker run` that mounts the path, as two words.

        Raise a ConfigError if the paths contain both a colon and a comma.
        """
        source = os.fspath(self.source.absolute())
        if ":" not in source + self.target:
            return ["--volume", f"{source}:{self.target}:{'ro' if self.read_only else 'rw'}"]
        if "," in source + self.target:
            raise ConfigError(
                "unmountable-path",
                f"{source} cannot be mounted",
                why="container engines cannot mount a path that has both a colon and a comma",
                fix="rename the folder",
            )
        return ["--mount", f"type=bind,source={source},target={self.target}" + (",ro" if self.read_only else "")]


def plain_files(mounts: Sequence[Mount]) -> bool:
    """Return whether at least one mount is writable, and no writable mount may contain links or pipes."""
    writable = [mount for mount in mounts if not mount.read_only]
    return bool(writable) and not any(mount.links for mount in writable)


class Runner(Protocol):
    """An engine, buildah or docker, that runs commands in new containers."""

    def run(
        self,
        image: str,
        argv: Sequence[str],
        *,
        mounts: Sequence[Mount] = (),
        network: bool = False,
        **how: Unpack[RunOptions],
    ) -> Result:
        """Run `argv` in a new container of `image`, and remove the container."""


COMPILER_CACHE = "containerfiles/ccache.conf"
"""The configuration file of all compiler caches, as a path below the recipe root."""
CCACHE_MOUNT = "toolchain-ccache"
"""The id of the compiler cache's mount in Containerfiles."""


def root() -> Path:
    """Return the folder that contains the recipe files: the top of a checkout, or `_recipes` in the installed package.

    Raise a ConfigError if neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    for candidate in (package.parent, package / "_recipes"):
        if (candidate / "containerfiles").is_dir() and (candidate / "llvm-config").is_dir():
            return candidate
    raise ConfigError(
        "recipes-missing",
        "the recipe files are missing",
        why=f"there is no containerfiles/ next to {package}, and no _recipes/ in it",
        fix="install toolchain again",
    )


def digests(*below: str) -> dict[str, str]:
    """Return the SHA-256 digest of each recipe file, by its path below the recipe root.

    Args:
        below: paths below the recipe root. For a folder, all files in it and in its subfolders are included, except
            those in a folder `__pycache__`.
    """
    top = root()
    by_path: dict[str, str] = {}
    for name in below:
        start = top / name
        for path in [start] if start.is_file() else sorted(start.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                by_path[path.relative_to(top).as_posix()] = sha256_file(path)
    return by_path
