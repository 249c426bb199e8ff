"""A machine that compiles kernels for campaigns elsewhere: orders come in, results go to the store, answers go back.

It trusts no campaign: it compiles its own sources with its own Triton, and an order whose result
would have another name is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import queue
import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from toolchain.core.digest import sha256_file
from toolchain.core.errors import ToolchainError
from toolchain.core.filesystem import read_regular
from toolchain.kernels.bounds import MemoryBounds, memory_row
from toolchain.kernels.dask_link import FORMAT, rule_of
from toolchain.kernels.executors import Outcome, WorkerPool
from toolchain.kernels.ledger import DONE, FAILED
from toolchain.kernels.result_name import Naming, name_of
from toolchain.kernels.rules import Rule
from toolchain.kernels.store import (
    LARGEST_METADATA,
    LARGEST_OBJECT,
    Addition,
    DamagedError,
    FolderStore,
    Key,
    Result,
    UnsignedError,
    read_record,
)
from toolchain.kernels.worker_process import MakeWorker, Task, machine_fault

LOG = logging.getLogger(__name__)
REFUSED, MACHINE = "refused", "machine"
_PARTS = ("format", "triton", "recipe", "environment")

Answer = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class CompileSetup:
    """The environment in which kernels of one kind are compiled.

    Args:
        start: starts one compile process.
        naming: names the results.
        out: folder of the objects, on this machine.
        seen: source tree and `out` as the processes see them.
        campaign: the name of a campaign on it.
        suffix: of what a rule leaves.
    """

    start: MakeWorker
    naming: Naming
    out: Path
    seen: tuple[str, str]
    campaign: str = ""
    suffix: str = ".hsaco"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a kernel; with different limits, different kernels would fail.

    Args:
        timeout: seconds.
        memory: bytes; 0 for what the machine has.
    """

    timeout: float
    memory: int = 0


@dataclass
class _Running:
    """Compile processes, the queued orders, and the futures of their results."""

    pool: WorkerPool
    tasks: queue.Queue[Task | None]
    waiting: dict[str, Future[Outcome]] = field(default_factory=dict)


class KernelWorker:
    """Compiles orders, several at once. Any number of threads may give them.

    Args:
        name: as campaigns see it.
        store: where results go.
        slots: how many at once.
        bounds: of the processes' memory.
        key: signs what is stored; what is taken from there must be signed by it.
    """

    def __init__(
        self,
        setup: CompileSetup,
        store: FolderStore,
        *,
        name: str,
        slots: int,
        limits: Limits,
        bounds: MemoryBounds | None = None,
        key: Key | None = None,
    ) -> None:
        self.name = name
        self.slots = slots
        self._setup = setup
        self._store = store
        self._limits = limits
        self._bounds = bounds
        self._key = key
        self._lock = threading.Lock()
        self._serial = itertools.count(1)
        self._processes: _Running | None = None
        self._running: dict[str, Future[Answer]] = {}
        self._counts = {"compiled": 0, "found": 0, "failed": 0, "refused": 0}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes, in the middle of a kernel if need be."""
        with self._lock:
            running = self._processes
        if running is not None:
            running.pool.outcomes.put(ToolchainError("the worker ends"))
            running.tasks.put(None)
            running.pool.stop()

    def describe(self) -> dict[str, Any]:
        """Its description for campaigns, which accept or refuse it by that."""
        shared = self._setup.naming.shared
        return {
            "format": FORMAT,
            "name": self.name,
            "slots": self.slots,
            "scope": self._setup.naming.scope,
            "inputs": {name: shared[name] for name in _PARTS},
            "limits": {"timeout": self._limits.timeout, "memory": self._limits.memory},
            "store": self._store.ref,
        }

    def now(self) -> dict[str, Any]:
        """Its state: processes as `Executor.workers` has them, their bounds, and counts of orders."""
        with self._lock:
            running, counts = self._processes, dict(self._counts)
        rows = running.pool.rows() if running is not None else []
        return {**counts, "processes": rows, "memory": memory_row(self._bounds, rows)}

    def carry_out(self, order: Mapping[str, Any]) -> Answer:
        """Carry out an order, see `dask_link.order_of`; JSON-able.

        An order for a result that is being compiled waits for it: after a restart of the scheduler orders come again.

        Returns:
            `{"status", "worker", "reason", "seconds", "attempt", "found", "sha256", "log", "inputs"}`. The status is
            that of a ledger's entry, or `refused` with this machine's own inputs, or `machine` if the kernel is not
            to blame. `found`: the store had it.
        """
        try:
            rule = rule_of(order["rule"])
            name, recompile = str(order["name"]), bool(order["recompile"])
            inputs = self._setup.naming.inputs(rule)
        except (KeyError, TypeError, ValueError, OSError) as error:
            return self._answer(REFUSED, reason=f"it cannot name the result: {type(error).__name__}: {error}")
        if name_of(inputs) != name:
            own = {part: inputs[part] for part in (*_PARTS, "sources")}
            return self._answer(REFUSED, reason="the result would differ here", inputs=own)
        mine: Future[Answer] = Future()
        with self._lock:
            running = self._running.setdefault(name, mine)
        if running is not mine:
            return running.result()
        try:
            mine.set_result(self._made(rule, name, inputs, recompile=recompile))
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._running[name]
        return mine.result()

    def _answer(self, status: str, **more: Any) -> Answer:
        counted = "compiled" if status == DONE else FAILED if status != REFUSED else REFUSED
        with self._lock:
            self._counts["found" if more.get("found") else counted] += 1
        return {"status": status, "worker": self.name, "reason": "", "seconds": 0.0, "attempt": 1, **more}

    def _made(self, rule: Rule, name: str, inputs: Mapping[str, Any], *, recompile: bool) -> Answer:
        folder = f"order-{next(self._serial)}"
        out = self._setup.out / folder
        try:
            stored, useless = (None, True) if recompile else self._stored(name, inputs)
            if stored is not None:
                digest = hashlib.sha256(stored.code).hexdigest()
                return self._answer(DONE, found=True, seconds=stored.seconds, sha256=digest)
            tree, seen = self._setup.seen
            # An id of our own: two campaigns may want the same rule from different sources.
            file = f"kernel{self._setup.suffix}"
            task = {**replace(rule, out=f"{folder}/{file}").task(tree, seen), "id": f"{rule.id} {folder}"}
            outcome = self._compile(task)
            told = ("reason", "seconds", "attempt", "over_memory", "refused", "exit_code")
            answer = {name: outcome[name] for name in told if name in outcome}
            if outcome["status"] != DONE:
                wrong = outcome["status"] == FAILED and machine_fault(str(outcome["reason"]), self._setup.out)
                log = "\n".join(outcome.get("log", ()))
                return self._answer(MACHINE if wrong else outcome["status"], **answer, log=log)
            path = out / file
            if sha256_file(path) != f"sha256:{outcome['sha256']}":
                raise OSError(f"{path} is not what the compiler wrote")
            result = Result(
                inputs=inputs,
                code=read_regular(path, LARGEST_OBJECT, within=self._setup.out),
                metadata=read_regular(path.with_suffix(".json"), LARGEST_METADATA, within=self._setup.out),
                bitcode=tuple(outcome["bitcode"]),
                seconds=float(outcome["seconds"]),
                about=self._about(),
            )
            # A result that was added in the meantime stays: another machine may have been faster.
            addition = Addition(name, rule.target, rule.id, result.seconds, result.record(self._key))
            self._store.add(addition, replace=useless)
            return self._answer(DONE, **answer, found=False, sha256=str(outcome["sha256"]))
        except (ToolchainError, OSError, ValueError, KeyError) as error:
            LOG.warning("%s: %s", rule.out, error)
            return self._answer(MACHINE, reason=str(error))
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def _stored(self, name: str, inputs: Mapping[str, Any]) -> tuple[Result | None, bool]:
        """The stored result, and whether there is an unusable one."""
        for _, record in self._store.fetch([name]):
            with contextlib.suppress(DamagedError, UnsignedError):
                if record is not None:
                    return read_record(record, inputs, self._key), False
            return None, True
        return None, False

    def _about(self) -> dict[str, Any]:
        with self._lock:
            return {} if self._processes is None else dict(self._processes.pool.about)

    def _compile(self, task: Task) -> Outcome:
        future: Future[Outcome] = Future()
        with self._lock:
            running = self._processes = self._processes or self._begin()
            running.waiting[task["id"]] = future
        running.tasks.put(task)
        return future.result()

    def _begin(self) -> _Running:
        tasks: queue.Queue[Task | None] = queue.Queue()
        shares = ([task] for task in iter(tasks.get, None))
        pool = WorkerPool(self._setup.start, shares, timeout=self._limits.timeout, bounds=self._bounds)
        begun = _Running(pool, tasks)
        pool.start(self.slots)
        threading.Thread(target=self._hand_out, args=(begun,), name="kernel-outcomes", daemon=True).start()
        return begun

    def _hand_out(self, running: _Running) -> None:
        while True:
            outcome = running.pool.outcomes.get()
            if isinstance(outcome, BaseException):
                # A process did not start, or the worker closes: the next order finds new ones.
                self._end(running, outcome)
                return
            with self._lock:
                future = running.waiting.pop(outcome["id"], None)
            if future is not None:
                future.set_result(outcome)

    def _end(self, running: _Running, error: BaseException) -> None:
        with self._lock:
            if self._processes is running:
                self._processes = None
            waiting, running.waiting = list(running.waiting.values()), {}
        running.tasks.put(None)
        for future in waiting:
            future.set_exception(error)
        running.pool.stop()
