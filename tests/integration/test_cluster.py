"""Tests of campaigns on a real Dask scheduler with real workers, some of which are killed or have other inputs."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import distributed
import pytest

from tests.cluster_fixtures import Machine, kill, rules_of, scheduler, until
from tests.registry_fixtures import free_port
from toolchain.core.errors import KernelError, ResourceError, UnreachableError
from toolchain.kernels import cluster
from toolchain.kernels.bounds import Limits
from toolchain.kernels.campaign import CampaignResult
from toolchain.kernels.ledger import Ledger, look, reproducible
from toolchain.kernels.result_store import KernelStore
from toolchain.kernels.shared import SharedResults

pytestmark = [
    # Dask leaves sockets to the garbage collector when a scheduler ends, and warns of slow machines.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::UserWarning"
    ),
]


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """Let clients wait until a scheduler has started on a busy machine."""
    with dask.config.set({"distributed.comm.timeouts.connect": "120s"}):
        yield


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Yield the port of a scheduler, which is shared by the tests that do not stop it."""
    found = free_port()
    with scheduler(found):
        yield found


class InBackground:
    """A campaign in a thread."""

    def __init__(self, machine: Machine, *arguments: Any) -> None:
        self.result: CampaignResult | None = None
        self.error: BaseException | None = None

        def run() -> None:
            try:
                self.result = machine.campaign(*arguments)
            except BaseException as error:  # noqa: BLE001 - `end` raises it
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def end(self) -> CampaignResult:
        self._thread.join(600)
        if self.error is not None:
            raise self.error
        assert self.result is not None, "the campaign does not end"
        return self.result


def address(port: int) -> str:
    return f"tcp://127.0.0.1:{port}"


def test_two_workers_make_the_same_objects_as_one_machine(port: int, tmp_path: Path) -> None:
    rules = rules_of("one", "two", "three", "fails", "absent", "lies", "empty")
    alone, first, second, desk = (Machine(tmp_path / name) for name in ("alone", "w1", "w2", "desk"))
    for machine in (alone, first, second):
        machine.provide(rules)
    store = KernelStore(tmp_path / "store")
    with first.worker(port), second.worker(port, slots=2):
        made = desk.campaign(rules, address(port), shared=SharedResults([store], desk.setup.naming))
    here = alone.campaign(rules)
    assert reproducible(made.entries) == reproducible(here.entries)
    assert made.counts() == {"done": 6, "failed": 8, "timed_out": 0}
    assert desk.files() == alone.files()
    assert made.about == here.about == {"triton": "0.0"}
    assert desk.workers.tries == [], "nothing is compiled here"
    assert {entry.origin for entry in made.entries} <= {"worker w1", "worker w2"}
    assert made.shared["added"] == 6, "the campaign stores what its workers compiled"


def test_only_workers_with_the_same_inputs_get_kernels(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rules = rules_of("one", "hangs", warps=[1])
    limits = Limits(timeout=1)
    desk, fits = Machine(tmp_path / "desk", limits=limits), Machine(tmp_path / "fits", limits=limits)
    other = Machine(tmp_path / "other", layer="sha256:" + "b" * 64, limits=limits)
    for machine in (fits, other):
        machine.provide(rules)
    with other.worker(port):
        with monkeypatch.context() as patch:
            patch.setattr(cluster, "PATIENCE", 3.0)

            def why() -> str:
                with pytest.raises(KernelError) as refusal:
                    desk.campaign(rules, address(port))
                return refusal.value.why

            # The worker may take longer than the patience to start.
            whys = (why() for _ in range(100))
            assert "worker other differs in: triton" in next(text for text in whys if "has no workers" not in text)
        with fits.worker(port):
            made = desk.campaign(rules, address(port))
    assert made.counts() == {"done": 1, "failed": 0, "timed_out": 1}
    assert other.workers.tries == []
    assert "worker other differs in: triton" in caplog.text


def test_kernels_of_a_killed_worker_are_compiled_by_another(port: int, tmp_path: Path) -> None:
    rules = rules_of("one", "waits", warps=[1])
    doomed, other, desk = (Machine(tmp_path / name) for name in ("doomed", "other", "desk"))
    for machine in (doomed, other):
        machine.provide(rules)
    (other.workers.folder / "go").touch()
    with doomed.worker(port) as child:
        campaign = InBackground(desk, rules, address(port))
        until((doomed.workers.folder / "waiting").exists, "kernel under way")
        with other.worker(port):
            kill(child)
            made = campaign.end()
    assert made.counts() == {"done": 2, "failed": 0, "timed_out": 0}
    assert {entry.origin for entry in made.entries if entry.kernel == "waits"} == {"worker other"}


def test_no_kernel_is_lost_if_the_scheduler_restarts(tmp_path: Path) -> None:
    port, rules = free_port(), rules_of("one", "waits", "two", warps=[1])
    worker, desk = Machine(tmp_path / "worker"), Machine(tmp_path / "desk")
    worker.provide(rules)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(scheduler(port))
        stack.enter_context(worker.worker(port))
        campaign = InBackground(desk, rules, address(port))
        until((worker.workers.folder / "waiting").exists, "kernel under way")
        kill(first)
        (worker.workers.folder / "go").touch()
        stack.enter_context(scheduler(port))
        made = campaign.end()
    assert made.counts() == {"done": 3, "failed": 0, "timed_out": 0}


def test_campaign_without_its_scheduler_fails_and_can_be_continued(tmp_path: Path) -> None:
    port, rules = free_port(), rules_of("one", "waits", warps=[1])
    worker, desk = Machine(tmp_path / "worker"), Machine(tmp_path / "desk")
    worker.provide(rules)
    with scheduler(port) as first, worker.worker(port), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "LARGEST", 1)
        campaign, waiting = InBackground(desk, rules, address(port)), worker.workers.folder / "waiting"
        until(lambda: campaign.error is not None or waiting.exists(), "kernel under way")
        assert campaign.error is None
        until(lambda: look(desk.root / "ledger.sqlite").counted["done"] == 1, "finished kernel")
        for client in distributed.Client._instances:
            client._timeout = 5.0  # the time for reconnecting; the first connection needs longer on a busy machine
        kill(first)
        with pytest.raises(UnreachableError):
            campaign.end()
        (worker.workers.folder / "go").touch()
        with scheduler(port):
            made = desk.campaign(rules, address(port))
    assert made.counts()["done"] == 2
    assert (made.skipped, worker.workers.tries.count("one")) == (1, 1), "what is in the ledger is kept"


def test_kernel_is_not_recorded_as_failed_if_its_workers_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    port, rules = free_port(), rules_of("waits", warps=[1])
    worker, desk = Machine(tmp_path / "worker"), Machine(tmp_path / "desk")
    with scheduler(port), worker.worker(port) as child:
        campaign = InBackground(desk, rules, address(port))
        until((worker.workers.folder / "waiting").exists, "kernel under way")
        kill(child)
        with pytest.raises(ResourceError):
            campaign.end()
    with Ledger(desk.root / "ledger.sqlite") as ledger:
        assert ledger.entries(rules) == ()


def certificates(folder: Path) -> dict[str, str]:
    """Create an authority and one certificate of it, and return Dask's settings for them."""
    folder.mkdir()

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", f"/CN={folder.name}")
    openssl("req", *new, "-keyout", "one.key", "-out", "one.csr", "-subj", "/CN=one")
    openssl("x509", "-req", "-in", "one.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-out", "one.pem")  # fmt: skip
    roles = {f"{role}.{part}": str(folder / f"one.{end}") for role in ("client", "worker", "scheduler")
             for part, end in (("cert", "pem"), ("key", "key"))}  # fmt: skip
    return {f"distributed.comm.tls.{role}": path for role, path in {"ca-file": str(folder / "ca.pem"), **roles}.items()}


def test_scheduler_accepts_only_tls_certificates_of_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = certificates(tmp_path / "ours"), certificates(tmp_path / "theirs")
    for name, path in ours.items():
        monkeypatch.setenv(f"DASK_{name.replace('.', '__').replace('-', '_').upper()}", path)
    port, rules = free_port(), rules_of("one", warps=[1])
    worker, desk = Machine(tmp_path / "worker"), Machine(tmp_path / "desk")
    worker.provide(rules)
    where = f"tls://127.0.0.1:{port}"
    with scheduler(port, "--protocol", "tls"), worker.worker(port, address=where):
        with dask.config.set(ours):
            assert desk.campaign(rules, where).counts()["done"] == 1
        impatient = {"distributed.comm.timeouts.connect": "1s"}
        with dask.config.set({**theirs, **impatient}), pytest.raises(UnreachableError):
            desk.campaign(rules_of("two"), where)
        with dask.config.set(impatient), pytest.raises(UnreachableError):
            desk.campaign(rules_of("two"), address(port))
