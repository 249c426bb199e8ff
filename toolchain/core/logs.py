"""Output of log records on standard error."""

from __future__ import annotations

import logging

from toolchain.core import console


def setup(verbosity: int) -> None:
    """Send log records to standard error: warnings for verbosity 0, also information for 1, also commands for 2."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(max(verbosity, 0), 2)]
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", handlers=[_Handler()], force=True)
    logging.getLogger("urllib3").setLevel(logging.WARNING)


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            console.note(line)
