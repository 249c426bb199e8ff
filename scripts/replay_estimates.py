"""Feed the log of a build through the tool's own estimate, and compare what it told with what the build took.

    python -m scripts.replay_estimates PART LOG...

PART names the table of `toolchain/data/step_costs.toml`, or `none` for the number of steps alone. A LOG may be reduced
to ninja's lines without what they name, and gzipped: `tests/recorded/` has such ones. Only the first run of ninja
counts. A build that was killed counts up to its last line: what was told for the rest is cut where that line is.
"""

from __future__ import annotations

import gzip
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from scripts.step_costs import compiling
from toolchain.catalog.costs import step_costs
from toolchain.engine.estimate import Course
from toolchain.engine.progress import Progress

_LINE = re.compile(r"^@ninja (\d+)/(\d+) +\d+ +([\d.]+)@")
TENTHS = tuple(range(1, 10))
_EVERY = 5  # lines: the estimate is asked for after so many


@dataclass(frozen=True)
class Told:
    """What an estimate said at one moment of a run.

    Args:
        passed: seconds since the run began.
        left: seconds that it said were left.
        took: seconds that the run took in all.
    """

    passed: float
    left: float
    took: float

    @property
    def ratio(self) -> float:
        """The whole as told, by the whole as it was."""
        return (self.passed + self.left) / self.took

    @property
    def factor(self) -> float:
        """How far the told whole is from the real one, either way."""
        return max(self.ratio, 1 / self.ratio)


def ninja_lines(log: Path) -> list[tuple[float, int, str]]:
    """Second, steps that are left, and line of the first run of ninja in a log."""
    raw = log.read_bytes()
    text = (gzip.decompress(raw) if log.suffix == ".gz" else raw).decode(errors="replace")
    found: list[tuple[float, int, str]] = []
    for line in compiling(text).splitlines():
        if line.startswith("@step install"):
            break
        if (match := _LINE.match(line)) and match[2] != "1":
            found.append((float(match[3]), int(match[2]) - int(match[1]), line))
    return found


def replay(log: Path, runs: Sequence[tuple[int, float]]) -> list[Told]:
    """What was told along a log.

    Args:
        runs: as in `toolchain.recipe.Recipe.courses`; empty for the number of steps alone.
    """
    lines, now = ninja_lines(log), 0.0
    progress = Progress("llvm", console=Console(file=io.StringIO()), clock=lambda: now)
    progress.weigh({}, courses={"compile": runs} if runs else {})
    progress.line("@step compile")
    course = Course(runs or [(lines[0][1], 1.0)])
    took, unseen = lines[-1][0], course.left(lines[-1][1])
    told = []
    for number, (second, left, line) in enumerate(lines):
        now = max(now, second)
        progress.line(line)
        if number % _EVERY:
            continue
        said, cost = progress.estimate(), course.left(left)
        if said is not None and cost > unseen:
            told.append(Told(now, said * (cost - unseen) / cost, took))
    return told


def at(told: Sequence[Told], tenth: int) -> Told:
    """What the estimate said when so many tenths of the time had passed."""
    return next(one for one in told if one.passed >= one.took * tenth / 10)


def worst(told: Sequence[Told]) -> Told:
    """The moment of the largest factor, from a tenth of the time on."""
    return max((one for one in told if one.passed >= one.took / 10), key=lambda one: one.factor)


def reduced(log: Path) -> bytes:
    """The log with nothing but ninja's counts and times, gzipped."""
    lines = (line.split("@ ", 1)[0].rstrip("@") + "@" for _, _, line in ninja_lines(log))
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)


def main(part: str, *logs: str) -> None:
    for name in logs:
        told = replay(Path(name), step_costs(part))
        most = worst(told)
        print(f"{Path(name).name}: {told[-1].took:.0f} s, largest factor from a tenth on {most.factor:.2f}", end="")
        print(
            f" (at {most.passed:.0f} s); told / took at each tenth:", *(f"{at(told, one).ratio:.2f}" for one in TENTHS)
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
