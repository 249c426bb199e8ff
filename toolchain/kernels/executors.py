"""Executors of rules: tasks go in, outcomes come out in the order in which they end."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from toolchain.kernels.bounds import MemoryBounds
from toolchain.kernels.pool import Outcome, WorkerPool
from toolchain.kernels.rules import Rule
from toolchain.kernels.worker_process import Job, MakeWorker, groups

SHARES = 4
"""The least number of parts for the rules of each worker, so that the last one does not work alone for long."""


class Executor(Protocol):
    """Compiles rules somewhere."""

    def run(self, rules: Sequence[Rule], tree: str, out: str, /) -> Generator[Outcome, None, None]:
        """Compile all rules.

        Args:
            tree: the source tree as compile processes see it.
            out: the folder of the objects on this machine.

        Yields:
            for each rule one outcome, `{"id", "status": "done"|"failed"|"timeout", "reason", "seconds", "attempt"}`,
            and when done also the worker's `"sha256"`, `"size"` and `"bitcode"`; when failed perhaps `"log"`, the last
            lines that the worker wrote. `"origin"` names the machine that compiled it, if not this one. JSON-able.
            Closing it ends all workers.
        """
        ...

    def about(self) -> dict[str, Any]:
        """Facts that the workers reported at their start: Triton's version, bitcode digests."""
        ...

    def workers(self) -> list[dict[str, Any]]:
        """The live workers: `{"pid", "memory", "compiled", "kernel", "gpu", "out", "seconds"}`.

        Memory is in bytes, and `compiled` counts kernels; the last four are empty and 0 for one that waits.
        """
        ...


class LocalExecutor:
    """Long-lived workers on this machine.

    A worker that dies under a rule gets one successor to try that rule again; a rule that outlasts the timeout ends its
    worker and is not tried again. So does one that takes more memory than a kernel may have. Where it is only that all
    workers together have too much, the largest is ended, and tries its rule again while the others wait.

    Args:
        make_worker: starts one; a context manager that gives its Popen, with text pipes for input and output (and
            best also for errors), as the leader of its own session.
        workers: how many at once; the caller knows cores and memory.
        timeout: seconds for one rule, None for no end.
        bounds: of the workers' memory, None for no bounds.
        files: the set of source files that a rule's worker sees, see `Naming.files`; by default one for all rules.
        seen: where a worker sees the folder that it writes to; empty for the same path as on this machine.
        scratch: the folder for those folders; the system's by default.
    """

    def __init__(
        self,
        make_worker: MakeWorker,
        *,
        workers: int,
        timeout: float | None = None,
        bounds: MemoryBounds | None = None,
        files: Callable[[Rule], str] = lambda _: "",
        seen: str = "",
        scratch: Path | None = None,
    ) -> None:
        self._make = make_worker
        self._workers = workers
        self._timeout = timeout
        self.bounds = bounds
        self._files = files
        self._seen = seen
        self._scratch = scratch
        self._about: dict[str, Any] = {}
        self._pool: WorkerPool | None = None

    def workers(self) -> list[dict[str, Any]]:
        """Return a row for each worker, for the status of a campaign."""
        return self._pool.rows() if self._pool is not None else []

    def about(self) -> dict[str, Any]:
        """Return what the workers said of their environment; empty before the first one is up."""
        return dict(self._about)

    def run(self, rules: Sequence[Rule], tree: str, out: str, /) -> Generator[Outcome, None, None]:
        """Compile rules and yield each outcome when it is there."""
        if not rules:
            return
        workers = min(self._workers, len(rules))
        shares = _Shares(rules, self._files, tree, Path(out), most=-(-len(rules) // (workers * SHARES)))
        with tempfile.TemporaryDirectory(dir=self._scratch, prefix="kernels-", ignore_cleanup_errors=True) as scratch:
            pool = self._pool = WorkerPool(
                self._make, shares.take, timeout=self._timeout, bounds=self.bounds, folder=Path(scratch),
                seen=self._seen,
            )  # fmt: skip
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
    """The rules of a campaign, handed out in parts. A worker starts anew for each set of files that it comes to see.

    So it gets rules of its own set while there are some, then those of the set at which the fewest workers are.

    Args:
        files: see `LocalExecutor`.
        tree, out: see `Executor.run`.
        most: how many rules a part has at most.
    """

    def __init__(self, rules: Iterable[Rule], files: Callable[[Rule], str], tree: str, out: Path, *, most: int) -> None:
        sets: dict[str, list[Rule]] = {}
        for rule in rules:
            sets.setdefault(files(rule), []).append(rule)

        def jobs(name: str) -> Iterator[Job]:
            # Made as they are wanted: one has some kilobytes, and there may be hundreds of thousands.
            return (Job(rule.task(tree, ""), name, out / rule.out) for rule in sets[name])

        self._left = {name: groups(jobs(name), most) for name in sets}
        self._workers: Counter[str] = Counter()

    def take(self, files: str | None) -> list[Job]:
        """The next part; empty at the end.

        Args:
            files: the set that the worker sees; None for a new worker.
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
