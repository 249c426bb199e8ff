"""A limit for a whole task, whatever it is waiting for."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from toolchain.core.errors import ToolchainError

LONGEST_CHECK = 3600.0  # seconds for looking at one image of a registry
_AGAIN = 10.0  # seconds; an exception that falls into a destructor is lost


class _DeadlineError(BaseException):
    """Time is over. Not an Exception: nothing on the way may take it for a failure of its own."""


@contextlib.contextmanager
def deadline(seconds: float, problem: Callable[[], ToolchainError]) -> Iterator[None]:
    """End the block with an error once so many seconds have passed.

    A network, a child or a computation are interrupted alike, and `finally` blocks run. The timer of the process is
    used, so outside of the main thread there is no limit, nor are there two at a time.

    Args:
        problem: makes the error.

    Raises:
        ToolchainError: `problem`.
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
