"""`build --check`: the numbers of the kernels that a campaign compiled, compared with float64 by emulation."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolchain.core import console
from toolchain.core.cache import Cache
from toolchain.emulator.disassembly import Disassembler, find_disassembler
from toolchain.emulator.extra import require_numpy
from toolchain.numbers.objects import Object, sample
from toolchain.numbers.summary import describe
from toolchain.request.model import Request
from toolchain.stages.stage import Workspace

if TYPE_CHECKING:
    from toolchain.kernels.campaign import CampaignResult
    from toolchain.kernels.ledger import Ledger
    from toolchain.kernels.rules import Rule
    from toolchain.numbers.collect import File

SEED = 0
STEP = "numbers"


def require_check() -> Disassembler:
    """Check that this machine has the needs of a check.

    Raises:
        ConfigError, EngineError: numpy or llvm-objdump is missing.
    """
    require_numpy("--check")
    return find_disassembler()


def check_numbers(
    result: CampaignResult, rules: Sequence[Rule], out: Path, ledger: Ledger, workspace: Workspace
) -> dict[str, Any]:
    """Check a sample of what a campaign compiled, as large as the request says; the result for the record.

    Returns:
        Nothing where no check was requested.

    Raises:
        NumbersError: a kernel computes wrong numbers.
    """
    count = workspace.request.check
    if count is None:
        return {}
    sources = {rule.id: f"{rule.source}:{rule.kernel}" for rule in rules}
    objects = [Object(out / entry.out, entry.out, entry.target, sources[entry.id]) for entry in result.done]
    chosen = sample(objects, count or None, SEED)
    workspace.step(STEP)
    ids = {entry.out: entry.id for entry in result.done}
    return run_check(
        chosen, out, workspace.cache, available=len(objects), jobs=workspace.jobs("kernel"), count=workspace.count,
        note=lambda name, row: ledger.note_check(ids[name], row),
    )  # fmt: skip


def check_files(
    files: Iterable[File],
    request: Request,
    *,
    label: str,
    jobs: int,
    count: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any]:
    """Check a sample of the code objects among files, as large as the request says; the result for the record.

    Args:
        files: see `numbers.collect`.
        label: what messages call the place.

    Raises:
        NumbersError: a kernel computes wrong numbers.
        ConfigError: there is none.
    """
    from toolchain.numbers.collect import collect  # noqa: PLC0415 - numpy

    with tempfile.TemporaryDirectory(prefix="toolchain-check-") as scratch:
        folder = Path(scratch, "objects")
        collected = collect(files, folder, count=request.check or None, seed=SEED, label=label)
        return run_check(
            collected.objects, folder, request.cache, available=collected.available, jobs=jobs, count=count
        )


def run_check(
    chosen: Sequence[Object],
    folder: Path,
    cache: Cache,
    *,
    available: int,
    jobs: int,
    count: Callable[[int, int, str], None] | None = None,
    note: Callable[[str, Mapping[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Check kernels in namespaces of their own; the result for the record.

    Args:
        note: called with the name of each kernel and its result.

    Raises:
        NumbersError: a kernel computes wrong numbers.
    """
    from toolchain.numbers.contained import check_contained  # noqa: PLC0415 - numpy

    report = check_contained(
        chosen, folder, require_check(), cache, jobs=jobs, available=available,
        on_row=None if count is None else lambda row, done, total: count(done, total, f"{row.kernel} {row.gpu}"),
    )  # fmt: skip
    if note is not None:
        for row in report.rows:
            note(row.name, row.as_json())
    published = report.published()
    console.note(describe(published))
    report.require_right()
    return published
