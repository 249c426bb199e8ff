"""How an AOTriton release plans and packs its kernels, and the database that it plans them by: rows of data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from toolchain import recipe
from toolchain.catalog.release_data import aotriton_data
from toolchain.catalog.releases import check_release_gpus
from toolchain.data import read_toml, typed_row
from toolchain.errors import PinError, SourceError, UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A row `generation` of aotriton/releases.toml; that file says what each field is."""

    releases: tuple[str, ...]
    generator: str
    fields: int
    layout: Literal["library", "aks2", "flatzip"]
    packs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    python: str
    waves: bool = True
    triton_for: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""

    @property
    def gpus(self) -> tuple[str, ...]:
        """All GPUs that its generator knows, LLVM names, sorted."""
        return tuple(sorted({gpu for gpus in self.packs.values() for gpu in gpus} | set(self.words.values())))


@dataclass(frozen=True, kw_only=True)
class Database:
    """A row `database` of aotriton/releases.toml; that file says what each field is."""

    releases: tuple[str, ...]
    path: str
    id: str
    size: int


@lru_cache(maxsize=1)
def _rows() -> tuple[tuple[Generation, ...], tuple[Database, ...]]:
    path = recipe.root() / "aotriton" / "releases.toml"
    content = read_toml(path, error=PinError)
    generations = [typed_row(Generation, one, "generation", path, error=PinError) for one in content["generation"]]
    databases = [typed_row(Database, one, "database", path, error=PinError) for one in content["database"]]
    return tuple(generations), tuple(databases)


def generation_of(release: str) -> Generation:
    """The generation of a release on record.

    Raises:
        PinError: no row has it.
    """
    for one in _rows()[0]:
        if release in one.releases:
            return one
    raise PinError(f"no row says how AOTriton {release} plans its kernels", fix="add it to aotriton/releases.toml")


def release_of(commit: str) -> str:
    """The name of the release at a commit of AOTriton; empty where none is."""
    return next((row.name for row in aotriton_data() if commit and row.commit == commit), "")


def databases_of(release: str) -> tuple[Database, ...]:
    """The tuning databases of a release; nothing where its tree was not read."""
    return tuple(one for one in _rows()[1] if release in one.releases)


def refuse(release: str, gpus: Sequence[str]) -> None:
    """Refuse a release whose kernels cannot be built here, and GPUs that it has no kernels for.

    Raises:
        UnsupportedError: with the reason.
    """
    generation = generation_of(release)
    check_release_gpus(release, gpus)
    if generation.refused:
        raise UnsupportedError(
            f"AOTriton {release} cannot be built",
            why=generation.refused,
            fix=f"use one of {', '.join(buildable())}; its LLVM and Triton alone can be built: --triton COMMIT",
        )


def buildable() -> tuple[str, ...]:
    """The releases whose kernels can be built, oldest first."""
    return tuple(name for one in _rows()[0] if not one.refused for name in one.releases)


def generator_in(tree: Path) -> str:
    """The package that plans the kernels of a source tree, as `Generation.generator`; empty where it has none."""
    for file, name in (
        ("python/gpu_targets.py", "aotriton"),
        ("v3python/generate.py", "v3python"),
        ("v2python/generate_compile.py", "v2python"),
    ):
        if (tree / file).is_file() and (name != "aotriton" or (tree / "modules").is_dir()):
            return name
    return ""


def check_databases(tree: Path, release: str) -> None:
    """Insist on the tuning databases that a release was made with.

    Args:
        release: on record; for a tree of no release only that a database of its generation's place is no empty file.

    Raises:
        SourceError: one is missing, empty or another release's.
    """
    wanted = databases_of(release)
    for one in wanted or _rows()[1]:
        path = tree / one.path
        if not path.exists():
            if not wanted:
                continue
            raise SourceError(
                f"the tuning database of AOTriton {release} is not in its source: {one.path}",
                why="without it the generator plans every kernel that there could be, and says nothing",
                fix=f"take the source by git, or put the file with git's id {one.id} there",
            )
        if path.is_file() and not path.stat().st_size:
            raise SourceError(
                f"the tuning database {one.path} is empty",
                why="sqlite makes such a file where none is; the generator then plans every kernel there could be",
                fix=f"put the real one there, whose git id is {one.id}",
            )
        if wanted and (found := git_id(path)) != one.id:
            others = ", ".join(name for row in _rows()[1] if row.id == found for name in row.releases)
            raise SourceError(
                f"{one.path} is not the tuning database of AOTriton {release}",
                why=f"its git id is {found}{f', as in {others}' if others else ''}; that of {release} has {one.id}",
                fix="take that release's own; a tree with another one goes without a release: --source aotriton=PATH",
            )


def git_id(path: Path) -> str:
    """What git calls a file or a folder: 40 hex digits. Links count by their targets, empty folders do not."""
    kind, content = "blob", b""
    if path.is_symlink():
        content = os.fsencode(path.readlink())
    elif path.is_dir():
        rows = []
        for one in path.iterdir():
            mode = "120000" if one.is_symlink() else "40000" if one.is_dir() else "100644"
            mode = "100755" if mode == "100644" and one.stat().st_mode & 0o111 else mode
            # Git sorts a folder as if its name ended in a slash.
            name = os.fsencode(one.name)
            rows.append((name + (b"/" if mode == "40000" else b""), mode.encode() + b" " + name, git_id(one)))
        kind = "tree"
        content = b"".join(row + b"\0" + bytes.fromhex(id_) for _, row, id_ in sorted(rows))
    else:
        content = path.read_bytes()
    # Git's own name of the content; nothing here is trusted for it.
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)) + content, usedforsecurity=False).hexdigest()
