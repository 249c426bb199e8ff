"""The combinations that were built and checked: the rows of data/tried.toml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as memoize

from toolchain.data import load


@dataclass(frozen=True)
class Tried:
    """A row; data/tried.toml says what each field is."""

    what: str
    of: str
    section: str
    part: str = ""
    as_: str = ""
    llvm: str = ""
    triton: str = ""


@memoize
def tried() -> tuple[Tried, ...]:
    """Every row."""
    rows = load("tried")["tried"]
    return tuple(Tried(**{"as_" if key == "as" else key: value for key, value in row.items()}) for row in rows)


def was_tried(what: str, of: str, as_: str, *, llvm: str = "", triton: str = "") -> bool:
    """Whether this very combination was built and checked as a whole.

    Args:
        llvm: of a wheel, the LLVM it is built on.
        triton: of an LLVM, the Triton whose parts it has.
    """
    combination = (what, of, as_, llvm, triton)
    # What of a wheel was tried says for which Pythons, and is not a lack.
    return any(
        combination == (row.what, row.of, row.as_, row.llvm, row.triton) and (not row.part or what != "llvm")
        for row in tried()
    )
