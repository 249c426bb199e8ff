"""Compile rules with worker processes on this machine."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolchain.core.errors import KernelError
from toolchain.kernels.bounds import MemoryBounds, Turns, enforce, over_share
from toolchain.kernels.ledger import DONE, FAILED
from toolchain.kernels.result_name import Naming
from toolchain.kernels.worker_process import (
    DiedError,
    Job,
    MakeWorker,
    OverMemoryError,
    StoppedError,
    Task,
    TimedOutError,
    Worker,
)

LOG = logging.getLogger(__name__)

Outcome = dict[str, Any]
START_SECONDS = 180.0
ATTEMPTS = 2
EVERY = 1.0  # seconds between two checks of the workers' memory
RECYCLE = 500
"""A worker is replaced after this many rules, so that memory leaks in the compiler do not add up."""
_LONGEST = 1e9  # seconds; an answer that states this duration or more is invalid
# These are the keys of a worker's answer that are kept in addition to `id`, with the types of their values.
_ANSWER = {"status": str, "reason": str, "seconds": int | float, "sha256": str, "bitcode": list, "refused": bool}


@dataclass(frozen=True, kw_only=True)
class CompileSetup:
    """A description of how the kernels of a project are compiled.

    Args:
        start: a function that returns a context manager, which starts a compile process and yields it (see
            `MakeWorker`). The process has text pipes and is the leader of a session.
        naming: the object that names the results, and determines the source files that a process sees.
        source: the path at which a process sees the source files.
        seen: the path at which a process sees the folder that it writes to; empty for the path on this machine.
        scratch: the parent of the folders that processes write to; None for the system's temporary folder.
    """

    start: MakeWorker
    naming: Naming
    out: Path
    source: str
    seen: str = ""
    scratch: Path | None = None


@dataclass(eq=False)
class Slot:
    """A place for one worker, which only one thread uses at a time.

    Args:
        files: the name of the set of source files that the last jobs need; None before the first jobs.
    """

    worker: Worker | None = None
    jobs: deque[Job] = field(default_factory=deque)
    files: str | None = None


class WorkerPool:
    """A pool of workers that compile on this machine.

    Args:
        take: a function that returns the next jobs, or an empty list if no jobs are left. Its argument is the name of
            the set of source files that the worker sees; None for a new worker. Only one thread calls it at a time.
        folder: the parent of the folders that workers write to.
        timeout, bounds: see `LocalExecutor`.
    """

    def __init__(
        self,
        setup: CompileSetup,
        take: Callable[[str | None], list[Job]],
        *,
        folder: Path,
        timeout: float | None,
        bounds: MemoryBounds | None,
    ) -> None:
        self.outcomes: queue.Queue[Outcome | BaseException] = queue.Queue()
        self.about: dict[str, Any] = {}
        self._setup = setup
        self._timeout = timeout
        self._bounds = bounds
        self._take = take
        self._folder = folder
        self._serial = itertools.count(1)
        self._taking = threading.Lock()
        self._stopping = threading.Event()
        self._turns = Turns(self._stopping)
        self._lock = threading.Lock()
        self._live: set[Worker] = set()
        self._idle: list[Slot] = []
        self._threads: list[threading.Thread] = []

    def start(self, count: int) -> None:
        """Start `count` threads that compile, and a thread that watches the memory of all workers."""
        # Each thread starts its own workers and outlives them, because PDEATHSIG ends a child when the thread that
        # forked it ends.
        workers = [threading.Thread(target=self._work, name="kernel-worker", daemon=True) for _ in range(count)]
        self._threads = [*workers, threading.Thread(target=self._watch, name="kernel-watch", daemon=True)]
        for thread in self._threads:
            thread.start()

    @contextlib.contextmanager
    def slot(self, files: str) -> Iterator[Slot]:
        """Yield a slot for `compile_job`, if possible one whose worker sees the set of source files named `files`.

        The calling thread must live as long as the pool, because the workers that it starts end with it.
        """
        with self._lock:
            self._idle.sort(key=lambda slot: slot.worker is not None and slot.worker.files == files)
            slot = self._idle.pop() if self._idle else Slot()
        try:
            yield slot
        finally:
            with self._lock:
                self._idle.append(slot)
            if self._stopping.is_set():
                self._drop_idle()

    def live(self) -> list[Worker]:
        with self._lock:
            return list(self._live)

    def rows(self) -> list[dict[str, Any]]:
        return sorted((worker.as_json() for worker in self.live()), key=lambda row: int(row["pid"]))

    def stop(self) -> None:
        """Interrupt all compilations and end the workers; wait up to 30 seconds for each thread."""
        self._stopping.set()
        self._turns.wake()
        for worker in self.live():
            worker.interrupt()
        for thread in self._threads:
            thread.join(30)
        self._drop_idle()

    def _watch(self) -> None:
        while not self._stopping.wait(EVERY):
            enforce(self._bounds, self.live())

    def _next(self, slot: Slot) -> Job | None:
        with self._lock:
            if slot.jobs:
                return slot.jobs.popleft()
            self._idle.append(slot)
        try:
            with self._taking:
                slot.jobs.extend(self._take(slot.files))
        finally:
            with self._lock:
                self._idle.remove(slot)
        if not slot.jobs:
            return None
        slot.files = slot.jobs[0].files
        return slot.jobs.popleft()

    def _drop_idle(self) -> None:
        with self._lock:
            workers = [slot.worker for slot in self._idle if slot.worker is not None]
            for slot in self._idle:
                slot.worker = None
        for worker in workers:
            self._end(worker)

    def _work(self) -> None:
        slot = Slot()
        try:
            while not self._stopping.is_set() and (job := self._next(slot)) is not None:
                self.outcomes.put(self.compile_job(slot, job))
        except StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001 - the reader of the outcomes raises it again
            self.outcomes.put(error)
        finally:
            self._drop(slot, patience=0.0 if self._stopping.is_set() else 5.0)

    def compile_job(self, slot: Slot, job: Job) -> Outcome:
        """Compile a job's rule, in several attempts if necessary, and return the outcome.

        KernelError is raised if a worker does not start, and StoppedError if the run is being stopped.
        """
        attempt, alone = 1, False
        while True:
            if slot.worker is not None and (slot.worker.files != job.files or slot.worker.served >= RECYCLE):
                self._drop(slot, patience=5.0)
            with self._turns.alone() if alone else self._turns.beside(before_waiting=lambda: self._drop(slot)):
                if self._stopping.is_set():
                    raise StoppedError
                if alone:
                    self._drop_idle()
                worker = slot.worker = slot.worker or self._begin(job.files)
                started = time.monotonic()
                try:
                    outcome, alive = self._try(worker, job, attempt, last=alone or attempt >= ATTEMPTS)
                except OverMemoryError as error:
                    # The rule is tried again alone, because other workers used memory that it may need.
                    outcome = None
                    if alone or error.final:
                        outcome = _ended(job.task, "failed", str(error), started, attempt, over_memory=True)
                    alone, alive = True, False
                if not alive or worker.over is not None or self._turns.wanted:
                    self._drop(slot)
            self._drop_grown(slot)
            if outcome is not None:
                return outcome
            attempt += 1

    def _drop_grown(self, slot: Slot) -> None:
        if slot.worker is not None and (memory := over_share(slot.worker.pid, self._bounds)):
            LOG.info("a worker that uses %d MB, more than its share, is replaced", memory // 10**6)
            self._drop(slot, patience=5.0)

    def _drop(self, slot: Slot, *, patience: float = 0.0) -> None:
        worker, slot.worker = slot.worker, None
        if worker is not None:
            self._end(worker, patience=patience)

    def _begin(self, files: str) -> Worker:
        """Start a worker. If it ends before it is ready, try once more, because buildah may fail on a busy machine."""
        try:
            try:
                return self._ready(files)
            except DiedError as error:
                LOG.info("a kernel worker is started again: %s", error)
                return self._ready(files)
        except (DiedError, TimedOutError) as error:
            why = str(error) or f"no answer for {START_SECONDS:.0f} s"
            raise KernelError(
                "worker-not-started",
                "a kernel worker did not start",
                why=why,
                fix="read what the worker printed last, and run `toolchain doctor`",
            ) from error

    def _ready(self, files: str) -> Worker:
        """Start a worker, and return it when it has reported that it is ready."""
        folder = self._folder / f"worker-{next(self._serial)}"
        worker = Worker(self._setup.start, files, folder, self._setup.seen)
        with self._lock:
            self._live.add(worker)
        if self._stopping.is_set():
            worker.interrupt()
        try:
            hello = worker.answer(START_SECONDS)
        except BaseException:
            self._end(worker)
            raise
        self.about = {name: value for name, value in hello.items() if name != "ready"}
        return worker

    def _end(self, worker: Worker, *, patience: float = 0.0) -> None:
        with self._lock:
            self._live.discard(worker)
        worker.stop(patience=patience)

    def _try(self, worker: Worker, job: Job, attempt: int, *, last: bool) -> tuple[Outcome | None, bool]:
        """Make one attempt. Return its outcome (None to try again), and whether the worker can be used again.

        OverMemoryError is raised if the worker was ended because it used too much memory.

        Args:
            last: whether to return an outcome even if the worker dies.
        """
        started, task = time.monotonic(), job.task
        try:
            answer = worker.ask(job, self._timeout)
        except TimedOutError:
            return _ended(task, "timeout", f"no result after {self._timeout:g} s", started, attempt), False
        except DiedError as error:
            if worker.over is not None:
                raise worker.over from None
            outcome = _ended(task, "failed", str(error), started, attempt, exit_code=error.code) if last else None
            return outcome, False
        if not is_answer(answer, task["id"], (DONE, FAILED)):
            why = f"the worker's answer is invalid: {json.dumps(answer)[:500]}"
            return _ended(task, "failed", why, started, attempt), False
        try:
            if answer["status"] == DONE:
                worker.collect(job)
        except OSError as error:
            return _ended(task, FAILED, f"its object cannot be read: {error.strerror}", started, attempt), False
        outcome = {name: answer[name] for name in ("id", *_ANSWER) if name in answer}
        if answer["status"] == "failed":
            outcome["log"] = list(worker.tail)
        return {**outcome, "attempt": attempt}, True


def is_answer(answer: Any, task_id: str, statuses: Sequence[str]) -> bool:
    """Return whether `answer` is a valid answer to a task, with one of `statuses`.

    It may be other JSON, which a kernel's source printed.
    """
    if not isinstance(answer, dict) or answer.get("id") != task_id or answer.get("status") not in statuses:
        return False
    return (
        all(isinstance(answer[name], kind) for name, kind in _ANSWER.items() if name in answer)
        and all(isinstance(library, str) for library in answer.get("bitcode", ()))
        and 0 <= answer.get("seconds", 0) < _LONGEST
    )


def _ended(task: Task, status: str, reason: str, started: float, attempt: int, **more: Any) -> Outcome:
    """Return the outcome of a rule whose worker gave no usable result; `more` sets other fields of `ledger.Entry`."""
    seconds = round(time.monotonic() - started, 3)
    return {"id": task["id"], "status": status, "reason": reason, "seconds": seconds, "attempt": attempt, **more}
