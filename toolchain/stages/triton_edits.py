"""Find the edits in data/edits that a request's Triton needs on the LLVM that the request names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from toolchain.catalog.stages import involves
from toolchain.core.errors import PinError, SourceError, UnsupportedError
from toolchain.request.model import Request
from toolchain.sources.edits import EditFile, shipped
from toolchain.sources.resolve import part_of
from toolchain.sources.spec import SourceSpec
from toolchain.sources.store import Store
from toolchain.stages.llvm_version import major_of, version_of_tree
from toolchain.stages.triton_origin import from_source, local_triton, triton_spec
from toolchain.stages.triton_tree import head_of

_SOURCE = "triton"


def with_edits(request: Request, target: str) -> dict[str, tuple[Path, ...]]:
    """Return the patches of a request by source, including the edits that its Triton needs.

    The edits come before the user's own patches.

    An edit file is for a release, or a series of releases, of LLVM. It applies to a Triton at the file's commit, and to
    a folder in which the files to edit have the expected digests. PatchError is raised if a checkout of this commit has
    changes in these files. If the request names no LLVM, Triton is built on the LLVM that it pins and needs no edits.

    Args:
        target: the stage to build. If Triton is not needed for it, no edits are added.
    """
    patches = dict(request.patches)
    llvm = request.sources.get("llvm")
    if llvm is None or not involves(target, "triton") or not from_source(request):
        return patches
    release = llvm_release(llvm, request)
    given = {path.name for path in patches.get(_SOURCE, ())}  # the patches of a request from a bundle include the edits
    wanted = [edits for edits in shipped() if edits.source == _SOURCE and release and edits.is_for(release)]
    taken = tuple(edits.path for edits in wanted if edits.path.name not in given and _takes(request, edits))
    return {**patches, _SOURCE: (*taken, *patches.get(_SOURCE, ()))} if taken else patches


def check_edits(request: Request) -> None:
    """Raise PinError if Triton needs edits that are missing from the request's patches.

    They are missing if the release of the LLVM was unknown until the LLVM was fetched.
    """
    known = request.patches.get(_SOURCE, ())
    missed = [path for path in with_edits(request, _SOURCE).get(_SOURCE, ()) if path not in known]
    if missed:
        raise PinError(
            "plan-outdated",
            f"this Triton needs edits on {request.sources['llvm']}, which the plan does not contain",
            why=f"the release of this LLVM was unknown before the fetch; the next plan applies {missed[0].name}",
            fix="run the command again",
        )


def _takes(request: Request, edits: EditFile) -> bool:
    if (tree := local_triton(request)) is None:
        try:
            return triton_spec(request).version == edits.commit
        except (PinError, UnsupportedError):
            return False  # the plan reports the error
    if head_of(tree) == edits.commit:
        edits.check(tree)
        return True
    return edits.fits(tree)


def llvm_release(spec: SourceSpec, request: Request) -> str:
    """Return the version of an LLVM source, such as `22.1.8`, or an empty string if it is not known.

    A tree of LLVM's main branch has a version such as `23.0.0`, and the first release from it has `23.1.0`. If only the
    major version of a package is known, the result is for example `23.1`.
    """
    if spec.kind == "git" and (tagged := re.fullmatch(r"llvmorg-([0-9.]+)", spec.tag)):
        return tagged[1]
    if spec.path is not None and spec.path.is_dir():
        return _version_in(spec.path)
    source = request.locate("llvm", spec)
    if source.kind == "distro":
        package = major_of(replace(source, version=""))
        return source.version.partition("~")[0] or (f"{package}.1" if package else "")
    if source.digest is None:
        return ""
    store = Store(request.cache.store)
    parts = (part_of("llvm", tests=tests).name for tests in (False, True))
    trees = (store.stored_tree(source.digest, part=part) for part in parts)
    return next((_version_in(tree) for tree in trees if tree is not None), "")


def _version_in(tree: Path) -> str:
    try:
        return version_of_tree(tree)
    except SourceError:
        return ""  # the plan of LLVM reports the error
