"""Tell whether a planned combination was ever built and checked, by the rows of data/tried.toml."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain.catalog.architectures import this_machine
from toolchain.catalog.components import line_of
from toolchain.catalog.tried import was_tried
from toolchain.core.errors import ToolchainError
from toolchain.pipeline.plan import PlanRow
from toolchain.request.model import Request
from toolchain.sources.tree import Source
from toolchain.stages.triton_tree import head_of


def tried_in(row: PlanRow, request: Request, rows: Sequence[PlanRow] = ()) -> dict[str, bool]:
    """Return `{"tried": …}` for a stage that has such rows, and nothing for any other."""
    return {} if (label := _untried_label(row, request, rows)) is None else {"tried": label == ""}


def untried_in(rows: Sequence[PlanRow], request: Request) -> list[str]:
    """Return the combinations of a plan that were never built, for display."""
    return [label for row in rows if (label := _untried_label(row, request, rows))]


def _untried_label(row: PlanRow, request: Request, rows: Sequence[PlanRow]) -> str | None:
    """Return the untried combination of a stage; empty if it was tried, None for a stage without such rows."""
    planned = row.planned
    source = next((source for source in planned.sources if source.name == planned.name), None)
    if source is None or source.kind == "pypi" or planned.partial:
        return None
    where = _where(row, request)
    version = _version(source)
    if planned.name == "llvm":
        parts = _line(planned.serves)
        shown = f"LLVM {_short(version)} for {where}" + (f" with the parts for Triton {parts}" if parts else "")
        return "" if was_tried("llvm", version, where, triton=parts) else shown
    if planned.name == "triton":
        llvm = next((source for below in rows for source in below.planned.sources if source.name == "llvm"), None)
        on = _version(llvm) if llvm is not None else ""
        shown = f"Triton {_short(version)} on LLVM {_short(on)} for {where}"
        return "" if was_tried("wheel", version, where, llvm=on) else shown
    if planned.name == "aotriton":
        return "" if was_tried("aotriton", version, where) else f"AOTriton {_short(version)} for {where}"
    return None


def _where(row: PlanRow, request: Request) -> str:
    if (row.arch or this_machine()) != "amd64":
        return row.arch or this_machine()
    return f"glibc {request.glibc}" if request.glibc else str(request.base)


def _version(source: Source) -> str:
    if source.kind == "local":
        return (head_of(source.path) if source.path is not None and source.path.is_dir() else "") or source.where
    return source.commit or source.version or source.tag


def _short(version: str) -> str:
    return version[:12] if len(version) == 40 else version


def _line(version: str) -> str:
    """Return `3.7` of `3.7.1`; of a commit the release that it resembles."""
    try:
        return line_of(version) if version else ""
    except ToolchainError:
        return version
