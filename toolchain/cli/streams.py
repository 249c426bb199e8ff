"""End the program cleanly if standard output or standard error cannot be written, e.g. because a pipe is closed."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
from typing import Any, TextIO

from toolchain.core.errors import ResourceError


class ReaderGoneError(SystemExit):
    """The reader of the output, such as `head -1`, closed the pipe."""


class Terminated(SystemExit):
    """This process received a signal that ends it, such as SIGTERM."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        super().__init__(self.status)


class OutputLostError(SystemExit):
    """The output cannot be written, for example because the disk is full."""


class _Guarded(io.TextIOWrapper):
    """A stream that ends the program cleanly if writing fails, instead of raising an OSError in the calling code."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise self._lost(error) from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> SystemExit:
        # The rest of the buffer goes to /dev/null, because otherwise the flush at exit would fail again.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if error.errno == errno.EPIPE:
            return ReaderGoneError(128 + signal.SIGPIPE)
        from toolchain.core import console  # noqa: PLC0415 - only lost output needs it

        what = "standard error" if self.fileno() == 2 else "standard output"
        lost = ResourceError(
            "output-incomplete",
            f"{what} cannot be written",
            why=str(error.strerror),
            fix="free disk space where it is written",
        )
        console.failure(lost, as_json=False)
        return OutputLostError(lost.code)


def guard() -> None:
    """Make failures to write to standard streams end the program cleanly, and open /dev/null for closed streams."""
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # Otherwise the next file that is opened would get this number, and would be used as the standard stream.
            os.open(os.devnull, os.O_RDWR)
            if getattr(sys, name) is None:
                stream = os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8")
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)  # otherwise garbage collection would close the file
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)


def sane_width() -> None:
    """Unset COLUMNS if it is neither empty nor a number from 1 to 9999; a much wider table would fill the memory."""
    text = os.environ.get("COLUMNS", "")
    if text and not re.fullmatch(r"[1-9]\d{0,3}", text):
        del os.environ["COLUMNS"]


def _guarded(stream: TextIO) -> Any:
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # a test has replaced the stream
    # Characters that the encoding lacks are escaped, because a message with escapes is better than none.
    errors = "backslashreplace" if stream.errors == "strict" else stream.errors
    return _Guarded(
        stream.buffer, encoding=stream.encoding, errors=errors, line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )  # fmt: skip


def die_of_pipe() -> None:
    """End this process silently with SIGPIPE, so that its parent sees the signal."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
