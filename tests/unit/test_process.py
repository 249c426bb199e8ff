"""The one way to run a program: what is read of it, and what happens when reading fails."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest

from toolchain import process

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_log_that_cannot_be_written_ends_the_program() -> None:
    """Nobody would read its pipe, and it would wait for ever."""
    begun = time.monotonic()
    with pytest.raises(OSError, match="No space left") as caught:
        process.run(["sh", "-c", "echo one; head -c 1000000 /dev/zero; sleep 60"], log=FULL)
    assert caught.value.errno == errno.ENOSPC
    assert time.monotonic() - begun < 50


def test_what_a_listener_raises_is_raised() -> None:
    def listen(line: str) -> None:
        raise KeyError(line)

    with pytest.raises(KeyError, match="one"):
        process.run(["sh", "-c", "echo one; head -c 1000000 /dev/zero | tr '\\0' '\\n'; sleep 60"], on_line=listen)


def test_lines_of_both_streams_are_kept(tmp_path: Path) -> None:
    heard: list[str] = []
    log = tmp_path / "a log's folder" / "log"
    done = process.run(["sh", "-c", "echo one; echo two >&2"], capture=True, log=log, on_line=heard.append)
    assert (done.returncode, done.stdout, sorted(done.tail), sorted(heard)) == (
        0,
        "one\n",
        ["one", "two"],
        ["one", "two"],
    )
    assert sorted(log.read_text().splitlines()[1:]) == ["one", "two"]
