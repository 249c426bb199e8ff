"""What people see: standard output is data, standard error is for people."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

from toolchain.errors import ToolchainError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_WIDE = 220  # columns of a table that goes into a file or a log
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_IN_LINES = re.compile(r"[\x00-\x1f\x7f]")
_said: list[Any] = []
"""What this command has printed as data; a command prints one document."""


@functools.cache
def err() -> Console:
    """Standard error, for people. Rich is loaded for the first line that is said."""
    from rich.console import Console  # noqa: PLC0415 - a third of the time that `toolchain --version` may take

    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def plain(text: str) -> str:
    """Text without control characters: names and messages of strangers must not paint over what stands there."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def one_line(text: str) -> str:
    """Text for a file or a command that must not span lines, nor hold what a lock cannot."""
    return _IN_LINES.sub("?", text)


def note(text: str) -> None:
    """One line for people."""
    err().print(plain(text), markup=False)


def warn(text: str) -> None:
    """A warning for people; GitHub shows it beside the file."""
    prefix = "::warning::" if os.environ.get("GITHUB_ACTIONS") else "warning: "
    err().print(plain(f"{prefix}{text}"), style="yellow", markup=False)


def command() -> str:
    """This invocation, to be typed again."""
    return shlex.join(["toolchain", *sys.argv[1:]])


def begin() -> None:
    """A command begins: it has printed no data yet."""
    _said.clear()


def data(value: Any) -> None:
    """Print `value` as JSON on standard output."""
    _said.append(value)
    plain_ascii = "utf" not in (sys.stdout.encoding or "utf-8").lower()
    written = json.dumps(value, indent=2, sort_keys=False, ensure_ascii=plain_ascii)
    text(_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", written))


def show(*pictures: RenderableType) -> None:
    """Print tables on standard output; where nobody watches they are wide, since what is cut off is lost."""
    from rich.console import Console  # noqa: PLC0415 - see `err`

    out = Console(file=sys.stdout, highlight=False, emoji=False)
    if not out.is_terminal:
        out = Console(file=sys.stdout, highlight=False, width=_WIDE, emoji=False)
    for picture in pictures:
        out.print(picture)


def text(value: str) -> None:
    """Print plain data on standard output."""
    # Text of others may hold what no encoding can: half a surrogate pair out of somebody's JSON.
    sys.stdout.write(plain(value.encode("utf-8", "backslashreplace").decode("utf-8")) + "\n")
    sys.stdout.flush()


def failure(error: ToolchainError, *, as_json: bool) -> None:
    """Show an expected error: for people on standard error, with `--json` also as data.

    A command that has printed its result as data (what differed, what is not trusted) has told a script why it fails;
    a second document would make the whole unreadable.
    """
    prefix = "::error::" if os.environ.get("GITHUB_ACTIONS") else ""
    err().print(plain(f"{prefix}{error.title}: {error.what}"), style="bold red", markup=False)
    if error.why:
        err().print(plain(f"  why: {error.why}"), markup=False)
    if error.fix:
        err().print(plain(f"  do:  {error.fix}"), markup=False)
    if as_json:
        error_data(error.as_json())


def error_data(value: Any) -> None:
    """Print an error as JSON, unless this command has printed a document."""
    if not _said:
        data(value)


def size(count: float) -> str:
    """Bytes for people, decimal units as registries count them."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def duration(seconds: float) -> str:
    """Seconds for people: `42 s`, `3 min 05 s`, `2 h 07 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
