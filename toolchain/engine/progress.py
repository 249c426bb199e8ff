"""Show a stage's progress, which is read from the output of its build.

The progress is one live line in a terminal. In a log, and under CI, a line is printed at the start of each step, and
whenever no line has been printed for a minute.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from toolchain.core import console as people
from toolchain.engine.estimate import Pace, Rate

_STEP = re.compile(r"^@step (\S.*)$")
# The recipes set NINJA_STATUS='@ninja %f/%t %r %e@ ', which prints the numbers of finished, total and running steps,
# and the seconds since ninja's start.
_NINJA = re.compile(r"^@ninja (\d{1,9})/(\d{1,9}) +\d+ +(\d{1,9}(?:\.\d+)?)@ ?(.*)$")
_COUNT = re.compile(r"^@count (\d{1,9})/(\d{1,9})(?: (.*))?$")
_BUILDAH = re.compile(r"^(?:\[(\d+)/(\d+)\] )?STEP (\d+)(?:/(\d+))?: (.*)$")
_PLAIN_EVERY = 60.0
# Later steps are estimated only if the steps that have begun have at least this share of the stage's weight, because
# otherwise one slow minute would be extrapolated to days.
_LEAST_SHARE = 0.05


@dataclass
class _Step:
    """One step of the stage. `done` and `total` never decrease."""

    name: str
    begun: float
    ended: float | None = None
    done: int = 0
    total: int = 0
    label: str = ""
    amount: str = ""
    pace: Pace | None = None
    # `before` counts the steps that earlier runs of ninja finished; the `run_` fields describe the current run.
    before: int = 0
    run_done: int = 0
    run_total: int = 0
    run_seconds: float = 0.0
    rate: Rate = field(default_factory=Rate)

    def count(self, done: int, total: int, now: float) -> None:
        # Lines of parallel jobs may come out of order, and a total may grow.
        self.total = max(self.total, total)
        self.done = min(max(self.done, done), self.total)
        self.rate.add(self.done, now)

    def ninja(self, done: int, total: int, seconds: float, label: str, now: float) -> None:
        if done <= 1 <= self.run_done and self.run_total > 1 and seconds < self.run_seconds:
            # Another run of ninja has begun. The mean cost of a step is known only for the first run.
            self.before += self.run_done
            self.run_done = self.run_total = 0
            self.pace = None
        self.run_done = max(self.run_done, done)
        self.run_total = max(self.run_total, total)
        self.run_seconds = seconds
        self.count(self.before + self.run_done, self.before + self.run_total, now)
        if self.pace is not None and total > 1:  # a run with a single step only runs CMake again
            self.pace.count(self.run_done, total, label, now)

    def left(self, now: float) -> float | None:
        """Return the estimated seconds to the end of the step; None if there is no estimate."""
        if not self.total:
            return None
        if self.done >= self.total:
            return 0.0
        if self.pace is not None:
            return self.pace.left(now)
        return self.rate.seconds_for(self.total - self.done, now)


class Progress:
    """The progress of a stage, which is read from the output of the stage's build and shown on a console.

    Args:
        index, total: the number of the stage in this invocation, counted from 1, and the number of stages.
        console: the console that shows the progress; by default standard error.
        clock: a function that returns a monotonic time in seconds.
    """

    def __init__(
        self,
        stage: str,
        index: int = 1,
        total: int = 1,
        console: Console | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stage = stage
        self.index = index
        self.total = total
        self._weights: dict[str, float] = {}
        self._ninja: dict[str, float] = {}
        self._console = console or people.err()
        self._clock = clock
        self._begun = clock()
        self._ended: float | None = None
        self._steps: list[_Step] = []
        self._buildah = ""
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._stop = threading.Event()
        self._ticker: threading.Thread | None = None
        self._github = bool(os.environ.get("GITHUB_ACTIONS"))
        self._printed = self._begun

    def weigh(self, weights: Mapping[str, float], *, ninja: Mapping[str, float]) -> None:
        """Add the weights and mean costs of a recipe's steps, which are `Recipe.steps` and `Recipe.ninja`."""
        with self._lock:
            self._weights.update(weights)
            self._ninja.update(ninja)

    def step(self, name: str) -> None:
        """End the current step, and begin a step with this name; do nothing if the current step has this name."""
        with self._lock:
            now = self._clock()
            if self._steps and self._steps[-1].ended is None:
                if self._steps[-1].name == name:
                    return
                self._steps[-1].ended = now
            # The recipes' scripts begin the step `done` at their end, and the engine then exports the tree.
            name = "export" if name == "done" else name
            self._steps.append(_Step(name, now, pace=Pace(self._ninja[name]) if name in self._ninja else None))
            if self._live is None:
                self._say(now)

    def count(self, done: int, total: int, label: str = "") -> None:
        """Record how many parts of the current step are done; `label` names the latest part."""
        with self._lock:
            now = self._clock()
            step = self._current(now)
            step.count(done, total, now)
            step.label = label
            self._maybe_say(now)

    def amount(self, what: str, done: int, total: int) -> None:
        """Record how many bytes of `what` are done in the current step; a `total` of 0 stands for an unknown size."""
        with self._lock:
            step = self._current(self._clock())
            step.amount, step.label = people.share(done, total), what
            self._maybe_say(self._clock())

    def line(self, text: str) -> bool:
        """Process one line of a build's output. Return whether it reports progress; such a line need not be shown."""
        with self._lock:
            now = self._clock()
            if match := _NINJA.match(text):
                done, total, seconds, what = match.groups()
                step = self._current(now)
                step.ninja(int(done), int(total), float(seconds), what, now)
                step.label = what
            elif match := _COUNT.match(text):
                self.count(int(match[1]), int(match[2]), match[3] or "")
            elif match := _STEP.match(text):
                self.step(match[1].strip())
            elif match := _BUILDAH.match(text):
                phase = f"{match[1]}.{match[3]}" if match[1] else match[3]
                self._buildah = f"{phase} {match[5].split(' ', 1)[0]}"
            else:
                return False
            self._maybe_say(now)
            return True

    def _current(self, now: float) -> _Step:
        if not self._steps or self._steps[-1].ended is not None:
            self._steps.append(_Step("build", now))
        return self._steps[-1]

    def summary(self) -> dict[str, float]:
        """Return the seconds that each step has taken, by the step's name and in the order of the steps."""
        with self._lock:
            now = self._clock() if self._ended is None else self._ended
            seconds: dict[str, float] = {}
            for step in self._steps:
                seconds[step.name] = (
                    seconds.get(step.name, 0.0) + (now if step.ended is None else step.ended) - step.begun
                )
            return seconds

    def elapsed(self) -> float:
        """Return the seconds from the beginning of the stage until its end, or until now while it runs."""
        return (self._clock() if self._ended is None else self._ended) - self._begun

    def estimate(self) -> float | None:
        """Return the estimated seconds to the end of the stage; None if there is no estimate."""
        with self._lock:
            now = self._clock()
            if not self._steps:
                return None
            step = self._steps[-1]
            left = step.left(now)
            ahead = self._ahead(step.name)
            if left is None or not ahead:
                return left
            pace = self._pace(step, now, left)
            return None if pace is None else left + pace * sum(self._weights[name] for name in ahead)

    def _ahead(self, name: str) -> list[str]:
        names = list(self._weights)
        return names[names.index(name) + 1 :] if name in names else []

    def _pace(self, step: _Step, now: float, left: float) -> float | None:
        """Return the seconds for one unit of weight, from the finished steps and the estimate for the current step.

        Return None while the weight of these steps is a small part of the stage's weight.
        """
        passed = {name: seconds for name, seconds in self.summary().items() if self._weights.get(name)}
        if step.name in passed:
            passed[step.name] = now - step.begun + left
        weight = sum(self._weights[name] for name in passed)
        enough = weight >= _LEAST_SHARE * sum(self._weights.values())
        return sum(passed.values()) / weight if weight and enough else None

    def text(self) -> str:
        """Return a line with the stage, the current step, its finished parts, the elapsed time and the estimate."""
        with self._lock:
            parts = [f"[{self.index}/{self.total}] {self.stage}"]
            if self._steps:
                step = self._steps[-1]
                names = list(self._weights)
                where = f" ({names.index(step.name) + 1} of {len(names)})" if step.name in names else ""
                counted = f" {step.done}/{step.total}" if step.total else f" {step.amount}".rstrip()
                parts.append(f"{step.name}{where}{counted}")
            elif self._buildah:
                parts.append(f"container step {self._buildah}")
            parts.append(people.duration(self.elapsed()))
            left = self.estimate()
            if left is not None and self._ended is None:
                parts.append(f"about {people.duration(left)} left")
            return people.plain(", ".join(parts))

    def __rich__(self) -> Text:
        text = Text(self.text(), no_wrap=True, overflow="ellipsis")
        if self._steps and self._steps[-1].label:
            text.append(f"  {people.plain(self._steps[-1].label)}", style="dim")
        return text

    def _say(self, now: float) -> None:
        self._printed = now
        self._console.print(self.text(), markup=False, highlight=False, soft_wrap=True)

    def _maybe_say(self, now: float) -> None:
        if self._live is None and now - self._printed >= _PLAIN_EVERY:
            self._say(now)

    def _tick(self) -> None:
        # The build may print nothing for minutes, for example during a long link, so this thread prints the progress.
        while not self._stop.wait(1.0):
            with self._lock:
                self._maybe_say(self._clock())

    def __enter__(self) -> Self:
        if self._github:
            self._console.print(f"::group::{people.plain(self.stage)}", markup=False, highlight=False)
        if self._console.is_terminal and not self._github and not os.environ.get("CI"):
            self._live = Live(get_renderable=self.__rich__, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        else:
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._ticker is not None:
            self._ticker.join()
        with self._lock:
            self._ended = self._clock()
            if self._steps and self._steps[-1].ended is None:
                self._steps[-1].ended = self._ended
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._github:
            self._console.print("::endgroup::", markup=False, highlight=False)
