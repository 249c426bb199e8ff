"""`kernels diff`: compare the compiled kernels in two images, archives or folders, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from toolchain.cli import options as o
from toolchain.core import console
from toolchain.core.cache import cache_of
from toolchain.core.errors import ConfigError, RegressionError
from toolchain.request import option_values

if TYPE_CHECKING:
    from toolchain_lab.examine.diff import Difference

_WORDS = {
    "same": "same bytes",
    "same_instructions": "same instructions",
    "only_a": "only in A",
    "only_b": "only in B",
    "empty_a": "empty in A",
    "empty_b": "empty in B",
}
PLACE_HELP = "Image name or reference, kernel store, AOTriton pack or prefix, folder, archive, wheel, or Triton cache."
GpuOpt = Annotated[
    str | None, typer.Option("--gpu", help="Only kernels for these GPUs, comma-separated.", show_default=False)
]
FailOnOpt = Annotated[
    str,
    typer.Option("--fail-on", help="Exit with 25 on: spills, occupancy (worse), missing, changed. Comma-separated."),
]
RowsOpt = Annotated[int, typer.Option("--rows", min=0, help="Number of kernels to list; --json lists all.")]


def kernels_diff(
    a: Annotated[str, typer.Argument(metavar="A", help=PLACE_HELP)],
    b: Annotated[str, typer.Argument(metavar="B", help="The place to compare A with, in the same forms.")],
    gpu: GpuOpt = None,
    fail_on: FailOnOpt = "",
    rows: RowsOpt = 20,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Compare the kernels of two builds: registers, spills, LDS, scratch, code, and occupancy (waves per SIMD).

    Regressions come first: lower occupancy, then new spills. No kernel is run, and no GPU is needed.
    """
    from toolchain_lab.examine.diff import compare  # noqa: PLC0415 - `--help` does not need it
    from toolchain_lab.examine.instructions import compare_instructions  # noqa: PLC0415
    from toolchain_lab.examine.kernels import kernels_in  # noqa: PLC0415

    conditions = conditions_of(fail_on)
    gpus = gpus_of(gpu)
    where = cache_of(cache)
    sides = [kernels_in(place, where, note=console.note) for place in (a, b)]
    if gpus:
        sides = [[kernel for kernel in side if kernel.gpu in gpus] for side in sides]
    if not all(sides):
        raise ConfigError(
            "no-kernel-for-gpu", f"{a if not sides[0] else b} has no kernel for {gpu}", fix="omit --gpu to compare all"
        )
    difference, unseen = compare_instructions(compare(sides[0], sides[1]), (a, b), where)
    if unseen:
        console.note(
            f"{unseen} kernels have the same code size but different bytes; install llvm-objdump to compare them"
        )
    if json_:
        console.data({"a": a, "b": b, **difference.as_json()})
    else:
        for line in screen(difference, rows):
            console.text(line)
    fail(difference, conditions)


def gpus_of(option: str | None) -> tuple[str, ...]:
    """Return the GPUs that `--gpu` lists; an empty tuple if the option is not given."""
    return () if option is None else option_values.gpus(option)


def conditions_of(text: str) -> list[str]:
    """Return the conditions that the value of `--fail-on` lists.

    ConfigError is raised if a condition is unknown, or if the value is not empty but lists no condition.
    """
    from toolchain_lab.examine.diff import CONDITIONS  # noqa: PLC0415

    names = [name.strip() for name in text.split(",") if name.strip()]
    if text and not names:
        raise ConfigError("option-empty", "--fail-on names no condition", fix=f"choose among {', '.join(CONDITIONS)}")
    if odd := [name for name in names if name not in CONDITIONS]:
        raise ConfigError(
            "unknown-condition", f"--fail-on {', '.join(odd)} is unknown", fix=f"choose among {', '.join(CONDITIONS)}"
        )
    return names


def fail(difference: Difference, conditions: Sequence[str]) -> None:
    """Raise RegressionError if one of the given conditions holds for any kernel."""
    bad = {name: difference.failing(name) for name in conditions}
    if any(bad.values()):
        counts = "; ".join(f"{name}: {len(rows)}" for name, rows in bad.items() if rows)
        listed = dict.fromkeys(row.key for rows in bad.values() for row in rows)
        raise RegressionError(
            "kernels-worse",
            f"B is worse than A: {counts}",
            why="\n".join(list(listed)[:10]),
            fix="compare the compilers of A and B",
        )


def screen(difference: Difference, most: int) -> Iterator[str]:
    """Yield the lines that display a comparison, with at most `most` kernels."""
    from toolchain_lab.examine.diff import SAME, change_texts  # noqa: PLC0415

    changed = [row for row in difference.rows if row.status != SAME]
    if changed:
        columns = ("same", "equiv", "changed", "A only", "B only", "waves-", "waves+", "spills+")
        yield f"{'GPU':<9}{'kernel':<24}" + "".join(f"{name:>8}" for name in columns)
    for group in difference.groups() if changed else ():
        numbers = [
            group["same"], group["same_instructions"], group["changed"], group["only_a"] + group["empty_b"],
            group["only_b"] + group["empty_a"], group["slower"], group["faster"], group["spills"],
        ]  # fmt: skip
        yield f"{group['gpu']:<9}{group['kernel'][-23:]:<24}" + "".join(f"{number:>8}" for number in numbers)
    for row in changed[:most]:
        yield f"{row.gpu} {row.key}"
        yield f"  {', '.join(change_texts(row)) or _WORDS.get(row.status, 'different instructions, same resources')}"
    if len(changed) > most:
        yield f"… and {len(changed) - most} more; use --rows or --json"
    counts = [f"{count} {_WORDS.get(status, status)}" for status, count in difference.counts().items() if count]
    count = len(difference.rows)
    yield f"{count} kernel{'' if count == 1 else 's'}: {', '.join(counts)}"
