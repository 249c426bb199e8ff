"""Call a function in several threads at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier


def failures(call: Callable[[], object], threads: int = 3) -> list[BaseException]:
    """Start all threads at the same time, and return the exceptions of the calls that failed."""
    barrier = Barrier(threads)

    def run() -> None:
        barrier.wait()
        call()

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(run) for _ in range(threads)]
    return [error for one in futures if (error := one.exception()) is not None]
