"""Estimate how long a run of ninja will still take, from typical costs of its steps and from its recent speed."""

from __future__ import annotations

import re
from collections import deque

# These are the seconds per step on one core, measured with LLVM 23.1.1 and precompiled headers. Only the ratios matter,
# so the table can be used for other machines and versions.
_KINDS = tuple(
    (re.compile(pattern), seconds)
    for pattern, seconds in (
        (r"Building CXX object lib/(Support|Demangle)/", 0.5),
        (r"Building CXX object (lib/TableGen|tools/mlir/lib/TableGen)/", 1.3),
        (r"Building CXX object utils/TableGen/", 2.7),
        (r"Building CXX object tools/mlir/tools/", 3.0),
        (r"Building CXX object tools/mlir/lib/(Conversion|Dialect|Target)/", 5.6),
        (r"Building CXX object tools/mlir/", 1.8),
        (r"Building CXX object tools/clang/lib/Sema/", 5.9),
        (r"Building CXX object tools/(clang|lld)/", 3.5),
        (r"Building CXX object lib/(Target|Transforms)/", 3.5),
        (r"Building CXX object ", 2.1),
        (r"(Building (C|ASM) object|Linking)\b", 0.1),
        (r"", 0.5),  # generated files
    )
)
_WINDOW = 600.0  # seconds; the minimum window for measuring the speed, which changes with the load of the machine
_FIRST = 30.0  # seconds; there is no estimate for this long after the first record of a run


def cost(label: str) -> float:
    """Return the typical number of seconds that a ninja step with this label takes on one core."""
    return next(seconds for pattern, seconds in _KINDS if pattern.match(label))


class Rate:
    """The speed of one run, measured over its last ten minutes or its last half, whichever is longer.

    If nothing was done in that time, the average speed of the whole run is used.
    """

    def __init__(self) -> None:
        self._done = 0.0
        self.first: tuple[float, float] | None = None  # the time of the first record, and the work done by then
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, done: float, now: float) -> None:
        """Record that `done` units of work, counted from the start, are done at the monotonic time `now`."""
        self._done = done
        self.first = self.first or (now, done)
        if not self._samples or now - self._samples[-1][0] >= 1:
            self._samples.append((now, done))
        window = max(_WINDOW, (now - self.first[0]) / 2)
        while len(self._samples) > 2 and now - self._samples[0][0] > window:
            self._samples.popleft()

    def seconds_for(self, work: float, now: float) -> float | None:
        """Return the seconds that another `work` units will take; None if no work has been measured."""
        if self.first is None:
            return None
        since, before = self._samples[0]
        if self._done == before:  # nothing was done within the window, so the average of the run is used
            since, before = self.first
        if self._done == before or now <= since:
            return None
        return work * (now - since) / (self._done - before)


class Pace:
    """An estimate of the remaining time of one run of ninja.

    Args:
        mean: the average of `cost` over all steps of the build.
    """

    def __init__(self, mean: float) -> None:
        self._mean = mean
        self._done = 0.0
        self._total = self._left = 0  # numbers of steps
        self._rate = Rate()

    def count(self, done: int, total: int, label: str, now: float) -> None:
        """Record that the `done`-th of `total` steps ended at the monotonic time `now`."""
        self._done += cost(label)
        self._total = max(self._total, total)
        self._left = self._total - done
        self._rate.add(self._done, now)

    def left(self, now: float) -> float | None:
        """Return the estimated seconds to the end of the run; None if there is no estimate."""
        steps = self._total - self._left
        if self._rate.first is None or now - self._rate.first[0] < _FIRST or not steps:
            return None
        # `mean` describes a whole build, but a continued build may have only costly steps left. So the average of this
        # run gets more weight as the run proceeds.
        share = steps / self._total
        mean = self._mean * (1 - share) + self._done / steps * share
        work = max(self._mean * self._total - self._done, self._left * mean)
        return self._rate.seconds_for(work, now)
