"""Counts of bytes that are fetched, unpacked, compressed or sent, for progress displays."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

Listener = Callable[[str, int, int], None]
"""Called with what is done to which file, the bytes done, and all bytes; 0 where the whole is not known."""

_listeners: list[Listener] = []


@contextlib.contextmanager
def reporting_to(listener: Listener) -> Iterator[None]:
    """Report to `listener` while the block runs, whichever thread does the work."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(what: str, done: int, total: int) -> None:
    """Report progress; costs nothing without a listener."""
    for listener in _listeners:
        listener(what, done, total)


@contextlib.contextmanager
def watched(what: str, path: Path, total: int) -> Iterator[None]:
    """Report how a file grows that another program writes."""
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
