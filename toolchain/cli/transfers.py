"""Progress lines for transfers and compression that are not part of a build."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from toolchain.core import console
from toolchain.core.amounts import reporting_to


@contextlib.contextmanager
def amounts_told() -> Iterator[None]:
    """Print the progress of transfers and compression during the block."""
    with reporting_to(_Lines().tell):
        yield


class _Lines:
    def __init__(self) -> None:
        self._what, self._tenth, self._said = "", -1, 0.0

    def tell(self, what: str, done: int, total: int) -> None:
        """Print a line for a new transfer, then at every 10 % (at most once a second) and every ten seconds."""
        tenth, now = 10 * done // total if total else 0, time.monotonic()
        if what == self._what and (tenth == self._tenth or now - self._said < 1) and now - self._said < 10:
            return
        self._what, self._tenth, self._said = what, tenth, now
        console.note(f"  {what}: {console.share(done, total)}")
