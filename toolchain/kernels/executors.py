"""The interface of executors, which compile rules, and an executor that compiles on this machine."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from toolchain.kernels.bounds import MemoryBounds
from toolchain.kernels.pool import CompileSetup, Outcome, WorkerPool
from toolchain.kernels.rules import Rule
from toolchain.kernels.worker_process import Job, groups

SHARES = 4
"""A worker gets at most `1 / SHARES` of an equal share of the rules, rounded up, at a time.

So no worker is busy alone for long."""


class Executor(Protocol):
    """The interface of classes that compile rules."""

    def run(self, rules: Sequence[Rule], tree: str, out: str, /) -> Generator[Outcome, None, None]:
        """Compile all rules.

        Args:
            tree: the path at which compile processes see the source tree.
            out: the folder for the objects on this machine.

        Yields:
            an outcome for each rule, with the keys `id` and `status` ("done", "failed" or "timeout"). An
            outcome may also contain `log`, the last lines that the worker printed, and fields of `ledger.Entry` such as
            `reason`. Closing the generator stops the run.
        """
        ...

    def about(self) -> dict[str, Any]:
        """Return the facts that the workers reported when they started, such as Triton's version."""
        ...

    def workers(self) -> list[dict[str, Any]]:
        """Return a row for each live worker: `{"pid", "memory", "compiled", "kernel", "gpu", "out", "seconds"}`.

        Memory is in bytes, and `compiled` is the number of kernels that the worker has compiled or failed to compile.
        The last four values are empty or 0 for a worker that waits.
        """
        ...


class LocalExecutor:
    """An `Executor` that compiles with long-lived workers on this machine.

    If a worker dies during a rule, a second worker tries that rule again. If a rule exceeds the timeout or the memory
    limit of a kernel, its worker is ended, and the rule is not tried again. If all workers together use too much
    memory, the largest worker that compiles is ended. If there are others, its rule is tried again while they wait.

    Args:
        workers: the number of workers that run at the same time; it is lowered to the number of rules.
        timeout: the seconds that one rule may take; None for no limit.
        bounds: the limits on the memory of the workers; None for no limits.
    """

    def __init__(
        self, setup: CompileSetup, *, workers: int, timeout: float | None = None, bounds: MemoryBounds | None = None
    ) -> None:
        self._setup = setup
        self._workers = workers
        self._timeout = timeout
        self.bounds = bounds
        self._about: dict[str, Any] = {}
        self._pool: WorkerPool | None = None

    def workers(self) -> list[dict[str, Any]]:
        return self._pool.rows() if self._pool is not None else []

    def about(self) -> dict[str, Any]:
        """Return the facts that the workers reported; an empty dict before the first outcome."""
        return dict(self._about)

    def run(self, rules: Sequence[Rule], tree: str, out: str, /) -> Generator[Outcome, None, None]:
        """Compile rules, and yield their outcomes in the order in which the rules are finished.

        KernelError is raised if a worker does not start.
        """
        if not rules:
            return
        workers, setup = min(self._workers, len(rules)), self._setup
        shares = _Shares(rules, setup.naming.files, tree, Path(out), most=-(-len(rules) // (workers * SHARES)))
        with tempfile.TemporaryDirectory(dir=setup.scratch, prefix="kernels-", ignore_cleanup_errors=True) as scratch:
            pool = self._pool = WorkerPool(
                setup, shares.take, folder=Path(scratch), timeout=self._timeout, bounds=self.bounds
            )
            pool.start(workers)
            try:
                for _ in rules:
                    outcome = pool.outcomes.get()
                    self._about = pool.about
                    if isinstance(outcome, BaseException):
                        raise outcome
                    yield outcome
            finally:
                pool.stop()


class _Shares:
    """The rules of a campaign that are still to be handed out, in parts of at most `most` rules.

    A worker must restart for a new set of source files. So it gets rules of its own set while there are some, and then
    rules of the set with the fewest workers.
    """

    def __init__(self, rules: Iterable[Rule], files: Callable[[Rule], str], tree: str, out: Path, *, most: int) -> None:
        sets: dict[str, list[Rule]] = {}
        for rule in rules:
            sets.setdefault(files(rule), []).append(rule)

        def jobs(name: str) -> Iterator[Job]:
            # Jobs are made lazily, because a job needs a few kilobytes and there may be hundreds of thousands of jobs.
            return (Job(rule.task(tree, ""), name, out / rule.out) for rule in sets[name])

        self._left = {name: groups(jobs(name), most) for name in sets}
        self._workers: Counter[str] = Counter()

    def take(self, files: str | None) -> list[Job]:
        """Return the next jobs for a worker that sees the set `files`, or an empty list if none are left.

        For a new worker, `files` is None.
        """
        if files is not None:
            if part := next(self._left.get(files, iter(())), None):
                return part
            self._workers[files] -= 1
        while self._left:
            name = min(self._left, key=lambda one: self._workers[one])
            if part := next(self._left[name], None):
                self._workers[name] += 1
                return part
            del self._left[name]
        return []
