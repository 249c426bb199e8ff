"""Values that stages hand to an engine, and where the recipe files lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolchain.digest import sha256_file
from toolchain.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One containerised build, as a stage asks for it and an engine runs it.

    Args:
        name: for people, e.g. `llvm`.
        containerfile: path below the recipe root.
        base: key of the base image (see `engine.buildah.Buildah.ensure_image`), given to the build as `BASE`.
        args: further build arguments.
        contexts: named read-only trees, each a `--build-context`.
        cache_key: replaces the id of the tree cache (`toolchain-<name>-tree`), so that a killed build finds its tree.
        network: whether the build may reach out; only base and fetch do.
        steps: relative weight of each `@step` the in-image script announces, for the estimate.
    """

    name: str
    containerfile: str
    base: str
    args: Mapping[str, str] = field(default_factory=dict)
    contexts: Mapping[str, Path] = field(default_factory=dict)
    cache_key: str = ""
    network: bool = False
    steps: Mapping[str, float] = field(default_factory=dict)


def root() -> Path:
    """The folder that holds containerfiles/, llvm-config/ and aotriton/: in a checkout its top, else in the package.

    Raises:
        ConfigError: neither is there.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package.parent, package / "_recipes"):
        if (candidate / "containerfiles").is_dir() and (candidate / "llvm-config").is_dir():
            return candidate
    raise ConfigError("the recipe files are missing", why=f"no containerfiles/ beside {package}", fix="reinstall")


def digests(*below: str) -> dict[str, str]:
    """SHA-256 of every recipe file below the given files or folders, by its path from the recipe root."""
    top = root()
    found: dict[str, str] = {}
    for name in below:
        start = top / name
        for path in [start] if start.is_file() else sorted(start.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found[path.relative_to(top).as_posix()] = sha256_file(path)
    return found
