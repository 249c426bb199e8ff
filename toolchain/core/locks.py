"""Locks between invocations: one works, and the others wait and say for which process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

from toolchain.core import console
from toolchain.core.cache import Cache
from toolchain.core.console import one_line
from toolchain.core.errors import ConfigError, LockHeldError

PATIENCE = 2.0  # seconds until a waiting invocation says why it waits


@contextlib.contextmanager
def held(path: Path, *, what: str) -> Iterator[None]:
    """Hold the lock file `path` during the block; the kernel releases it when this process dies.

    Another invocation that holds it for longer than `patience` is a LockHeldError. A note is printed after two seconds.

    Args:
        what: the work, for messages.
    """
    import filelock  # noqa: PLC0415 - `in_use`, which every verb calls, needs none of it

    wait = patience()
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=min(PATIENCE, wait))
    except filelock.Timeout:
        holder = _holder(path)
        try:
            if wait > PATIENCE:
                console.note(f"waiting for {holder}: {what}")
            lock.acquire(timeout=max(wait - PATIENCE, 0))
        except filelock.Timeout:
            raise LockHeldError(
                "work-locked",
                f"{what} is held by {holder}",
                why="another invocation is at the same work",
                fix="wait until it ends, or stop it",
            ) from None
    try:
        yield
    finally:
        lock.release()


def patience() -> float:
    """Return how many seconds an invocation waits for another one at the same work (TOOLCHAIN_LOCK_TIMEOUT)."""
    text = os.environ.get("TOOLCHAIN_LOCK_TIMEOUT", "86400")
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise ConfigError(
            "lock-timeout-invalid",
            f"TOOLCHAIN_LOCK_TIMEOUT={text!r} is not a number of seconds",
            fix="give e.g. 3600, or 0 to not wait at all",
        )
    return float(text)


@contextlib.contextmanager
def in_use(cache: Cache, *, make: bool = False) -> Iterator[None]:
    """Hold the shared lock of the cache folder during the block, which excludes `alone`.

    Args:
        make: create the folder first, because something will be written there; otherwise a missing folder is not
            locked.
    """
    if make:
        cache.make()
    try:
        descriptor = _open(cache)
    except OSError:
        # The folder does not exist, or belongs to another user and is read-only.
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            console.note(f"waiting for {_holder(cache.use)}, which prunes the cache")
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone(cache: Cache) -> Iterator[None]:
    """Hold the exclusive lock of the cache folder during the block."""
    descriptor = _open(cache)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeldError(
                "cache-in-use",
                f"{cache.root} is in use by {_holder(cache.use)}",
                why="another invocation is at work there",
                fix="wait until it ends",
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def kept(path: Path) -> Iterator[None]:
    """Keep a file or folder from removal during the block, also by several processes; see `free`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def free(path: Path) -> Iterator[bool]:
    """Give whether a file or folder exists and no process keeps it. During the block no process can begin to keep it.

    The locks work across PID namespaces, and the kernel releases those of a dead process.
    """
    nobody = True
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError):
            nobody = False
        except OSError:  # a file system without locks
            pass
        yield nobody


def _open(cache: Cache) -> int:
    if cache.root.is_dir():
        with contextlib.suppress(OSError):
            cache.locks.mkdir(exist_ok=True)
    try:
        return os.open(cache.use, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:
        return os.open(cache.use, os.O_RDONLY | os.O_CLOEXEC)  # enough for a lock


def _holder(path: Path) -> str:
    """Return `pid N` of the lock's holder by the kernel's table; a note in a file would outlive its process."""
    with contextlib.suppress(OSError, ValueError):
        inode = path.stat().st_ino
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if "->" not in fields and fields[1] == "FLOCK" and int(fields[5].rsplit(":", 1)[1]) == inode:
                pid = int(fields[4])
                if pid > 0:
                    return f"pid {pid}{_verb(pid)}" if pid != os.getpid() else f"pid {pid} (this process)"
    return "another process"


def _verb(pid: int) -> str:
    """Return the verb of another invocation as ` (build llvm)`; empty if unknown."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    at = next((number for number, word in enumerate(words) if Path(word).name == "toolchain"), len(words))
    return f" ({one_line(' '.join(words[at + 1 : at + 4]).strip())})" if words[at + 1 :] else ""
