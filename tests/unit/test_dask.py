"""A campaign on a Dask scheduler: workers come and go, nothing is lost, and no false result is accepted."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.dask_fixtures import LAYERS, LIMITS, Hub, Machine, hub, rules_of, until
from toolchain.cli.kernels_view import machines, screen
from toolchain.core.errors import ConfigError, KernelError
from toolchain.kernels.campaign import CampaignResult
from toolchain.kernels.dask_board import Board, Presence, workers_on
from toolchain.kernels.dask_executor import DaskExecutor
from toolchain.kernels.dask_link import order_of
from toolchain.kernels.dask_orders import Order
from toolchain.kernels.dask_status import ask
from toolchain.kernels.ledger import reproducible
from toolchain.kernels.oci_store import OciStore
from toolchain.kernels.result_name import name_of
from toolchain.kernels.shared import SharedResults
from toolchain.kernels.status import remote_row
from toolchain.kernels.store import FolderStore, read_record
from toolchain.kernels.worker import Limits

TOP = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.timeout(300),
    # Dask leaves sockets to the garbage collector when a scheduler goes, and warns of slow machines.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::UserWarning"
    ),
]


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr("toolchain.kernels.dask_board.GONE", 5.0)
    with hub() as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


class InBackground:
    """A campaign in a thread."""

    def __init__(self, machine: Machine, *arguments: Any, **how: Any) -> None:
        self.result: CampaignResult | None = None
        self.error: BaseException | None = None

        def run() -> None:
            try:
                self.result = machine.campaign(*arguments, **how)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def end(self) -> CampaignResult:
        self._thread.join(150)
        if self.error is not None:
            raise self.error
        assert self.result is not None, "the campaign goes on and on"
        return self.result


def test_two_workers_make_what_one_machine_makes_and_what_a_store_gives(
    scheduler: Hub, store: FolderStore, tmp_path: Path
) -> None:
    rules = rules_of("one", "two", "three", "fails")
    alone, first, second, desk, later = (Machine(tmp_path / name) for name in ("alone", "w1", "w2", "desk", "later"))
    for machine in (alone, first, second):
        machine.provide(rules)
    with first.serving(store) as serving_first, second.serving(store) as serving_second:
        scheduler.serve(serving_first)
        scheduler.serve(serving_second)
        until(lambda: len(ask(scheduler.address)["machines"]) == 2, "workers")
        made = desk.campaign(rules, store, scheduler.address)
        status = ask(scheduler.address)
    here = alone.campaign(rules, None)
    taken = later.campaign(rules[:6], store)

    assert reproducible(made.entries) == reproducible(here.entries)
    assert reproducible(taken.entries) == reproducible(here.entries[:6])
    assert desk.files() == alone.files()
    assert made.about == here.about == {"triton": "0.0"}
    assert (desk.workers.tries, later.workers.tries) == ([], [])
    assert sorted(first.workers.tries + second.workers.tries) == sorted(alone.workers.tries), "each once"
    assert all(machine.workers.tries for machine in (first, second)), "both had work"
    assert made.shared["added"] == 6
    assert {entry.origin for entry in made.entries} == {"worker w1", "worker w2"}
    assert [kernel for kernel, _, _ in desk.logs] == ["fails", "fails"]
    assert all("a compiler's chatter" in text for _, _, text in desk.logs)

    schema = json.loads((TOP / "docs" / "json.schema.json").read_bytes())
    assert list(Draft202012Validator({**schema, "$ref": "#/$defs/kernels status"}).iter_errors(status)) == []
    (campaign,) = status["campaigns"]
    assert [campaign[key] for key in ("campaign", "state", "count", "done", "failed")] == ["desk", "done", 8, 6, 2]
    assert [row["name"] for row in status["machines"]] == ["w1", "w2"]
    assert sum(row["compiled"] + row["failed"] for row in status["machines"]) <= 8
    assert any("8 of 8 " in line for line in screen(campaign))
    assert any(line.startswith("worker w1  127.0.0.1:") for line in machines(status["machines"]))


def in_a_process(machine: Machine, address: str, store: FolderStore) -> subprocess.Popen[bytes]:
    """A worker that can be killed."""
    program = (
        "import sys; from pathlib import Path; from tests.dask_fixtures import *; from toolchain.kernels.dask_worker"
        " import serve\nroot, address, store = sys.argv[1:]\nmachine = Machine.__new__(Machine)\n"
        "machine.root, machine.layers, machine.limits = Path(root), LAYERS, LIMITS\n"
        "machine.tree, machine.out = machine.root / 'tree', machine.root / 'out'\n"
        "machine.workers = FakeWorkers(machine.root / 'workers')\n"
        "serve(address, machine.serving(FolderStore(Path(store))))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, str(machine.root), address, store.ref],
        cwd=TOP, start_new_session=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def test_a_worker_that_dies_costs_what_it_was_at(scheduler: Hub, store: FolderStore, tmp_path: Path) -> None:
    rules = rules_of("one", "waits", warps=[1])
    doomed, survivor, desk = (Machine(tmp_path / name) for name in ("doomed", "other", "desk"))
    for machine in (doomed, survivor):
        machine.provide(rules)
    (survivor.workers.folder / "go").touch()
    child = in_a_process(doomed, scheduler.address, store)
    try:
        campaign = InBackground(desk, rules, store, scheduler.address)
        until((doomed.workers.folder / "waiting").exists, "kernel under way")
        assert doomed.workers.tries == ["one", "waits"]
        with survivor.serving(store) as serving:
            os.killpg(child.pid, signal.SIGKILL)
            scheduler.serve(serving)
            made = campaign.end()
    finally:
        child.kill()
        child.wait(30)
    assert made.counts() == {"done": 2, "failed": 0, "timed_out": 0}
    assert survivor.workers.tries == ["waits"], "what reached the store is not compiled twice"


def test_an_answer_outlives_its_worker(scheduler: Hub, store: FolderStore, tmp_path: Path) -> None:
    """It is on the board."""
    rules = rules_of("fails", warps=[1])
    doomed, desk = Machine(tmp_path / "doomed"), Machine(tmp_path / "desk")
    child = in_a_process(doomed, scheduler.address, store)
    try:
        shared = SharedResults([store], desk.naming)
        executor = DaskExecutor(scheduler.address, shared=shared, out=desk.out, limits=LIMITS)
        with executor, contextlib.closing(Board(scheduler.address)) as board:
            until(lambda: workers_on(board, Presence()), "worker")
            waiting = deque([Order(rules[0])])
            assert list(executor._step(waiting)) == []
            until(lambda: board.read("answers", executor._token), "answer")
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(30)
            ((_, outcome),) = executor._step(waiting)
    finally:
        child.kill()
        child.wait(30)
    assert outcome is not None
    assert outcome["status"] == "failed"


def test_an_order_that_waits_goes_to_a_worker_that_is_idle(scheduler: Hub, store: FolderStore, tmp_path: Path) -> None:
    rules = rules_of("waits", "one", warps=[1])
    busy, idle, desk = (Machine(tmp_path / name) for name in ("busy", "idle", "desk"))
    for machine in (busy, idle):
        machine.provide(rules)
    with busy.serving(store) as first, idle.serving(store) as second:
        scheduler.serve(first)
        campaign = InBackground(desk, rules, store, scheduler.address)
        until((busy.workers.folder / "waiting").exists, "kernel under way")
        scheduler.serve(second)
        until(lambda: idle.workers.tries == ["one"], "work of the other")
        (busy.workers.folder / "go").touch()
        made = campaign.end()
    assert made.counts()["done"] == 2
    assert busy.workers.tries == ["waits"]


def test_a_scheduler_that_is_restarted_costs_nothing(scheduler: Hub, store: FolderStore, tmp_path: Path) -> None:
    rules = rules_of("one", "waits", "two", warps=[1])
    worker, desk = Machine(tmp_path / "worker"), Machine(tmp_path / "desk")
    worker.provide(rules)
    with worker.serving(store) as serving:
        scheduler.serve(serving)
        campaign = InBackground(desk, rules, store, scheduler.address, patience=120)
        until((worker.workers.folder / "waiting").exists, "kernel under way")
        scheduler.stop()
        time.sleep(1)
        scheduler.start()
        (worker.workers.folder / "go").touch()
        made = campaign.end()
    assert made.counts() == {"done": 3, "failed": 0, "timed_out": 0}
    assert worker.workers.tries == ["one", "waits", "two"], "each once, the one under way too"


def test_a_campaign_that_is_killed_goes_on(scheduler: Hub, store: FolderStore, tmp_path: Path) -> None:
    rules = rules_of("one", "waits", "two", warps=[1])
    worker, killed, desk = (Machine(tmp_path / name) for name in ("worker", "killed", "desk"))
    worker.provide(rules)
    with worker.serving(store) as serving:
        scheduler.serve(serving)
        shared = SharedResults([store], killed.naming)
        with DaskExecutor(scheduler.address, shared=shared, out=killed.out, limits=LIMITS, patience=60) as executor:
            outcomes = executor.run(rules, "/src", str(killed.out))
            assert next(outcomes)["status"] == "done"
            until((worker.workers.folder / "waiting").exists, "kernel under way")
            outcomes.close()
        (worker.workers.folder / "go").touch()
        made = desk.campaign(rules, store, scheduler.address)
    assert made.counts()["done"] == 3
    assert sorted(worker.workers.tries) == ["one", "two", "waits"], "each once"


def test_a_worker_with_another_triton_or_other_limits_is_refused_by_name(
    scheduler: Hub, store: FolderStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = rules_of("one", "two", warps=[1])
    desk, honest = Machine(tmp_path / "desk"), Machine(tmp_path / "honest")
    foreign = Machine(tmp_path / "other", layers=("sha256:" + "b" * 64,))
    hasty = Machine(tmp_path / "hasty", limits=Limits(timeout=5))
    for machine in (honest, foreign, hasty):
        machine.provide(rules)
    with foreign.serving(store) as wrong, hasty.serving(store) as short, honest.serving(store) as good:
        scheduler.serve(wrong)
        scheduler.serve(short)
        until(lambda: len(ask(scheduler.address)["machines"]) == 2, "workers")
        with pytest.raises(KernelError, match=r"no worker at .* compiles for this campaign") as refusal:
            desk.campaign(rules, store, scheduler.address, patience=0.5)
        assert "other: it was made by another Triton" in refusal.value.why
        assert "hasty: its --kernel-timeout and --kernel-memory are" in refusal.value.why
        scheduler.serve(good)
        with caplog.at_level(logging.WARNING):
            made = desk.campaign(rules, store, scheduler.address)
        rows = {row["name"]: row for row in ask(scheduler.address)["machines"]}
    assert made.counts()["done"] == 2
    assert (foreign.workers.tries, hasty.workers.tries) == ([], [])
    assert "the worker other is refused: it was made by another Triton" in caplog.text
    assert rows["other"]["refused_by"] == {"desk": "it was made by another Triton"}


def test_a_worker_with_other_sources_gets_one_order_and_is_refused(
    scheduler: Hub, store: FolderStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = rules_of("one", "two", warps=[1])
    desk, changed, honest = (Machine(tmp_path / name) for name in ("desk", "changed", "honest"))
    (changed.tree / "kernels.py").write_text("WIDTH = 2\n")
    for machine in (changed, honest):
        machine.provide(rules)
    with changed.serving(store) as wrong, honest.serving(store) as good:
        scheduler.serve(wrong)
        scheduler.serve(good)
        until(lambda: len(ask(scheduler.address)["machines"]) == 2, "workers")
        with caplog.at_level(logging.WARNING):
            made = desk.campaign(rules, store, scheduler.address)
    assert made.counts()["done"] == 2
    assert changed.workers.tries == []
    assert "the worker changed is refused: it was made from other sources" in caplog.text


def test_a_worker_whose_objects_are_useless_is_set_aside_and_others_compile_its_kernels(
    scheduler: Hub, store: FolderStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = rules_of("one", "two", "three", warps=[1])
    desk, broken, honest = (Machine(tmp_path / name) for name in ("desk", "broken", "honest"))
    honest.provide(rules)
    broken.provide(rules, machine=3)
    with broken.serving(store) as useless, honest.serving(store) as useful:
        scheduler.serve(useless)
        with caplog.at_level(logging.WARNING):
            campaign = InBackground(desk, rules, store, scheduler.address)
            until(lambda: "broken is refused" in caplog.text, "refusal")
            scheduler.serve(useful)
            made = campaign.end()
    assert {entry.origin for entry in made.entries} == {"worker honest"}
    assert {entry.status for entry in made.entries} == {"done"}
    for rule in rules:
        good = (honest.workers.folder / f"{rule.target}{rule.kernel}").read_bytes()
        assert (desk.out / rule.out).read_bytes() == good
        ((_, record),) = store.fetch([name_of(desk.naming.inputs(rule))])
        assert record is not None
        assert read_record(record, desk.naming.inputs(rule)).code == good, "the store has no useless object any more"


def test_a_machine_that_cannot_compile_is_set_aside(
    scheduler: Hub, store: FolderStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = rules_of("one", "two", warps=[1])
    desk, broken, honest = (Machine(tmp_path / name) for name in ("desk", "broken", "honest"))
    honest.provide(rules)
    (broken.workers.folder / "broken").touch()
    with broken.serving(store) as useless, honest.serving(store) as useful:
        scheduler.serve(useless)
        scheduler.serve(useful)
        until(lambda: len(ask(scheduler.address)["machines"]) == 2, "workers")
        with caplog.at_level(logging.WARNING):
            made = desk.campaign(rules, store, scheduler.address)
    assert made.counts() == {"done": 2, "failed": 0, "timed_out": 0}
    assert "the worker broken is refused: a kernel worker does not start" in caplog.text


def test_the_log_of_a_failed_kernel_comes_home(scheduler: Hub, store: FolderStore, tmp_path: Path) -> None:
    rules = rules_of("dies", warps=[1])
    desk, worker = Machine(tmp_path / "desk"), Machine(tmp_path / "worker")
    with worker.serving(store) as serving:
        scheduler.serve(serving)
        made = desk.campaign(rules, store, scheduler.address)
    (entry,) = made.bad
    assert entry.attempt == 2
    assert "LLVM ERROR: out of registers" in entry.reason
    ((kernel, name, text),) = desk.logs
    assert (kernel, name) == ("dies", "worker")
    assert "LLVM ERROR: out of registers" in text


def test_a_store_that_packs_or_none_is_refused(store: FolderStore, tmp_path: Path) -> None:
    desk = Machine(tmp_path / "desk")
    packs = OciStore.__new__(OciStore)
    packs.ref = "registry.example/ns"
    for shared in (None, SharedResults([packs], desk.naming)):
        with pytest.raises(ConfigError, match="keeps each result apart"):
            DaskExecutor("tcp://127.0.0.1:1", shared=shared, out=desk.out, limits=LIMITS)


def test_a_station_takes_what_the_store_has_unless_it_shall_not(store: FolderStore, tmp_path: Path) -> None:
    rule, machine = rules_of("one")[0], Machine(tmp_path / "machine")
    machine.provide([rule])
    name = name_of(machine.naming.inputs(rule))
    with machine.serving(store) as serving:
        answers = [serving.carry_out(order_of(rule, name, recompile=recompile)) for recompile in (False, False, True)]
        assert [answer["found"] for answer in answers] == [False, True, False]
        assert len(machine.workers.tries) == 2
        refused = serving.carry_out(order_of(rule, "0" * 64, recompile=False))
        assert (refused["status"], refused["inputs"]["triton"]) == ("refused", list(LAYERS))
        assert serving.carry_out({"rule": {}})["status"] == "refused"
        assert serving.now()["compiled"] == 2
    assert machine.workers.alive == []
    assert list(machine.out.iterdir()) == []


def test_a_campaign_that_says_nothing_any_more_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    status: dict[str, Any] = {
        "format": 1, "state": "running", "updated": "2026-11-22T17:50:00Z", "done": 3, "failed": 1, "timed_out": 0,
        "rate": 1.0, "left_seconds": 5.0, "workers": [{}], "asked": 9,
    }  # fmt: skip
    then = 1795369800.0
    assert time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(then)) == status["updated"]
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: then + 10)
        alive = remote_row("c", status)
        patch.setattr(time, "time", lambda: then + 100)
        gone = remote_row("c", status)
    assert (alive["state"], alive["count"], alive["rate"]) == ("running", 4, 1.0)
    assert (gone["state"], gone["workers"], gone["rate"]) == ("killed", [], None)
