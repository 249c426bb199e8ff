"""Sources of later stages come in while an earlier stage is built."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolchain.errors import ToolchainError
from toolchain.settings import Cache
from toolchain.sources.resolve import fetch_source
from toolchain.sources.tree import Source

LOG = logging.getLogger(__name__)


class Prefetch:
    """Fetches sources one after another in the background.

    What goes wrong here is not told: the stage that needs the source asks again, and its error is the one that counts.
    The thread ends with the process, and its children with the thread.
    """

    def __init__(
        self, sources: Sequence[Source], *, cache: Cache, offline: bool, patches: Mapping[str, tuple[Path, ...]]
    ) -> None:
        self._sources = [source for source in sources if source.kind != "local"]
        self._done = {source.name: threading.Event() for source in self._sources}
        self._cache = cache
        self._offline = offline
        self._patches = patches
        if self._sources:
            threading.Thread(target=self._run, name="prefetch", daemon=True).start()

    def _run(self) -> None:
        for source in self._sources:
            try:
                with contextlib.suppress(ToolchainError, OSError):
                    fetch_source(
                        source, cache=self._cache, offline=self._offline, patches=self._patches.get(source.name, ())
                    )
                    LOG.info("%s is in the store", source.ref)
            finally:
                self._done[source.name].set()

    def wait(self, name: str) -> None:
        """Wait until the attempt at this source is over."""
        event = self._done.get(name)
        while event is not None and not event.wait(0.2):
            pass  # in pieces, so that signals are seen
