"""Run one compile process: give it tasks, read its answers, collect its results, and end it."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.core import strict_json
from toolchain.core.filesystem import emptied, read_regular
from toolchain.kernels.result_store import LARGEST_METADATA, LARGEST_OBJECT, write_unflushed

LOG = logging.getLogger(__name__)

Task = dict[str, Any]
# This is the type of a function that starts a process. The arguments are the name of the set of source files that the
# process sees (see `Naming.files`), and the folder on this machine that the process may write to.
MakeWorker = Callable[[str, Path], AbstractContextManager["subprocess.Popen[str]"]]
TAIL_LINES = 25
_OBJECT = "object"  # the object's name in the folder of the process, without its suffix
_LONGEST_LINE = 4 << 20  # the maximum number of characters in an answer; a worker may be hostile
_STEP = 1.0  # seconds between two readings of the clock while an answer is awaited
_MOST_LINES = 16  # the number of lines that are read ahead; a process that prints more must wait

# If one of these patterns matches the reason for a failure, the machine is at fault and not the kernel. If a worker
# ended, the reason states how it ended, and quotes the last lines of its output.
_MACHINE_FAULT = re.compile(
    r"No space left on device|Disk quota exceeded|Cannot allocate memory|Read-only file system|Input/output error"
    r"|Too many open files|Resource temporarily unavailable|\bMemoryError\b|std::bad_alloc|LLVM ERROR: out of memory"
    r"|^the worker was ended by SIG(?:KILL|TERM|INT|HUP)\b|^its process was ended by signal (?:1|2|9|15)\b"
    # An old Triton runs ld.lld, and Python words the death of such a program like this.
    r"|\bdied with <Signals\.SIG(?:KILL|TERM|INT|HUP): [0-9]+>"
)
LEAST_FREE = 32_000_000
"""If fewer bytes are free, a failure is blamed on a full disk, because a compiler may not report a full disk."""
# The tasks of a group may differ in these keys. aotriton/worker.py does the common part of such tasks only once; see
# aotriton/shared_stages.py.
_OWN = frozenset({"id", "out", "num_warps", "num_stages", "waves_per_eu"})


@dataclass(frozen=True)
class Job:
    """A task for a compile process.

    Args:
        task: the task for the process. Its `out` is only for display, because the process writes to its own folder.
        files: the name of the set of source files that the process sees.
        out: the path of the object on this machine, which the process does not see.
    """

    task: Task
    files: str
    out: Path


def groups(jobs: Iterable[Job], most: int) -> Iterator[list[Job]]:
    """Yield groups of at most `most` consecutive jobs that share work. One process should do all jobs of a group."""
    for _, group in itertools.groupby(jobs, key=_shared_part):
        while part := list(itertools.islice(group, most)):
            yield part


def _shared_part(job: Job) -> tuple[str, Task]:
    return job.files, {name: job.task[name] for name in job.task if name not in _OWN}


def machine_fault(reason: str, folder: Path) -> str:
    """Return why the machine made a compilation fail; an empty string if the kernel is at fault.

    Any failure is blamed on the machine if the disk that contains `folder` has fewer than `LEAST_FREE` free bytes.
    """
    if shutil.disk_usage(folder).free < LEAST_FREE:
        return "the disk is full"
    return "a compilation failed because of the machine, not the kernel" if _MACHINE_FAULT.search(reason) else ""


class DiedError(Exception):
    """The worker ended or closed its output. `code` is its exit code, negative for a signal; None if it still runs."""

    def __init__(self, reason: str, code: int | None) -> None:
        super().__init__(reason)
        self.code = code


class TimedOutError(Exception):
    """The worker did not answer in time."""


class StoppedError(Exception):
    """The run is being stopped."""


class OverMemoryError(Exception):
    """The worker was ended because it used too much memory. `final` means that trying again alone would not help."""

    def __init__(self, reason: str, *, final: bool) -> None:
        super().__init__(reason)
        self.final = final


class Worker:
    """One long-lived compile process, and the threads that read its output.

    The process has a folder of its own to write to, so a process in a container can neither read nor change the
    objects of other processes.

    Args:
        folder: the folder of this process, which the constructor creates and `stop` removes.
        seen: the path at which the process sees `folder`; empty if the path is the same.
    """

    def __init__(self, make: MakeWorker, files: str, folder: Path, seen: str = "") -> None:
        self.files = files
        self._folder = emptied(folder)
        self._seen = seen or str(folder)
        self.memory = 0
        self.served = 0
        self.task: Task | None = None  # None while no task runs
        self.over: OverMemoryError | None = None  # set if the process was ended because of its memory
        self._since = 0.0
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._answers: queue.Queue[str | None] = queue.Queue(_MOST_LINES)
        self._interrupted, self._ended = threading.Event(), threading.Event()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)  # the last lines that were not answers
        self._readers: list[threading.Thread] = []
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        self._process = self._stack.enter_context(make(files, folder))
        self.pid = self._process.pid
        self._read(self._process.stdout, self._put, at_end=lambda: self._put(None))
        self._read(self._process.stderr, self._note, at_end=lambda: None)

    def _note(self, line: str) -> None:
        self.tail.append(line.rstrip())
        LOG.debug("worker: %s", line.rstrip())

    def _put(self, line: str | None) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(queue.Full):
                self._answers.put(line, timeout=0.5)
                return

    def _read(self, stream: Any, take: Callable[[str], Any], *, at_end: Callable[[], None]) -> None:
        if stream is None:
            return

        def pump() -> None:
            with contextlib.suppress(OSError, ValueError):
                for line in iter(lambda: stream.readline(_LONGEST_LINE), ""):
                    take(line)
            at_end()

        thread = threading.Thread(target=pump, name="kernel-pipe", daemon=True)
        thread.start()
        self._readers.append(thread)

    def answer(self, timeout: float | None) -> dict[str, Any]:
        """Return the next JSON object that the process prints; other lines are added to `tail`.

        Raises:
            TimedOutError: there was no object within `timeout` seconds; None means no limit. The seconds in which this
                process was stopped, for example by Ctrl-Z, do not count, because the worker may have been stopped too.
            DiedError: the process ended or closed its output.
            StoppedError: another thread called `interrupt`.
        """
        left, last = timeout, time.monotonic()
        while True:
            if self._interrupted.is_set():
                raise StoppedError
            if left is not None:
                now = time.monotonic()
                left, last = left - min(now - last, _STEP), now
                if left < 0:  # a process that prints without end must not outlast the timeout
                    raise TimedOutError
            try:
                line = self._answers.get(timeout=None if left is None else min(left, _STEP))
            except queue.Empty:
                continue
            if line is None:
                raise self._died()
            with contextlib.suppress(ValueError):
                value = strict_json.read(line)
                if isinstance(value, dict):
                    return value
            self._note(line)

    def ask(self, job: Job, timeout: float | None) -> dict[str, Any]:
        """Give a job to the process, and return its answer; raise the errors of `answer`.

        To move the object out of the process's folder, call `collect`.
        """
        assert self._process.stdin is not None  # noqa: S101 - `MakeWorker` connects a pipe
        with self._lock:
            self.task, self._since = job.task, time.monotonic()
        try:
            try:
                task = {**job.task, "out": f"{self._seen}/{_OBJECT}{job.out.suffix}"}
                self._process.stdin.write(json.dumps(task) + "\n")
                self._process.stdin.flush()
            except (OSError, ValueError):
                raise self._died() from None
            return self.answer(timeout)
        finally:
            with self._lock:
                self.task = None
                self.served += 1

    def collect(self, job: Job) -> None:
        """Move a job's object and its JSON, if the process wrote them, from the process's folder to their final places.

        OSError is raised if a file is not regular, is too large, or cannot be written.
        """
        for suffix, limit in ((".json", LARGEST_METADATA), (job.out.suffix, LARGEST_OBJECT)):
            made = self._folder / f"{_OBJECT}{suffix}"
            try:
                content = read_regular(made, limit)
            except FileNotFoundError:
                continue
            made.unlink()
            write_unflushed(job.out.with_suffix(suffix), content)

    def end_for(self, task: Task, reason: str, *, final: bool) -> None:
        """Kill the process if it is still compiling `task`. Any thread may call this.

        For `final`, see `OverMemoryError`.
        """
        with self._lock:
            if self.task is task and self.over is None:
                self.over = OverMemoryError(reason, final=final)
                self._kill()

    def as_json(self) -> dict[str, Any]:
        with self._lock:
            task = self.task or {}
            return {
                "pid": self.pid,
                "memory": self.memory,
                "compiled": self.served,
                "kernel": task.get("kernel", ""),
                "gpu": task.get("target", ""),
                "out": task.get("out", ""),
                "seconds": round(time.monotonic() - self._since, 1) if task else 0.0,
            }

    def _died(self) -> DiedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for thread in self._readers:
            thread.join(2)
        code = self._process.returncode
        if code is not None and code > 128 and code - 128 in set(signal.Signals):
            code = 128 - code  # a container engine or a shell reports a signal as 128 plus its number
        if code is None:
            how = "closed its output"
        else:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return DiedError("\n".join([f"the worker {how}", *self.tail]), code)

    def interrupt(self) -> None:
        """Make the current or a later call of `answer` raise StoppedError."""
        self._interrupted.set()
        # This wakes a thread that waits for a line. No thread waits if the queue is full.
        with contextlib.suppress(queue.Full):
            self._answers.put_nowait("")

    def stop(self, *, patience: float = 0.0) -> None:
        """Close the process's input, and kill the process if it is still running after `patience` seconds.

        With a patience of 0, kill it at once. Then remove its folder.
        """
        if patience and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
                self._process.stdin.close()
                self._process.wait(patience)
        self._kill()
        self._ended.set()
        # On a busy disk, a killed process may take long to end.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._stack.close()
        for thread in self._readers:
            thread.join(2)

    def _kill(self) -> None:
        if self._process.poll() is None:
            # If the process is `engine.launcher`, SIGKILL also ends all processes in its namespace.
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._process.kill()
