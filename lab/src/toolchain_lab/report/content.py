"""Define the content of a report: figures, pictures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

Cell: TypeAlias = "str | float | None"
Picture: TypeAlias = "Mapping[str, Any]"  # assets/pictures.js reads the keys of each kind of picture


class Kind(Enum):
    """The way in which the cells of a column are written, sorted and filtered."""

    TEXT = "text"
    CHOICE = "choice"  # text with few distinct values
    NUMBER = "number"
    SECONDS = "seconds"
    BYTES = "bytes"


class Tone(Enum):
    """The tone in which a figure is shown: good news, bad news or neither."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        key: the column's name in filters, such as `vgpr` in `vgpr>128`.
        help: an explanation of the heading, if it needs one.
        before: for a column with values of B in a comparison of A and B, the key of the column with those of A.
    """

    key: str
    label: str
    kind: Kind = Kind.NUMBER
    help: str = ""
    before: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a report.

    Each row contains a value for each column: a string, a number, or None if the value is unknown.

    Args:
        sort: the key of the column by which the table is initially sorted; empty to keep the order of the rows.
        descending: whether the largest values come first.
        pictures: the pictures that are drawn from the rows that match the filter.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    sort: str = ""
    descending: bool = False
    pictures: Sequence[Picture] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the table for the page, without empty columns. Values are grouped by column for better compression."""
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
    """A part of a report's page, with its own heading."""

    title: str
    table: Table
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of a report.

    Args:
        kind: the kind of subject: `build`, `campaign`, `kernels`, `kernels, A against B` or `audit`.
        subject: a description of the subject.
        figures: the label, the value and the tone of each figure, most important first.
    """

    kind: str
    title: str
    subject: str
    figures: Sequence[tuple[str, str, Tone]]
    sections: Sequence[Section] = ()
