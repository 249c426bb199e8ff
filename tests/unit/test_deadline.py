"""Tests of time limits, which end a task whatever it is doing."""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.test_pace import HEAD, slow
from toolchain.cli.app import app
from toolchain.core import pace
from toolchain.core.deadline import deadline
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import ResourceError, UnreachableError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.registry import Registry


def problem() -> UnreachableError:
    return UnreachableError("test-error", "time is over")


def compute() -> None:
    while True:
        sum(range(1000))


def swallow() -> None:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(100)


@pytest.mark.parametrize("work", [compute, swallow, lambda: subprocess.run(["sleep", "100"], check=True)])
def test_deadline_interrupts_loops_exception_handlers_and_subprocesses(
    work: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolchain.core.deadline._AGAIN", 100.0)
    tidied = []

    def run() -> None:
        try:
            work()
        finally:
            tidied.append(True)

    began = time.monotonic()
    with pytest.raises(UnreachableError, match="time is over"), deadline(0.2, problem):
        run()
    assert time.monotonic() - began < 90
    assert tidied
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("seconds", [1e300, float("inf")])
def test_limit_that_is_too_large_for_a_timer_is_accepted(seconds: float) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with deadline(seconds, problem):
        pass
    assert signal.getsignal(signal.SIGALRM) is before


def test_deadline_is_accepted_in_a_thread() -> None:
    done: list[bool] = []

    def run() -> None:
        with deadline(0.1, problem):
            done.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done


def test_timeout_limits_the_whole_time_of_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry sends header lines fast enough, but sends them without end."""
    monkeypatch.setattr(pace, "RATE", 0.0)

    def answer(_: int) -> Iterator[bytes]:
        yield HEAD
        yield from itertools.repeat(b"X-Y: z\r\n")

    with slow(answer) as server:
        began = time.monotonic()
        done = CliRunner().invoke(app, ["verify", f"{server.host}/a/b", "--timeout", "1"])
    assert done.exit_code == 18, done.output
    assert "within 1 s" in done.stderr
    assert time.monotonic() - began < 100


def test_blob_larger_than_the_free_space_is_not_requested(tmp_path: Path) -> None:
    blob = Descriptor(media.LAYER, sha256_bytes(b""), 1 << 60)
    with slow(lambda _: iter([b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"])) as server, Registry(server.host) as it:
        with pytest.raises(ResourceError):
            it.pull_blob("a/b", blob, Layout(tmp_path).ensure())
        assert server.asked == 0
