"""Fetch the sources of a request, where possible in the background while earlier stages are built."""

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
    UnreachableError,
)
from toolchain.core.locks import in_use, kept
from toolchain.request.model import Request
from toolchain.sources.edits import users_own
from toolchain.sources.patch import copy_tree
from toolchain.sources.resolve import fetch_source, in_store
from toolchain.sources.tree import FetchedSource, Source
from toolchain.stages.triton_edits import check_edits


def fetch_for(request: Request, source: Source, *, patched: bool = False, verify: bool = False) -> FetchedSource:
    """Fetch a source into the store with the options of the request, and return it; see `fetch_source`.

    Args:
        patched: whether to apply the request's patches.
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


def stored_for(request: Request, source: Source) -> bool:
    """Return whether the store has a source as the request needs it, so that a build does not fetch it."""
    patched = bool(request.patches.get(source.name))
    return in_store(source, cache=request.cache, tests=request.takes_tests(source.name), patched=patched)


@contextlib.contextmanager
def patches_as_they_are(request: Request) -> Iterator[Request]:
    """Copy the user's patches, and yield a request that names the copies instead; remove the copies at the end.

    A build reads a patch several times: for the inputs, the tree and the record of a stage. The copies stay the same
    even if the user edits a patch during the build. A request without patches, or with only the edit files that the
    tool ships, is yielded unchanged.
    """
    given = users_own(path for paths in request.patches.values() for path in paths)
    if not given:
        yield request
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(in_use(request.cache, make=True))
        request.cache.work.mkdir(parents=True, exist_ok=True)
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=request.cache.work, prefix="patches-")))
        stack.enter_context(kept(top))

        def copied(path: Path) -> Path:
            if path not in given:
                return path
            copy = Path(tempfile.mkdtemp(dir=top)) / path.name
            copy_tree(path.resolve(), copy)
            return copy

        yield replace(request, patches={name: tuple(map(copied, paths)) for name, paths in request.patches.items()})


LOG = logging.getLogger(__name__)
# These errors of a fetch end the build early, because another fetch of the same source would fail too.
_FINAL = (DigestError, LockedError, SourceError, HostileInputError, PatchError, PinError)
# These errors end the build early for the user's own file or folder. Other errors do not, because the file or folder
# may be missing or incomplete for a while, and is read again before its stage is built.
_FINAL_LOCAL = (HostileInputError, PatchError)


class Prefetch:
    """A thread that fetches sources one after another.

    The first error after which another fetch would fail too is kept, and `check` raises it. After any other error, the
    stage that needs the source fetches it again, and raises the error of its own fetch. The thread ends with the
    process.
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
        finally:  # after an unexpected error, a waiting stage must continue, because its own fetch raises the error
            for event in self._done.values():
                event.set()

    def _fetch_all(self) -> None:
        for source in self._sources:
            # With --offline, a source that is not in the store cannot be fetched later either.
            fetched = (*_FINAL, UnreachableError) if self._request.offline else _FINAL
            final = _FINAL_LOCAL if source.kind == "local" else fetched
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
        """Raise the error that the thread has kept, if there is one.

        The workspace calls this method for each line of a build's output, so that the build ends early.
        """
        if self._failed is not None:
            raise self._failed

    def wait(self, name: str) -> None:
        """Wait until the thread has tried to fetch this source; return at once if the thread does not fetch it."""
        event = self._done.get(name)
        if event is not None:
            event.wait()
