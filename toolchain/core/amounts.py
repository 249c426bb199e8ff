"""Progress of transfers and of other work that is measured in bytes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

Listener = Callable[[str, int, int], None]
"""A callback that receives a description, the number of bytes done, and the total number of bytes (0 if unknown)."""

_listeners: list[Listener] = []


@contextlib.contextmanager
def reporting_to(listener: Listener) -> Iterator[None]:
    """Pass the progress of all threads to `listener` during the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(what: str, done: int, total: int) -> None:
    """Report to all listeners that `done` bytes of `total` (0 if unknown) are finished."""
    for listener in _listeners:
        listener(what, done, total)


@contextlib.contextmanager
def watched(what: str, path: Path, total: int) -> Iterator[None]:
    """Report the size of a growing file to all listeners twice a second during the block."""
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
