"""A long-lived worker's process: its last words are kept, and it ends with the block that uses it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def attended(child: subprocess.Popen[str], log: Path | None) -> Iterator[None]:
    """Read a worker's standard error into `log`, if there is one, and end the worker with the block.

    Its stdin is closed then; what has not ended two seconds later is killed, with its process group.
    """
    reader = None
    if log is not None:
        reader = threading.Thread(target=_drain, args=(child, log), daemon=True)
        reader.start()
    try:
        yield
    finally:
        _end(child)
        if reader is not None:
            reader.join(5)


def _drain(child: subprocess.Popen[str], log: Path) -> None:
    assert child.stderr is not None  # noqa: S101
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8", errors="replace") as sink:
        for line in child.stderr:
            sink.write(line)
            sink.flush()


def _end(child: subprocess.Popen[str]) -> None:
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
