"""Fetch the sources of a request, if possible in the background while an earlier stage is built."""

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
        patched: whether to apply the request's patches.
        verify: whether to check a tree in the store file by file before it is used.
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
    """Copy the user's patches, and yield a request that names the copies.

    A build reads a patch at different times: for the inputs, the tree and the record of a stage. The copies stay the
    same even if the user edits a patch during the build.
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
# Until its stage is planned again, a checkout may change or may be missing for a while.
_FINAL_LOCAL = (HostileInputError, PatchError)


class Prefetch:
    """Fetches sources one after another in the background.

    A source with the wrong content ends the build at once (see `check`). Other failures are not reported here, because
    the stage that needs the source fetches it again and reports its own error. The thread ends with the process, and
    the thread's children end with the thread.
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
        finally:  # a waiting stage must continue after an unexpected error; it gets the error itself
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
        """Raise the error of a fetch that would fail again, because the stage that needs it may be hours away."""
        if self._failed is not None:
            raise self._failed

    def wait(self, name: str) -> None:
        """Wait until the attempt at this source is over."""
        event = self._done.get(name)
        while event is not None and not event.wait(0.2):
            pass  # short waits let the process handle signals
