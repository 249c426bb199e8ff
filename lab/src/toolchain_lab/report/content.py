"""The content of a page: figures, pictures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

Cell: TypeAlias = "str | float | None"
Picture: TypeAlias = "Mapping[str, Any]"  # assets/pictures.js says what each kind takes


class Kind(Enum):
    """The kind of a column, which decides how its cells are written, sorted and filtered."""

    TEXT = "text"
    CHOICE = "choice"  # a text that many rows share: a list of them filters
    NUMBER = "number"
    SECONDS = "seconds"
    BYTES = "bytes"


class Tone(Enum):
    """Whether a figure is good news."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        key: by which the filter names it: `vgpr>128`.
        label: its heading.
        help: the explanation of a heading that needs one.
        before: key of the column with the same of side A, where this one is of side B.
    """

    key: str
    label: str
    kind: Kind = Kind.NUMBER
    help: str = ""
    before: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows, of one value for each column: text, a number, or None if nothing is known.

    Args:
        sort: key of the column that it is first sorted by; empty for the order of the rows.
        descending: whether the largest come first.
        pictures: drawn of the rows that the filter leaves.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    sort: str = ""
    descending: bool = False
    pictures: Sequence[Picture] = ()

    def as_json(self) -> dict[str, Any]:
        """For the page: the values by column, which packs best. A column without any value is left out."""
        columns = []
        for at, column in enumerate(self.columns):
            values = [row[at] for row in self.rows]
            if any(value not in (None, "") for value in values):
                heading = {"key": column.key, "label": column.label, "kind": column.kind.value, "help": column.help}
                columns.append({**heading, "before": column.before, "values": values})
        return {
            "count": len(self.rows),
            "columns": columns,
            "sort": self.sort,
            "descending": self.descending,
            "pictures": list(self.pictures),
        }


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page with a heading."""

    title: str
    table: Table
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A page.

    Args:
        kind: what it is about: `build`, `campaign`, `kernels`, `diff`, `audit`.
        subject: which.
        figures: label, value and tone, the most important first.
    """

    kind: str
    title: str
    subject: str
    figures: Sequence[tuple[str, str, Tone]]
    sections: Sequence[Section] = ()
