"""Output of log records on standard error."""

from __future__ import annotations

import logging

from toolchain.core import console


def setup(verbosity: int) -> None:
    """Send log records to standard error.

    Args:
        verbosity: 0 for warnings, 1 to add informational messages, 2 or more to add debug messages, such as the
            executed commands.
    """
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(max(verbosity, 0), 2)]
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", handlers=[_Handler()], force=True)
    logging.getLogger("urllib3").setLevel(logging.WARNING)


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            console.note(line)
