"""Tests of the estimate of a build's remaining time, partly with the log of a real build."""

from __future__ import annotations

import gzip
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from toolchain.catalog.costs import cost_of
from toolchain.engine.estimate import Pace
from toolchain.engine.progress import Progress

# These are Ninja's lines of a build of LLVM 23.1.1 that took 1 h 31 min, without the names of files.
RECORDED = Path(__file__).resolve().parents[1] / "recorded" / "ninja-llvm-23.log.gz"
OBJECT = "Building CXX object lib/IR/CMakeFiles/LLVMCore.dir/a.cpp.o"  # its cost is 2.1


def run(pace: Pace, begun: float, steps: range, total: int, each: float, label: str = OBJECT) -> float:
    """Count steps that end one after the other, and return the time at which the last step ends."""
    now = begun
    for done in steps:
        now += each
        pace.count(done, total, label, now)
    return now


def left(pace: Pace, now: float) -> float:
    seconds = pace.left(now)
    assert seconds is not None
    return seconds


@pytest.mark.parametrize("before", [0, 1961], ids=["whole", "continued"])
def test_estimates_of_a_recorded_build_are_within_a_factor_of_1_5(before: int) -> None:
    row, now = cost_of("llvm", "distribution"), 0.0
    assert row is not None
    progress = Progress("llvm", console=Console(file=io.StringIO()), clock=lambda: now)
    progress.weigh({}, ninja={"compile": row.step})
    progress.line("@step compile")
    lines = gzip.decompress(RECORDED.read_bytes()).decode().splitlines()
    steps = [
        (float(seconds), label) for _, _, _, seconds, label in (re.split(" +|@ ", row, maxsplit=4) for row in lines)
    ]
    begun = steps[before - 1][0] if before else 0.0
    steps = [(seconds - begun, label) for seconds, label in steps[before:]]
    ratios = []
    for done, (now, label) in enumerate(steps, 1):
        progress.line(f"@ninja {done}/{len(steps)} 2 {now}@ {label}")
        estimate = progress.estimate()
        if now >= steps[-1][0] / 5 and estimate is not None:
            ratios.append((now + estimate) / steps[-1][0])
    assert len(ratios) > 1000
    assert 1 / 1.5 < min(ratios) <= max(ratios) < 1.5


def test_first_half_minute_has_no_estimate() -> None:
    pace = Pace(2.1)
    assert pace.left(0.0) is None
    now = run(pace, 0.0, range(1, 10), 400, 2.0)
    assert pace.left(now) is None
    now = run(pace, now, range(10, 40), 400, 2.0)
    assert left(pace, now) == pytest.approx(361 * 2, rel=0.05)


def test_a_step_that_hangs_makes_the_estimate_grow() -> None:
    pace = Pace(2.1)
    now = run(pace, 0.0, range(1, 41), 400, 2.0)
    assert left(pace, now + 300) > 2 * left(pace, now)
