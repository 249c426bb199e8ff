"""Decide what happens to the prebuilt files in a source tree.

The user allows or drops a file by an option, or a file of the base replaces it. A build refuses all other prebuilt
files, except those in folders that it does not use, such as LLVM's own tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache as memoize
from pathlib import Path
from typing import Any

from toolchain.core.errors import PolicyError
from toolchain.core.record import Fate
from toolchain.data import load
from toolchain.request.model import Request
from toolchain.sources.scan import Finding, scan

# These values of `--allow-binary` do not name a file in a source tree.
APART = frozenset({"triton-wheel"})
_LISTED = 30
_ODD = ";=*?[]\\\n"


@dataclass(frozen=True, kw_only=True)
class Known:
    """A row of data/prebuilt.toml. The comment at the top of that file describes the fields."""

    source: str
    name: str
    path: str
    why: str
    replace: str = ""
    rare: bool = False

    def matches(self, file: str) -> bool:
        """Return whether the row is about the file with this path in the source tree."""
        return fnmatchcase(file, self.path)

    def replacement(self, file: str) -> str:
        """Return the absolute glob for the base's file that replaces `file`; an empty string if none does."""
        return self.replace.replace("{file}", file.rpartition("/")[2])


@dataclass(frozen=True, kw_only=True)
class Intake:
    """The decisions on the binaries of one source.

    Args:
        replaced: for each file that a file of the base replaces, the absolute glob for the base's file.
        tests: the files in folders of upstream's own tests.
    """

    allowed: tuple[Finding, ...] = ()
    dropped: tuple[str, ...] = ()
    replaced: Mapping[str, str]
    tests: tuple[str, ...] = ()

    def rows(self, findings: Sequence[Finding]) -> list[dict[str, Any]]:
        """Return a row for each finding, with the decision on it, for records."""
        return [
            {
                **finding.as_json(),
                "fate": self._fate(finding),
                **({"replaced_by": self.replaced[finding.file]} if finding.file in self.replaced else {}),
            }
            for finding in findings
        ]

    def binaries(self, planned: Sequence[str]) -> tuple[str, ...]:
        """Return the planned names and the names of the allowed files, sorted.

        A file without a row in data/prebuilt.toml is named by its path.
        """
        return tuple(sorted({*planned, *(_name_of(finding.file) for finding in self.allowed)}))

    def _fate(self, finding: Finding) -> Fate:
        if finding.file in self.replaced:
            return Fate.REPLACED
        if finding.file in self.tests:
            return Fate.OF_TESTS
        return Fate.DROPPED if finding.file in self.dropped else Fate.ALLOWED


def let_in_names(request: Request) -> tuple[str, ...]:
    """Return the values of `--allow-binary`, and the names of the known files that these values list by path."""
    given = request.allow_binary
    return tuple(dict.fromkeys([*given, *(row.name for row in known_files() if any(map(row.matches, given)))]))


def unknown_names(request: Request) -> list[str]:
    """Return the values of `--allow-binary` and `--drop-binary` that are neither known names nor paths, sorted.

    A value that contains `/` or `.` is taken for a path.
    """
    known = APART | {row.name for row in known_files()}
    given = {*request.allow_binary, *request.drop_binary} - known
    return sorted(name for name in given if not {"/", "."} & set(name))


@memoize
def known_files() -> tuple[Known, ...]:
    """Return the rows of data/prebuilt.toml."""
    return tuple(Known(**row) for row in load("prebuilt")["file"])


def names_allowed(source: str, request: Request) -> tuple[str, ...]:
    """Return the names of a source's known binaries that `--allow-binary` lists by name, sorted."""
    known = {row.name for row in known_files() if row.source == source}
    return tuple(sorted(known & set(request.allow_binary)))


def undecided(tree: Path | None, request: Request) -> list[Known]:
    """Return the known binaries of Triton's source that a build would refuse.

    No option names them, and no file of the base replaces them.

    Args:
        tree: the source tree; only binaries in it are returned. If it is None, binaries with `rare` in their rows are
            not returned.
    """
    decided = {*request.allow_binary, *request.drop_binary}
    return [
        row
        for row in known_files()
        if row.source == "triton"
        and not (row.replace or {row.name, row.path} & decided)
        and (not row.rare if tree is None else next(tree.glob(row.path), None) is not None)
    ]


def choices(source: str, request: Request) -> dict[str, Any]:
    """Return the policy on the prebuilt files of a source, as an input of the stages that are built from it."""
    return {
        "allow": [name for name in sorted(set(request.allow_binary)) if name not in APART],
        "drop": sorted(set(request.drop_binary)),
        "replace": {row.path: row.replace for row in known_files() if row.source == source and row.replace},
    }


def take_in(
    source: str, tree: Path, request: Request, *, tests: Sequence[str] = (), whole: bool = False
) -> tuple[Intake, tuple[Finding, ...]]:
    """Scan a source tree and decide on each prebuilt file in it; return the decisions and the files.

    PolicyError is raised for a file on which no decision was made, and for a file that cannot be dropped or replaced.

    Args:
        tests: the names of folders of upstream's own tests, at any depth; files in them are accepted.
        whole: whether the recipe needs the whole source, so that no file can be dropped.
    """
    rows = [row for row in known_files() if row.source == source]
    findings = scan(tree)
    allowed: list[Finding] = []
    dropped: set[str] = set()
    replaced: dict[str, str] = {}
    unknown: list[Finding] = []
    tested: set[str] = set()
    for finding in findings:
        if set(tests) & set(finding.file.split("/")[:-1]):
            tested.add(finding.file)
            continue
        row = _row_of(finding.file, rows)
        names = {finding.file} | ({row.name} if row else set())
        if names & set(request.allow_binary):
            allowed.append(finding)
        elif names & set(request.drop_binary):
            dropped.add(finding.file)
        elif row is not None and row.replace:
            replaced[finding.file] = row.replacement(finding.file)
        else:
            unknown.append(finding)
    # The recipes get lists separated by `;`. A file whose name breaks a list would stay in the build unnoticed.
    odd = sorted(name for name in (*dropped, *replaced) if set(name) & set(_ODD))
    if odd:
        raise PolicyError(
            "prebuilt-names-unsafe",
            f"the source {source} contains prebuilt files whose names cannot be passed to the build",
            why=", ".join(map(repr, odd)),
            fix=f"remove them with --patch {source}=FILE",
        )
    if unknown:
        raise PolicyError(
            "prebuilt-not-allowed",
            f"the source {source} contains {len(unknown)} prebuilt file{'s' if len(unknown) > 1 else ''}",
            why="\n".join(_described(finding, _row_of(finding.file, rows)) for finding in unknown[:_LISTED])
            + (f"\n… and {len(unknown) - _LISTED} more" if len(unknown) > _LISTED else ""),
            fix=" ".join(dict.fromkeys(f"--allow-binary {_name_of(finding.file, rows)}" for finding in unknown[:3]))
            + " allows them by name; --drop-binary leaves them out",
        )
    if whole and dropped:
        raise PolicyError(
            "prebuilt-not-droppable",
            f"prebuilt files of {source} cannot be left out",
            why=", ".join(sorted(dropped)),
            fix=f"leave out --drop-binary; --allow-binary NAME allows them, and --patch {source}=FILE removes them",
        )
    intake = Intake(
        allowed=tuple(allowed), dropped=tuple(sorted(dropped)), replaced=replaced, tests=tuple(sorted(tested))
    )
    return intake, findings


def _row_of(file: str, rows: Sequence[Known]) -> Known | None:
    return next((row for row in rows if row.matches(file)), None)


def _name_of(file: str, rows: Sequence[Known] | None = None) -> str:
    """Return the name by which `--allow-binary` allows a file: the name in its row, or its path if it has no row."""
    row = _row_of(file, known_files() if rows is None else rows)
    return row.name if row else file


def _described(finding: Finding, row: Known | None) -> str:
    return f"{finding.path}: {finding.what}, {finding.size} bytes" + (f" ({row.why})" if row else "")
