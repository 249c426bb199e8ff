"""Progress of bytes that are fetched, unpacked, compressed or sent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

Listener = Callable[[str, int, int], None]
"""A listener gets a description, the bytes that are done, and the total, which is 0 if it is not known."""

_listeners: list[Listener] = []


@contextlib.contextmanager
def reporting_to(listener: Listener) -> Iterator[None]:
    """Report progress to `listener` during the block, from whichever thread does the work."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(what: str, done: int, total: int) -> None:
    """Report progress to the listeners."""
    for listener in _listeners:
        listener(what, done, total)


@contextlib.contextmanager
def watched(what: str, path: Path, total: int) -> Iterator[None]:
    """Report the growing size of a file that another program writes during the block."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.5):
            with contextlib.suppress(OSError):
                tell(what, path.stat().st_size, total)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
