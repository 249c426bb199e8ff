"""A time limit for a whole task."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from toolchain.core.errors import ToolchainError

LONGEST_CHECK = 3600.0  # seconds; the default limit for checking an image in a registry
_AGAIN = 10.0  # seconds between signals; one signal may not suffice, because Python discards exceptions in destructors


class _DeadlineError(BaseException):
    """The time limit has passed. This is a BaseException, so that handlers of Exception do not catch it."""


@contextlib.contextmanager
def deadline(seconds: float, problem: Callable[[], ToolchainError]) -> Iterator[None]:
    """Interrupt the block if it runs longer than `seconds`, and raise the error that `problem` returns.

    The limit has no effect outside the main thread, because Python handles signals only there. Limits cannot be nested,
    because a process has only one real-time timer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(_: int, __: FrameType | None) -> None:
        raise _DeadlineError

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, threading.TIMEOUT_MAX), _AGAIN)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _DeadlineError:
        raise problem() from None
    finally:
        signal.signal(signal.SIGALRM, before)
