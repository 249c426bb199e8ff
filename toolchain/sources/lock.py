"""Locks between invocations: one works, the others wait and are told for whom."""

from __future__ import annotations

import contextlib
import fcntl
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


@contextlib.contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Hold the lock file `path` together with others inside the block, so that nobody has it alone (see `alone`).

    Where the file cannot be made, in a folder that is read only or not there yet, nobody can remove anything either.
    """
    try:
        if path.parent.parent.is_dir():
            path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            console.note(f"waiting for {_holder(path)}, which tidies up")
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone(path: Path, *, what: str) -> Iterator[None]:
    """Hold the lock file `path` inside the block, alone.

    Raises:
        LockHeldError: another invocation has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeldError(
                f"{what} is in use by {_holder(path)}", why="another invocation is at work", fix="wait until it ends"
            ) from None
        yield
    finally:
        os.close(descriptor)


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
