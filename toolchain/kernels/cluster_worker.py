"""Run a Dask worker that compiles rules."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import distributed

from toolchain.core.errors import ResourceError, ToolchainError, UnreachableError
from toolchain.core.filesystem import read_regular
from toolchain.kernels.bounds import Limits, MemoryBounds
from toolchain.kernels.ledger import DONE, FAILED
from toolchain.kernels.pool import CompileSetup, Outcome, Slot, WorkerPool
from toolchain.kernels.result_store import LARGEST_METADATA, LARGEST_OBJECT
from toolchain.kernels.rules import Rule
from toolchain.kernels.scheduler import PATIENCE, check_version, security
from toolchain.kernels.worker_process import Job, machine_fault

LOG = logging.getLogger(__name__)


def compile_rules(rules: Sequence[Rule]) -> dict[str, Any]:
    """Compile rules on the Dask worker that runs this function; see `Compiler.compile`."""
    compiler: Compiler = distributed.get_worker().plugins[Compiler.name]
    return compiler.compile(rules)


class Compiler(distributed.WorkerPlugin):  # type: ignore[misc] # Dask has no types
    """The compile processes of a Dask worker, of which at most `slots` compile at the same time."""

    name = "toolchain-kernels"

    def __init__(self, setup: CompileSetup, *, slots: int, limits: Limits, bounds: MemoryBounds | None = None) -> None:
        self.slots = slots
        self.error: ToolchainError | None = None  # why this machine cannot compile
        self._setup, self._limits, self._bounds = setup, limits, bounds
        self._files = setup.naming.files

    def setup(self, worker: Any) -> None:
        """Prepare for tasks. Dask calls this when the worker starts."""
        self._worker, self._closed = worker, threading.Event()
        self._folder = TemporaryDirectory(dir=self._setup.scratch, prefix="kernels-", ignore_cleanup_errors=True)
        self._pool = WorkerPool(
            self._setup, lambda _: [], folder=Path(self._folder.name), timeout=self._limits.timeout, bounds=self._bounds
        )
        self._pool.start(0)

    def teardown(self, worker: Any) -> None:  # noqa: ARG002 - Dask passes the worker
        """End the compile processes. Dask calls this when the worker closes."""
        self._closed.set()
        self._pool.stop()
        self._folder.cleanup()

    def compile(self, rules: Sequence[Rule]) -> dict[str, Any]:
        """Compile rules one after the other, and return their outcomes under the key `answers`.

        The key `worker` contains the name of this worker, and the key `about` contains the facts that its processes
        reported. The outcome of a compiled rule also contains the bytes of its object as `code`, and the bytes of its
        JSON as `json`. If this machine cannot compile, the worker is closed and the error is raised.
        """
        try:
            with TemporaryDirectory(dir=self._folder.name) as folder, self._pool.slot(self._files(rules[0])) as slot:
                answers = [self._compiled(rule, Path(folder) / rule.out, slot) for rule in rules]
            return {"worker": str(self._worker.name), "about": dict(self._pool.about), "answers": answers}
        except (ToolchainError, OSError) as error:
            self.error = error if isinstance(error, ToolchainError) else _of_machine(error)
            self._worker.loop.add_callback(self._worker.close, reason=str(self.error))
            self._closed.wait()  # Dask gives a task without a result to another worker
            raise

    def _compiled(self, rule: Rule, path: Path, slot: Slot) -> Outcome:
        """Return the outcome of a rule with the object and its JSON; raise ResourceError if the machine is at fault."""
        job, files = Job(rule.task(self._setup.source, ""), self._files(rule), path), dict[str, bytes]()
        outcome = self._pool.compile_job(slot, job)
        if outcome["status"] == DONE:
            try:
                files["code"] = read_regular(path, LARGEST_OBJECT)
                files["json"] = read_regular(path.with_suffix(".json"), LARGEST_METADATA)
            except OSError as error:
                outcome, files = {**outcome, "status": FAILED, "reason": str(error.strerror)}, {}
        if outcome["status"] == FAILED and (what := machine_fault(str(outcome["reason"]), self._setup.out)):
            fix = "free disk space or memory, or lower --jobs, and start this worker again"
            raise ResourceError("kernel-resources", what, why=f"{rule.out}: {outcome['reason']}", fix=fix)
        return {**outcome, **files}


def _of_machine(error: OSError) -> ResourceError:
    what, fix = "this machine cannot write its files", "free disk space, and start this worker again"
    return ResourceError("kernel-resources", what, why=error.strerror or "", fix=fix)


async def serve(address: str, compiler: Compiler, *, name: str, provides: Iterable[str], scratch: Path) -> None:
    """Work for a scheduler until this coroutine is cancelled.

    Args:
        name: the name of this worker at the scheduler.
        provides: the values of `cluster.requirements`.
        scratch: a folder for Dask's temporary files.

    Raises:
        ConfigError: the version of Dask differs between the scheduler and this machine, or there are no usable
            certificates.
        UnreachableError: the scheduler does not answer, or refuses this worker.
        ToolchainError: this machine cannot compile.
    """
    # A scheduler without TLS listens only on loopback, so the worker must listen only on loopback too.
    host = urlsplit(address).hostname if address.startswith("tcp://") else None
    resources = dict.fromkeys(provides, compiler.slots)
    while compiler.error is None:
        worker = distributed.Worker(
            address, name=name, host=host, security=security(address, "worker"), nthreads=compiler.slots,
            resources=resources, plugins=[compiler], local_directory=str(scratch), memory_limit=0,
            dashboard_address="127.0.0.1:0", death_timeout=PATIENCE,
        )  # fmt: skip
        try:
            await worker
        except (OSError, RuntimeError, TimeoutError) as error:
            why = str(error.__cause__ or error) or type(error).__name__
            fix = (
                "start one with `dask scheduler`, in the same Dask version as here, and give each worker another --name"
            )
            raise UnreachableError(
                "scheduler-unreachable", f"no scheduler at {address} accepts this worker", why=why, fix=fix
            ) from error
        async with worker:
            check_version(address, await worker.scheduler.versions(packages=[]))
            await worker.finished()
        LOG.warning("this worker is no longer connected to %s", address)
    raise compiler.error
