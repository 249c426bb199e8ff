"""End a docker container that reaches a limit, as the launcher ends buildah's containers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from toolchain.engine.limit_watch import Limits, Usage

_EVERY = 0.5  # seconds between two checks of the disk, the log and the running time
_COUNT_EVERY = 5.0  # minimum seconds between two counts of processes; each count is a request to the daemon


@dataclass
class Watched:
    """The result of watching a container: the name of the limit that it reached; empty if it reached none."""

    reached: str = ""


@contextlib.contextmanager
def watched(limits: Limits, *, processes: Callable[[], int], kill: Callable[[], None]) -> Iterator[Watched]:
    """End a container if it reaches a limit during the block, and yield a result in which the limit is then recorded.

    Args:
        processes: a function that counts the container's processes and threads.
        kill: a function that ends the container.
    """
    found, stop, usage = Watched(), threading.Event(), Usage(limits)

    def watch() -> None:
        counted = time.monotonic()
        while not stop.wait(_EVERY):
            found.reached = usage.reached()
            if not found.reached and time.monotonic() - counted > _COUNT_EVERY:
                counted = time.monotonic()
                found.reached = "processes" if processes() > limits["processes"] else ""
            if found.reached:
                kill()
                return

    thread = threading.Thread(target=watch, name="docker-watch", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join(_COUNT_EVERY)
