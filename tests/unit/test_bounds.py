"""Limits on the memory of workers and kernels, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kernel_fixtures import FakeWorkers, local_executor, make_rule
from toolchain.kernels import pool
from toolchain.kernels.bounds import MemoryBounds, processes, proportional, resident
from toolchain.kernels.campaign import CampaignResult, run_campaign
from toolchain.kernels.ledger import DONE, FAILED, Ledger
from toolchain.kernels.rules import Rule

MIB = 1 << 20
MUCH = 64 << 30


class Place:
    """The folders of one campaign."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.workers = FakeWorkers(root / "workers")

    def run(
        self, rules: Sequence[Rule], limits: MemoryBounds, *, workers: int = 1, timeout: float = 300.0
    ) -> CampaignResult:
        self.workers.provide(list(rules))
        executor = local_executor(self.workers, workers=workers, timeout=timeout, bounds=limits)
        with Ledger(self.root / "ledger.sqlite") as ledger:
            return run_campaign(rules, executor, ledger, self.root / "out", worker_tree="/src", keep_going=True)

    @property
    def started(self) -> int:
        return len((self.workers.folder / "started").read_text().split())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(pool, "EVERY", 0.05)
    return Place(tmp_path)


def test_a_worker_that_grows_is_replaced_between_two_kernels(place: Place) -> None:
    rules = [make_rule("grows", warps=2**number) for number in range(6)]
    result = place.run(rules, MemoryBounds(together=MUCH, share=100 * MIB))

    assert [entry.status for entry in result.entries] == [DONE] * 6
    assert [entry.attempt for entry in result.entries] == [1] * 6
    assert place.started == 3, "each keeps 60 MiB of every kernel, so two fill its share"
    assert place.workers.alive == []


def test_a_kernel_that_takes_too_much_memory_is_stopped_and_recorded(place: Place) -> None:
    limits = MemoryBounds(together=MUCH, share=MUCH, kernel=200 * MIB)
    result = place.run([make_rule("eats"), make_rule("good"), make_rule("fine")], limits)

    by_kernel = {entry.kernel: entry for entry in result.entries}
    assert {name: entry.status for name, entry in by_kernel.items()} == {"eats": FAILED, "good": DONE, "fine": DONE}
    assert by_kernel["eats"].over_memory
    assert by_kernel["eats"].reason.startswith("memory: one kernel may take 209.7 MB\n")
    assert place.workers.tries.count("eats") == 1, "it would take as much again"
    assert place.workers.alive == []


def test_kernel_that_does_not_fit_beside_another_is_retried_alone(place: Place) -> None:
    rules = [make_rule("large"), make_rule("large", warps=8), make_rule("slow")]
    result = place.run(rules, MemoryBounds(together=250 * MIB, share=MUCH), workers=2)

    assert [entry.status for entry in result.entries] == [DONE] * 3
    assert sorted(entry.attempt for entry in result.entries if entry.kernel == "large") == [1, 2]
    beside = (place.workers.folder / "beside").read_text().split()
    assert beside[-1] == "0", "another worker still held memory"
    assert place.workers.alive == []


def test_kernel_that_exceeds_memory_alone_fails(place: Place) -> None:
    limits = MemoryBounds(together=250 * MIB, share=MUCH)
    result = place.run([make_rule("eats"), make_rule("slow")], limits, workers=2)

    by_kernel = {entry.kernel: entry for entry in result.entries}
    assert (by_kernel["slow"].status, by_kernel["eats"].status) == (DONE, FAILED)
    assert by_kernel["eats"].over_memory


def test_memory_bounds_are_computed_from_memory_and_number_of_workers() -> None:
    limits = MemoryBounds.of(20 << 30, 4)
    assert limits.together == (20 << 30) - (2 << 30)
    assert limits.share == limits.together // 4
    assert limits.kernel == 0
    assert MemoryBounds.of(20 << 30, 4, 1 << 30).share == 1 << 30
    assert MemoryBounds.of(600 * MIB, 1).together == 300 * MIB, "of little, half is for others"


def test_memory_of_child_processes_is_measured() -> None:
    script = "import subprocess, sys; print(1, flush=True); subprocess.run([sys.executable, '-c', sys.argv[1]])"
    below = "import sys; block = b'x' * (50 << 20); print(2, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, below], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert [child.stdout.readline(), child.stdout.readline()] == ["1\n", "2\n"]
        assert len(processes(child.pid)) == 2
        assert child.pid in processes(os.getpid())
        assert 50 * MIB < proportional(child.pid) <= resident(child.pid) < 150 * MIB
        child.stdin.close()
    assert resident(child.pid) == 0, "it has ended"
