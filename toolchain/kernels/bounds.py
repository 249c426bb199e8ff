"""Limits on the time and memory of kernels and workers, and a lock for a worker that must compile alone.

The memory of a worker's processes is read from `/proc`. A limit on the address space would not work, because Triton
maps much more memory than it uses, and control groups are not available everywhere.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolchain.core import console
from toolchain.kernels.worker_process import Worker

RUNAWAY_SECONDS = 3600.0
"""The default time limit for a kernel. A kernel that takes longer is assumed never to end."""
_RESERVE = 512 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


def patience(timeout: float | None) -> float:
    """Return the seconds that a kernel may take: `timeout`, or `RUNAWAY_SECONDS` if it is None or 0."""
    return timeout or RUNAWAY_SECONDS


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits for one kernel, in seconds and bytes; a `memory` of 0 means no limit."""

    timeout: float
    memory: int = 0


@dataclass(frozen=True, kw_only=True)
class MemoryBounds:
    """The limits on the memory of workers, in bytes.

    Args:
        together: the limit for all workers together. Above it, the largest worker that compiles is ended.
        share: the limit for a worker between two kernels. A worker that uses more is replaced.
        kernel: the limit for a worker while it compiles; 0 for no limit. A kernel that needs more fails.
    """

    together: int
    share: int
    kernel: int = 0

    @classmethod
    def of(cls, available: int, workers: int, kernel: int = 0) -> MemoryBounds:
        """Return bounds for a machine with `available` bytes of memory, of which a part is left to other programs."""
        together = max(available - max(_RESERVE, available // 10), available // 2, 1)
        share = together // max(workers, 1)
        return cls(together=together, share=min(share, kernel) if kernel else share, kernel=kernel)


def enforce(bounds: MemoryBounds | None, workers: Collection[Worker]) -> None:
    """Measure the memory of the live workers, and end at most one of them if a limit is exceeded."""
    live = [(worker, worker.task) for worker in workers]
    for worker, _ in live:
        worker.memory = resident(worker.pid)
    if bounds is None:
        return
    most = bounds.kernel
    for worker, task in live:
        if most and task is not None and worker.memory > most and (memory := proportional(worker.pid)) > most:
            reason = f"memory: one kernel may take {console.size(most)}\nit used {console.size(memory)}"
            worker.end_for(task, reason, final=True)
            return
    if sum(worker.memory for worker, _ in live) <= bounds.together:
        return
    # All workers map the same compiler, so shared pages must be counted only once.
    exact = [(proportional(worker.pid), worker, task) for worker, task in live]
    busy = [(memory, worker, task) for memory, worker, task in exact if task is not None]
    if busy and sum(row[0] for row in exact) > bounds.together:
        memory, worker, task = max(busy, key=lambda row: row[0])
        limit = console.size(bounds.together)
        reason = "memory: it needs more than all workers together may take"
        reason += f"\nit used {console.size(memory)}, and the limit is {limit}"
        worker.end_for(task, reason, final=len(live) == 1)


def over_share(pid: int, bounds: MemoryBounds | None) -> int:
    """Return the bytes of memory that a worker uses if they exceed `bounds.share`; 0 if not, or if `bounds` is None."""
    if bounds is None or resident(pid) <= bounds.share:
        return 0
    memory = proportional(pid)
    return memory if memory > bounds.share else 0


class Turns:
    """A lock that either several workers hold at the same time, or one worker holds alone.

    After `stopping` is set, no thread starts to wait, and `wake` ends the waits that began earlier.
    """

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._change = threading.Condition()
        self._working = 0
        self._wanted = 0

    @property
    def wanted(self) -> bool:
        """Whether a worker works alone, or waits until it can work alone."""
        return self._wanted > 0

    @contextlib.contextmanager
    def beside(self, *, before_waiting: Callable[[], None]) -> Iterator[None]:
        """Let other workers work during the block, but first wait while a worker works alone or waits to work alone.

        `before_waiting` is called before such a wait.
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
        """Wait until no other worker works, and keep the others waiting during the block."""
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
        """Wake all waiting threads; they stop waiting if `stopping` is set."""
        with self._change:
            self._change.notify_all()

    def _leave(self) -> None:
        with self._change:
            self._working -= 1
            self._change.notify_all()


def resident(pid: int) -> int:
    """Return the resident bytes of a process and its descendants; shared pages are counted once for each process."""
    return sum(_resident(process) for process in processes(pid))


def proportional(pid: int) -> int:
    """Return the bytes of memory of a process and its descendants, with shared pages divided among their users.

    For a process whose proportional set size (PSS) cannot be read, the resident bytes are added.
    """
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
    """Return the ids of a process and its descendants.

    A Linux kernel without CONFIG_PROC_CHILDREN does not list descendants, so only `pid` is returned.
    """
    pids = [pid]
    for process_id in pids:
        pids += _children(process_id)
    return pids


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            pids += map(int, (task / "children").read_bytes().split())
    except OSError:
        pass  # the process has ended, or Linux does not list children
    return pids
