"""Locks between invocations: one works, the others wait and are told for whom."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import filelock

from toolchain import console
from toolchain.errors import LockHeldError

PATIENCE = 2.0  # seconds before a waiting invocation says why it waits


@contextlib.contextmanager
def held(path: Path, *, what: str, wait: bool = True) -> Iterator[None]:
    """Hold the lock file `path` inside the block; the kernel frees it when this process dies, however it dies.

    Args:
        what: the work, for the message.
        wait: block until it is free, with a note after two seconds; otherwise fail at once.

    Raises:
        LockHeldError: another invocation holds it and `wait` is False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE if wait else 0)
    except filelock.Timeout:
        holder = _holder(path)
        if not wait:
            raise LockHeldError(
                f"{what} is held by {holder}", why="another invocation is at the same work", fix="wait until it ends"
            ) from None
        console.note(f"waiting for {holder}, which is at {what}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    """`pid N` of the lock's holder, from the kernel's table: a note in the file would outlive a killed process."""
    with contextlib.suppress(OSError, ValueError):
        inode = path.stat().st_ino
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if "->" not in fields and fields[1] == "FLOCK" and int(fields[5].rsplit(":", 1)[1]) == inode:
                pid = int(fields[4])
                if pid > 0:
                    return f"pid {pid}" if pid != os.getpid() else f"pid {pid} (this process)"
    return "another process"
