"""Fetches the sources of later stages while an earlier stage is built."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from toolchain.core.errors import (
    DigestError,
    HostileInputError,
    LockedError,
    PatchError,
    PinError,
    SourceError,
    ToolchainError,
)
from toolchain.pipeline.fetching import fetch_for
from toolchain.request.model import Request
from toolchain.sources.tree import Source
from toolchain.stages.triton_edits import check_edits

LOG = logging.getLogger(__name__)
_FINAL = (DigestError, LockedError, SourceError, HostileInputError, PatchError, PinError)
# A checkout may be changed, or missing for a while, until its stage plans it again.
_FINAL_LOCAL = (HostileInputError, PatchError)


class Prefetch:
    """Fetches sources one after another in the background.

    A source with the wrong content ends the build at once (see `check`). Other failures are not reported here:
    the stage that needs the source fetches it again, and reports its own error.
    The thread ends with the process, and its children with the thread.
    """

    def __init__(self, request: Request, sources: Sequence[Source]) -> None:
        self._request = request
        self._sources = list(sources)
        self._done = {source.name: threading.Event() for source in self._sources}
        self._failed: ToolchainError | None = None
        if self._sources:
            threading.Thread(target=self._run, name="prefetch", daemon=True).start()

    def _run(self) -> None:
        try:
            self._fetch_all()
        finally:  # also after an unexpected error: who waits fetches the source again, and gets the same error
            for event in self._done.values():
                event.set()

    def _fetch_all(self) -> None:
        for source in self._sources:
            final = _FINAL_LOCAL if source.kind == "local" else _FINAL
            try:
                fetch_for(self._request, source, patched=True)
                if source.name == "llvm" and "triton" in self._done:
                    check_edits(self._request)
            except final as error:
                self._failed = self._failed or error
            except (ToolchainError, OSError) as error:
                LOG.info("could not prefetch %s: %s", source.ref, error)
            else:
                LOG.info("%s is in the store", source.ref)
            finally:
                self._done[source.name].set()

    def check(self) -> None:
        """Raise what another attempt would not change: hours may pass before the stage that needs the source."""
        if self._failed is not None:
            raise self._failed

    def wait(self, name: str) -> None:
        """Wait until the attempt at this source is over."""
        event = self._done.get(name)
        while event is not None and not event.wait(0.2):
            pass  # in pieces, so that signals are seen
