"""The rows of data/tried.toml: the combinations of outputs, versions and systems that were built and checked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache as memoize

from toolchain.core.typed import typed
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
    gpus: tuple[str, ...] = ()
    rocm: tuple[str, ...] = ()


@memoize
def tried() -> tuple[Tried, ...]:
    """Return all rows of data/tried.toml, in file order."""
    rows = load("tried")["tried"]
    return tuple(typed(Tried, {"as_" if key == "as" else key: value for key, value in row.items()}) for row in rows)


def was_tried(
    what: str,
    of: str,
    as_: str,
    *,
    llvm: str = "",
    triton: str = "",
    gpus: Collection[str] = (),
    rocm: Collection[str] = (),
) -> bool:
    """Return whether a combination was built and checked.

    For an LLVM or an AOTriton, a check of only a part is not enough.

    Args:
        what, of, as_: the values of the fields `what`, `of` and `as` in data/tried.toml.
        llvm: the LLVM that a wheel is built on; empty for other outputs.
        triton: the minor version of the Triton whose required parts an LLVM contains, or the Triton that compiles an
            AOTriton's kernels; empty for other outputs.
        gpus, rocm: the GPUs of an AOTriton, and the ROCms that its library is linked for; empty for other outputs.
    """
    combination = (what, of, as_, llvm, triton)
    # In the row of an LLVM, `part` means that only a part was tested. In other rows, `part` only gives details, such as
    # Python versions. The row of a part of an AOTriton names no GPU.
    return any(
        combination == (row.what, row.of, row.as_, row.llvm, row.triton)
        and (not row.part or what != "llvm")
        and set(gpus) <= set(row.gpus)
        and set(rocm) <= set(row.rocm)
        for row in tried()
    )
