"""End a docker container that reaches a limit."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from toolchain.core.errors import EngineError
from toolchain.engine.limit_watch import Limits, Usage

_EVERY = 0.5  # seconds between two checks of the disk, the log and the running time
_COUNT_EVERY = 5.0  # minimum seconds between two counts of processes; each count is a request to the daemon


@dataclass
class Watched:
    """The result of watching a container.

    Attributes:
        reached: the name of the limit that the container reached; empty if it reached none.
        failed: the error that prevented a check of the limits; None if there was none.
    """

    reached: str = ""
    failed: OSError | None = None


@contextlib.contextmanager
def watched(limits: Limits, *, processes: Callable[[], int], kill: Callable[[], None]) -> Iterator[Watched]:
    """End a container if it reaches a limit during the block, and yield a result in which the limit is then recorded.

    `kill` is then called until the block ends, because docker may not know a container that it is still creating.

    If the limits cannot be checked, the container is ended too, and an EngineError is raised after the block.

    Args:
        processes: a function that counts the container's processes and threads.
        kill: a function that ends the container.
    """
    found, stop, usage = Watched(), threading.Event(), Usage(limits)

    def watch() -> None:
        counted = time.monotonic()
        while not stop.wait(_EVERY):
            if not found.reached and found.failed is None:
                try:
                    found.reached = usage.reached()
                except OSError as error:
                    found.failed = error
                if not found.reached and time.monotonic() - counted > _COUNT_EVERY:
                    counted = time.monotonic()
                    found.reached = "processes" if processes() > limits["processes"] else ""
            if found.reached or found.failed is not None:
                kill()

    thread = threading.Thread(target=watch, name="docker-watch", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join(_COUNT_EVERY)
    if found.failed is not None:
        raise EngineError(
            "limits-unchecked",
            "a container was ended, because its limits could not be checked",
            why=f"{found.failed.filename}: {found.failed.strerror}",
            fix="check that nothing removes the folders of the cache, and run the command again",
        ) from found.failed
