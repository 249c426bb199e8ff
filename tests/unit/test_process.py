"""The one way to run a program: what is read of it, and what happens when reading fails."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from toolchain import process

FULL = Path("/dev/full")
TOP = Path(__file__).resolve().parents[2]


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


def test_helpers_end_with_a_killed_tool(tmp_path: Path) -> None:
    """A git whose other side has gone silent leaves git-remote-https behind otherwise."""
    noted = tmp_path / "pid"
    program = f"sleep 60 & echo $! >'{noted}.new'; sleep 1; mv '{noted}.new' '{noted}'; wait"
    script = "import sys; from toolchain import process\nprocess.run(sys.argv[1:], helpers=True)"
    tool = subprocess.Popen([sys.executable, "-c", script, "sh", "-c", program], cwd=TOP)
    _until(noted.exists)
    helper = int(noted.read_text())
    assert _alive(helper)
    tool.kill()
    tool.wait()
    _until(lambda: not _alive(helper))


def test_a_program_with_helpers_ends_as_others_do(tmp_path: Path) -> None:
    done = process.run(["sh", "-c", f"echo $$ >'{tmp_path}/pid'; echo out; exit 3"], check=False, helpers=True)
    assert (done.returncode, done.tail) == (3, ("out",))
    watchers = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _says(path, (tmp_path / "pid").read_text())]
    assert watchers == [], "the watch outlived what it watched"


def _says(path: Path, pid: str) -> bool:
    try:
        return path.read_bytes().split(b"\0")[-2:-1] == [pid.strip().encode()]
    except OSError:
        return False


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _until(true: Callable[[], bool]) -> None:
    for _ in range(300):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen in 30 s")
