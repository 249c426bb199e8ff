"""A context manager that ends a long-lived process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator


@contextlib.contextmanager
def attended(child: subprocess.Popen[str]) -> Iterator[None]:
    """Close a process's standard input at the end of the block, and kill its process group two seconds later."""
    try:
        yield
    finally:
        if child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()
        try:
            child.wait(2)
        except subprocess.TimeoutExpired:
            # SIGKILL ends the launcher, and so the PID namespace. Other signals would reach buildah alone.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait(10)
