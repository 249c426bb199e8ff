"""Where rules are compiled: tasks go in, outcomes come out, in whatever order they end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from toolchain.errors import KernelError

LOG = logging.getLogger(__name__)

Task = dict[str, Any]
Outcome = dict[str, Any]
MakeWorker = Callable[[], AbstractContextManager["subprocess.Popen[str]"]]
START_SECONDS = 180.0
TAIL_LINES = 25
ATTEMPTS = 2
SLOW_SECONDS = 600.0
"""After so long somebody should hear of a kernel: a compiler in an endless loop looks just like a slow one."""


class Executor(Protocol):
    """Compiles tasks somewhere. Tasks and outcomes are plain JSON values: they may travel to other machines."""

    def run(self, tasks: Sequence[Task]) -> Generator[Outcome, None, None]:
        """Compile all tasks.

        Yields:
            for each task one outcome, `{"id", "status": "done"|"failed"|"timeout", "reason", "seconds", "attempt"}`,
            and when done also the worker's `"sha256"`, `"size"` and `"bitcode"`. Closing it ends all workers.

        Raises:
            KernelError: no worker comes up at all.
        """
        ...

    def about(self) -> dict[str, Any]:
        """What the workers said of themselves when they came up: Triton's version, bitcode digests."""
        ...


class _DiedError(Exception):
    """The worker is gone."""


class _TimedOutError(Exception):
    """The worker did not answer in time."""


class _StoppedError(Exception):
    """The run is given up."""


class _Worker:
    """One long-lived worker process and the thread that reads its answers."""

    def __init__(self, make: MakeWorker) -> None:
        self._stack = contextlib.ExitStack()
        self._answers: queue.Queue[str | _StoppedError | None] = queue.Queue()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._readers: list[threading.Thread] = []
        self._process = self._stack.enter_context(make())
        self._read(self._process.stdout, self._answers.put, at_end=lambda: self._answers.put(None))
        self._read(self._process.stderr, self._note, at_end=lambda: None)

    def _note(self, line: str) -> None:
        self._tail.append(line.rstrip())
        LOG.debug("worker: %s", line.rstrip())

    def _read(self, stream: Any, take: Callable[[str], Any], *, at_end: Callable[[], None]) -> None:
        if stream is None:
            return

        def pump() -> None:
            with contextlib.suppress(OSError, ValueError):
                for line in stream:
                    take(line)
            at_end()

        thread = threading.Thread(target=pump, name="kernel-pipe", daemon=True)
        thread.start()
        self._readers.append(thread)

    def answer(self, timeout: float | None) -> dict[str, Any]:
        """The next line that is an answer; whatever else comes over the pipe goes to the tail."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                line = self._answers.get(timeout=left)
            except queue.Empty:
                raise _TimedOutError from None
            if line is None:
                raise _DiedError(self._epitaph())
            if isinstance(line, _StoppedError):
                raise line
            with contextlib.suppress(json.JSONDecodeError):
                value = json.loads(line)
                if isinstance(value, dict):
                    return value
            self._note(line)

    def ask(self, task: Task, timeout: float | None) -> dict[str, Any]:
        assert self._process.stdin is not None  # noqa: S101
        try:
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise _DiedError(self._epitaph()) from None
        return self.answer(timeout)

    def _epitaph(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for thread in self._readers:
            thread.join(2)
        code = self._process.returncode
        if code is None:
            how = "closed its output"
        elif code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        elif code > 128 and code - 128 in set(signal.Signals):
            how = f"was ended by {signal.Signals(code - 128).name}"  # as a container engine or shell passes it on
        else:
            how = f"exited with {code}"
        return "\n".join([f"the worker {how}", *self._tail])

    def interrupt(self) -> None:
        """Make `answer` return at once, from another thread."""
        self._answers.put(_StoppedError())

    def stop(self, *, patience: float = 0.0) -> None:
        """End the process: by closing its input when there is time, by force otherwise."""
        if patience and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
                self._process.stdin.close()
                self._process.wait(patience)
        if self._process.poll() is None:
            # A worker has nothing to tidy up, and one inside a container would not hear a polite signal.
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._process.kill()
        self._stack.close()
        for thread in self._readers:
            thread.join(2)


class LocalExecutor:
    """Long-lived workers on this machine.

    A worker that dies under a rule gets one successor to try that rule again; a rule that outlasts the timeout ends its
    worker and is not tried again. The other workers go on.

    Args:
        make_worker: starts one; a context manager that gives its Popen, with text pipes for input and output (and
            best also for errors), as the leader of its own session.
        workers: how many at once; the caller knows cores and memory.
        timeout: seconds for one rule, None for no end.
        recycle: rules after which a worker is replaced, so that no leak in the compiler adds up; 0 for never.
    """

    def __init__(
        self, make_worker: MakeWorker, *, workers: int, timeout: float | None = None, recycle: int = 500
    ) -> None:
        if workers < 1:
            raise ValueError("a campaign needs at least one worker")
        self._make = make_worker
        self._workers = workers
        self._timeout = timeout
        self._recycle = recycle
        self._about: dict[str, Any] = {}

    def about(self) -> dict[str, Any]:
        """See `Executor.about`; empty before the first worker is up."""
        return dict(self._about)

    def run(self, tasks: Sequence[Task]) -> Generator[Outcome, None, None]:
        """See `Executor.run`."""
        if not tasks:
            return
        crew = _Crew(self._make, tasks, timeout=self._timeout, recycle=self._recycle)
        crew.start(min(self._workers, len(tasks)))
        try:
            for _ in tasks:
                outcome = crew.outcomes.get()
                self._about = crew.about
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        finally:
            crew.stop()


class _Crew:
    """The threads of one run, each with a worker of its own."""

    def __init__(self, make: MakeWorker, tasks: Sequence[Task], *, timeout: float | None, recycle: int) -> None:
        self.outcomes: queue.Queue[Outcome | BaseException] = queue.Queue()
        self.about: dict[str, Any] = {}
        self._make = make
        self._timeout = timeout
        self._recycle = recycle
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for task in tasks:
            self._tasks.put(task)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._live: set[_Worker] = set()
        self._threads: list[threading.Thread] = []

    def start(self, count: int) -> None:
        for _ in range(count):
            # The thread that starts a worker lives as long as it does: the kernel ends a child whose parent dies
            # when the *thread* that forked it ends.
            thread = threading.Thread(target=self._work, name="kernel-worker", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End all workers, in the middle of a rule if need be."""
        self._stopping.set()
        with self._lock:
            for worker in self._live:
                worker.interrupt()
        for thread in self._threads:
            thread.join(30)

    def _work(self) -> None:
        worker: _Worker | None = None
        served = 0
        try:
            while not self._stopping.is_set():
                try:
                    task = self._tasks.get_nowait()
                except queue.Empty:
                    break
                for attempt in range(1, ATTEMPTS + 1):
                    if worker is not None and self._recycle and served >= self._recycle:
                        self._end(worker, patience=5.0)
                        worker = None
                    if worker is None:
                        worker, served = self._begin(), 0
                    outcome, alive = self._try(worker, task, attempt)
                    served += 1
                    if not alive:
                        self._end(worker)
                        worker = None
                    if outcome is not None:
                        self.outcomes.put(outcome)
                        break
        except _StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again where the outcomes are read
            self.outcomes.put(error)
        finally:
            if worker is not None:
                self._end(worker, patience=0.0 if self._stopping.is_set() else 5.0)

    def _begin(self) -> _Worker:
        worker = _Worker(self._make)
        with self._lock:
            self._live.add(worker)
        if self._stopping.is_set():
            worker.interrupt()
        try:
            hello = worker.answer(START_SECONDS)
        except BaseException as error:
            self._end(worker)
            if not isinstance(error, (_DiedError, _TimedOutError)):
                raise
            why = str(error) or f"no sign of life for {START_SECONDS:.0f} s"
            raise KernelError(
                "a kernel worker does not start", why=why, fix="check that `import triton` works there"
            ) from error
        self.about = {name: value for name, value in hello.items() if name != "ready"}
        return worker

    def _end(self, worker: _Worker, *, patience: float = 0.0) -> None:
        with self._lock:
            self._live.discard(worker)
        worker.stop(patience=patience)

    def _try(self, worker: _Worker, task: Task, attempt: int) -> tuple[Outcome | None, bool]:
        """One attempt: an outcome, or None for another attempt; and whether the worker still lives."""
        started = time.monotonic()

        def ended(status: str, reason: str) -> Outcome:
            seconds = round(time.monotonic() - started, 3)
            return {"id": task["id"], "status": status, "reason": reason, "seconds": seconds, "attempt": attempt}

        slow = threading.Timer(SLOW_SECONDS, _tell_slow, [task])
        slow.daemon = True
        slow.start()
        try:
            answer = worker.ask(task, self._timeout)
        except _TimedOutError:
            return ended("timeout", f"no result after {self._timeout:g} s"), False
        except _DiedError as error:
            return (ended("failed", str(error)) if attempt == ATTEMPTS else None), False
        finally:
            slow.cancel()
        if answer.get("id") != task["id"] or answer.get("status") not in ("done", "failed"):
            return ended("failed", f"the worker answered something else: {json.dumps(answer)[:500]}"), False
        return {**answer, "attempt": attempt}, True


def _tell_slow(task: Task) -> None:
    LOG.warning(
        "%s is being compiled for %.0f minutes now; --kernel-timeout SECONDS ends such a kernel and names it",
        task.get("out", task["id"]),
        SLOW_SECONDS / 60,
    )
