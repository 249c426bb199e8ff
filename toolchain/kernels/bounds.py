"""Limits of time and memory for kernels and their workers: measuring, and turns when one worker needs all memory.

A limit of the address space would be wrong: Triton maps much more than it uses. Control groups need a system that hands
them out. So the processes below each worker are measured, as `/proc` has them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.core import console
from toolchain.kernels.worker_process import Worker

RUNAWAY_SECONDS = 3600.0
"""A kernel takes seconds. One that takes an hour is treated as endless, unless --kernel-timeout allows longer."""
_RESERVE = 512 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


def patience(timeout: float | None) -> float:
    """Seconds that a kernel may take.

    Args:
        timeout: `--kernel-timeout`.
    """
    return timeout or RUNAWAY_SECONDS


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one kernel; other limits make other kernels fail.

    Args:
        timeout: seconds.
        memory: bytes; 0 for what the machine has.
    """

    timeout: float
    memory: int = 0


@dataclass(frozen=True, kw_only=True)
class MemoryBounds:
    """Memory limits of workers, in bytes.

    Args:
        together: of all workers. Where it is not enough, the largest is stopped and tries its kernel again alone.
        share: of one worker between two kernels; one that has more is replaced.
        kernel: of one worker within a kernel; a kernel that takes more fails. 0 where only `together` bounds it.
    """

    together: int
    share: int
    kernel: int = 0

    @classmethod
    def of(cls, available: int, workers: int, kernel: int = 0) -> MemoryBounds:
        """The bounds of so many workers on a machine with so much memory; some is left for other programs."""
        together = max(available - max(_RESERVE, available // 10), available // 2, 1)
        share = together // max(workers, 1)
        return cls(together=together, share=min(share, kernel) if kernel else share, kernel=kernel)


def memory_row(bounds: MemoryBounds | None, workers: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Used and allowed memory of workers, as in `kernels status --json`; limits are 0 if there are none."""
    known = bounds or MemoryBounds(together=0, share=0)
    return {
        "workers": sum(int(worker["memory"]) for worker in workers),
        "together": known.together,
        "share": known.share,
        "kernel": known.kernel,
    }


def enforce(bounds: MemoryBounds | None, workers: Collection[Worker]) -> None:
    """Measure the workers that live now, and stop one that is over a bound."""
    live = [(worker, worker.task) for worker in workers]
    for worker, _ in live:
        worker.memory = resident(worker.pid)
    if bounds is None:
        return
    most = bounds.kernel
    for worker, task in live:
        if most and task is not None and worker.memory > most and (memory := proportional(worker.pid)) > most:
            reason = f"memory: {console.size(memory)}, one kernel may take {console.size(most)}"
            worker.end_for(task, reason, final=True)
            return
    if sum(worker.memory for worker, _ in live) <= bounds.together:
        return
    # Shared pages are counted once: all workers map the same compiler.
    exact = [(proportional(worker.pid), worker, task) for worker, task in live]
    busy = [(memory, worker, task) for memory, worker, task in exact if task is not None]
    if busy and sum(row[0] for row in exact) > bounds.together:
        memory, worker, task = max(busy, key=lambda row: row[0])
        limit = console.size(bounds.together)
        reason = f"memory: {console.size(memory)}, all workers may take {limit}"
        worker.end_for(task, reason, final=len(live) == 1)


def over_share(pid: int, bounds: MemoryBounds | None) -> int:
    """The bytes that a worker has where that is more than its share, else 0."""
    if bounds is None or resident(pid) <= bounds.share:
        return 0
    memory = proportional(pid)
    return memory if memory > bounds.share else 0


class Turns:
    """Whose turn it is to compile: all workers at once, or one alone.

    Args:
        stopping: set when waiting must end.
    """

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._change = threading.Condition()
        self._working = 0
        self._wanted = 0

    @property
    def wanted(self) -> bool:
        """Whether a worker waits to be alone, or is."""
        return self._wanted > 0

    @contextlib.contextmanager
    def beside(self, *, before_waiting: Callable[[], None]) -> Iterator[None]:
        """Work while others do.

        Args:
            before_waiting: called when another worker wants to be alone, to free what that one needs.
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
        """Work while no other worker does; several take turns."""
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
        """Wake all who wait, so that they see that it is stopping."""
        with self._change:
            self._change.notify_all()

    def _leave(self) -> None:
        with self._change:
            self._working -= 1
            self._change.notify_all()


def resident(pid: int) -> int:
    """Bytes in memory of a process and all below it; shared pages are counted for each."""
    return sum(_resident(process) for process in processes(pid))


def proportional(pid: int) -> int:
    """Bytes in memory of a process and all below it, of shared pages a fair part: exact, but slow for large ones."""
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
    pids = [pid]
    for process_id in pids:
        pids += below(process_id) or ()
    return pids


@functools.cache
def _lists_children() -> bool:
    return (_PROC / "thread-self" / "children").exists()


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            pids += map(int, (task / "children").read_bytes().split())
    except OSError:
        pass  # it has ended
    return pids


def _parents() -> dict[int, list[int]]:
    """Children by parent, for kernels that do not list them."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(folder.name))
    return children
