"""Generations of AOTriton's generator: how a release plans and packs kernels, and its tuning databases."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from toolchain.catalog.release_data import aotriton_releases, numbers
from toolchain.catalog.releases import check_release_gpus
from toolchain.core import recipe
from toolchain.core.errors import PinError, SourceError, UnsupportedError
from toolchain.data import read_toml, typed_row

# The name of the tuning database in `--source`, if it is not in the tree.
DATABASE = "aotriton-database"


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A row `generation` of aotriton/releases.toml; that file describes the fields."""

    releases: tuple[str, ...]
    generator: str
    fields: int
    layout: Literal["library", "aks2", "flatzip"]
    packs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    python: str
    waves: bool = True
    triton_for: Mapping[str, str] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    counted: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""

    @property
    def gpus(self) -> tuple[str, ...]:
        """The LLVM names of all GPUs that its generator knows, sorted."""
        return tuple(sorted({gpu for gpus in self.packs.values() for gpu in gpus} | set(self.words.values())))

    @property
    def inside(self) -> bool:
        """Whether AOTriton's library contains the kernels, so that it is built after them."""
        return self.layout == "library"

    def kernels(self, gpus: Sequence[str]) -> int | None:
        """Return the number of kernels that its generator plans for these GPUs; None unless each was counted."""
        if any(gpu not in self.counted for gpu in gpus):
            return None
        return sum(self.counted[gpu] for gpu in gpus)

    def words_of(self, gpus: Sequence[str]) -> tuple[str, ...]:
        """Return GPUs by the names of AOTriton's own build."""
        named = {gpu: word for word, gpu in self.words.items()}
        return tuple(named.get(gpu, gpu) for gpu in gpus)

    @property
    def script(self) -> str:
        """The path of upstream's compile script for one kernel, below its tree."""
        return f"{'python' if self.generator == 'aotriton' else self.generator}/compile.py"

    def pack(self, gpu: str) -> str:
        """Return the image pack with a GPU's kernels, such as `gfx110x`; the GPU itself if the row does not have it."""
        return next((name for name, gpus in self.packs.items() if gpu in gpus), gpu)


@dataclass(frozen=True, kw_only=True)
class Database:
    """A row `database` of aotriton/releases.toml; that file describes the fields."""

    releases: tuple[str, ...]
    path: str
    id: str
    size: int


@lru_cache(maxsize=1)
def _rows() -> tuple[tuple[Generation, ...], tuple[Database, ...]]:
    path = recipe.root() / "aotriton" / "releases.toml"
    content = read_toml(path, error=PinError)
    generations = [typed_row(Generation, row, "generation", path, error=PinError) for row in content["generation"]]
    databases = [typed_row(Database, row, "database", path, error=PinError) for row in content["database"]]
    return tuple(generations), tuple(databases)


def pack(gpu: str) -> str:
    """Return the image pack with a GPU's kernels in the newest release."""
    return _rows()[0][-1].pack(gpu)


def generation_of(release: str) -> Generation:
    """Return the generation of a release on record."""
    for row in _rows()[0]:
        if release in row.releases:
            return row
    raise PinError(
        "aotriton-plan-unknown",
        f"no row says how AOTriton {release} plans its kernels",
        fix="add it to aotriton/releases.toml",
    )


def release_of(commit: str) -> str:
    """Return the name of the release at a commit of AOTriton; empty if there is none."""
    return next((row.name for row in aotriton_releases() if commit and row.commit == commit), "")


def databases_of(release: str) -> tuple[Database, ...]:
    """Return the tuning databases of a release; nothing if its tree was not read."""
    return tuple(row for row in _rows()[1] if release in row.releases)


def foreign_compilers() -> tuple[str, ...]:
    """Return the compilers other than Triton that make kernels of some release, sorted."""
    return tuple(sorted({name for row in _rows()[0] for name in row.foreign}))


def refuse_foreign(what: str, has: Sequence[str], without: Sequence[str]) -> None:
    """Refuse kernels of a compiler other than Triton that are not left out, and a `without` that has no effect.

    Args:
        what: the owner of the kernels, for messages.
        has: its compilers.
        without: the compilers whose kernels the user leaves out.
    """
    if missing := [name for name in has if name not in without]:
        raise UnsupportedError(
            "aotriton-other-compiler",
            f"{what} has kernels that are made by {', '.join(missing)}",
            why="that compiler has its own LLVM, and there is no recipe for it here",
            fix=f"leave them out: `kernels run aotriton --without {','.join(has)}`; the library then chooses none",
        )
    if vain := [name for name in without if name not in has]:
        raise UnsupportedError(
            "nothing-left-out", f"{what} has no kernels that are made by {', '.join(vain)}", fix="leave --without out"
        )


def foreign_in(tree: Path) -> tuple[str, ...]:
    """Return the compilers other than Triton in a tree, by their folders in `third_party`."""
    here = {path.name.lower() for path in (tree / "third_party").glob("*")}
    return tuple(name for name in foreign_compilers() if name in here)


def refuse(release: str, gpus: Sequence[str], *, own_triton: bool = False, without: Sequence[str] = ()) -> None:
    """Refuse a release whose kernels cannot be built here, and GPUs that it has no kernels for.

    Args:
        own_triton: whether the user names the Triton.
        without: see `refuse_foreign`.
    """
    generation = generation_of(release)
    check_release_gpus(release, gpus, known=generation.gpus)
    if generation.refused:
        raise UnsupportedError(
            "aotriton-not-buildable",
            f"AOTriton {release} cannot be built",
            why=generation.refused,
            fix=f"use one of {', '.join(buildable())}; its LLVM and Triton alone can be built: --triton COMMIT",
        )
    refuse_foreign(f"AOTriton {release}", generation.foreign, without)
    # Upstream's build compiles these GPUs' kernels with another Triton than the submodule's.
    theirs = {gpu: generation.triton_for[gpu] for gpu in gpus if gpu in generation.triton_for}
    if theirs and not own_triton:
        raise UnsupportedError(
            "aotriton-two-tritons",
            f"AOTriton {release} compiles {', '.join(sorted(theirs))} with another Triton than its other GPUs",
            why=f"upstream takes {', '.join(sorted(set(theirs.values())))} for them; a build here has one Triton",
            fix="leave them out of --gpu, or build them apart with --source triton=URL@COMMIT of that one",
        )


def buildable() -> tuple[str, ...]:
    """Return the releases whose kernels can be built, oldest first."""
    known = {row.name for row in aotriton_releases() if row.commit and row.triton}
    return tuple(name for row in _rows()[0] if not row.refused for name in row.releases if name in known)


def generator_in(tree: Path) -> str:
    """Return the package that plans the kernels of a source tree, as in `Generation.generator`; empty for none."""
    for file, name in (
        ("python/gpu_targets.py", "aotriton"),
        ("v3python/generate.py", "v3python"),
        ("v2python/generate_compile.py", "v2python"),
    ):
        if (tree / file).is_file() and (name != "aotriton" or (tree / "modules").is_dir()):
            return name
    return ""


def generation_in(tree: Path, release: str = "") -> Generation:
    """Return the generation of a tree's release, otherwise of the newest release that is not newer than the tree.

    Args:
        release: on record; empty for a tree of no release.
    """
    generator = generator_in(tree)
    if release:
        row, stated = generation_of(release), _stated_version(tree)
        differs = f"it plans its kernels with {generator or 'nothing'}" if generator != row.generator else ""
        if stated and stated[:2] != numbers(release)[:2]:
            differs = f"its CMakeLists.txt says {'.'.join(map(str, stated))}"
        if differs:
            raise SourceError(
                "aotriton-other-release",
                f"the source tree is not AOTriton {release}",
                why=differs,
                fix="give that release's tree, or leave --aotriton out: then the tree decides",
            )
        return row
    # Later releases compile more, but plan it in the same way.
    if generator == "aotriton":
        return generation_of("0.13b")
    here, releases = _version_in(tree), [(numbers(name), row) for row in _rows()[0] for name in row.releases]
    fits = [row for version, row in releases if row.generator == generator and version <= here]
    if not fits:
        raise SourceError(
            "aotriton-generator-unknown",
            "the source tree has no generator of AOTriton's that is known",
            why="no python/gpu_targets.py with modules, no v3python/generate.py and no v2python/generate_compile.py",
            fix="give a whole checkout of AOTriton",
        )
    return fits[-1]


def refuse_gpus_not_in(tree: Path, generator: str, gpus: Sequence[str]) -> None:
    """Refuse GPUs that the generator of a tree of no release does not name."""
    file = f"{'python' if generator == 'aotriton' else generator}/gpu_targets.py"
    if not (tree / file).is_file():
        return
    text = (tree / file).read_text(encoding="utf-8", errors="replace")
    if missing := [gpu for gpu in gpus if not re.search(rf"{gpu}(?![0-9a-z])", text)]:
        raise UnsupportedError(
            "gpu-not-in-aotriton",
            f"this AOTriton has no kernels for {', '.join(missing)}",
            why=f"its {file} does not name it",
            fix="choose others by --gpu, or give a newer AOTriton",
        )


def _version_in(tree: Path) -> tuple[int, ...]:
    """Return the version of a tree; before 0.8 CMakeLists.txt has none, and the generator decides."""
    if stated := _stated_version(tree):
        return stated
    if (tree / "v2python/autotune_config.py").is_file():
        return (0, 7, 3)
    generator = tree / "v2python/generate_compile.py"
    bare = generator.is_file() and "bare_mode" in generator.read_text(encoding="utf-8", errors="replace")
    return (0, 6) if bare else (0, 5)


def _stated_version(tree: Path) -> tuple[int, ...]:
    """Return the version in a tree's CMakeLists.txt; nothing if it has none."""
    text = (tree / "CMakeLists.txt").read_text(encoding="utf-8", errors="replace")
    parts = [re.search(rf"set\(AOTRITON_VERSION_{part}_INT (\d+)\)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return tuple(int(part[1]) for part in parts if part) if all(parts) else ()


def check_given_database(release: str, given: Path) -> Database:
    """Require that a user's tuning database is one of a release's."""
    row = _taken(databases_of(release), release, given)
    _check_database(row, given, release, str(given))
    return row


def check_databases(tree: Path, release: str, given: Path | None = None) -> Database | None:
    """Require the tuning databases that a release was made with.

    Args:
        release: on record; in a tree of no release the databases must only exist and not be empty.
        given: the user's own file or folder, which replaces one of the tree.

    Returns:
        The database that `given` replaces; None without `given`.
    """
    rows = databases_of(release or generation_in(tree).releases[-1])
    taken = _taken(rows, release, given) if given is not None else None
    # No row says where the databases of a tree after the last release are.
    for row in rows if release or generator_in(tree) != "aotriton" else ():
        own = tree / (row.path if release else _path_in(tree, row.path))
        others = any((tree / _path_in(tree, other.path)).exists() for other in rows if other is not row)
        if not release and row is not taken and not own.exists() and others and _is_unread(tree, row):
            continue
        if row is taken and given is not None:
            _check_database(row, given, release, str(given))
        elif own.exists():
            _check_database(row, own, release, row.path)
        else:
            raise SourceError(
                "tuning-missing",
                f"the tuning database of {f'AOTriton {release}' if release else 'this AOTriton'} is not in its source",
                why=f"without {row.path} the generator silently plans every possible kernel",
                fix=f"{'put it there' if taken else f'--source {DATABASE}=PATH of it'}, or take the source by git; "
                f"that of {release or row.releases[-1]} has git's id {row.id}",
            )
    return taken


def _path_in(tree: Path, path: str) -> str:
    """Return the path of a database in a tree between releases, which may pack it or not; `path` if it is not there."""
    packed = ".tar.xz"
    other = path.removesuffix(packed) if path.endswith(packed) else path + packed
    return other if (tree / other).exists() and not (tree / path).exists() else path


def _is_unread(tree: Path, row: Database) -> bool:
    """Return whether the generator of a tree names no such database, because it came later."""
    stem, folder = Path(row.path).name.partition(".")[0], tree / Path(row.path).parts[0]
    files = [tree / "CMakeLists.txt", *folder.rglob("CMakeLists.txt"), *folder.rglob("*.py")]
    return not any(stem in path.read_text(encoding="utf-8", errors="replace") for path in files if path.is_file())


def _check_database(row: Database, path: Path, release: str, shown: str) -> None:
    """Check an existing database; see `check_databases`."""
    if path.is_file() and not path.stat().st_size:
        raise SourceError(
            "tuning-empty",
            f"the tuning database {row.path} is empty",
            why="sqlite makes such a file where none is; the generator then plans every kernel there could be",
            fix=f"--source {DATABASE}=PATH of the real one, whose git id is {row.id}",
        )
    if release and (id_ := git_id(path)) != row.id:
        same_id = ", ".join(name for like in _rows()[1] if like.id == id_ for name in like.releases)
        raise SourceError(
            "tuning-mismatch",
            f"{shown} is not the tuning database of AOTriton {release}",
            why=f"its git id is {id_}{f', as in {same_id}' if same_id else ''}; that of {release} has {row.id}",
            fix="take that release's own; a tree with another one goes without a release: --source aotriton=PATH",
        )


def _taken(rows: Sequence[Database], release: str, given: Path) -> Database:
    """Return the database of a release that a given one replaces."""
    id_ = git_id(given)
    fits = [row for row in rows if row.id == id_] or [row for row in rows if not row.path.endswith(".tar.xz")][:1]
    if not fits:
        known = ", ".join(f"{row.path} {row.id}" for row in rows)
        raise SourceError(
            "tuning-unused",
            f"the source {DATABASE} is not one that {f'AOTriton {release}' if release else 'this AOTriton'} uses",
            why=f"its git id is {id_}; on record are {known or 'none'}",
            fix=f"leave --source {DATABASE} out: that release's own are in its tree",
        )
    return fits[0]


def git_id(path: Path) -> str:
    """Return git's id of a file or folder, 40 hex digits; links are hashed by their targets, empty folders ignored."""
    kind, content = "blob", b""
    if path.is_symlink():
        content = os.fsencode(path.readlink())
    elif path.is_dir():
        rows = []
        for child in path.iterdir():
            mode = "120000" if child.is_symlink() else "40000" if child.is_dir() else "100644"
            mode = "100755" if mode == "100644" and child.stat().st_mode & 0o111 else mode
            # Git sorts a folder as if its name ended in a slash.
            name = os.fsencode(child.name)
            rows.append((name + (b"/" if mode == "40000" else b""), mode.encode() + b" " + name, git_id(child)))
        kind = "tree"
        content = b"".join(row + b"\0" + bytes.fromhex(id_) for _, row, id_ in sorted(rows))
    else:
        content = path.read_bytes()
    # The hash only compares content with git's ids; no trust depends on it.
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)) + content, usedforsecurity=False).hexdigest()
