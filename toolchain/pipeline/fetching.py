"""Fetch the sources of a request, and copy its patches."""

from __future__ import annotations

import contextlib
import logging
import tempfile
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

LOG = logging.getLogger(__name__)
_FINAL = (DigestError, LockedError, SourceError, HostileInputError, PatchError, PinError)
# A checkout may change, or be missing for a while, until its stage is planned again.
_FINAL_LOCAL = (HostileInputError, PatchError)


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


def fetch_ahead(request: Request, sources: Sequence[Source]) -> None:
    """Fetch the sources of all stages before the first one is built, because a stage may take hours.

    A source with the wrong content, or a patch that does not apply, ends the build. Other failures are only logged,
    because the stage that needs the source fetches it again and reports its own error.
    """
    names = {source.name for source in sources}
    for source in sources:
        final = _FINAL_LOCAL if source.kind == "local" else _FINAL
        try:
            fetch_for(request, source, patched=True)
            if source.name == "llvm" and "triton" in names:
                check_edits(request)
        except final:
            raise
        except (ToolchainError, OSError) as error:
            LOG.info("could not fetch %s before the build: %s", source.ref, error)
