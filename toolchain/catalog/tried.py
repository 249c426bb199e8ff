"""The rows of data/tried.toml: the combinations of outputs, versions and systems that were built and checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as memoize

from toolchain.data import load


@dataclass(frozen=True)
class Tried:
    """A row of data/tried.toml, which documents the fields."""

    what: str
    of: str
    section: str
    part: str = ""
    as_: str = ""
    llvm: str = ""
    triton: str = ""


@memoize
def tried() -> tuple[Tried, ...]:
    """Return all rows of data/tried.toml, in file order."""
    rows = load("tried")["tried"]
    return tuple(Tried(**{"as_" if key == "as" else key: value for key, value in row.items()}) for row in rows)


def was_tried(what: str, of: str, as_: str, *, llvm: str = "", triton: str = "") -> bool:
    """Return whether a combination was built and checked; for an LLVM, a check of only a part is not enough.

    Args:
        what, of, as_: the values of the fields `what`, `of` and `as` in data/tried.toml.
        llvm: the LLVM that a wheel is built on; empty for other outputs.
        triton: the minor version of the Triton whose required parts an LLVM contains; empty for other outputs.
    """
    combination = (what, of, as_, llvm, triton)
    # In the row of an LLVM, `part` means that only a part was tested. In other rows, `part` only gives details, such as
    # Python versions.
    return any(
        combination == (row.what, row.of, row.as_, row.llvm, row.triton) and (not row.part or what != "llvm")
        for row in tried()
    )
