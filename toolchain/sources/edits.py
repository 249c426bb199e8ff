"""Read and apply edit files, which replace lines with given numbers in the files of a source tree.

An edit file is written in TOML. Its keys `source`, `commit` and `llvm` name the source, the commit and the LLVM
releases that it applies to, and each `[[edit]]` replaces lines of one file. Unlike a patch, it need not contain lines
of the tree.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache as memoize
from itertools import pairwise
from pathlib import Path

from toolchain.core.digest import sha256_file
from toolchain.core.errors import PatchError
from toolchain.data import FOLDER, read_toml, typed_row

SUFFIX = ".toml"


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A replacement of some lines of a file.

    Args:
        sha256: the digest of the whole file before the edits, as hexadecimal digits.
        first, last: the first and last line to replace, counted from 1; with `last = first - 1` the text is inserted
            before `first`.
        text: the new lines, with their newlines; empty to delete the lines.
    """

    file: str
    sha256: str
    first: int
    last: int
    text: str
    why: str


@dataclass(frozen=True, kw_only=True)
class EditFile:
    """A parsed edit file.

    Args:
        commit: the commit of the source that the edits apply to.
        llvm: the prefix of the LLVM releases that need the edits: `22.1` stands for all releases of 22.1.
    """

    path: Path
    source: str
    commit: str
    llvm: str
    edits: tuple[Edit, ...]

    def is_for(self, llvm: str) -> bool:
        """Return whether a release of LLVM, e.g. `22.1.8`, needs the edits."""
        return f"{llvm}.".startswith(f"{self.llvm}.")

    def fits(self, tree: Path) -> bool:
        """Return whether every edited file in a tree has the expected digest."""
        return not self._others(tree)

    def check(self, tree: Path) -> None:
        """Raise PatchError unless every edited file in a tree has the expected digest."""
        for file, expected, actual in self._others(tree):
            raise PatchError(
                "edit-tree-mismatch",
                f"{self.path.name} does not fit this tree: {file} has another digest",
                why=f"expected sha256:{expected}, found {actual or 'no such file'}",
                fix=f"undo the change to {file}, or commit it, because only commit {self.commit[:12]} is edited",
            )

    def _others(self, tree: Path) -> list[tuple[str, str, str]]:
        """Return the path, the expected digest and the actual digest (see `_digest`) of each file that differs."""
        wanted = {edit.file: edit.sha256 for edit in self.edits}
        here = {file: _digest(tree, file) for file in wanted}
        return [(file, digest, here[file]) for file, digest in wanted.items() if here[file] != f"sha256:{digest}"]


def _digest(tree: Path, file: str) -> str:
    """Return the digest of a regular file in a tree, or an empty string for a missing file, a link or a folder.

    A file whose path contains a link gets no digest, because writing through a link would change another file.
    """
    path = tree / file
    linked = Path(os.path.realpath(path)) != Path(os.path.realpath(tree), file)
    return sha256_file(path) if path.is_file() and not linked else ""


@memoize
def shipped() -> tuple[EditFile, ...]:
    """Return the edit files in data/edits, sorted by name."""
    return tuple(read_edits(path) for path in sorted((FOLDER / "edits").glob(f"*{SUFFIX}")))


def users_own(patches: Iterable[Path]) -> list[Path]:
    """Return those of the patches of a request that the user gave; the others are the tool's own edits."""
    of_tool = {edits.path for edits in shipped()}
    return [path for path in patches if path not in of_tool]


def read_edits(path: Path) -> EditFile:
    """Parse an edit file; raise PatchError if it is invalid.

    ConfigError is raised for an unknown key, a missing key or a value of the wrong type in an `[[edit]]` table.
    """
    content = read_toml(path, error=PatchError, fix="correct the edit file")
    rows = content.get("edit")
    heads = {name: content.get(name) for name in ("source", "commit", "llvm")}
    if not isinstance(rows, list) or not rows or not all(isinstance(value, str) for value in heads.values()):
        raise PatchError(
            "edit-malformed",
            f"{path.name} is not an edit file",
            why="it needs the strings source, commit and llvm, and at least one [[edit]]",
            fix="compare it with the files in toolchain/data/edits",
        )
    edits = tuple(typed_row(Edit, row, f"edit.{number}", path) for number, row in enumerate(rows))
    for edit in edits:
        _check(edit, path)
    for file, own in _by_file(edits).items():
        for before, after in pairwise(own):
            if after.first <= before.last or after.first == before.first:
                raise PatchError(
                    "edit-overlap",
                    f"{path.name} edits the same lines of {file} twice",
                    fix="merge the two edits into one",
                )
    return EditFile(path=path, edits=edits, **{name: str(value) for name, value in heads.items()})


def apply_edits(edit_file: EditFile, tree: Path) -> None:
    """Apply an edit file to a copy of the source; raise PatchError and change no file if an edit does not fit."""
    edit_file.check(tree)
    changed = {file: _edited(tree / file, own, edit_file.path.name) for file, own in _by_file(edit_file.edits).items()}
    for file, content in changed.items():
        (tree / file).write_bytes(content)


def _edited(path: Path, edits: Sequence[Edit], name: str) -> bytes:
    lines = path.read_bytes().splitlines(keepends=True)
    for edit in reversed(edits):
        if max(edit.last, edit.first - 1) > len(lines):
            raise PatchError(
                "edit-line-missing",
                f"{name} names line {edit.last} of {edit.file}, which has {len(lines)} lines",
                fix="correct the edit file",
            )
        lines[edit.first - 1 : edit.last] = [edit.text.encode()]
    return b"".join(lines)


def _by_file(edits: Sequence[Edit]) -> Mapping[str, list[Edit]]:
    """Return the edits of each file, sorted by line."""
    by_file: dict[str, list[Edit]] = {}
    for edit in sorted(edits, key=lambda edit: (edit.file, edit.first)):
        by_file.setdefault(edit.file, []).append(edit)
    return by_file


def _check(edit: Edit, path: Path) -> None:
    parts = edit.file.split("/")
    # A second spelling of a path, such as `./FILE`, would let one edit overwrite another edit of the same file.
    if edit.file.startswith("/") or {"..", ".", ".git", ""} & set(parts) or "\0" in edit.file:
        raise PatchError(
            "edit-escapes",
            f"{path.name} edits a file outside the source tree",
            why=f"it names {edit.file!r}",
            fix="do not use this edit file",
        )
    if edit.first < 1 or edit.last < edit.first - 1 or (edit.text and not edit.text.endswith("\n")):
        raise PatchError(
            "edit-malformed",
            f"{path.name}: the edit of lines {edit.first} to {edit.last} of {edit.file} is invalid",
            why="lines are numbered from 1, `last` is at least `first - 1`, and the text ends with a newline",
            fix="correct the edit file",
        )
