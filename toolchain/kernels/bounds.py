"""What a kernel and its worker may take of time and memory: measured, and whose turn it is when one needs all of it.

A limit of the address space would be wrong: Triton maps much more than it uses. Control groups need a system that hands
them out. So the processes below each worker are measured, as `/proc` has them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from toolchain import console

RUNAWAY_SECONDS = 3600.0
"""A kernel takes seconds. One that takes an hour never ends, unless --kernel-timeout says that it does."""
OVER_MEMORY = "memory: "
"""Begins the reason of a kernel that was stopped because of its memory."""
EVERY = 1.0  # seconds between two looks
_RESERVE = 512 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


def patience(asked: float | None) -> float:
    """Seconds that a kernel may take.

    Args:
        asked: `--kernel-timeout`.
    """
    return asked or RUNAWAY_SECONDS


@dataclass(frozen=True, kw_only=True)
class MemoryBounds:
    """What workers may take, in bytes.

    Args:
        together: of all workers. Where it is not enough, the largest is stopped and tries its kernel again alone.
        share: of one worker between two kernels; one that has more is replaced.
        kernel: of one worker within a kernel, which fails beyond; 0 where only `together` bounds it.
    """

    together: int
    share: int
    kernel: int = 0

    @classmethod
    def of(cls, available: int, workers: int, kernel: int = 0) -> MemoryBounds:
        """The bounds of so many workers on a machine with so much memory; something is left for everybody else."""
        together = max(available - max(_RESERVE, available // 10), available // 2, 1)
        share = together // max(workers, 1)
        return cls(together=together, share=min(share, kernel) if kernel else share, kernel=kernel)


class Watched(Protocol):
    """A worker as `Watch` sees it."""

    memory: int

    @property
    def pid(self) -> int:
        """The topmost process."""

    @property
    def task(self) -> Any:
        """What it compiles, None between two kernels."""

    def end_for(self, task: Any, reason: str, *, final: bool) -> None:
        """End it, unless it has gone on to something else than `task`.

        Args:
            final: whether the kernel would need as much in any case.
        """


class Watch:
    """Measures workers once a second and stops those that are over a bound, in a thread of its own.

    Args:
        workers: those that live now.
    """

    def __init__(
        self, bounds: MemoryBounds | None, workers: Callable[[], Collection[Watched]], *, every: float = EVERY
    ) -> None:
        self._bounds = bounds
        self._workers = workers
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kernel-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.look()

    def look(self) -> None:
        """Measure once."""
        live = [(worker, worker.task) for worker in self._workers()]
        for worker, _ in live:
            worker.memory = resident(worker.pid)
        if self._bounds is None:
            return
        most = self._bounds.kernel
        for worker, task in live:
            if most and task is not None and worker.memory > most and (memory := proportional(worker.pid)) > most:
                reason = f"{console.size(memory)}, one kernel may take {console.size(most)}"
                worker.end_for(task, OVER_MEMORY + reason, final=True)
                return
        if sum(worker.memory for worker, _ in live) <= self._bounds.together:
            return
        # Pages that workers share count once: they all map the same compiler.
        exact = [(proportional(worker.pid), worker, task) for worker, task in live]
        busy = [row for row in exact if row[2] is not None]
        if busy and sum(row[0] for row in exact) > self._bounds.together:
            memory, worker, task = max(busy, key=lambda row: row[0])
            limit = console.size(self._bounds.together)
            worker.end_for(
                task, f"{OVER_MEMORY}{console.size(memory)}, all workers may take {limit}", final=len(live) == 1
            )


def over_share(pid: int, bounds: MemoryBounds | None) -> int:
    """The bytes that a worker has where that is more than its share, else 0."""
    if bounds is None or resident(pid) <= bounds.share:
        return 0
    memory = proportional(pid)
    return memory if memory > bounds.share else 0


class Turns:
    """Who compiles now: everybody beside each other, or one alone.

    Args:
        stopping: set when nobody shall wait any more.
    """

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._change = threading.Condition()
        self._working = 0
        self._wanted = 0

    @property
    def wanted(self) -> bool:
        """Whether somebody waits to be alone, or is."""
        return self._wanted > 0

    @contextlib.contextmanager
    def beside(self, *, before_waiting: Callable[[], None]) -> Iterator[None]:
        """Work while others do.

        Args:
            before_waiting: called when one wants to be alone: to let go of what the other one needs.
        """
        with self._change:
            if self._wanted:
                before_waiting()
            self._change.wait_for(lambda: not self._wanted or self._stopping.is_set())
            self._working += 1
        try:
            yield
        finally:
            self._leave()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Work while nobody else does; of several who want that, one after the other."""
        with self._change:
            self._wanted += 1
            self._change.wait_for(lambda: self._working == 0 or self._stopping.is_set())
            self._working += 1
        try:
            yield
        finally:
            with self._change:
                self._wanted -= 1
            self._leave()

    def wake(self) -> None:
        """Let everybody see that it is stopping."""
        with self._change:
            self._change.notify_all()

    def _leave(self) -> None:
        with self._change:
            self._working -= 1
            self._change.notify_all()


def resident(pid: int) -> int:
    """Bytes in memory of a process and all below it; pages that they share count for each."""
    return sum(_resident(process) for process in processes(pid))


def proportional(pid: int) -> int:
    """Bytes in memory of a process and all below it, of shared pages a fair part: exact, and dear for large ones."""
    return sum(_proportional(process) for process in processes(pid))


def _resident(pid: int) -> int:
    try:
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def _proportional(pid: int) -> int:
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    return _resident(pid)


def processes(pid: int) -> list[int]:
    """A process and all below it."""
    below = _children if _lists_children() else _parents().get
    found = [pid]
    for one in found:
        found += below(one) or ()
    return found


@functools.cache
def _lists_children() -> bool:
    return (_PROC / "thread-self" / "children").exists()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            found += map(int, (task / "children").read_bytes().split())
    except OSError:
        pass  # it has ended
    return found


def _parents() -> dict[int, list[int]]:
    """Children by parent, for kernels that do not list them."""
    found: dict[int, list[int]] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                found.setdefault(int(fields[1]), []).append(int(folder.name))
    return found
