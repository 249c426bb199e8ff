"""A request's sources, fetched as it wants them."""

from __future__ import annotations

from toolchain.request.model import Request
from toolchain.sources.resolve import fetch_source
from toolchain.sources.tree import FetchedSource, Source


def fetch_for(request: Request, source: Source, *, patched: bool = False, verify: bool = False) -> FetchedSource:
    """A source with its tree or file in the store; see `fetch_source`.

    Args:
        patched: apply the request's patches to it.
        verify: read a tree that is there already, file by file, before it is believed.
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
