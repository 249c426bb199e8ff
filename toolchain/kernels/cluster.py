"""Compile the kernels of a campaign on the workers of a Dask scheduler."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any, Self

import distributed

from toolchain import __version__
from toolchain.core.digest import sha256_json
from toolchain.core.errors import KernelError, ResourceError, UnreachableError
from toolchain.kernels.bounds import Limits
from toolchain.kernels.cluster_worker import compile_rules
from toolchain.kernels.ledger import DONE, FAILED, TIMEOUT, of_worker
from toolchain.kernels.pool import CompileSetup, Outcome, is_answer
from toolchain.kernels.rules import Rule
from toolchain.kernels.scheduler import PATIENCE, check_version, security

LOG = logging.getLogger(__name__)
LARGEST = 4  # the maximum number of kernels in a task; it is small, because the tasks of a lost worker are repeated
_AHEAD = 2  # tasks that are submitted for each slot, so that no slot has to wait for a task
_LOOK, _POLL = 1.0, 0.1  # seconds between two checks of the workers, and between two checks of the tasks


def requirements(setup: CompileSetup, limits: Limits, runner: str) -> dict[str, str]:
    """Return the names of the Dask resources that a worker must have for a campaign.

    Each name contains a digest of a property that must be the same for the worker and the campaign, such as the
    sources. The keys of the result are the names of these properties.

    Args:
        runner: the program that runs the compile processes. The campaign's record names it, so workers must use it too.
    """
    own = {"sources": setup.naming.tree, "limits": asdict(limits), "runner": runner, "version": __version__}
    parts = {**setup.naming.shared, **own}
    return {name: f"toolchain-{name}-{sha256_json(value)[7:23]}" for name, value in parts.items()}


class ClusterExecutor:
    """An `Executor` that compiles on the workers of a Dask scheduler. It is a context manager.

    Dask gives the tasks of a lost worker to other workers. After a restart of the scheduler this class submits the
    unfinished tasks again. Only workers that have all resources in `needs` (see `requirements`) get tasks.

    Raises:
        ConfigError: there are no usable certificates for a scheduler with TLS, or, when the context is entered, the
            version of Dask differs between the scheduler and this machine.
        UnreachableError: the scheduler does not answer.
    """

    def __init__(self, address: str, needs: Mapping[str, str]) -> None:
        self._address, self._needs = address, needs
        self._about: dict[str, Any] = {}
        self._unfit: list[str] = []  # why workers get no tasks
        trust = security(address, "client")
        try:
            self._client = distributed.Client(address, security=trust, set_as_default=False)
        except (OSError, ValueError) as error:
            fix = "start one with `dask scheduler`, in the version of Dask that is installed here"
            why = "it is not running, or it cannot be reached from here"
            raise UnreachableError(
                "scheduler-unreachable", f"no scheduler answers at {address}", why=why, fix=fix
            ) from error

    def __enter__(self) -> Self:
        check_version(self._address, self._client.get_versions()["scheduler"])
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def about(self) -> dict[str, Any]:
        """Return the facts that the workers reported about their environment; an empty dict before the first result."""
        return dict(self._about)

    def workers(self) -> list[dict[str, Any]]:
        """Return an empty list, because Dask's own dashboard shows the workers."""
        return []

    def run(self, rules: Sequence[Rule], _tree: str, _out: str, /) -> Generator[Outcome, None, None]:
        """Compile rules, and yield their outcomes.

        The outcome of a compiled rule contains the object as `code` and its JSON as `json`.

        Raises:
            KernelError: no worker fits this campaign for `PATIENCE` seconds.
            ResourceError: a task was given up because its workers were lost.
            UnreachableError: the scheduler was lost.
        """
        waiting, file = deque[list[Rule]](), attrgetter("root", "source")
        # A task contains rules of only one source file, because two source files may need different compile processes.
        for _, alike in itertools.groupby(sorted(rules, key=file), file):
            while share := list(itertools.islice(alike, LARGEST)):
                waiting.append(share)
        pending: dict[distributed.Future, list[Rule]] = {}
        finished = distributed.as_completed(loop=self._client.loop, with_results=True, raise_errors=False)
        resources = dict.fromkeys(self._needs.values(), 1)
        slots, looked, fitted = 0, 0.0, time.monotonic()
        while waiting or pending:
            if (now := time.monotonic()) > looked + _LOOK:
                looked, slots = now, self._count_slots()
                fitted = now if slots else fitted
            if now > fitted + PATIENCE:
                raise KernelError(
                    "no-worker-fits",
                    f"the scheduler at {self._address} has no worker that fits this campaign",
                    why="\n".join(self._unfit) or "the scheduler has no workers",
                    fix="start workers with `toolchain kernels worker` and the same options, then repeat this command",
                )
            while waiting and len(pending) < _AHEAD * slots:
                share = waiting.popleft()
                future = self._client.submit(compile_rules, share, resources=resources, pure=False)
                pending[future] = share
                finished.add(future)
            batch = finished.next_batch(block=False)
            for future, result in batch:
                share = pending.pop(future)
                if future.cancelled():  # the loss of the scheduler cancels all futures
                    waiting.appendleft(share)
                else:
                    yield from self._outcomes(share, result, failed=future.status == "error")
            if not batch:
                time.sleep(_POLL)

    def _count_slots(self) -> int:
        """Return how many tasks the workers that fit this campaign can run at the same time.

        UnreachableError is raised if the scheduler was lost.
        """
        if self._client.status not in ("running", "connecting"):
            raise UnreachableError(
                "scheduler-lost",
                f"the scheduler at {self._address} was lost and did not come back",
                fix="start it again, then run the same command; it continues",
            )
        slots = 0
        for row in self._client.scheduler_info(n_workers=-1).get("workers", {}).values():
            if missing := [part for part, resource in self._needs.items() if resource not in row["resources"]]:
                why = f"worker {row['name']} differs in: {', '.join(missing)}"
                if why not in self._unfit:
                    self._unfit.append(why)
                    LOG.warning("%s; it gets no kernels of this campaign", why)
            else:
                slots += int(row["nthreads"])
        return slots

    def _outcomes(self, share: Sequence[Rule], result: Any, *, failed: bool) -> Iterator[Outcome]:
        if failed and isinstance(error := result[1], distributed.KilledWorker):
            raise ResourceError(
                "workers-lost",
                "a task was given up because its workers were lost several times",
                why=f"the last one was {error.last_worker.name}; its kernels: {', '.join(rule.out for rule in share)}",
                fix="read the output of the workers, then run the same command; it continues",
            )
        if failed:
            what = {"status": FAILED, "reason": f"{type(error).__name__}: {error}"}
            result = {"worker": "", "about": self._about, "answers": [{"id": rule.id, **what} for rule in share]}
        self._about, origin = result["about"], of_worker(result["worker"])
        for rule, answer in zip(share, result["answers"], strict=True):
            wrong = {"id": rule.id, "status": FAILED, "reason": "the worker's answer is invalid"}
            yield {**(answer if is_answer(answer, rule.id, (DONE, FAILED, TIMEOUT)) else wrong), "origin": origin}
