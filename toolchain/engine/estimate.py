"""The remaining time of a run of ninja, by the costs of kinds of steps and the speed of the last ones."""

from __future__ import annotations

import re
from collections import deque

# Seconds of one core, LLVM 22.1.8 on an idle Xeon of 2.5 GHz. Only their ratio is used, so another machine or version
# needs no table of its own.
_KINDS = tuple(
    (re.compile(pattern), seconds)
    for pattern, seconds in (
        (r"Building CXX object lib/(Support|Demangle)/CMakeFiles", 1.5),
        (r"Building CXX object utils/TableGen/Common/", 4.2),
        (r"Building CXX object utils/TableGen/CMakeFiles", 6.0),
        (r"Building CXX object (lib/TableGen|utils/TableGen/Basic|tools/mlir/lib/TableGen)/", 3.4),
        (r"Building CXX object tools/mlir/tools/mlir-tblgen/", 2.2),
        (r"Building CXX object tools/mlir/", 7.2),
        (r"Building CXX object ", 4.5),
        (r"Building C object ", 0.4),
        (r"", 0.2),  # generated files, archives, links
    )
)
_WINDOW = 600.0  # seconds; half of the run, once that is more: the load of a machine changes within minutes
_FIRST = 30.0  # seconds; what was done before says too little


def cost(label: str) -> float:
    """Seconds of one core for the step of ninja that is called so."""
    return next(seconds for pattern, seconds in _KINDS if pattern.match(label))


class Rate:
    """Work a second of one run, over its last minutes."""

    def __init__(self) -> None:
        self._done = 0.0
        self.first: tuple[float, float] | None = None  # when, and the work done by then
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, done: float, now: float) -> None:
        """So much work is done by now, in seconds that only grow."""
        self._done = done
        self.first = self.first or (now, done)
        if not self._samples or now - self._samples[-1][0] >= 1:
            self._samples.append((now, done))
        window = max(_WINDOW, (now - self.first[0]) / 2)
        while len(self._samples) > 2 and now - self._samples[0][0] > window:
            self._samples.popleft()

    def seconds_for(self, work: float, now: float) -> float | None:
        """Seconds that further work takes; None while nothing can be said."""
        if self.first is None:
            return None
        since, before = self._samples[0]
        if self._done == before:  # nothing moved for the whole window: the run's average
            since, before = self.first
        if self._done == before or now <= since:
            return None
        return work * (now - since) / (self._done - before)


class Pace:
    """Follows one run of ninja.

    Args:
        mean: seconds of one core, in the measure of `cost`, that a step of this build takes on average.
    """

    def __init__(self, mean: float) -> None:
        self._mean = mean
        self._done = 0.0
        self._total = self._left = 0  # steps
        self._rate = Rate()

    def count(self, done: int, total: int, label: str, now: float) -> None:
        """A step has ended.

        Args:
            done, total: steps.
            label: of the step.
            now: seconds that only grow.
        """
        self._done += cost(label)
        self._total = max(self._total, total)
        self._left = self._total - done
        self._rate.add(self._done, now)

    def left(self, now: float) -> float | None:
        """Seconds to the end of the run; None before half a minute of it and a step have passed."""
        steps = self._total - self._left
        if self._rate.first is None or now - self._rate.first[0] < _FIRST or not steps:
            return None
        # The whole is an average of a build from the start. A continued one may have the costly steps left, so what it
        # did so far has the more weight, the further it is.
        share = steps / self._total
        mean = self._mean * (1 - share) + self._done / steps * share
        work = max(self._mean * self._total - self._done, self._left * mean)
        return self._rate.seconds_for(work, now)
