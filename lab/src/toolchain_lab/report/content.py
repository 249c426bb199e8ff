"""Define the content of a report: figures, pictures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

Cell: TypeAlias = "str | float | None"
Picture: TypeAlias = "Mapping[str, Any]"  # assets/pictures.js describes the keys of each kind of picture


class Kind(Enum):
    """The kind of a column, which decides how its cells are written, sorted and filtered."""

    TEXT = "text"
    CHOICE = "choice"  # a text that many rows share, so that the filter is a list of the texts
    NUMBER = "number"
    SECONDS = "seconds"
    BYTES = "bytes"


class Tone(Enum):
    """The tone of a figure: good news, bad news or neither."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        key: the name in filters, such as `vgpr>128`.
        label: the heading.
        help: an explanation of the heading, if it needs one.
        before: the key of the column with the values of side A, if this column has the values of side B.
    """

    key: str
    label: str
    kind: Kind = Kind.NUMBER
    help: str = ""
    before: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table. Each row has a value for each column: text, a number, or None for an unknown value.

    Args:
        sort: the key of the column by which the table is sorted first; empty for the order of the rows.
        descending: whether the largest values come first.
        pictures: pictures that are drawn from the rows that pass the filter.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    sort: str = ""
    descending: bool = False
    pictures: Sequence[Picture] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the table for the page, without empty columns. The values are grouped by column to compress well."""
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
    """The content of a report.

    Args:
        kind: the kind of its subject: `build`, `campaign`, `kernels`, `diff`, `audit`.
        subject: a description of its subject.
        figures: label, value and tone of each figure, the most important first.
    """

    kind: str
    title: str
    subject: str
    figures: Sequence[tuple[str, str, Tone]]
    sections: Sequence[Section] = ()
