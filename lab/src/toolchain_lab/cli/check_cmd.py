"""`kernels check`: compare the results of compiled attention kernels with float64, without a GPU."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolchain.cli import options as o
from toolchain.core import console
from toolchain.core.cache import cache_of
from toolchain.core.errors import ConfigError, EmulationError, NotCheckedError
from toolchain.request.option_values import check as number_of_kernels
from toolchain_lab.cli.diff_cmd import PLACE_HELP, GpuOpt, gpus_of
from toolchain_lab.cli.emulate_cmd import FastOpt, ObjdumpOpt, decoder

if TYPE_CHECKING:
    from toolchain_lab.numbers.campaign import Report
    from toolchain_lab.numbers.check import Checked

SourceArg = Annotated[str, typer.Argument(metavar="WHERE", help=PLACE_HELP)]
SampleOpt = Annotated[
    str, typer.Option("--sample", metavar="N|all", help="Number of kernels to check, spread over GPUs and functions.")
]
JobsOpt = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Parallel processes. \\[default: one per core]", show_default=False)
]
SeedOpt = Annotated[int, typer.Option("--seed", min=0, help="Seed of the sample.")]
PlanOpt = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="DIR",
        help="Folder of AOTriton's generator, for packs that do not record how kernels are launched.",
    ),
]
SourceOpt = Annotated[Path | None, typer.Option("--source", metavar="DIR", help="Source tree of AOTriton, for --plan.")]
SkippedOpt = Annotated[bool, typer.Option("--allow-skipped", help="Accept kernels without a test case.")]
ResultsOpt = Annotated[
    Path | None,
    typer.Option(
        "--results", metavar="FILE", help="Write each result to this file at once; a later check continues from it."
    ),
]


def kernels_check(
    where: SourceArg,
    sample: SampleOpt = "all",
    gpu: GpuOpt = None,
    jobs: JobsOpt = None,
    seed: SeedOpt = 0,
    plan: PlanOpt = None,
    source: SourceOpt = None,
    allow_skipped: SkippedOpt = False,
    results: ResultsOpt = None,
    fast: FastOpt = False,
    objdump: ObjdumpOpt = None,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Run compiled attention kernels on the CPU and compare their results with float64.

    The exit code is 24 if a result is wrong, 23 if a kernel uses something that the emulator does not support, and 28
    if a kernel was not checked, unless --allow-skipped is given. A check that is stopped shows the results so far.
    """
    count = number_of_kernels(sample, "--sample") or None
    if (plan is None) != (source is None):
        raise ConfigError(
            "option-needs-option", "--plan and --source must be given together", fix="give both, or neither"
        )
    gpus = gpus_of(gpu)
    disassembler = decoder(objdump)
    from toolchain_lab.examine.places import opened  # noqa: PLC0415 - `--help` does not need it
    from toolchain_lab.numbers import campaign, journal  # noqa: PLC0415 - it imports numpy
    from toolchain_lab.numbers.collect import collect  # noqa: PLC0415

    planned = None
    if plan is not None and source is not None:
        from toolchain_lab.examine.rebuild import launches_of  # noqa: PLC0415

        planned = launches_of(plan, source)
    with tempfile.TemporaryDirectory(prefix="toolchain-check-") as scratch, opened(where, cache_of(cache)) as files:
        collected = collect(files, Path(scratch), gpus=gpus, count=count, seed=seed, label=where, planned=planned)
        for note in files.notes():
            console.note(f"{where}: {note}")
        for path in collected.unknown:
            console.note(f"skipped {path}: it does not record how its kernels are launched (--plan)")
        if collected.other:
            console.note(f"{collected.other} code objects in .co files are not checked: nothing records their launches")
        report = campaign.Report((), collected.available, disassembler.label)

        # Earlier results are reused only if they were made with the same rounding, disassembler and launch data.
        decoder_label = f"{disassembler.label}, --fast" if fast else disassembler.label
        conditions = {} if results is None else journal.conditions(collected.objects, decoder_label)

        def take(row: Checked, done: int, total: int) -> None:
            nonlocal report
            report = replace(report, rows=(*report.rows, row))
            if results is not None and known.get(row.name) is not row:
                journal.append(results, row, conditions[row.name])
            if not json_:
                _tell(row, done, total)

        known = {} if results is None else journal.read(results, conditions)
        try:
            report = campaign.run(
                collected.objects,
                disassembler,
                jobs=jobs or os.cpu_count() or 1,
                available=collected.available,
                known=known,
                exact=not fast,
                on_row=take,
            )
        finally:
            if json_:
                console.data(report.as_json())
            else:
                for line in screen(report):
                    console.text(line)
    _raise(report, [] if allow_skipped else collected.unknown, allow_skipped=allow_skipped)


def _tell(row: Checked, done: int, total: int) -> None:
    reason = f": {row.reason.splitlines()[0]}" if row.reason else ""
    console.note(f"{done}/{total} {row.status} {row.name}{reason}")


def screen(report: Report) -> Iterator[str]:
    from toolchain.core.check_result import describe  # noqa: PLC0415 - `--help` does not need it

    rows = report.groups()
    width = max([32, *(len(row["kernel"]) + 1 for row in rows)])
    head = f"{'GPU':<9}{'kernel':<{width}}{'right':>6}{'wrong':>6}{'skipped':>8}{'refused':>8}"
    yield f"{head}{'largest error':>14}{'CPU s':>8}"
    for row in rows:
        ran = row["share"] is not None and row["right"] + row["wrong"]
        share = f"{row['share']:.0%}" if ran else "none"
        yield (
            f"{row['gpu']:<9}{row['kernel']:<{width}}{row['right']:>6}{row['wrong']:>6}{row['skipped']:>8}{row['refused']:>8}"
            f"{share:>13} {row['seconds']:>8.1f}"
        )
    instructions = sum(row.instructions for row in report.rows)
    yield f"{describe({**report.counts(), 'available': report.available})}; {instructions:,} instructions"
    labels = ", ".join(f"{count} {label}" for label, count in report.exactness().items())
    yield f"emulated, not run on a GPU: {labels}"
    yield "largest error: percent of the tolerance; `none`: NaN, infinity or no result"


def _raise(report: Report, unknown: Sequence[str], *, allow_skipped: bool) -> None:
    """Raise an error for kernels that have wrong results, that cannot be emulated, or that were not checked."""
    from toolchain.core.check_result import REFUSED, SKIPPED, listed, require_right  # noqa: PLC0415 - `--help` does not need it

    require_right(report.published())
    if rows := report.of(REFUSED):
        raise EmulationError(
            "kernels-not-emulated",
            f"{len(rows)} of {len(report.rows)} kernels cannot be emulated",
            why=listed([(row.name, row.reason) for row in rows]),
            fix="report the kernels with their code objects",
        )
    skipped = [] if allow_skipped else [(row.name, row.reason) for row in report.of(SKIPPED)]
    if skipped := [*skipped, *((path, "it does not record how its kernels are launched") for path in unknown)]:
        raise NotCheckedError(
            "kernels-not-checked",
            f"{len(skipped)} kernels or packs were not checked",
            why=listed(skipped),
            fix="accept them with --allow-skipped, or compare them with `toolchain emulate --expect`",
        )
