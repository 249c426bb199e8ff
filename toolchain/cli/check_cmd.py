"""`kernels check`: the numbers of compiled attention kernels, held against float64, without a GPU."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolchain import console
from toolchain.catalog.gpus import parse_gpus
from toolchain.cli import options as o
from toolchain.cli.emulate_cmd import ObjdumpOpt, decoder
from toolchain.errors import ConfigError, EmulationError, NumbersError

if TYPE_CHECKING:
    from toolchain.numbers.campaign import Report
    from toolchain.numbers.check import Checked

SourceArg = Annotated[
    str,
    typer.Argument(
        metavar="DIR|REF",
        help="Folder with code objects, each with its JSON beside it, or an image that holds such files:"
        " a repository, or oci:DIR:TAG.",
    ),
]
SampleOpt = Annotated[
    str, typer.Option("--sample", metavar="N|all", help="How many kernels; GPUs and functions are taken in turn.")
]
GpuOpt = Annotated[str, typer.Option("--gpu", help="Only kernels for these, with commas between.", show_default=False)]
JobsOpt = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Processes. \\[default: one for each core]", show_default=False)
]
SeedOpt = Annotated[int, typer.Option("--seed", min=0, help="Of the sample.")]
_LISTED = 20


def kernels_check(
    source: SourceArg,
    sample: SampleOpt = "all",
    gpu: GpuOpt = "",
    jobs: JobsOpt = None,
    seed: SeedOpt = 0,
    objdump: ObjdumpOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Run compiled attention kernels on the CPU and hold what they compute against float64.

    Ends with 24 where a kernel is wrong, with 23 where one uses what the emulator does not know.
    """
    if sample != "all" and not (sample.isdigit() and int(sample)):
        raise ConfigError(f"--sample {sample!r} is no number of kernels", fix="e.g. --sample 300, or all")
    disassembler = decoder(objdump)
    from toolchain.numbers import campaign, objects  # noqa: PLC0415 - numpy, for a verb that runs

    with tempfile.TemporaryDirectory(prefix="toolchain-check-") as scratch:
        folder = Path(source)
        if not folder.is_dir():
            objects.unpack_image(source, Path(scratch))
            folder = Path(scratch) / "objects"
        available = objects.objects_in(folder, parse_gpus(gpu) if gpu else (), label=source)
        report = campaign.run(
            objects.sample(available, None if sample == "all" else int(sample), seed),
            disassembler,
            jobs=jobs or os.cpu_count() or 1,
            available=len(available),
            on_row=None if json_ else _tell,
        )
    if json_:
        console.data(report.as_json())
    else:
        for line in screen(report):
            console.text(line)
    _raise(report)


def _tell(row: Checked, done: int, total: int) -> None:
    console.note(f"{done}/{total} {row.status} {row.name}")


def screen(report: Report) -> Iterator[str]:
    """A report for people."""
    head = f"{'GPU':<9}{'kernel':<32}{'right':>6}{'wrong':>6}{'skipped':>8}{'refused':>8}"
    yield f"{head}{'largest error':>14}{'CPU s':>8}"
    for row in report.groups():
        yield (
            f"{row['gpu']:<9}{row['kernel']:<32}{row['right']:>6}{row['wrong']:>6}{row['skipped']:>8}{row['refused']:>8}"
            f"{row['share']:>13.0%} {row['seconds']:>8.1f}"
        )
    parts = ", ".join(f"{count} {status}" for status, count in report.counts().items())
    instructions = sum(row.instructions for row in report.rows)
    total = f"{len(report.rows)} of {report.available} kernels checked by emulation"
    yield f"{total}: {parts}; {instructions:,} instructions"
    yield "the largest error is shown as a share of what passes"


def _raise(report: Report) -> None:
    """Raise for kernels that are wrong, or that the emulator refuses."""
    from toolchain.numbers.check import REFUSED, WRONG  # noqa: PLC0415 - numpy

    for status, kind, what, fix in (
        (WRONG, NumbersError, "compute wrong numbers", ""),
        (REFUSED, EmulationError, "use what the emulator does not know", "report them with the code objects"),
    ):
        rows = report.of(status)
        if rows:
            lines = [f"{row.name}: {row.reason}" for row in rows[:_LISTED]]
            lines += [f"… and {len(rows) - _LISTED} more"] if rows[_LISTED:] else []
            raise kind(f"{len(rows)} of {len(report.rows)} kernels {what}", why="\n".join(lines), fix=fix)
