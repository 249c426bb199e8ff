"""Execution of programs on the host.

Command lines are not interpreted by a shell. Programs get a minimal environment, start in `/` unless the caller names
another folder, and end when this process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypedDict, Unpack

from toolchain.core.environment import clean_environment, search_path
from toolchain.core.errors import EngineError, LimitError, ToolchainError

LOG = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
TAIL_LINES = 40
# A program's output is kept in memory, which a hostile program could fill without these limits.
_LONGEST_LINE = 64 << 10  # characters; a longer line is read in pieces
_LARGEST_OUTPUT = 256 << 20  # characters; the limit for captured output
_LAST_LINES = 5.0  # seconds to wait for the last lines after a program has ended


class CommandError(ToolchainError):
    """A program exited with an error, or was ended by a signal."""

    def __init__(self, argv: Sequence[str], returncode: int, tail: Sequence[str]) -> None:
        self.returncode = returncode
        self.tail = tuple(tail)
        how = f"was ended by {_signal(-returncode)}" if returncode < 0 else f"exited with {returncode}"
        super().__init__(
            "program-failed", f"{argv[0]} {how}", why="\n".join(self.tail[-TAIL_LINES:]), fix=f"run: {shlex.join(argv)}"
        )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no names
        return f"signal {number}"


class RunOptions(TypedDict, total=False):
    """Options for running a program on the host or in a container.

    Every option is None or False by default, except `check`, which is True.

    env: environment variables to add to the clean environment, or to the environment of the image.
    log: a file to which every line of output is appended.
    on_line: a function that is called with each line of both streams, without its newline.
    on_stderr: a function that is called instead of `on_line` for lines of standard error.
    capture: whether the result contains all of standard output.
    check: whether to raise a CommandError if the exit code is not 0.
    timeout: seconds after which the program is killed.
    """

    env: Mapping[str, str] | None
    log: Path | None
    on_line: Callable[[str], None] | None
    on_stderr: Callable[[str], None] | None
    capture: bool
    check: bool
    timeout: float | None


@dataclass(frozen=True)
class Result:
    """The exit code of a program, its standard output if captured, and the last lines of both streams."""

    returncode: int
    stdout: str
    tail: tuple[str, ...]


def find(program: str) -> str | None:
    """Return the path of a program; None if it is missing. A name without a slash is looked up in `search_path()`."""
    return shutil.which(program, path=search_path())


def which(program: str, *, fix: str = "") -> str:
    """Return the path of a program as `find` does, but raise an EngineError if it is missing."""
    path = find(program)
    if path is None:
        if "/" in program:
            raise EngineError(
                "program-not-executable", f"{program} is not an executable file", fix=fix or "check the path"
            )
        raise EngineError("program-missing", f"{program} is not installed", fix=fix or f"apt-get install {program}")
    return path


def python(*words: str) -> list[str]:
    """Return a command line that starts this Python, isolated from the caller's folder and environment.

    `-I` keeps the current folder, the script's folder and the user's site-packages out of the module path, and makes
    Python ignore `PYTHON*` environment variables.
    """
    return [sys.executable, "-I", *words]


def _words(argv: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the words of a command line as strings, and log them; raise an EngineError if the program is missing.

    A `Path` becomes absolute, because the program starts in a folder other than the caller's.
    """
    words = [os.fspath(word.absolute() if isinstance(word, Path) else word) for word in argv]
    which(words[0])
    LOG.debug("+ %s", shlex.join(words))
    return words


def _file(program: str) -> str:
    """Return the absolute path of a program; a relative one would be wrong in the folder where the program starts."""
    return str(Path(which(program)).absolute())


def die_with_parent() -> None:  # pragma: no cover - runs in the child
    """Make the kernel kill this process when the thread that forked it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    cwd: Path | None = None,
    stdin: str | None = None,
    helpers: bool = False,
    **how: Unpack[RunOptions],
) -> Result:
    """Run a program to its end, and return its result.

    If the log cannot be written or a callback fails, the program is terminated and the error is raised.

    Args:
        cwd: the working directory; by default `/`, because the current directory may be a hostile checkout.
        stdin: the text for standard input; by default it is empty.
        helpers: whether to kill the program's whole process group if this process is killed.
    """
    words = _words(argv)
    timeout, on_line = how.get("timeout"), how.get("on_line")
    on_stderr = how.get("on_stderr") or on_line
    with contextlib.ExitStack() as stack:
        sink: IO[str] | None = None
        if (log := how.get("log")) is not None:
            sink = stack.enter_context(opened_log(log))
            sink.write(f"+ {shlex.join(words)}\n")
        child = stack.enter_context(_started(words, cwd=cwd, env=how.get("env"), stdin=stdin is not None))
        if helpers:
            stack.enter_context(_ending_with_us(child))
        lines = _Streams(child, sink)
        work: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
            "stdout": (lines.pump, (child.stdout, how.get("capture", False), on_line)),
            "stderr": (lines.pump, (child.stderr, False, on_stderr)),
        }
        if stdin is not None:
            # A thread writes, because `timeout` must also end a program that does not read its input.
            work["stdin"] = (_write, (child.stdin, stdin))
        threads = {name: threading.Thread(target=does, args=given, daemon=True) for name, (does, given) in work.items()}
        for thread in threads.values():
            thread.start()
        patience = _LAST_LINES
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            kill_group(child)
            lines.tail.append(f"(killed after {timeout:.0f} s)")
        except BaseException:  # for example Ctrl-C, after which nobody needs the last lines
            kill_group(child)
            patience = 0.1
            raise
        finally:
            for name, thread in threads.items():
                thread.join(patience)
                # A program in the background, such as ssh with ControlPersist, may keep the pipe open. Closing a stream
                # that a thread still uses would block, so the stream is left open.
                if thread.is_alive():
                    setattr(child, name, None)
        code = child.returncode
        if lines.failed is not None:
            raise lines.failed
    if how.get("check", True) and code != 0:
        raise CommandError(words, code, tuple(lines.tail))
    return Result(code, "".join(lines.whole), tuple(lines.tail))


def _write(stream: IO[str], text: str) -> None:
    with contextlib.suppress(BrokenPipeError), stream:
        stream.write(text)


def opened_log(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8", errors="replace")


def lines_of(stream: IO[str]) -> Iterator[str]:
    """Yield the lines of a program's output; a very long line is split into pieces, to limit the use of memory."""
    return iter(lambda: stream.readline(_LONGEST_LINE), "")


class Lines:
    """Collect the output of a program, write it to a log, and pass it to a callback, line by line.

    Attributes:
        tail: the last lines, without newlines.
        whole: the captured lines, with newlines.
    """

    def __init__(self, log: IO[str] | None) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES * 50)
        self.whole: list[str] = []
        self._kept = 0
        self._log = log

    def take(self, line: str, *, keep: bool, on_line: Callable[[str], None] | None) -> None:
        """Add a line of output to `tail` and the log, and pass it to `on_line`.

        If `keep` is set, also add the line to `whole`; raise a LimitError if `whole` becomes too large.
        """
        text = line.rstrip("\n")
        self.tail.append(text)
        if keep:
            self._kept += len(line)
            if self._kept > _LARGEST_OUTPUT:
                raise LimitError(
                    "program-too-loud",
                    "a program printed too much output",
                    why=f"the limit is {_LARGEST_OUTPUT >> 20} MiB",
                    fix="check the program, which is named in the log",
                )
            self.whole.append(line)
        if self._log is not None:
            self._log.write(line)
            self._log.flush()
        if on_line is not None:
            on_line(text)


class _Streams(Lines):
    """The output of a program's two streams. Each stream is read by its own thread."""

    def __init__(self, child: subprocess.Popen[str], log: IO[str] | None) -> None:
        super().__init__(log)
        self.failed: Exception | None = None
        self._child = child
        self._lock = threading.Lock()

    def pump(self, stream: IO[str], keep: bool, on_line: Callable[[str], None] | None) -> None:
        """Pass each line of a stream to `take`, and close the stream at its end.

        If `take` raises an exception, it is kept in `failed`, the program is terminated, and later lines are discarded.
        """
        with stream:
            for line in lines_of(stream):
                with self._lock:
                    if self.failed is not None:
                        continue
                    try:
                        self.take(line, keep=keep, on_line=on_line)
                    except Exception as error:  # noqa: BLE001 - run() raises it
                        # The pipe must still be read while the program ends, or the program would block.
                        self.failed = error
                        threading.Thread(target=kill_group, args=(self._child,), daemon=True).start()


@contextlib.contextmanager
def _started(
    words: Sequence[str], *, cwd: Path | None, env: Mapping[str, str] | None, stdin: bool
) -> Iterator[subprocess.Popen[str]]:
    # The kernel sends PDEATHSIG when the *thread* that forked ends. So callers must start a program in the main thread,
    # or in a thread that waits for the program, as run() does.
    child = subprocess.Popen(
        words,
        executable=_file(words[0]),
        cwd=cwd or "/",
        env=clean_environment(env),
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - only prctl runs between fork and exec
    )
    try:
        yield child
    finally:
        # Once the child's exit code has been read, its group's id may be reused, so the group is not killed then.
        if child.returncode is None:
            kill_group(child)
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


@contextlib.contextmanager
def _ending_with_us(child: subprocess.Popen[Any]) -> Iterator[None]:
    """Kill the child's process group if this process ends during the block, even by SIGKILL.

    PDEATHSIG kills only the child itself. Therefore a shell in a process group of its own reads from a pipe that this
    process never writes to. When this process ends, the kernel closes the pipe, and the shell kills the child's group.
    """
    ours, theirs = os.pipe()
    try:
        watch = subprocess.Popen(
            ["sh", "-c", 'read -r _; kill -KILL "-$1"', "sh", str(child.pid)],
            executable=_file("sh"),
            cwd="/",
            env=clean_environment(),
            stdin=ours,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
        finally:
            watch.kill()
            watch.wait()
    finally:
        os.close(ours)
        os.close(theirs)


@contextlib.contextmanager
def piped(
    argv: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a program with pipes for its three streams; if it still runs after the block, kill its process group.

    The caller must also read standard error, because the program blocks when that pipe is full. The calling thread must
    live longer than the block, because the kernel kills the program when the thread that started it ends.
    """
    words = _words(argv)
    with _started(words, cwd=None, env=env, stdin=True) as child:
        yield child


@contextlib.contextmanager
def output(argv: Sequence[str | os.PathLike[str]], *, stdin: IO[bytes] | None = None) -> Iterator[IO[bytes]]:
    """Yield the standard output of a program, such as a decompressor, as a stream of bytes.

    If the block raises an exception, the program is terminated. Otherwise, a CommandError is raised at the end of the
    block if the program failed.
    """
    words = _words(argv)
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            words,
            executable=_file(words[0]),
            cwd="/",
            env=clean_environment(),
            stdin=stdin or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - only prctl runs between fork and exec
            pipesize=1 << 20,
        )
        assert child.stdout is not None  # noqa: S101
        try:
            with child.stdout:
                yield child.stdout
            code = child.wait()
        finally:
            if child.poll() is None:
                kill_group(child)
        if code != 0:
            errors.seek(0)
            raise CommandError(words, code, errors.read().decode(errors="replace").splitlines()[-TAIL_LINES:])


def kill_group(child: subprocess.Popen[Any]) -> None:
    """Send SIGTERM to the process group of a child, and SIGKILL if the child does not end within 3 seconds."""
    for sign, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience)
            return


# Builds must not depend on the name of the host. Root in a user namespace cannot write to /proc/sys, but can run
# `hostname`.
_NAMED = '{ echo toolchain >/proc/sys/kernel/hostname || hostname toolchain; } 2>/dev/null || :; exec "$@"'


def contained(argv: Sequence[str], *, network: bool) -> list[str]:
    """Return a command line that runs `argv` in its own PID namespace, and without a network unless `network` is set.

    If the command `unshare` in it is killed, even by SIGKILL, the kernel kills all processes in the PID namespace.
    """
    flags = ["--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
    if not network:
        flags.append("--net")
    if os.geteuid() != 0:
        flags.append("--map-root-user")
    return ["unshare", *flags, "--", "sh", "-c", _NAMED, "sh", *argv]
