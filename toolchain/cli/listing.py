"""Print rows as a table, or as a list if the table is too wide."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from toolchain.core.console import plain_lines

_ANY_WIDTH = 1 << 20
_NOTHING = ("", "-")


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Rows that are printed without truncation at any terminal width, so that commits and names can be copied.

    Empty columns are omitted.

    Args:
        rows: the cells of each row; they are not parsed as markup.
        head: the columns that form the first line of a row if the table is too wide. Other columns, and columns of
            `head` that do not fit, follow below that line.
        right: the columns that are right-aligned.
        lines: whether the table has borders.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    head: Collection[str]
    title: str = ""
    right: Collection[str] = ()
    lines: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = [at for at in range(len(self.columns)) if any(row[at] for row in self.rows)]
        rows = [[row[at] for at in kept] for row in self.rows]
        shown = replace(self, columns=[self.columns[at] for at in kept], rows=rows)
        table = shown._table()
        needed = Measurement.get(console, options.update(width=_ANY_WIDTH), table).maximum
        if needed <= options.max_width:
            yield table
            return
        yield from shown._stacked(options.max_width)

    def _table(self) -> Table:
        look = Table(title=self.title or None, title_justify="left", pad_edge=self.lines)
        if not self.lines:
            look.box = None
        for name in self.columns:
            look.add_column(name, overflow="fold", justify="right" if name in self.right else "left")
        for row in self.rows:
            look.add_row(*(_text(cell) for cell in row))
        return look

    def _fitting(self, width: int) -> list[int]:
        """Return the indexes of the first columns of `head` that fit side by side into `width`, but at least one."""
        at = [number for number, name in enumerate(self.columns) if name in self.head]
        texts = [self.columns, *self.rows]
        while len(at) > 1 and sum(2 + max(_width(_text(row[number])) for row in texts) for number in at) - 2 > width:
            at.pop()
        return at

    def _stacked(self, width: int) -> RenderResult:
        if self.title:
            yield Text(self.title, style="table.title")
        at = self._fitting(width)
        cells = [[_text(row[number]) for number in at] for row in self.rows]
        names = [Text(self.columns[number], style="table.header") for number in at]
        widths = [max(_width(row[column]) for row in (names, *cells)) for column in range(len(at))]
        right = [self.columns[number] in self.right for number in at]
        yield _line(names, widths, right)
        for row, heads in zip(self.rows, cells, strict=True):
            yield _line(heads, widths, right)
            below = Table.grid(padding=(0, 2, 0, 0))
            below.add_column(overflow="fold")
            below.add_column(overflow="fold")
            for number, name in enumerate(self.columns):
                if number not in at and _text(row[number]).plain not in _NOTHING:
                    below.add_row(Text(name, style="dim"), _text(row[number]))
            if below.row_count:
                yield Padding(below, (0, 0, 0, 4))


def _text(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(plain_lines(cell))


def _width(cell: Text) -> int:
    return max((cell_len(line) for line in cell.plain.split("\n")), default=0)


def _line(cells: Sequence[Text], widths: Sequence[int], right: Sequence[bool]) -> Text:
    line = Text(overflow="fold")
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        space = Text(" " * (width - _width(cell)))
        line.append_text(Text("  ") if number else Text())
        line.append_text(space + cell if right[number] else cell + space)
    line.rstrip()
    return line
