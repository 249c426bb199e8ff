"""Tests of the status of a campaign: while it runs, after it was killed, and at its end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.kernel_fixtures import FakeWorkers, local_executor, make_rule, only_hanging_ones_time_out
from tests.refusals import refused
from toolchain.cli.app import app
from toolchain.cli.kernels_view import screen
from toolchain.core.cache import LEDGER
from toolchain.core.errors import KernelError
from toolchain.kernels.bounds import MemoryBounds
from toolchain.kernels.campaign import CampaignResult, run_campaign
from toolchain.kernels.ledger import DONE, FAILED, Entry, Ledger, counts, look
from toolchain.kernels.status import STATUS, Board, read
from toolchain.kernels.summary import summary

TOP = Path(__file__).parents[2]


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def board_of(path: Path, clock: Clock, **more: Any) -> Board:
    rules = [make_rule("quick", warps=2**n) for n in range(10)] + [make_rule("costly", warps=2**n) for n in range(5)]
    return Board(path, rules, workers=list, clock=clock, **more)


def test_remaining_time_is_estimated_from_seconds_of_compilation(tmp_path: Path) -> None:
    """The last functions cost most, so an estimate from kernels per second would be too short."""
    clock = Clock()
    board = board_of(tmp_path / STATUS, clock)
    board.count(Entry.of(make_rule("costly"), DONE, seconds=10.0), reused=True)
    assert (board.as_json()["rate"], board.as_json()["left_seconds"]) == (None, None)
    for number in range(8):
        clock.now += 1
        board.count(Entry.of(make_rule("quick", warps=2**number), DONE, seconds=2.0))
    status = board.as_json()
    assert (status["asked"], status["done"], status["reused"]) == (15, 9, 1)
    assert status["rate"] == 1.0
    # The workers compile for 2 s in each second. 2 quick and 4 costly kernels are left, which take 44 s.
    assert status["left_seconds"] == 22.0


def test_rate_ignores_reused_results_and_old_results(tmp_path: Path) -> None:
    clock = Clock()
    board = board_of(tmp_path / STATUS, clock)
    for number in range(9):
        clock.now += 60
        board.count(Entry.of(make_rule("quick", warps=2**number), DONE, seconds=2.0), reused=True)
    clock.now += 10
    board.count(Entry.of(make_rule("costly"), DONE, seconds=10.0))
    assert board.as_json()["rate"] == 0.1, "reading what was there is no compiling"
    assert board.as_json()["left_seconds"] == 42.0
    clock.now += 601
    assert (board.as_json()["rate"], board.as_json()["left_seconds"]) == (None, None), "nothing came for long"


def test_campaign_whose_workers_do_not_start_is_stopped_or_failed(tmp_path: Path) -> None:
    for through, state in ((14, "stopped"), (15, "failed")):
        board = board_of(tmp_path / STATUS, Clock())
        for number in range(through):
            kernel, warps = ("quick", number) if number < 10 else ("costly", number - 10)
            board.count(Entry.of(make_rule(kernel, warps=2**warps), FAILED))
        with pytest.raises(KernelError), board:
            raise KernelError("test-error", "a kernel worker does not start", fix="check it")
        assert json.loads((tmp_path / STATUS).read_bytes())["state"] == state


RUNS = """
import sys, time
from pathlib import Path
from tests.kernel_fixtures import make_rule
from toolchain.kernels.ledger import Entry, Ledger
from toolchain.kernels.status import STATUS, Board
folder = Path(sys.argv[1])
rules = [make_rule("k", warps=2**number) for number in range(4)]
with Ledger(folder / "ledger.sqlite") as ledger, Board(folder / STATUS, rules, workers=list, command="again") as board:
    entry = Entry.of(rules[0], "done", seconds=1.0)
    board.count(entry)
    ledger.record(entry)
    ledger.progress(1, 4)
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    folder = tmp_path / "cache" / "work" / "campaign-1"
    words, env = [sys.executable, "-c", RUNS, str(folder)], {**os.environ, "PYTHONPATH": str(TOP)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        yield folder, child
        child.kill()


def test_killed_campaign_has_the_state_killed(running: tuple[Path, subprocess.Popen[str]]) -> None:
    folder, child = running
    status = read(folder)
    assert (status["state"], status["pid"], status["count"], status["asked"]) == ("running", child.pid, 1, 4)
    # A process that got the same process id later is not the campaign.
    written = (folder / STATUS).read_bytes()
    for changed in ({"process": status["process"] + "1"}, {"pid": os.getpid()}, {"process": ""}):
        (folder / STATUS).write_text(json.dumps({**json.loads(written), **changed}))
        assert read(folder)["state"] == "killed", changed
    (folder / STATUS).write_bytes(written)
    child.kill()
    child.wait(60)
    status = read(folder)
    assert (status["state"], status["count"], status["asked"]) == ("killed", 1, 4)
    assert (status["rate"], status["left_seconds"], status["workers"]) == (None, None, [])
    assert screen(status)[-1] == "    again"


def test_status_file_is_updated_while_the_campaign_runs(running: tuple[Path, subprocess.Popen[str]]) -> None:
    folder, _ = running
    before = (folder / STATUS).stat().st_mtime_ns
    deadline = time.monotonic() + 120
    while (folder / STATUS).stat().st_mtime_ns == before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (folder / STATUS).stat().st_mtime_ns != before


def test_status_file_with_a_missing_or_wrong_value_is_not_used(tmp_path: Path) -> None:
    with Ledger(tmp_path / LEDGER) as ledger:
        ledger.record(Entry.of(make_rule("k"), DONE))
    status = board_of(tmp_path / STATUS, Clock()).as_json()
    (tmp_path / STATUS).write_text(json.dumps(status))
    assert read(tmp_path)["state"] == "running"
    for key in status:
        (tmp_path / STATUS).write_text(json.dumps({name: value for name, value in status.items() if name != key}))
        assert read(tmp_path)["state"] == "unknown"
    wrong = {
        "state": "x",
        "began": "x",
        "memory": {},
        **{name: [{}] for name in ("by_kernel", "slowest", "bad", "workers")},
    }
    for key, value in wrong.items():
        (tmp_path / STATUS).write_text(json.dumps({**status, key: value}))
        assert read(tmp_path)["state"] == "unknown", key


def test_look_does_not_change_or_create_a_ledger(tmp_path: Path) -> None:
    with Ledger(tmp_path / LEDGER) as ledger:
        ledger.record(Entry.of(make_rule("k"), DONE))
        ledger._db.execute("UPDATE about SET value = 'another' WHERE name = 'format'")
    content = (tmp_path / LEDGER).read_bytes()
    assert counts(look(tmp_path / LEDGER).entries)["done"] == 0
    assert (tmp_path / LEDGER).read_bytes() == content, "who opens it as a campaign does empties it"
    with refused("ledger-unusable"):
        look(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


class Place:
    """The folders and the workers of one campaign."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "cache" / "work" / "campaign-1"
        self.workers = FakeWorkers(root / "workers")
        self.ending: list[str] = []
        self.cache = root / "cache"

    def run(self, *kernels: str, keep_going: bool = False, timeout: float = 3.0) -> CampaignResult:
        rules = [make_rule(kernel) for kernel in kernels]
        self.workers.provide(rules)
        executor = local_executor(self.workers, workers=2, timeout=timeout)
        with Ledger(self.folder / LEDGER) as ledger:
            return run_campaign(
                rules, executor, ledger, self.folder / "out", worker_tree="/src", keep_going=keep_going,
                on_end=self.ending.extend, command="toolchain build kernels", bounds=MemoryBounds(together=9, share=3),
            )  # fmt: skip

    def ask(self, *words: str) -> str:
        done = CliRunner().invoke(app, ["kernels", "status", "--cache", str(self.cache), *words])
        assert done.exit_code == 0, done.output
        return done.stdout


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    only_hanging_ones_time_out(monkeypatch)
    return Place(tmp_path)


def test_summary_of_a_campaign_fits_on_a_screen(place: Place) -> None:
    with pytest.raises(KernelError):
        place.run("good", "fails", "hangs", "slow", timeout=1.5)
    assert len(place.ending) <= 24
    # The line with `toolchain report` may be longer, because it contains the path of the campaign.
    assert all(len(text) <= 80 for text in place.ending if "toolchain report " not in text)
    told = "\n".join(place.ending)
    for part in ("gfx942/hangs/warps-4.hsaco", "TypeError: cannot", "--keep-going", "--kernel-timeout SECONDS"):
        assert part in told
    assert "--kernel-memory" not in told
    status = read(place.folder)
    assert (status["state"], status["count"], status["asked"]) == ("failed", 4, 4)
    assert (status["done"], status["failed"], status["timed_out"], status["reused"]) == (2, 1, 1, 0)
    assert status["memory"]["together"] == 9
    assert status["memory"]["coordinator"] > 10**7


def test_interrupted_campaign_is_stopped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "record", stop)
    with pytest.raises(KeyboardInterrupt):
        place.run("good", "hangs")
    assert read(place.folder)["state"] == "stopped"
    assert place.workers.alive == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kernel-")]


def test_workers_report_their_current_kernel(place: Place) -> None:
    rules = [make_rule("hangs"), make_rule("good")]
    place.workers.provide(rules)
    executor = local_executor(place.workers, workers=2, timeout=None)
    outcomes = executor.run(rules, "/src", str(place.folder))
    next(outcomes)
    deadline = time.monotonic() + 120
    while not (busy := [row for row in executor.workers() if row["kernel"] and row["memory"]]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (row,) = busy
    outcomes.close()
    assert (row["kernel"], row["gpu"], row["compiled"]) == ("hangs", "gfx942", 0)
    assert row["out"].endswith("gfx942/hangs/warps-4.hsaco")
    assert row["memory"] > 10**6
    assert executor.workers() == []


def test_status_is_printed_as_text_and_as_json(place: Place) -> None:
    assert place.ask() == "no unfinished campaign\n"
    with pytest.raises(KernelError):
        place.run("good", "fails")
    lines = place.ask().splitlines()
    assert lines[0].startswith("campaign-1  ")
    assert re.findall(r"\d+", lines[1]) == ["2", "2", "1", "0", "1", "0"]
    assert max(map(len, lines)) <= 80
    assert lines[-1].strip() == "toolchain build kernels"
    (status,) = json.loads(place.ask("--json"))["campaigns"]
    assert status == read(place.folder)


def test_status_contains_reused_results_and_checks_of_numbers(place: Place) -> None:
    place.run("good")
    place.run("good", "fine")
    assert (read(place.folder)["done"], read(place.folder)["reused"]) == (2, 1)
    with Ledger(place.folder / LEDGER) as ledger:
        ledger.note_check("a", {"status": "wrong"})
        ledger.note_check("b", {"status": "right"})
    assert place.ask().splitlines()[2] == "  numbers: 1 right, 1 wrong"
    assert json.loads(place.ask("--json"))["campaigns"][0]["numbers"] == {"right": 1, "wrong": 1}


def test_a_summary_of_many_kernels_is_short() -> None:
    entries = [
        Entry.of(make_rule(f"kernel_{number}"), FAILED, over_memory=number % 3 > 0, reason=f"{number} " * 99)
        for number in range(60)
    ]
    result = CampaignResult(entries=tuple(entries), skipped=0, partial=False, about={})
    lines = summary(result, seconds=7200.0, command="toolchain build aotriton --gpu gfx90a", keep_going=True)
    assert len(lines) <= 30
    assert all(len(text) <= 80 for text in lines if "toolchain" not in text)
    assert "  toolchain kernels run aotriton --gpu gfx90a --jobs 1 --kernel-memory MB" in lines
