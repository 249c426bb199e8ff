"""A context manager that ends a long-lived process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator


@contextlib.contextmanager
def attended(child: subprocess.Popen[str]) -> Iterator[None]:
    """After the block, close the stdin of `child`, and kill its process group if `child` runs for two more seconds."""
    try:
        yield
    finally:
        if child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()
        try:
            child.wait(2)
        except subprocess.TimeoutExpired:
            # If the child is the launcher, SIGKILL also makes the kernel end its whole PID namespace.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait(10)
