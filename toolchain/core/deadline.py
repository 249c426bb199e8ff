"""A time limit for a whole task."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from toolchain.core.errors import ToolchainError

LONGEST_CHECK = 3600.0  # seconds for the check of one image of a registry
_AGAIN = 10.0  # seconds until the signal is repeated, because an exception that is raised in a destructor is lost


class _DeadlineError(BaseException):
    """Time is over. It is not an Exception, because no handler on the way may take it for another failure."""


@contextlib.contextmanager
def deadline(seconds: float, problem: Callable[[], ToolchainError]) -> Iterator[None]:
    """End the block with an error after a number of seconds.

    Network calls, child processes and computations are interrupted, and `finally` blocks run. The limit uses the timer
    of the process, so it has no effect outside the main thread, and limits cannot be nested.

    Args:
        problem: makes the error.
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
