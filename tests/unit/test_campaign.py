"""Campaigns with workers that fail in different ways."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kernel_fixtures import FakeWorkers, local_executor, make_rule, only_hanging_ones_time_out
from tests.refusals import refused
from toolchain.core.errors import KernelError
from toolchain.kernels import worker_process
from toolchain.kernels.campaign import CampaignResult, run_campaign
from toolchain.kernels.ledger import DONE, FAILED, TIMEOUT, Ledger
from toolchain.kernels.rules import Rule, RuleSet

GOOD = ("good", "slow", "fine")
BAD = ("fails", "dies", "hangs", "empty", "absent", "lies", "no_facts")


class Place:
    """The folders of one campaign."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.out = root / 'the "out" folder\'s'
        self.workers = FakeWorkers(root / "fake workers")
        self.counts: list[tuple[int, int, str]] = []

    def run(
        self, rules: Sequence[Rule] | RuleSet, *, workers: int = 2, timeout: float | None = 3.0, keep_going: bool = True
    ) -> CampaignResult:
        self.workers.provide(list(rules.rules if isinstance(rules, RuleSet) else rules))
        self.counts.clear()
        with Ledger(self.root / "ledger.sqlite") as ledger:
            return run_campaign(
                rules,
                local_executor(self.workers, workers=workers, timeout=timeout),
                ledger,
                self.out,
                worker_tree="/src",
                keep_going=keep_going,
                on_count=lambda done, total, label: self.counts.append((done, total, label)),
            )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    only_hanging_ones_time_out(monkeypatch)
    return Place(tmp_path)


@pytest.mark.parametrize("kernel", ["good", "fails"])
def test_symlink_in_output_folder_is_refused(place: Place, kernel: str) -> None:
    """Workers can write to the output folder, so the tool must not write or remove files through a link in it."""
    rule = make_rule(kernel)
    home = (place.out / rule.out).parent
    precious = place.root / "precious" / Path(rule.out).name
    precious.parent.mkdir()
    precious.write_text("mine")
    home.parent.mkdir(parents=True, exist_ok=True)
    home.symlink_to(precious.parent)
    with refused("kernel-path-escapes"):
        place.run([rule])
    assert precious.read_text() == "mine"
    assert list(precious.parent.iterdir()) == [precious]


def test_each_failure_is_recorded_and_other_kernels_are_compiled(place: Place) -> None:
    rules = [make_rule(kernel) for kernel in (*BAD, *GOOD)]
    result = place.run(rules)

    status = {entry.kernel: entry.status for entry in result.entries}
    assert {kernel: status[kernel] for kernel in GOOD} == dict.fromkeys(GOOD, DONE)
    assert status == {**dict.fromkeys((*GOOD, *BAD), FAILED), **dict.fromkeys(GOOD, DONE), "hangs": TIMEOUT}
    reason = {entry.kernel: entry.reason for entry in result.entries}
    assert reason["fails"] == "TypeError: cannot\nbecause of that"
    assert "SIGABRT" in reason["dies"]
    assert "LLVM ERROR: out of registers" in reason["dies"]
    assert "after 3 s" in reason["hangs"]
    assert "empty" in reason["empty"]
    assert "No such file" in reason["absent"]
    assert "SHA-256" in reason["lies"]
    assert "lacks shared" in reason["no_facts"]
    assert place.workers.tries.count("dies") == 2, "a worker that died gets one successor for the rule"
    assert place.workers.tries.count("hangs") <= 1
    assert place.workers.tries.count("fails") == 1
    assert place.workers.alive == []
    for kernel, word in (("fails", "ExitWithError"), ("hangs", "Timeout")):
        path = place.out / f"gfx942/{kernel}/warps-4.hsaco"
        assert path.read_bytes() == b""
        assert json.loads(path.with_suffix(".json").read_text()) == {"compile_status": word}
    report = (place.out / "report.json").read_text()
    assert (json.loads(report)["timed_out"], "seconds" in report) == (1, False)
    listed = {row["kernel"]: row["reason"] for row in json.loads(report)["kernels"]}
    assert listed["dies"] == "the worker was ended by SIGABRT", "the order of its output differs between runs"
    assert place.counts[0] == (0, 10, "")
    assert [count[:2] for count in place.counts[1:]] == [(number, 10) for number in range(1, 11)]


@pytest.mark.parametrize(
    "odd",
    [
        {"seconds": "1"}, {"seconds": 10**400}, {"seconds": -1}, {"status": ["done"]}, {"bitcode": 1},
        {"bitcode": [["ocml"]]}, {"sha256": None}, {"refused": "no"}, {"reason": {}}, {"id": 7},
    ],
    ids=lambda odd: next(iter(odd)),
)  # fmt: skip
def test_malformed_answer_fails_only_its_kernel(place: Place, odd: dict[str, Any]) -> None:
    """A hostile source runs in the worker, and can write any answer."""
    (place.workers.folder / "odd").write_text(json.dumps(odd))
    result = place.run([make_rule("odd"), make_rule("good")], workers=1)
    assert {entry.kernel: entry.status for entry in result.entries} == {"odd": FAILED, "good": DONE}
    assert "invalid" in next(entry.reason for entry in result.entries if entry.kernel == "odd")


def test_answer_cannot_set_fields_that_workers_do_not_report(place: Place) -> None:
    odd = {"origin": "worker other", "attempt": [], "exit_code": {}, "over_memory": True}
    (place.workers.folder / "odd").write_text(json.dumps(odd))
    (entry,) = place.run([make_rule("odd")]).entries
    assert (entry.status, entry.origin, entry.attempt, entry.exit_code) == (DONE, "", 1, None)
    assert not entry.over_memory


def test_failures_are_listed_and_leave_no_object(place: Place) -> None:
    with pytest.raises(KernelError) as caught:
        place.run([make_rule(kernel) for kernel in ("good", "fails", "empty")], keep_going=False)

    assert all(f"gfx942/{kernel}/" in caught.value.why for kernel in ("fails", "empty"))
    left = sorted(path.relative_to(place.out).as_posix() for path in place.out.rglob("*") if path.is_file())
    assert left == ["gfx942/good/warps-4.hsaco", "gfx942/good/warps-4.json"]


def test_finished_rules_are_not_compiled_again(place: Place) -> None:
    rules = [make_rule(kernel) for kernel in GOOD]
    first = place.run(rules)
    report = (place.out / "report.json").read_bytes()
    again = place.run(rules)

    assert (first.skipped, again.skipped) == (0, 3)
    assert sorted(place.workers.tries) == sorted(GOOD)
    assert again.entries == first.entries
    assert (place.out / "report.json").read_bytes() == report
    assert place.counts == [(3, 3, "")]


@pytest.mark.parametrize("kernel", ["killed", "starved", "unlinked"])
def test_lack_of_resources_is_not_recorded_as_bad_kernel(place: Place, kernel: str) -> None:
    bad = make_rule(kernel)
    with refused("kernel-resources") as caught:
        place.run([make_rule("good"), bad, make_rule("fine")], workers=1, keep_going=True)
    assert bad.out in caught.value.why
    assert not (place.out / bad.out).exists(), "an empty object would count as known bad"
    with Ledger(place.root / "ledger.sqlite") as ledger:
        assert ledger.get(bad.id) is None
    assert place.workers.alive == []


def test_only_a_signal_from_outside_is_no_fault_of_the_kernel(tmp_path: Path) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM):
        assert worker_process.machine_fault(f"its process was ended by signal {int(number)}", tmp_path)
    assert not worker_process.machine_fault(f"its process was ended by signal {int(signal.SIGABRT)}", tmp_path)
    crash = str(subprocess.CalledProcessError(-signal.SIGSEGV, ["ld.lld"]))
    assert not worker_process.machine_fault(crash, tmp_path)


def test_failure_on_full_disk_is_lack_of_resources(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "LEAST_FREE", 1 << 62)
    with refused("kernel-resources"):
        place.run([make_rule("fails")])
    assert place.run([make_rule("good")]).counts() == {"done": 1, "failed": 0, "timed_out": 0}


@pytest.mark.parametrize("damage", ["changed", "json gone", "json cut"])
def test_a_damaged_object_is_compiled_again(place: Place, damage: str) -> None:
    rules = [make_rule(kernel) for kernel in GOOD]
    place.run(rules)
    path = place.out / rules[0].out
    if damage == "changed":
        path.write_bytes(path.read_bytes() + b"!")
    elif damage == "json cut":
        path.with_suffix(".json").write_text('{"shared": 0, "num')
    else:
        path.with_suffix(".json").unlink()
    again = place.run(rules)

    assert (again.skipped, len(again.done)) == (2, 3)
    assert place.workers.tries.count("good") == 2


def test_a_worker_that_does_not_start_is_started_again(place: Place) -> None:
    """Linux sometimes refuses an operation at the start of buildah, and that must not end a campaign of hours."""
    rules = [make_rule("good")]
    place.workers.provide(rules)
    began: list[int] = []

    @contextlib.contextmanager
    def make(files: str, out: Path) -> Iterator[subprocess.Popen[str]]:
        began.append(1)
        (place.workers.folder / "broken").touch() if len(began) == 1 else (place.workers.folder / "broken").unlink()
        with place.workers(files, out) as child:
            yield child

    with Ledger(place.root / "ledger.sqlite") as ledger:
        executor = local_executor(make, workers=1, timeout=60.0)
        result = run_campaign(rules, executor, ledger, place.out, worker_tree="/src")
    assert (result.counts()["done"], len(began)) == (1, 2)


def test_campaign_ends_if_no_worker_starts(place: Place) -> None:
    (place.workers.folder / "broken").touch()

    with refused("worker-not-started"):
        place.run([make_rule(f"k{number}") for number in range(50)])


def test_closing_outcomes_ends_all_workers(place: Place) -> None:
    rules = [make_rule("hangs", warps=2**number) for number in range(3)] + [make_rule("good")]
    place.workers.provide(rules)
    executor = local_executor(place.workers, workers=4, timeout=None)
    outcomes = executor.run(rules, "/src", str(place.out))
    assert next(outcomes)["status"] == DONE
    outcomes.close()

    assert place.workers.alive == []
    assert executor.about() == {"triton": "0.0"}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kernel-")]


PRATTLES = """
import sys
while True:
    print("x" * 65536, flush=True)
    with open(sys.argv[1], "a") as stream:
        stream.write(".")
"""


def test_worker_that_prints_endlessly_waits_and_can_be_stopped(tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    printed.touch()

    @contextlib.contextmanager
    def make(_files: str, _out: Path) -> Iterator[subprocess.Popen[str]]:
        words = [sys.executable, "-c", PRATTLES, str(printed)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
            yield child

    worker = worker_process.Worker(make, "", tmp_path / "worker")
    count = -1
    while count < printed.stat().st_size < 1000 or not count:
        count = printed.stat().st_size
        time.sleep(0.5)
    worker.interrupt()
    with pytest.raises(worker_process.StoppedError):
        worker.answer(60)
    worker.stop()
    assert printed.stat().st_size < 1000
    assert not [thread for thread in threading.enumerate() if thread.name == "kernel-pipe"]


def test_time_in_which_the_tool_was_stopped_does_not_count_for_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-Z, `fg` must not record the kernels that were being compiled as known bad."""

    @contextlib.contextmanager
    def make(_files: str, _out: Path) -> Iterator[subprocess.Popen[str]]:
        words = ["sh", "-c", 'echo chatter; sleep 0.2; echo \'{"id": "x"}\'; read line']
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            yield child

    clock = itertools.count(step=1000)
    worker = worker_process.Worker(make, "", tmp_path / "worker")
    monkeypatch.setattr(worker_process, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    try:
        assert worker.answer(300) == {"id": "x"}
        with pytest.raises(worker_process.TimedOutError):
            worker.answer(1.5)
    finally:
        worker.stop(patience=10)
