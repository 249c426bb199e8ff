"""Wheels that a build imports: locked files of the Python index, in one folder for pip's --find-links."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_file
from toolchain.core.filesystem import copy_built, emptied
from toolchain.sources.pypi import known_pypi, pypi_row
from toolchain.sources.store import Store
from toolchain.sources.tree import Source
from toolchain.stages.stage import Workspace

# Projects for Triton's build, and for the names and tests of its wheels.
TRITON = ("auditwheel", "lit", "packaging", "pybind11", "pyelftools", "setuptools", "wheel")
# The projects of AOTriton's requirements.txt, with their dependencies.
AOTRITON = (
    "filelock", "iniconfig", "numpy", "packaging", "pandas", "pluggy", "pybind11", "python-dateutil", "pyyaml",
    "setuptools", "tzdata", "wheel",
)  # fmt: skip


def wheel_sources(projects: Sequence[str]) -> tuple[Source, ...]:
    """Return the wheels as sources, without any network."""
    return tuple(known_pypi(f"wheel-{project}", project, "") for project in projects)


def wheel_folder(sources: Sequence[Source], workspace: Workspace) -> Path:
    """Return a folder with the fetched wheels under their own names; it is made again each time."""
    folder = emptied(workspace.work() / "wheels")
    for source in sources:
        fetched = workspace.fetch(source)
        place(fetched.path, folder / pypi_row(source.where, source.version).file)
    return folder


def place(file: Path, target: Path) -> None:
    """Put a file of the store under another name, without a copy if the file system allows that."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def keep_wheel(wheel: Path, cache: Cache) -> dict[str, Any]:
    """Put a wheel that was built into the store; return `{"file", "digest", "bytes"}`."""
    digest, size = sha256_file(wheel), wheel.stat().st_size
    store = Store(cache.store)
    if store.file(digest, verify=True) is None:
        copy = wheel.with_name(f".{wheel.name}.kept")
        copy_built(wheel.parent, wheel.name, copy)
        store.partial.mkdir(parents=True, exist_ok=True)
        store.add_file(copy, digest, name=wheel.name)
    return {"file": wheel.name, "digest": digest, "bytes": size}


def in_store(cache: Cache, digest: str) -> Path | None:
    """Return a file that an earlier build put into the store; None if it is missing or damaged."""
    return Store(cache.store).file(digest, verify=True)
