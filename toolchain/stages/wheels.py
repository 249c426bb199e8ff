"""Provide the wheels from the package index that builds need, and keep the wheels that builds make."""

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
from toolchain.stages.inputs import recorded_source
from toolchain.stages.stage import Built, Planned, Workspace

# This number is an input of the stages that make wheels. It must be changed when `trust.wheel_sbom` begins to write
# different bytes for the same contents.
SBOM_WRITER = 1
# These projects are needed to build Triton, and to tag and test its wheels.
TRITON = ("auditwheel", "lit", "packaging", "pybind11", "pyelftools", "setuptools", "wheel")
# These are the projects in AOTriton's requirements.txt, and their dependencies.
AOTRITON = (
    "filelock", "iniconfig", "numpy", "packaging", "pandas", "pluggy", "pybind11", "python-dateutil", "pyyaml",
    "setuptools", "tzdata", "wheel",
)  # fmt: skip


def wheel_sources(projects: Sequence[str]) -> tuple[Source, ...]:
    """Return the source of each project's wheel in data/pypi.toml, without using the network."""
    return tuple(known_pypi(f"wheel-{project}", project, "") for project in projects)


def wheel_folder(sources: Sequence[Source], workspace: Workspace) -> Path:
    """Fetch wheels, and return a new folder that contains them under their own names."""
    folder = emptied(workspace.work() / "wheels")
    for source in sources:
        fetched = workspace.fetch(source)
        place(fetched.path, folder / pypi_row(source.where, source.version).file)
    return folder


def place(file: Path, target: Path) -> None:
    """Make `target` a hard link to a file, or a copy of the file if it cannot be linked."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def wheels_with_sbom(out: Path, planned: Planned, inside: Sequence[Built], workspace: Workspace) -> list[Path]:
    """Return copies of the wheels that a recipe left in `out/wheel`, sorted, with an SBOM inside each.

    Args:
        inside: the lower stages whose code the wheels contain.
    """
    from toolchain.trust.wheel_sbom import Contents, add_sbom  # noqa: PLC0415 - plans make no wheel

    request, folder = workspace.request, emptied(workspace.work() / "wheels-with-sbom")
    sources = [source for stage in (planned, *(built.planned for built in inside)) for source in stage.sources]
    contents = Contents(
        input_digest=str(planned.input_digest), sources=[recorded_source(request, source) for source in sources]
    )
    wheels = [folder / file.name for file in sorted((out / "wheel").glob("*.whl"))]
    for wheel in wheels:
        copy_built(out, f"wheel/{wheel.name}", wheel)
        add_sbom(wheel, contents)
    return wheels


def keep_wheel(wheel: Path, cache: Cache) -> dict[str, Any]:
    """Put a built wheel into the store; return a dictionary with the keys `file`, `digest` and `bytes`."""
    digest, size = sha256_file(wheel), wheel.stat().st_size
    store = Store(cache.store)
    if store.file(digest, verify=True) is None:
        copy = wheel.with_name(f".{wheel.name}.kept")
        copy_built(wheel.parent, wheel.name, copy)
        store.partial.mkdir(parents=True, exist_ok=True)
        store.add_file(copy, digest, name=wheel.name)
    return {"file": wheel.name, "digest": digest, "bytes": size}


def in_store(cache: Cache, digest: str) -> Path | None:
    """Return the path of the file with this digest in the store; None if the file is missing or damaged."""
    return Store(cache.store).file(digest, verify=True)
