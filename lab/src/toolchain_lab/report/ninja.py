"""Read the steps of a build, with their times and parallel jobs, from ninja's log."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_MOST_RUNS = 50  # a log that seems to contain more runs was rewritten by ninja, and is not in order


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command that ninja ran in a build.

    Args:
        output: the file that the command wrote; the first one if there are several.
        kind: `compile`, `archive and link`, `generate` or `other`.
        start, end: the seconds since the build began, without pauses between runs of ninja.
        lane: the number, from 1, of the parallel job that ran the command.
    """

    output: str
    kind: str
    start: float
    end: float
    lane: int

    @property
    def seconds(self) -> float:
        return self.end - self.start


def steps_of(content: bytes) -> list[Step]:
    """Return the steps in a log, in the order in which they began; lines that describe no step are ignored."""
    rows: list[tuple[float, float, str]] = []
    offset = 0.0
    for run in _runs(list(_lines(content.decode("utf-8", "replace")))):
        rows += [(offset + start, offset + end, output) for start, end, output in run]
        offset += max(end for _, end, _ in run)
    steps: list[Step] = []
    free: list[int] = []  # a heap, so that the lowest free lane is used first
    busy: list[tuple[float, int]] = []
    for start, end, output in sorted(rows):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (end, lane))
        steps.append(Step(output=output, kind=_kind(output), start=start, end=end, lane=lane))
    return steps


def _lines(text: str) -> Iterator[tuple[float, float, str]]:
    """Yield the start and the end, in seconds, and the output of each command; other lines are skipped.

    For a command with several outputs, the log contains several lines, of which only the first is used.
    """
    before = None
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) < 5 or not (fields[0].isdigit() and fields[1].isdigit()):
            continue
        command = (fields[0], fields[1], fields[4])
        if command != before and int(fields[1]) >= int(fields[0]):
            yield int(fields[0]) / 1000, int(fields[1]) / 1000, fields[3]
        before = command


def _runs(lines: Sequence[tuple[float, float, str]]) -> list[Sequence[tuple[float, float, str]]]:
    """Return the lines of each run. A run begins where the end time decreases.

    If there are more than `_MOST_RUNS` runs, all lines are returned as one run.
    """
    starts = [at for at, line in enumerate(lines) if at == 0 or line[1] < lines[at - 1][1]]
    if len(starts) > _MOST_RUNS:
        return [lines]
    return [lines[start:end] for start, end in itertools.pairwise([*starts, len(lines)])]


def _kind(output: str) -> str:
    name = output.rpartition("/")[2]
    if name.endswith((".o", ".pch")):
        return "compile"
    if name.endswith(".a") or ".so" in name or output.startswith("bin/"):
        return "archive and link"
    return "generate" if name.endswith((".inc", ".h", ".td", ".cpp", ".def", ".md")) else "other"
