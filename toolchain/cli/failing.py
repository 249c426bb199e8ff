"""The messages and exit codes of failing verbs."""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from toolchain.cli.streams import Terminated
from toolchain.core import console
from toolchain.core.errors import ConfigError, ResourceError, ToolchainError
from toolchain.core.process import CommandError

P = ParamSpec("P")
R = TypeVar("R")
# An unusable path from the user can cause these errors. ENOENT is absent, because the verbs report missing files
# themselves.
_OF_PATHS = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EIO,
    errno.EEXIST,
}  # fmt: skip


def handled(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a verb so that it prints expected errors as messages, and exits with their exit codes."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        console.begin()
        try:
            return command(*args, **kwargs)
        except (ToolchainError, OSError, RuntimeError, *_of_sqlite()) as error:  # type: ignore[misc] # all are exceptions
            failure = _full_disk(error) or _bad_path(error) or error
            if not isinstance(failure, ToolchainError):
                raise
            console.failure(failure, as_json=any(bool(kwargs.get(name)) for name in ("json_", "json")))
            raise typer.Exit(failure.code) from error
        except EOFError as error:  # without this, Typer would print only "Aborted."
            raise RuntimeError("a file ends early") from error
        except (KeyboardInterrupt, Terminated) as stop:
            console.note(f"stopped; finished and unfinished work is kept. To continue: {console.command()}")
            raise typer.Exit(stop.status if isinstance(stop, Terminated) else 128 + signal.SIGINT) from stop

    return wrapper


def _full_disk(failure: Exception) -> ResourceError | None:
    """Return a ResourceError if a full disk caused a failure; None otherwise."""
    error: BaseException | None = failure
    while error is not None:
        if why := _no_space(error):
            full = ResourceError("disk-full", "the disk is full", why=why, fix="free disk space and run it again")
            if isinstance(failure, ToolchainError):
                full.why, full.further = f"{failure.what}: {why}", failure.further  # `what` may name the file
            return full
        error = error.__cause__
    return None


def _bad_path(error: Exception) -> ConfigError | None:
    """Return a ConfigError for an unusable path, an unreadable file or a deleted current folder; else None."""
    if isinstance(error, RuntimeError):
        return _link_loop(str(error))
    if not isinstance(error, OSError):
        return None
    if isinstance(error, FileNotFoundError) and error.filename is None and _folder_deleted():
        return ConfigError(
            "current-folder-deleted",
            "the current folder was deleted",
            fix="change to an existing folder, or use absolute paths",
        )
    if error.errno == errno.EIO and error.filename is None:  # errors of `read` do not name the file
        return ConfigError(
            "file-unreadable",
            "a file cannot be read",
            why=error.strerror or str(error),
            fix="check the system log for disk errors",
        )
    if error.errno not in _OF_PATHS or error.filename is None:
        return None
    return ConfigError(
        "path-unusable",
        # For a rename to an output file, the second path is the one that the user gave.
        f"{os.fsdecode(error.filename2 or error.filename)} cannot be used",
        why=error.strerror or str(error),
        fix="use another path, or change its permissions",
    )


def _link_loop(text: str) -> ConfigError | None:
    """Return an error if `text` is pathlib's message about a loop of links; None for any other text."""
    if not text.startswith("Symlink loop from "):
        return None
    what = f"{text.removeprefix('Symlink loop from ')} cannot be used"
    return ConfigError("path-unusable", what, why="its symbolic links form a loop", fix="use another path")


def _folder_deleted() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - the path itself is not needed
    except FileNotFoundError:
        return True
    return False


def _no_space(error: BaseException) -> str:
    """Return the text of an error that reports a full disk or an exceeded quota; an empty string for any other error.

    The output of a failed command is searched only for a full disk.
    """
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"{error.strerror}" + (f": {error.filename}" if error.filename else "")
    if isinstance(error, _of_sqlite()) and getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
        return str(error)
    if isinstance(error, CommandError):
        return next((line for line in error.tail if os.strerror(errno.ENOSPC).lower() in line.lower()), "")
    return ""


def _of_sqlite() -> tuple[type[Exception], ...]:
    """Return the error class of sqlite3 in a tuple; an empty tuple if sqlite3 is not imported."""
    if "sqlite3" not in sys.modules:
        return ()
    import sqlite3  # noqa: PLC0415 - it is loaded already

    return (sqlite3.Error,)
