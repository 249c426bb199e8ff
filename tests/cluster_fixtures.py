"""A Dask scheduler on loopback, and machines that compile for it with the fake worker of kernel_fixtures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kernel_fixtures import (
    FakeWorkers,
    local_executor,
    make_object,
    make_rule,
    only_hanging_ones_time_out,
)
from toolchain.kernels.bounds import Limits
from toolchain.kernels.campaign import CampaignResult, run_campaign
from toolchain.kernels.cluster import ClusterExecutor, requirements
from toolchain.kernels.cluster_worker import Compiler, serve
from toolchain.kernels.ledger import Ledger, of_worker
from toolchain.kernels.pool import CompileSetup, Outcome
from toolchain.kernels.result_name import Naming
from toolchain.kernels.rules import Rule
from toolchain.kernels.shared import SharedResults

TOP = Path(__file__).resolve().parents[1]
LIMITS = Limits(timeout=600)
LAYER = "sha256:" + "a" * 64


def until(true: Callable[[], object], what: str, seconds: float = 300) -> None:
    """Wait until a condition is true, for at most `seconds`."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"no {what} after {seconds} s"
        time.sleep(0.05)


@contextlib.contextmanager
def process(*words: str, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process, and kill it at the end with all processes that it started."""
    child = subprocess.Popen([sys.executable, *words], cwd=TOP, start_new_session=True, **how)
    try:
        yield child
    finally:
        kill(child)


def kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(120)


@contextlib.contextmanager
def scheduler(port: int, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a scheduler that accepts connections on loopback, in a process of its own."""
    where = ("--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--dashboard-address", "127.0.0.1:0")
    with process("-m", "distributed.cli.dask_scheduler", *where, *words, stderr=subprocess.DEVNULL) as child:
        # A busy machine needs longer to import Dask than a client waits for a connection.
        until(lambda: accepts(port), "scheduler")
        yield child


def accepts(port: int) -> bool:
    """Return whether a process accepts connections at a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Machine:
    """A machine with its own sources, which works for a scheduler or runs a campaign.

    Args:
        layer: the digest of its Triton layer.
    """

    def __init__(self, root: Path, *, layer: str = LAYER, limits: Limits = LIMITS) -> None:
        self.root, self.layer, self.limits = root, layer, limits
        self.tree, self.out = root / "tree", root / "out"
        for folder in (self.tree, self.out):
            folder.mkdir(parents=True, exist_ok=True)
        (self.tree / "kernels.py").touch()
        self.workers = FakeWorkers(root / "workers")

    def provide(self, rules: Sequence[Rule]) -> None:
        """Write the objects that the machine's fake workers return for the rules."""
        for rule in rules:
            (self.workers.folder / f"{rule.target}{rule.kernel}").write_bytes(make_object(rule.target, rule.kernel))

    @property
    def setup(self) -> CompileSetup:
        naming = Naming(self.tree, triton=[self.layer], recipe={"worker.py": "1"}, environment={})
        return CompileSetup(start=self.workers, naming=naming, out=self.out, source="/src")

    @property
    def needs(self) -> dict[str, str]:
        return requirements(self.setup, self.limits, "buildah")

    def serve(self, address: str, *, slots: int = 1) -> None:
        """Work for a scheduler until the process ends."""
        only_hanging_ones_time_out(pytest.MonkeyPatch())
        compiler = Compiler(self.setup, slots=slots, limits=self.limits)
        scratch = self.root / "dask"
        asyncio.run(serve(address, compiler, name=self.root.name, provides=self.needs.values(), scratch=scratch))

    def worker(
        self, port: int, *, slots: int = 1, address: str = ""
    ) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """Run `serve` in its own process."""
        program = (
            "import json, sys; from pathlib import Path; from tests.cluster_fixtures import *\n"
            "root, layer, timeout, address, slots = json.loads(sys.argv[1])\n"
            "Machine(Path(root), layer=layer, limits=Limits(timeout=timeout)).serve(address, slots=slots)\n"
        )
        given = [str(self.root), self.layer, self.limits.timeout, address or f"tcp://127.0.0.1:{port}", slots]
        errors = (self.root / "errors").open("wb")
        return process("-c", program, json.dumps(given), stderr=errors)

    def campaign(
        self, rules: Sequence[Rule], address: str = "", *, shared: SharedResults | None = None
    ) -> CampaignResult:
        """Run a campaign with the workers of a scheduler, or with local workers if `address` is empty."""
        how: dict[str, Any] = {"worker_tree": "/src", "keep_going": True, "shared": shared}
        with Ledger(self.root / "ledger.sqlite") as ledger:
            if not address:
                here = local_executor(self.workers, workers=1, timeout=self.limits.timeout)
                return run_campaign(rules, here, ledger, self.out, **how)
            with ClusterExecutor(address, self.needs) as elsewhere:
                return run_campaign(rules, elsewhere, ledger, self.out, **how)

    def files(self) -> dict[str, bytes]:
        """Return the contents of the objects by path."""
        return {str(path.relative_to(self.out)): path.read_bytes() for path in self.out.rglob("*") if path.is_file()}


def rules_of(*kernels: str, warps: Sequence[int] = (1, 2)) -> list[Rule]:
    """Return a rule for each kernel and each number of warps."""
    return [replace(make_rule(kernel, warps=number)) for kernel in kernels for number in warps]


class Standin:
    """A stand-in for Dask's worker, with which a `Compiler` can be used without a scheduler."""

    name = "there"

    def __init__(self, compiler: Compiler) -> None:
        self.loop = self
        self.reason = ""
        self._compiler = compiler

    def __enter__(self) -> Compiler:
        self._compiler.setup(self)
        return self._compiler

    def __exit__(self, *_: object) -> None:
        self._compiler.teardown(self)

    def add_callback(self, what: Callable[..., None], **how: Any) -> None:
        what(**how)

    def close(self, *, reason: str) -> None:
        self.reason = reason
        self._compiler.teardown(self)


class Direct:
    """An executor whose kernels a `Compiler` of this process compiles, without a scheduler."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._about: dict[str, Any] = {}

    def about(self) -> dict[str, Any]:
        return self._about

    def workers(self) -> list[dict[str, Any]]:
        return []

    def run(self, rules: Sequence[Rule], _tree: str, _out: str, /) -> Generator[Outcome, None, None]:
        made = self._compiler.compile(rules)
        self._about = made["about"]
        for answer in made["answers"]:
            yield {**answer, "origin": of_worker(made["worker"])}
