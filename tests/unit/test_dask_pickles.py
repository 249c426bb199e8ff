"""Nothing that comes from a scheduler runs on a worker or in a campaign: not from its clients, nor from itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import msgpack  # type: ignore[import-untyped] # it comes with Dask
import pytest

from tests.dask_fixtures import Machine, rules_of, until
from tests.unit.test_dask import InBackground, in_a_process
from toolchain.core.errors import UnreachableError
from toolchain.kernels.dask_board import Board, BoardError, Presence, workers_on
from toolchain.kernels.store import FolderStore

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::UserWarning"
    ),
]


class Hostile:
    """Whoever unpickles it writes its process's number into a file."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"echo $PPID >> {self.mark}",)


def everywhere(dask_scheduler: Any, source: str, mark: str) -> int:
    """Run in the scheduler by a hostile client: every answer and every entry of the board is a pickle from now on."""
    space: dict[str, Any] = {}
    exec(source, space)  # noqa: S102 - what a pickle of a class that no one else has would do
    hostile = space["Hostile"](mark)
    board = dask_scheduler.task_metadata["toolchain"]
    for part in ("orders", "answers"):
        for rows in board.get(part, {}).values():
            rows["evil"] = hostile
            rows.update(dict.fromkeys(list(rows), hostile))
    board["workers"]["evil"] = hostile
    board["beats"]["evil"] = hostile
    return os.getpid()


def broken(dask_scheduler: Any, source: str, mark: str) -> None:
    """As `everywhere`: every question ends in an exception that is a pickle."""
    space: dict[str, Any] = {}
    exec(source, space)  # noqa: S102

    def fail(**_: Any) -> None:
        raise type("Bad", (Exception,), {"__reduce__": lambda _: space["Hostile"](mark).__reduce__()})

    dask_scheduler.handlers["get_metadata"] = fail


SOURCE = (
    "import os\nclass Hostile:\n    def __init__(self, mark):\n        self.mark = mark\n"
    "    def __reduce__(self):\n        return os.system, (f'echo $PPID >> {self.mark}',)\n"
)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A scheduler in a process of its own: its address, and that process."""
    file = tmp_path / "scheduler.json"
    words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    child = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", *words],
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        until(lambda: file.exists() and file.read_bytes().rstrip().endswith(b"}"), "scheduler")
        yield json.loads(file.read_bytes())["address"], child.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(30)


def listening(pid: int) -> set[str]:
    """The ports that a process listens on."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(entry.readlink()).removeprefix("socket:[").rstrip("]"))
    rows = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().split("\n")
    ]
    return {row[1] for row in rows if len(row) > 9 and row[3] == "0A" and row[9] in inodes}


def ran(mark: Path) -> set[int]:
    return {int(line) for line in mark.read_text().split()} if mark.exists() else set()


def test_no_pickle_runs_on_a_worker_or_in_a_campaign(scheduler: tuple[str, int], tmp_path: Path) -> None:
    address, scheduler_pid = scheduler
    store, mark = FolderStore(tmp_path / "store"), tmp_path / "mark"
    rules = rules_of("one", "waits", warps=[1])
    worker, desk = Machine(tmp_path / "worker"), Machine(tmp_path / "desk")
    worker.provide(rules)
    child = in_a_process(worker, address, store)
    try:
        campaign = InBackground(desk, rules, store, address)
        until((worker.workers.folder / "waiting").exists, "kernel under way")
        assert listening(child.pid) == set()
        with distributed.Client(address, set_as_default=False) as client:
            assert client.run(os.getpid) == {}, "Dask's own way to run code finds no worker"
            assert client.run_on_scheduler(everywhere, source=SOURCE, mark=str(mark)) == scheduler_pid
            # Both look at the board again and again.
            with contextlib.closing(Board(address)) as board:
                for _ in range(3):
                    beat = next(iter(workers_on(board, Presence()).values()), {}).get("beat")
                    until(lambda: next(iter(workers_on(board, Presence()).values()), {}).get("beat") != beat, "beat")  # noqa: B023
            (worker.workers.folder / "go").touch()
            made = campaign.end()
            client.run_on_scheduler(broken, source=SOURCE, mark=str(mark))
            with contextlib.closing(Board(address)) as board, pytest.raises(BoardError, match="refuses"):
                board.read("workers")
        assert made.counts()["done"] == 2
        assert child.poll() is None
        assert not ran(mark) & {child.pid, os.getpid()}
    finally:
        child.kill()
        child.wait(30)


def test_the_pickle_is_one(scheduler: tuple[str, int], tmp_path: Path) -> None:
    """Dask's own client runs it, whatever deserializers it is told to use."""
    address, _ = scheduler
    mark = tmp_path / "mark"
    program = (
        "import os, sys, distributed\n"
        "client = distributed.Client(sys.argv[1], serializers=['msgpack'], deserializers=['msgpack'])\n"
        "try:\n    client.sync(client.scheduler.get_metadata, keys=['toolchain'], deserializers=['msgpack'])\n"
        "finally:\n    print(os.getpid(), flush=True); os._exit(0)\n"
    )
    with contextlib.closing(Board(address)) as board:
        for part in ("workers", "beats"):
            board.write(part, "x", value=1)
    with distributed.Client(address, set_as_default=False) as client:
        client.run_on_scheduler(everywhere, source=SOURCE, mark=str(mark))
    done = subprocess.run(
        [sys.executable, "-c", program, address],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
        timeout=60,
    )
    assert ran(mark) == {int(done.stdout)}
    with contextlib.closing(Board(address)) as board:
        assert board.read("workers") in ({}, {"x": 1})
    assert os.getpid() not in ran(mark)


# What a scheduler could send


def packed(*frames: bytes, count: int | None = None, size: int | None = None) -> bytes:
    head = struct.pack(f"<{len(frames) + 1}Q", len(frames) if count is None else count, *map(len, frames))
    whole = head + b"".join(frames)
    return struct.pack("<Q", len(whole) if size is None else size) + whole


HELLO = packed(msgpack.packb({"compression": None, "python": (3, 11, 0), "pickle-protocol": 4}))


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A scheduler that says hello and these, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            with contextlib.suppress(OSError):
                there, _ = listener.accept()
                with there:
                    there.sendall(HELLO + b"".join(answers))
                    while there.recv(4096):
                        pass

        threading.Thread(target=talk, daemon=True).start()
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    "answer",
    [
        packed(b"\xc1"),
        packed(b""),
        packed(b"x" * 9, size=1 << 62),
        packed(b"x" * 9, size=3),
        packed(b"x", count=1 << 60),
        packed(b"x", count=0),
        packed(b"x", count=900),
        struct.pack("<QQQ", 17, 1, 1 << 50) + b"x",
        struct.pack("<QQQQ", 25, 2, 1, 1 << 62) + b"\xc0",
        packed(msgpack.packb("x") + b"more"),
        b"",
    ],
)
def test_what_is_no_message_ends_the_connection(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.kernels.dask_board._ANSWER", 1.0)
    with answering(answer) as address, contextlib.closing(Board(address)) as board:
        for _ in range(2):
            with pytest.raises(BoardError):
                board.read("workers")


@pytest.mark.parametrize(
    "value",
    [None, 1, "x", [1], {"a": 1}, {"a": "no JSON"}, {"a": '{"b": 1, "b": 2}'}, {1: "1"}, {"a": {"b": "{}"}},
     {"__Pickled__": 1}, {"a": msgpack.ExtType(5, b"x")}],
)  # fmt: skip
def test_entries_that_are_strange_are_passed_over(value: Any) -> None:
    with (
        answering(packed(msgpack.packb(value), b"behind")) as address,
        contextlib.closing(Board(address)) as board,
    ):
        assert board.read("workers") in ({}, {"1": 1})


def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.kernels.dask_board._CONNECTS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(UnreachableError):
        Board(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
