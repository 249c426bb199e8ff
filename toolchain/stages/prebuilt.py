"""Decide on the prebuilt files in a source tree. A build refuses each binary for which no option decides."""

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

# The names of `--allow-binary` that do not stand for a file in a source tree.
APART = frozenset({"triton-wheel"})
_LISTED = 30
_ODD = ";=*?[]\\\n"


@dataclass(frozen=True, kw_only=True)
class Known:
    """A row of data/prebuilt.toml."""

    source: str
    name: str
    path: str
    why: str
    replace: str = ""
    rare: bool = False

    def matches(self, file: str) -> bool:
        """Return whether the row is about a file of its source."""
        return fnmatchcase(file, self.path)

    def replacement(self, file: str) -> str:
        """Return the absolute glob of the base's file that replaces `file`; empty if there is none."""
        return self.replace.replace("{file}", file.rpartition("/")[2])


@dataclass(frozen=True, kw_only=True)
class Intake:
    """The decisions on the binaries of one source.

    Args:
        dropped: the files that the build does not get.
        replaced: the absolute glob of the base's file, by the file that it replaces.
        tests: the files of upstream's own tests, which the recipe does not build.
    """

    allowed: tuple[Finding, ...] = ()
    dropped: tuple[str, ...] = ()
    replaced: Mapping[str, str]
    tests: tuple[str, ...] = ()

    def rows(self, findings: Sequence[Finding]) -> list[dict[str, Any]]:
        """Return every finding with the decision on it, for records."""
        return [
            {
                **finding.as_json(),
                "fate": self._fate(finding),
                **({"replaced_by": self.replaced[finding.file]} if finding.file in self.replaced else {}),
            }
            for finding in findings
        ]

    def binaries(self, planned: Sequence[str]) -> tuple[str, ...]:
        """Return the names in the plan and the names or paths of other allowed files, sorted."""
        return tuple(sorted({*planned, *(_name_of(finding.file) for finding in self.allowed)}))

    def _fate(self, finding: Finding) -> Fate:
        if finding.file in self.replaced:
            return Fate.REPLACED
        if finding.file in self.tests:
            return Fate.OF_TESTS
        return Fate.DROPPED if finding.file in self.dropped else Fate.ALLOWED


def let_in_names(request: Request) -> tuple[str, ...]:
    """Return the names that `--allow-binary` allows, including the names of known files that it lists by path."""
    given = request.allow_binary
    return tuple(dict.fromkeys([*given, *(row.name for row in known_files() if any(map(row.matches, given)))]))


def unknown_names(request: Request) -> list[str]:
    """Return the values of `--allow-binary` and `--drop-binary` that are neither known names nor paths, sorted."""
    known = APART | {row.name for row in known_files()}
    given = {*request.allow_binary, *request.drop_binary} - known
    return sorted(name for name in given if not {"/", "."} & set(name))


@memoize
def known_files() -> tuple[Known, ...]:
    """Return the rows of data/prebuilt.toml."""
    return tuple(Known(**row) for row in load("prebuilt")["file"])


def names_allowed(source: str, request: Request) -> tuple[str, ...]:
    """Return the known binaries of a source that the user allows, sorted. This function reads no tree."""
    known = {row.name for row in known_files() if row.source == source}
    return tuple(sorted(known & set(request.allow_binary)))


def undecided(tree: Path | None, request: Request) -> list[Known]:
    """Return the known binaries of Triton's source that a build would refuse, because no option names them.

    Args:
        tree: the tree of the source, which may lack some files. If it is None, rare files are not listed.
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
    """Return the user's policy for a source, as an input of the stage that builds it."""
    return {
        "allow": [name for name in sorted(set(request.allow_binary)) if name not in APART],
        "drop": sorted(set(request.drop_binary)),
        "replace": {row.path: row.replace for row in known_files() if row.source == source and row.replace},
    }


def take_in(
    source: str, tree: Path, request: Request, *, tests: Sequence[str] = (), whole: bool = False
) -> tuple[Intake, tuple[Finding, ...]]:
    """Scan a tree and decide on each binary in it; return the decision and all findings, sorted.

    Args:
        tests: names of folders, at any depth, whose files are only for tests, which the recipe does not build.
        whole: whether the recipe cannot leave out a file of the source.
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
    # The recipes get lists separated by `;`. A file whose name breaks the list would silently remain in the build.
    odd = sorted(name for name in (*dropped, *replaced) if set(name) & set(_ODD))
    if odd:
        raise PolicyError(
            "prebuilt-names-unsafe",
            f"the source {source} holds prebuilt files whose names cannot be passed on",
            why=", ".join(map(repr, odd)),
            fix=f"remove them by --patch {source}=FILE",
        )
    if unknown:
        raise PolicyError(
            "prebuilt-not-allowed",
            f"the source {source} holds {len(unknown)} prebuilt file{'s' if len(unknown) > 1 else ''}",
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
            fix=f"leave --drop-binary out; --allow-binary NAME lets them in, --patch {source}=FILE removes them",
        )
    intake = Intake(
        allowed=tuple(allowed), dropped=tuple(sorted(dropped)), replaced=replaced, tests=tuple(sorted(tested))
    )
    return intake, findings


def _row_of(file: str, rows: Sequence[Known]) -> Known | None:
    return next((row for row in rows if row.matches(file)), None)


def _name_of(file: str, rows: Sequence[Known] | None = None) -> str:
    """Return the name of a file for `--allow-binary`: the name of its row, or its path if it has no row."""
    row = _row_of(file, known_files() if rows is None else rows)
    return row.name if row else file


def _described(finding: Finding, row: Known | None) -> str:
    return f"{finding.path}: {finding.what}, {finding.size} bytes" + (f" ({row.why})" if row else "")
