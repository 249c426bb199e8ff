"""Fetch the sources of a request, also in the background while an earlier stage is built."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from toolchain.core.errors import (
    DigestError,
    HostileInputError,
    LockedError,
    PatchError,
    PinError,
    SourceError,
    ToolchainError,
)
from toolchain.core.locks import in_use, kept
from toolchain.request.model import Request
from toolchain.sources.edits import shipped
from toolchain.sources.patch import copy_tree
from toolchain.sources.resolve import fetch_source
from toolchain.sources.tree import FetchedSource, Source
from toolchain.stages.triton_edits import check_edits


def fetch_for(request: Request, source: Source, *, patched: bool = False, verify: bool = False) -> FetchedSource:
    """Return a source with its tree or file in the store; see `fetch_source`.

    Args:
        patched: apply the request's patches to it.
        verify: read a tree in the store file by file before it is used.
    """
    return fetch_source(
        source,
        cache=request.cache,
        offline=request.offline,
        patches=request.patches.get(source.name, ()) if patched else (),
        verify=verify,
        mirrors=request.mirrors,
        tests=request.takes_tests(source.name),
    )


@contextlib.contextmanager
def patches_as_they_are(request: Request) -> Iterator[Request]:
    """Copy the user's patches, and yield the request that names the copies.

    Inputs, tree and record of a stage read a patch at different times, and a user may edit it during the build.
    """
    own = {edits.path for edits in shipped()}
    if own.issuperset(path for paths in request.patches.values() for path in paths):
        yield request
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(in_use(request.cache, make=True))
        request.cache.work.mkdir(parents=True, exist_ok=True)
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=request.cache.work, prefix="patches-")))
        stack.enter_context(kept(top))

        def copied(path: Path) -> Path:
            if path in own:
                return path
            copy = Path(tempfile.mkdtemp(dir=top)) / path.name
            copy_tree(path.resolve(), copy)
            return copy

        yield replace(request, patches={name: tuple(map(copied, paths)) for name, paths in request.patches.items()})


LOG = logging.getLogger(__name__)
_FINAL = (DigestError, LockedError, SourceError, HostileInputError, PatchError, PinError)
# A checkout may change, or be missing for a while, until its stage is planned again.
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
