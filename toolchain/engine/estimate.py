"""How long a run of ninja will still take: what its steps cost, and how fast the machine did the last ones."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

_BLOCK = 8  # steps; a single one is no measure, since concurrent jobs end together
_CACHED = 6.0  # times as fast as the machine of the data: no processor is, so it came from the compiler cache
_WINDOW = 600.0  # seconds; half of the run, once that is more: the load of a machine changes within minutes
_SHARE = 1 / 2
# The speed of the data is believed at first, so that the first steps do not decide alone: they are small ones, and a
# machine that reads its headers for the first time is slow. That is for so many seconds, or more while less than this
# share of the whole is done.
_BELIEVED = 10.0
_BEGINNING = 0.03


class Course:
    """What the steps of a build cost, in ninja's order.

    Ninja orders steps by the build's graph alone. A build that goes on therefore does the last ones of the same order,
    and the number of steps that are left says which they are.

    Args:
        runs: steps in a row and the seconds of one core that each of them takes.
    """

    def __init__(self, runs: Sequence[tuple[int, float]]) -> None:
        backwards = [(0, 0.0), *reversed(runs)]
        self._steps = list(accumulate(count for count, _ in backwards))
        self._seconds = list(accumulate(count * each for count, each in backwards))
        self._each = [each for _, each in reversed(runs)]
        self.steps = self._steps[-1]

    def left(self, steps: int) -> float:
        """Seconds of one core for the last so many steps; a step that the data does not know costs the mean."""
        if steps >= self.steps:
            return self._seconds[-1] * steps / self.steps
        at = bisect_right(self._steps, steps) - 1
        return self._seconds[at] + (steps - self._steps[at]) * self._each[at]


class _Block:
    """Some steps in a row: when they began and ended, what they cost by the data, and whether a cache gave them."""

    def __init__(self, begun: float) -> None:
        self.begun = self.ended = begun
        self.steps = 0
        self.cost = 0.0
        self.core_seconds = 0.0

    @property
    def seconds(self) -> float:
        return self.ended - self.begun

    @property
    def cached(self) -> bool:
        return self.cost > _CACHED * self.core_seconds


class Pace:
    """Follows one run of ninja along a course.

    Args:
        course: of the whole build, however much of it this run has to do.
    """

    def __init__(self, course: Course) -> None:
        self._course = course
        self._blocks: list[_Block] = []
        self._last: tuple[float, int] | None = None  # when, and the steps that were left
        self._running = 1

    def count(self, left: int, running: int, now: float) -> None:
        """A step has ended.

        Args:
            left: steps that are left of this run.
            running: how many run now.
            now: seconds that only grow.
        """
        if self._last is None:
            self._last = (now, left)
            self._blocks.append(_Block(now))
        since, before = self._last
        self._running = max(1, running)
        if left >= before:  # CMake has run again, and the whole has grown
            self._last = (since, left)
            return
        block = self._blocks[-1]
        if block.steps >= max(_BLOCK, 2 * self._running):
            block = _Block(since)
            self._blocks.append(block)
        block.ended = now
        block.steps += before - left
        block.cost += self._course.left(before) - self._course.left(left)
        block.core_seconds += (now - since) * self._running
        self._last = (now, left)

    def left(self, now: float) -> float | None:
        """Seconds to the end of the run; None before its first step.

        Steps from the compiler cache say nothing about those to come, unless most of the time went into such ones.
        """
        if self._last is None:
            return None
        window = max(_WINDOW, _SHARE * (now - self._blocks[0].begun))
        recent = [block for block in self._blocks if now - block.ended <= window]
        own = [block for block in recent if not block.cached]
        whole, passed = self._course.left(self._course.steps), sum(block.cost for block in self._blocks)
        believed = max(_BELIEVED, (_BEGINNING * whole - passed) / self._running)
        seconds, done = believed + now - self._last[0], believed * self._running
        if 2 * sum(block.seconds for block in own) < sum(block.seconds for block in recent):
            own, seconds, done = recent, now - self._last[0], 0.0
        seconds += sum(block.seconds for block in own)
        done += sum(block.cost for block in own)
        return self._course.left(self._last[1]) * seconds / done if done else None
