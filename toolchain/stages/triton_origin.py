"""Find the source of a request's Triton: the named source, AOTriton's Triton, or upstream's Triton."""

from __future__ import annotations

from pathlib import Path

from toolchain.catalog.pin_files import pin_files, read_pin
from toolchain.catalog.release_data import is_commit, require, triton_releases
from toolchain.catalog.releases import aotriton_release, newest_patch, triton_at, triton_release
from toolchain.core.errors import PinError, UnsupportedError
from toolchain.request.model import Request
from toolchain.sources.spec import SourceSpec
from toolchain.sources.store import Store
from toolchain.sources.tree import Source
from toolchain.stages.triton_tree import older_than_backends

DEFAULT_TRITON = "3.7.1"
UPSTREAM = "https://github.com/triton-lang/triton"
AMD_FORK = "https://github.com/ROCm/triton"


def from_source(request: Request) -> bool:
    """Return whether Triton is built from source, which is the case unless the request names a wheel."""
    spec = request.sources.get("triton")
    return spec is None or not spec.wheel


def triton_source(request: Request) -> Source:
    """Return the source of the request's Triton, without using the network."""
    return request.locate("triton", triton_spec(request))


def triton_spec(request: Request) -> SourceSpec:
    """Return where the request's Triton comes from.

    This is the source that the request names, or else the Triton of its AOTriton release, or else upstream's repository
    at the requested commit, or at the commit or tag of the requested or default version. An error is raised if this
    source is unknown, or if the version is too old.
    """
    if (spec := request.sources.get("triton")) is not None:
        return spec
    if request.aotriton:
        release = aotriton_release(request.aotriton, allow_unknown=True)
        if not release.triton:  # the error names everything that is missing, so that the user can give it all at once
            options = {"commit": "aotriton", "triton": "triton", "llvm": "llvm"}
            require(release, *(field for field, option in options.items() if option not in request.sources))
        return SourceSpec(kind="git", where=AMD_FORK, version=release.triton)
    named = (request.triton or DEFAULT_TRITON).strip()
    if is_commit(named.lower()):
        return SourceSpec(kind="git", where=UPSTREAM, version=named.lower())
    row = newest_patch(named)
    if not row.backends:
        raise older_than_backends(f"{row.title} cannot be built here")
    if not row.commit and not row.tag:
        raise PinError(
            "triton-source-unknown",
            f"unknown source of Triton {row.version}",
            why="upstream has no such release; only its LLVM is on record",
            fix="give --source triton=PATH or URL@COMMIT",
        )
    tag = "" if row.commit else row.tag
    return SourceSpec(kind="git", where=UPSTREAM, version=row.commit or _locked_commit(request, tag), tag=tag)


def named_triton(request: Request) -> str | None:
    """Return the version or the commit of the Triton that a request names, or the default version if it names none.

    The Triton in a folder is identified by the LLVM that it pins; the result is None if the folder has no pin file, or
    if no known Triton pins this LLVM. If the request names an LLVM, the result is also None, unless the request names
    Triton by version, by a git source or by an AOTriton release. A source that cannot be identified before it is
    fetched, such as an archive, is treated as the default version. PinError is raised if the Triton of the AOTriton
    release is unknown.
    """
    if request.triton:
        return _by_version(request.triton)
    spec = request.sources.get("triton")
    if spec is None and request.aotriton:
        release = aotriton_release(request.aotriton, allow_unknown=True)
        require(release, "triton")
        return release.triton or None
    if spec is not None and spec.kind == "git":
        return _by_version(spec.version)
    if spec is not None and spec.kind == "pypi" and "llvm" not in request.sources:
        return spec.version or DEFAULT_TRITON
    if "llvm" in request.sources:
        return None
    return DEFAULT_TRITON if (tree := local_triton(request)) is None else with_its_pin(tree)


def _by_version(triton: str) -> str:
    """Return the version of the release with the commit `triton`, or `triton` itself if there is no such release."""
    return next((row.version for row in triton_releases() if row.version and row.commit == triton), triton)


def with_its_pin(tree: Path | None) -> str | None:
    """Return the known Triton that pins the same LLVM as a tree.

    Return None if there is no tree, no pin file in it, or no such Triton.
    """
    return triton_at(read_pin(tree).commit) if tree is not None and pin_files(tree) else None


def local_triton(request: Request) -> Path | None:
    """Return the tree of Triton that a plan reads; None if there is none.

    It is the folder that the request names, a tree from a bundle, or the fetched tree of a commit whose LLVM is not in
    the tool's data.
    """
    spec = request.sources.get("triton")
    if spec is not None and spec.kind == "stored":
        return request.locate("triton", spec).path
    if (commit := unknown_commit(request)) is not None:
        return Store(request.cache.store).stored_tree(str(request.locate("triton", commit).digest))
    folder = spec.path if spec is not None else None
    return folder if folder is not None and folder.is_dir() else None


def unknown_commit(request: Request) -> SourceSpec | None:
    """Return the source of a Triton at a commit whose LLVM is not in the tool's data; None for any other Triton."""
    if not (is_commit(request.triton or "") or "triton" in request.sources or request.aotriton):
        return None
    spec = triton_spec(request)
    if spec.kind != "git":
        return None
    try:
        triton_release(spec.version)
    except (PinError, UnsupportedError):
        return spec
    return None


def _locked_commit(request: Request, tag: str) -> str:
    """Return the commit in the lock for a tag of upstream's repository; an empty string if the lock has none."""
    held = request.lock.source("triton") if request.lock is not None else None
    return held.ref if held is not None and (held.tag, held.repository) == (tag, UPSTREAM) else ""
