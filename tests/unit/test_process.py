"""Execution of programs: output, signals and time limits, and errors while the output is read."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from toolchain.core import process

FULL = Path("/dev/full")
TOP = Path(__file__).resolve().parents[2]


def test_signal_without_name_is_reported_by_number() -> None:
    with pytest.raises(process.CommandError, match="ended by signal 35"):
        process.run(["sh", "-c", "kill -35 $$"])


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_unwritable_log_ends_the_program() -> None:
    """Otherwise the program would wait forever, because no process reads its pipe."""
    begun = time.monotonic()
    with pytest.raises(OSError, match="space") as caught:
        process.run(["sh", "-c", "echo one; head -c 1000000 /dev/zero; sleep 600"], log=FULL)
    assert caught.value.errno == errno.ENOSPC
    assert time.monotonic() - begun < 300


def test_exception_of_listener_is_raised() -> None:
    def listen(line: str) -> None:
        raise KeyError(line)

    with pytest.raises(KeyError, match="one"):
        process.run(["sh", "-c", "echo one; head -c 1000000 /dev/zero | tr '\\0' '\\n'; sleep 600"], on_line=listen)
    begun = time.monotonic()
    with pytest.raises(KeyError, match="one"):  # docker's client forwards SIGTERM and keeps running
        process.run(["sh", "-c", "trap '' TERM; echo one; sleep 600"], on_line=listen)
    assert time.monotonic() - begun < 300


def test_lines_of_both_streams_are_kept(tmp_path: Path) -> None:
    heard: list[str] = []
    out: list[str] = []
    err: list[str] = []
    log = tmp_path / "a log's folder" / "log"
    done = process.run(["sh", "-c", "echo one; echo two >&2"], capture=True, log=log, on_line=heard.append)
    assert (done.returncode, done.stdout, sorted(done.tail), sorted(heard)) == (
        0,
        "one\n",
        ["one", "two"],
        ["one", "two"],
    )
    assert sorted(log.read_text().splitlines()[1:]) == ["one", "two"]
    process.run(["sh", "-c", "echo one; echo two >&2"], on_line=out.append, on_stderr=err.append)
    assert (out, err) == (["one"], ["two"])


@contextlib.contextmanager
def fetching(tmp_path: Path, how_to_hang_up: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start `toolchain fetch` with a git that hangs, and yield the tool's process and git's process id."""
    noted, git = tmp_path / "pid", tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text(f"#!/bin/sh\necho $$ >'{noted}.new'; mv '{noted}.new' '{noted}'; exec sleep 3000\n")
    git.chmod(0o755)
    env = {**os.environ, "PATH": f"{git.parent}:{os.environ['PATH']}", "TOOLCHAIN_CACHE": str(tmp_path / "cache")}
    words = ["fetch", "llvm", "--source", f"llvm=https://example.test/r@{'1' * 40}"]
    # The tests may run under nohup or in the background, and child processes inherit ignored signals.
    argv = ["env", "--default-signal=INT", f"--{how_to_hang_up}-signal=HUP", sys.executable, "-m", "toolchain", *words]
    with (tmp_path / "stderr").open("wb") as told, subprocess.Popen(argv, cwd=TOP, env=env, stderr=told) as tool:
        try:
            _until(noted.exists)
            yield tool, int(noted.read_text())
        finally:
            tool.kill()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_ends_the_tool_and_its_children(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with fetching(tmp_path, "default") as (tool, child):
        tool.send_signal(number)
        assert tool.wait(300) == code
    _until(lambda: not _alive(child))
    assert (tmp_path / "stderr").read_text().count("To continue: toolchain fetch llvm --source llvm=https://") == 1


def test_hangup_is_ignored_under_nohup(tmp_path: Path) -> None:
    with fetching(tmp_path, "ignore") as (tool, child):
        tool.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            tool.wait(2)
        tool.send_signal(signal.SIGTERM)
        assert tool.wait(300) == 143
    _until(lambda: not _alive(child))


AT_FORK = """
def work(*_, **__):
    os.register_at_fork(after_in_parent=lambda: [os.kill(os.getpid(), NUMBER), sum(range(1000))])
    process.run(["sleep", "20"])
"""
# Python's code for imports has such callbacks, which run while the lock of all imports is held.
AT_IMPORT = """
callback = "def callback(_): os.kill(os.getpid(), NUMBER); sum(range(1000))"
exec(compile(callback, "<frozen importlib._bootstrap>", "exec"))

def work(*_, **__):
    lock = set()
    known = weakref.ref(lock, callback)
    del lock
    time.sleep(20)
"""
INTERRUPTED = """
import os, signal, time, weakref
from toolchain.core import process
from toolchain.cli import app, doctor_cmd

NUMBER = {number}
signal.signal(signal.SIGINT, signal.default_int_handler)
{work}
doctor_cmd.checkup.examine = work
app.main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("work", [AT_FORK, AT_IMPORT], ids=["fork", "import"])
def test_a_signal_during_a_fork_or_an_import_is_not_lost(work: str, number: signal.Signals, code: int) -> None:
    """Python discards an exception that a handler raises there."""
    script = INTERRUPTED.format(number=int(number), work=work)
    done = subprocess.run([sys.executable, "-c", script, "doctor"], cwd=TOP, timeout=500, check=False)
    assert done.returncode == code


@pytest.mark.parametrize("stdin", [None, "x" * 300_000])
def test_a_program_that_takes_too_long_is_killed(stdin: str | None) -> None:
    done = process.run(["sleep", "600"], stdin=stdin, timeout=1, check=False)
    assert (done.returncode, done.tail[-1]) == (-signal.SIGTERM, "(killed after 1 s)")


def test_helpers_end_with_a_killed_tool(tmp_path: Path) -> None:
    """Otherwise a git whose server no longer answers would leave git-remote-https behind."""
    noted = tmp_path / "pid"
    program = f"sleep 600 & echo $$ $! >'{noted}.new'; mv '{noted}.new' '{noted}'; wait"
    script = "import sys; from toolchain.core import process\nprocess.run(sys.argv[1:], helpers=True)"
    tool = subprocess.Popen([sys.executable, "-c", script, "sh", "-c", program], cwd=TOP)
    _until(noted.exists)
    leader, helper = noted.read_text().split()
    _until(lambda: _watchers(leader) != [])
    assert _alive(int(helper))
    tool.kill()
    tool.wait()
    _until(lambda: not _alive(int(helper)))


def test_background_process_of_a_program_is_not_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ssh with ControlPersist leaves such a process, detached as by setsid."""
    monkeypatch.setattr(process, "_LAST_LINES", 0.5)
    began = time.monotonic()
    process.run(["sh", "-c", f"setsid sleep 600 & echo $! >'{tmp_path}/pid'"])
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert time.monotonic() - began < 300


def test_program_with_helpers_keeps_exit_code_and_output(tmp_path: Path) -> None:
    done = process.run(["sh", "-c", f"echo $$ >'{tmp_path}/pid'; echo out; exit 3"], check=False, helpers=True)
    assert (done.returncode, done.tail) == (3, ("out",))
    assert _watchers((tmp_path / "pid").read_text()) == [], "the watch outlived what it watched"


def _watchers(pid: str) -> list[Path]:
    """Return the /proc files of the processes that watch the process `pid`."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if _says(path, pid)]


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
    end = time.monotonic() + 300
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)
