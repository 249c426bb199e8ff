"""Output of data on standard output, and of messages on standard error."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

from toolchain.core.errors import ToolchainError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PIPED = 100  # columns; the width of tables in a file or pipe unless COLUMNS is set

# These characters control a terminal, end a line, change the direction of text or are invisible. The newline is not
# among them, because indented JSON contains it.
_UNSEEN = (
    "\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\xad\\u034f\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u115f\\u1160"
    "\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ud800-\\udfff\\ufe00-\\ufe0f\\ufeff"
    "\\uffa0\\ufff9-\\ufffb\\U000110bd\\U000110cd\\U00013430-\\U0001343f\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a"
    "\\U000e0000-\\U000e0fff"
)
_HARMFUL = re.compile(f"[\\n{_UNSEEN}]")
_HARMFUL_IN_JSON = re.compile(f"[{_UNSEEN}]|#(?=#\\[)")
# GitHub's runner executes commands in the output: `::` at the start of a line, even after spaces, and `##[` anywhere.
_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#\[)")
_printed: list[Any] = []
"""The JSON documents that this command has printed; a command prints at most one."""


@functools.cache
def err() -> Console:
    """Return the console that writes to standard error."""
    from rich.console import Console  # noqa: PLC0415 - the import is slow

    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def plain(text: str) -> str:
    """Return untrusted text as one safe line.

    Control characters, line ends, characters that reverse or hide text, and commands for GitHub's runner are escaped.
    """
    seen = _HARMFUL.sub(_escape, text)
    return _COMMAND.sub(lambda match: (match[1] or "") + ("\\x3a" if match[0].endswith(":") else "\\x23"), seen)


def plain_lines(text: str) -> str:
    """Return text after making each of its lines safe with `plain`."""
    return "\n".join(map(plain, text.split("\n")))


def _escape(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 1 << 8 else f"\\u{number:04x}" if number < 1 << 16 else f"\\U{number:08x}"


def one_line(text: str) -> str:
    """Return text with unsafe characters and line ends replaced by `?`."""
    return _HARMFUL.sub("?", text)


def note(text: str) -> None:
    """Print one line on standard error."""
    err().print(plain(text), markup=False)


def warn(text: str) -> None:
    """Print a warning on standard error; in a GitHub workflow, it is shown as an annotation."""
    err().print(_announced("warning", text, "warning: "), style="yellow", markup=False)


def _announced(command: str, text: str, otherwise: str) -> str:
    """In a GitHub workflow, return an annotation of the kind `command`; elsewhere, prefix `text` with `otherwise`."""
    if os.environ.get("GITHUB_ACTIONS"):
        return f"::{command}::{plain(text).replace('%', '%25')}"
    return plain(f"{otherwise}{text}")


def command() -> str:
    """Return the command line of this invocation, quoted for a shell."""
    return shlex.join(["toolchain", *sys.argv[1:]])


def begin() -> None:
    """Forget the JSON documents of earlier commands, so that `error_data` prints an error of the next command."""
    _printed.clear()


def data(value: Any) -> None:
    """Print `value` as JSON on standard output."""
    _printed.append(value)
    plain_ascii = "utf" not in (sys.stdout.encoding or "utf-8").lower()
    written = json.dumps(value, indent=2, sort_keys=False, ensure_ascii=plain_ascii)
    # Unsafe characters become JSON escapes, so that a JSON parser still returns the original text.
    _write(_HARMFUL_IN_JSON.sub(lambda match: "\\u0023" if match[0] == "#" else json.dumps(match[0])[1:-1], written))


def show(*pictures: RenderableType) -> None:
    """Print tables on standard output; in a file or pipe, they are at most COLUMNS (by default 100) columns wide."""
    from rich.console import Console  # noqa: PLC0415 - the import is slow

    out = Console(file=sys.stdout, highlight=False, emoji=False)
    if not out.is_terminal:
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdecimal() else _PIPED
        out = Console(file=sys.stdout, highlight=False, width=width, emoji=False)
    for picture in pictures:
        out.print(picture)


def text(*cells: str) -> None:
    """Print cells on standard output as one line, separated by tabs."""
    _write("\t".join(map(plain, cells)))


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def failure(error: ToolchainError, *, as_json: bool) -> None:
    """Print an error as text on standard error and, if `as_json` is set, also as JSON on standard output.

    If the command has already printed its result as JSON, the error is not printed as JSON, because programs could not
    parse an output with two documents.
    """
    err().print(_announced("error", f"{error.title} [{error.id}]: {error.what}", ""), style="bold red", markup=False)
    if error.why:
        err().print(plain_lines(f"  why: {error.why}"), markup=False)
    if error.to_do:
        err().print(plain_lines("  do:  " + error.to_do.replace("\n", "\n       ")), markup=False)
    if as_json:
        error_data(error.as_json())


def error_data(value: Any) -> None:
    """Print an error as JSON, unless this command has already printed a document."""
    if not _printed:
        data(value)


def size(count: float) -> str:
    """Return a number of bytes as text in decimal units, such as `45.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def share(done: int, total: int) -> str:
    """Return progress in bytes as text, such as `45.2 MB of 168.3 MB (26 %)`; only `45.2 MB` if the total is 0."""
    return f"{size(done)} of {size(total)} ({100 * min(done, total) // total} %)" if total else size(done)


def duration(seconds: float) -> str:
    """Return a number of seconds as text, such as `42 s`, `3 min 05 s` or `2 h 07 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
