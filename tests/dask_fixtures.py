"""A Dask scheduler on loopback, and workers for it in threads; compiled by the fake worker of kernel_fixtures."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import distributed

from tests.kernel_fixtures import FakeWorkers, make_object, make_rule
from toolchain.kernels.campaign import CampaignResult, run_campaign
from toolchain.kernels.dask_executor import DaskExecutor
from toolchain.kernels.dask_worker import serve
from toolchain.kernels.executors import LocalExecutor
from toolchain.kernels.ledger import Ledger
from toolchain.kernels.result_name import Naming
from toolchain.kernels.rules import Rule
from toolchain.kernels.shared import SharedResults
from toolchain.kernels.store import FolderStore
from toolchain.kernels.worker import CompileSetup, KernelWorker, Limits

LAYERS = ("sha256:" + "a" * 64,)
LIMITS = Limits(timeout=60)


def until(true: Callable[[], object], what: str, seconds: float = 120) -> None:
    """Wait for something, for so long."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"no {what} after {seconds} s"
        time.sleep(0.05)


class Hub:
    """A scheduler that can be stopped and started again at its address, and workers for it."""

    def __init__(self, security: Any = None) -> None:
        self.security = security
        self.protocol = "tls" if security else "tcp"
        self.port = 0
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._scheduler: Any = None
        self._ended = threading.Event()
        self._workers: list[threading.Thread] = []

    @property
    def address(self) -> str:
        return f"{self.protocol}://127.0.0.1:{self.port}"

    def call(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(120)

    def start(self) -> None:
        async def begin() -> Any:
            return await distributed.Scheduler(
                host="127.0.0.1", port=self.port, protocol=self.protocol, security=self.security, dashboard=False,
                dashboard_address="127.0.0.1:0",
            )  # fmt: skip

        self._scheduler = self.call(begin())
        self.port = int(self._scheduler.address.rpartition(":")[2])

    def stop(self) -> None:
        self.call(self._scheduler.close())

    def serve(self, worker: KernelWorker) -> None:
        work = {"patience": 120, "ended": self._ended}
        thread = threading.Thread(target=serve, args=(self.address, worker), kwargs=work, daemon=True)
        thread.start()
        self._workers.append(thread)

    def close(self) -> None:
        self._ended.set()
        for thread in self._workers:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self._workers), "no end of the workers"
        self.stop()
        self.call(asyncio.sleep(0.2))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        # Dask's unfinished tasks log what went wrong when they are collected: now, and not in the middle of another
        # test. Python 3.11's `ast.parse`, say, fails if a traceback is formatted meanwhile (CPython issue 106905).
        gc.collect()


@contextlib.contextmanager
def hub(security: Any = None) -> Iterator[Hub]:
    made = Hub(security)
    made.start()
    try:
        yield made
    finally:
        made.close()


@dataclass
class Machine:
    """A machine with its own sources, which works for a scheduler or runs a campaign."""

    root: Path
    layers: tuple[str, ...] = LAYERS
    limits: Limits = LIMITS

    def __post_init__(self) -> None:
        self.tree, self.out = self.root / "tree", self.root / "out"
        self.tree.mkdir(parents=True)
        self.out.mkdir()
        (self.tree / "kernels.py").touch()
        self.workers = FakeWorkers(self.root / "workers")
        (self.workers.folder / "tries").touch()

    @property
    def naming(self) -> Naming:
        return Naming(self.tree, triton=self.layers, recipe={"worker.py": "1"}, environment={})

    def provide(self, rules: Sequence[Rule], *, more: bytes = b"", **changes: Any) -> None:
        """Lay ready what the rules become here; `more` behind it no check can see, `changes` all do."""
        for rule in rules:
            made = make_object(rule.target, rule.kernel, **changes) + more
            (self.workers.folder / f"{rule.target}{rule.kernel}").write_bytes(made)

    def serving(self, store: FolderStore, *, slots: int = 1, name: str = "") -> KernelWorker:
        setup = CompileSetup(start=self.workers, naming=self.naming, out=self.out, seen=("/src", str(self.out)))
        return KernelWorker(setup, store, name=name or self.root.name, slots=slots, limits=self.limits)

    def campaign(
        self, rules: Sequence[Rule], store: FolderStore | None, address: str = "", *, patience: float = 60, **how: Any
    ) -> CampaignResult:
        """Run one: by the workers of a scheduler, or here."""
        shared = SharedResults([store], self.naming, **how) if store is not None else None
        here = LocalExecutor(self.workers, workers=1, timeout=60)
        arguments: dict[str, Any] = {"worker_tree": "/src", "keep_going": True, "shared": shared}
        with Ledger(self.root / "ledger.sqlite") as ledger:
            if not address:
                return run_campaign(rules, here, ledger, self.out, **arguments)
            with DaskExecutor(
                address, shared=shared, out=self.out, limits=self.limits, campaign=self.root.name,
                patience=patience, on_log=lambda rule, worker, text: self.logs.append((rule.kernel, worker, text)),
            ) as elsewhere:  # fmt: skip
                return run_campaign(rules, elsewhere, ledger, self.out, tell=elsewhere.tell, **arguments)

    @property
    def logs(self) -> list[tuple[str, str, str]]:
        """Of failed kernels, brought home: kernel, worker, text."""
        return self.__dict__.setdefault("_logs", [])  # type: ignore[no-any-return]

    def files(self) -> dict[str, bytes]:
        """The objects, by path."""
        return {str(path.relative_to(self.out)): path.read_bytes() for path in self.out.rglob("*") if path.is_file()}


def rules_of(*kernels: str, warps: Sequence[int] = (1, 2)) -> list[Rule]:
    """Rules for kernels, one for each number of warps."""
    return [replace(make_rule(kernel, warps=number)) for kernel in kernels for number in warps]
