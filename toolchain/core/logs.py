"""Log records on standard error."""

from __future__ import annotations

import functools
import logging

from toolchain.core import console


def setup(verbosity: int) -> None:
    """Send log records to standard error; 0 shows warnings, 1 informs, 2 shows every command."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(max(verbosity, 0), 2)]
    logging.basicConfig(level=level, handlers=[_Handler()], force=True)
    logging.getLogger("urllib3").setLevel(logging.WARNING)


class _Handler(logging.Handler):
    """Rich's handler, made for the first record: most commands log none."""

    def emit(self, record: logging.LogRecord) -> None:
        _rich_handler().emit(record)


@functools.cache
def _rich_handler() -> logging.Handler:
    from rich.logging import RichHandler  # noqa: PLC0415 - see `console.err`

    handler = RichHandler(console=console.err(), show_time=False, show_path=False, rich_tracebacks=False)
    handler.setFormatter(_Plain("%(message)s"))
    return handler


class _Plain(logging.Formatter):
    """Records without what would steer the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return console.plain_lines(super().format(record))
