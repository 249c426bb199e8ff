"""How each AOTriton release plans and packs its kernels, and which tuning databases it needs."""

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
from toolchain.core.filesystem import source_text
from toolchain.data import read_toml, typed_row

# This is the name in `--source` for the user's own tuning database.
DATABASE = "aotriton-database"


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A `[[generation]]` table of aotriton/releases.toml, which documents the fields."""

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
        """Return LLVM's names for all GPUs that the generator supports, sorted."""
        return tuple(sorted({gpu for gpus in self.packs.values() for gpu in gpus} | set(self.words.values())))

    @property
    def inside(self) -> bool:
        """Return whether AOTriton's library contains the kernels and must be built after them."""
        return self.layout == "library"

    def kernels(self, gpus: Sequence[str]) -> int | None:
        """Return how many kernels the generator plans for the GPUs; None if they were not counted for one of them."""
        if any(gpu not in self.counted for gpu in gpus):
            return None
        return sum(self.counted[gpu] for gpu in gpus)

    def words_of(self, gpus: Sequence[str]) -> tuple[str, ...]:
        """Return the names that AOTriton's own build uses for the GPUs."""
        named = {gpu: word for word, gpu in self.words.items()}
        return tuple(named.get(gpu, gpu) for gpu in gpus)

    @property
    def script(self) -> str:
        """Return the path of the script in the AOTriton tree that compiles one kernel."""
        return f"{'python' if self.generator == 'aotriton' else self.generator}/compile.py"

    def pack(self, gpu: str) -> str:
        """Return the name of the image pack that lists a GPU, such as `gfx110x`, or the GPU's name if none does."""
        return next((name for name, gpus in self.packs.items() if gpu in gpus), gpu)


@dataclass(frozen=True, kw_only=True)
class Database:
    """A `[[database]]` table of aotriton/releases.toml, which documents the fields."""

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
    """Return the name of a GPU's image pack in the newest generation, or the GPU's name if the GPU has no pack."""
    return _rows()[0][-1].pack(gpu)


def generation_of(release: str) -> Generation:
    """Return the generation of an AOTriton release; raise a PinError if no table lists the release."""
    for row in _rows()[0]:
        if release in row.releases:
            return row
    raise PinError(
        "aotriton-plan-unknown",
        f"it is not known how AOTriton {release} plans its kernels",
        why="no `generation` table of aotriton/releases.toml lists this release",
        fix="add the release to the table of the releases that plan kernels in the same way",
    )


def release_of(commit: str) -> str:
    """Return the name of the AOTriton release at a commit; an empty string if no known release is at it."""
    return next((row.name for row in aotriton_releases() if commit and row.commit == commit), "")


def databases_of(release: str) -> tuple[Database, ...]:
    """Return the tuning databases of a release; an empty tuple if releases.toml lists none."""
    return tuple(row for row in _rows()[1] if release in row.releases)


def foreign_compilers() -> tuple[str, ...]:
    """Return the compilers other than Triton that some AOTriton release uses for kernels, sorted."""
    return tuple(sorted({name for row in _rows()[0] for name in row.foreign}))


def refuse_foreign(what: str, has: Sequence[str], without: Sequence[str]) -> None:
    """Raise an UnsupportedError unless `without` and `has` name the same compilers.

    This tool cannot build these compilers, so the user must skip their kernels.

    Args:
        what: the subject of the error message, such as `AOTriton 0.14b`.
        has: the compilers other than Triton that the kernels need.
        without: the compilers whose kernels the user skips.
    """
    if missing := [name for name in has if name not in without]:
        raise UnsupportedError(
            "aotriton-other-compiler",
            f"{what} has kernels that need the compiler {', '.join(missing)}",
            why="this tool cannot build that compiler, which needs an LLVM of its own",
            fix=f"skip these kernels: `toolchain kernels run aotriton --without {','.join(has)}`; the library then "
            "never selects them",
        )
    if vain := [name for name in without if name not in has]:
        raise UnsupportedError(
            "nothing-left-out", f"{what} has no kernels that need {', '.join(vain)}", fix="remove it from --without"
        )


def foreign_in(tree: Path) -> tuple[str, ...]:
    """Return the compilers in `foreign_compilers()` that have a folder in a tree's `third_party`."""
    here = {path.name.lower() for path in (tree / "third_party").glob("*")}
    return tuple(name for name in foreign_compilers() if name in here)


def refuse(release: str, gpus: Sequence[str], *, own_triton: bool = False, without: Sequence[str] = ()) -> None:
    """Raise an error if the kernels of a release cannot be built, or if the release has none for one of the GPUs.

    An error is also raised if the release is unknown, or if its kernels do not need one of the compilers in `without`.

    Args:
        own_triton: whether the user chose the Triton to compile with.
    """
    generation = generation_of(release)
    check_release_gpus(release, gpus, known=generation.gpus)
    if generation.refused:
        raise UnsupportedError(
            "aotriton-not-buildable",
            f"AOTriton {release} cannot be built",
            why=generation.refused,
            fix=f"use one of {', '.join(buildable())}; or build only the LLVM and Triton of this release with "
            "--triton COMMIT",
        )
    refuse_foreign(f"AOTriton {release}", generation.foreign, without)
    theirs = {gpu: generation.triton_for[gpu] for gpu in gpus if gpu in generation.triton_for}
    if theirs and not own_triton:
        raise UnsupportedError(
            "aotriton-two-tritons",
            f"AOTriton {release} needs a different Triton for {', '.join(sorted(theirs))} than for its other GPUs",
            why=f"upstream uses {', '.join(sorted(set(theirs.values())))} for them, but a build has one Triton",
            fix="remove them from --gpu, or build them separately with that Triton: --source triton=URL@COMMIT",
        )


def buildable() -> tuple[str, ...]:
    """Return the releases whose kernels this tool can build."""
    known = {row.name for row in aotriton_releases() if row.commit and row.triton}
    return tuple(name for row in _rows()[0] if not row.refused for name in row.releases if name in known)


def generator_in(tree: Path) -> str:
    """Return the Python package that plans a tree's kernels; an empty string if the package is unknown."""
    for file, name in (
        ("python/gpu_targets.py", "aotriton"),
        ("v3python/generate.py", "v3python"),
        ("v2python/generate_compile.py", "v2python"),
    ):
        if (tree / file).is_file() and (name != "aotriton" or (tree / "modules").is_dir()):
            return name
    return ""


def generation_in(tree: Path, release: str = "") -> Generation:
    """Return the generation that describes how a source tree plans its kernels.

    A tree that is not a release gets the generation of the newest release that has the same generator and is not newer
    than the tree; with the generator `aotriton`, it always gets the generation of 0.13b. Raise a SourceError if the
    tree is not the given release, or has no known generator, and a PinError if the release is unknown.

    Args:
        release: the release that the tree must contain; empty if the tree is not a release.
    """
    generator = generator_in(tree)
    if release:
        row, stated = generation_of(release), _stated_version(tree)
        differs = f"its kernel generator is {generator or 'missing'}" if generator != row.generator else ""
        if stated and stated[:2] != numbers(release)[:2]:
            differs = f"its CMakeLists.txt sets the version {'.'.join(map(str, stated))}"
        if differs:
            raise SourceError(
                "aotriton-other-release",
                f"the source tree is not AOTriton {release}",
                why=differs,
                fix="give the tree of that release, or omit --aotriton to use the version of the tree",
            )
        return row
    # Releases after 0.13b may compile more kernels, but plan them in the same way.
    if generator == "aotriton":
        return generation_of("0.13b")
    here, releases = _version_in(tree), [(numbers(name), row) for row in _rows()[0] for name in row.releases]
    fits = [row for version, row in releases if row.generator == generator and version <= here]
    if not fits:
        raise SourceError(
            "aotriton-generator-unknown",
            "the source tree has no known kernel generator of AOTriton",
            why="a known tree has v2python/generate_compile.py, v3python/generate.py, or python/gpu_targets.py with a "
            "folder modules",
            fix="give a complete checkout of AOTriton",
        )
    return fits[-1]


def refuse_gpus_not_in(tree: Path, generator: str, gpus: Sequence[str]) -> None:
    """Raise an UnsupportedError if the file gpu_targets.py in a tree does not list one of the GPUs.

    A tree without this file is accepted.
    """
    file = f"{'python' if generator == 'aotriton' else generator}/gpu_targets.py"
    if not (tree / file).is_file():
        return
    text = source_text(tree, file)
    if missing := [gpu for gpu in gpus if not re.search(rf"{gpu}(?![0-9a-z])", text)]:
        raise UnsupportedError(
            "gpu-not-in-aotriton",
            f"this AOTriton has no kernels for {', '.join(missing)}",
            why=f"{file} in its source tree does not list {'it' if len(missing) == 1 else 'them'}",
            fix="choose other GPUs with --gpu, or give a newer AOTriton",
        )


def _version_in(tree: Path) -> tuple[int, ...]:
    """Return the version of a tree; before 0.8, CMakeLists.txt states none, so it is inferred from the generator."""
    if stated := _stated_version(tree):
        return stated
    if (tree / "v2python/autotune_config.py").is_file():
        return (0, 7, 3)
    generator = tree / "v2python/generate_compile.py"
    bare = generator.is_file() and "bare_mode" in source_text(tree, "v2python/generate_compile.py")
    return (0, 6) if bare else (0, 5)


def _stated_version(tree: Path) -> tuple[int, ...]:
    text = source_text(tree, "CMakeLists.txt")
    parts = [re.search(rf"set\(AOTRITON_VERSION_{part}_INT (\d+)\)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return tuple(int(part[1]) for part in parts if part) if all(parts) else ()


def check_given_database(release: str, given: Path) -> Database:
    """Return the release's database that the user's file matches; raise a SourceError if it matches none."""
    row = _taken(databases_of(release), release, given)
    _check_database(row, given, release, str(given))
    return row


def check_databases(tree: Path, release: str, given: Path | None = None) -> Database | None:
    """Raise a SourceError if a tuning database of a tree is missing or wrong, or if `given` replaces none of them.

    Args:
        release: the release; empty for a tree that is not a release. The databases of such a tree only have to
            exist and not be empty. A database that the generator does not mention may be missing if the tree contains
            another database. If the tree has the generator `aotriton`, its databases are not checked.
        given: the user's own file or folder, which replaces a database of the tree.

    Returns:
        The database that `given` replaces; None if `given` is None.
    """
    rows = databases_of(release or generation_in(tree).releases[-1])
    taken = _taken(rows, release, given) if given is not None else None
    # A tree with the generator `aotriton` may be newer than all releases. releases.toml does not say which databases
    # such a tree needs, so none are checked.
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
                fix=f"{'restore it' if taken else f'give it with --source {DATABASE}=PATH'}, or fetch the source "
                f"with git; the database of {release or row.releases[-1]} has the git id {row.id}",
            )
    return taken


def _path_in(tree: Path, path: str) -> str:
    """Return `path`; if it is missing in the tree but exists with `.tar.xz` added or removed, return that path."""
    packed = ".tar.xz"
    other = path.removesuffix(packed) if path.endswith(packed) else path + packed
    return other if (tree / other).exists() and not (tree / path).exists() else path


def _is_unread(tree: Path, row: Database) -> bool:
    """Return whether no file of a tree's generator mentions a database."""
    stem, folder = Path(row.path).name.partition(".")[0], tree / Path(row.path).parts[0]
    files = [tree / "CMakeLists.txt", *folder.rglob("CMakeLists.txt"), *folder.rglob("*.py")]
    names = [os.fspath(path.relative_to(tree)) for path in files if path.is_file()]
    return not any(stem in source_text(tree, name) for name in names)


def _check_database(row: Database, path: Path, release: str, shown: str) -> None:
    """Raise a SourceError if a database is empty or, unless `release` is empty, differs from `row`."""
    if path.is_file() and not path.stat().st_size:
        raise SourceError(
            "tuning-empty",
            f"the tuning database {row.path} is empty",
            why="sqlite creates an empty file if the database is missing, and the generator then plans every possible "
            "kernel",
            fix=f"give the real one, whose git id is {row.id}: --source {DATABASE}=PATH",
        )
    if release and (id_ := git_id(path)) != row.id:
        same_id = ", ".join(name for like in _rows()[1] if like.id == id_ for name in like.releases)
        raise SourceError(
            "tuning-mismatch",
            f"{shown} is not the tuning database of AOTriton {release}",
            why=f"its git id is {id_}{f', that of {same_id}' if same_id else ''}, not {row.id}",
            fix="use the database of that release; or omit --aotriton and give the tree with --source aotriton=PATH",
        )


def _taken(rows: Sequence[Database], release: str, given: Path) -> Database:
    """Return the database in `rows` that the user's file replaces; raise a SourceError if there is none.

    The file replaces the database with the same git id, or else the first database that is not a .tar.xz file.
    """
    id_ = git_id(given)
    fits = [row for row in rows if row.id == id_] or [row for row in rows if not row.path.endswith(".tar.xz")][:1]
    if not fits:
        known = ", ".join(f"{row.path} {row.id}" for row in rows)
        raise SourceError(
            "tuning-unused",
            f"{f'AOTriton {release}' if release else 'this AOTriton'} does not use the given source {DATABASE}",
            why=f"its git id is {id_}; known databases: {known or 'none'}",
            fix=f"omit --source {DATABASE}, because the source tree contains its databases",
        )
    return fits[0]


def git_id(path: Path) -> str:
    """Return the git object id of a file or folder as 40 hexadecimal digits; a link is hashed by its target's path."""
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
    # Git's object ids are SHA-1 digests.
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)) + content, usedforsecurity=False).hexdigest()
