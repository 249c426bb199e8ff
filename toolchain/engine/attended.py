"""A long-lived worker's process ends with the block that uses it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator


@contextlib.contextmanager
def attended(child: subprocess.Popen[str]) -> Iterator[None]:
    """End a worker with the block: its stdin is closed; two seconds later its process group is killed."""
    try:
        yield
    finally:
        if child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()
        try:
            child.wait(2)
        except subprocess.TimeoutExpired:
            # SIGKILL to buildah's wrapper ends the PID namespace; a polite signal would reach buildah alone.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait(10)
