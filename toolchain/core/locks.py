"""Locks between invocations of this tool."""

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

PATIENCE = 2.0  # seconds until a waiting invocation prints what it waits for


@contextlib.contextmanager
def held(path: Path, *, what: str) -> Iterator[None]:
    """Lock the file `path` during the block; the kernel releases the lock when this process dies.

    If another invocation holds the lock, wait for it, and raise a LockHeldError after `patience()` seconds. If the wait
    takes longer than two seconds, print a note that contains `what`, a description of the work.
    """
    import filelock  # noqa: PLC0415 - the import is slow

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
                f"{what} is locked by {holder}",
                why="another invocation is doing the same work",
                fix="wait until it ends, or stop it",
            ) from None
    try:
        yield
    finally:
        lock.release()


def patience() -> float:
    """Return how many seconds to wait for another invocation that does the same work.

    The number is the value of TOOLCHAIN_LOCK_TIMEOUT, or one day if it is not set. Raise a ConfigError if the value is
    not a decimal number such as `3600` or `0.5`.
    """
    text = os.environ.get("TOOLCHAIN_LOCK_TIMEOUT", "86400")
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        raise ConfigError(
            "lock-timeout-invalid",
            f"TOOLCHAIN_LOCK_TIMEOUT={text!r} is not a number of seconds",
            fix="set it to a number such as 3600, or to 0 to fail at once",
        )
    return float(text)


@contextlib.contextmanager
def in_use(cache: Cache, *, make: bool = False) -> Iterator[None]:
    """Hold the shared lock of the cache during the block, so that `alone` fails in other invocations.

    If another invocation is pruning the cache, wait until it ends. Nothing is locked if the lock file cannot be opened,
    for example because the cache folder is missing and `make` is not set.
    """
    if make:
        cache.make()
    try:
        descriptor = _open(cache)
    except OSError:
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            console.note(f"waiting for {_holder(cache.use)}, which is pruning the cache")
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone(cache: Cache) -> Iterator[None]:
    """Hold the exclusive lock of the cache during the block; raise a LockHeldError if the cache is in use."""
    descriptor = _open(cache)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeldError(
                "cache-in-use",
                f"{cache.root} is in use by {_holder(cache.use)}",
                why="another invocation is using this cache",
                fix="wait until it ends",
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def kept(path: Path) -> Iterator[None]:
    """Hold a shared lock on a file or folder during the block, so that `free` does not report it as unused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # if the file system has no locks, `free` cannot notice this use
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def free(path: Path) -> Iterator[bool]:
    """Yield whether a path exists and no process holds it with `kept` or `free`; if so, `kept` waits during the block.

    If an existing path cannot be opened or locked, for example because its file system has no locks, it is reported as
    unused without being locked.
    """
    nobody = True
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError):
            nobody = False
        except OSError:
            pass
        yield nobody


def _open(cache: Cache) -> int:
    if cache.root.is_dir():
        with contextlib.suppress(OSError):
            cache.locks.mkdir(exist_ok=True)
    try:
        return os.open(cache.use, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:
        return os.open(cache.use, os.O_RDONLY | os.O_CLOEXEC)  # flock works without write access


def _holder(path: Path) -> str:
    """Return text such as `pid 12 (build llvm)` for the holder of a lock, or `another process` if it is unknown.

    The pid is not read from the lock file, because a pid in a file outlives its process.
    """
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
    """Return up to three arguments of a `toolchain` process, as in ` (build llvm)`; an empty string for others."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    at = next((number for number, word in enumerate(words) if Path(word).name == "toolchain"), len(words))
    return f" ({one_line(' '.join(words[at + 1 : at + 4]).strip())})" if words[at + 1 :] else ""
