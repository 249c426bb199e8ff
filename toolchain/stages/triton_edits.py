"""Which of the edits that come with the tool a request's Triton takes on the LLVM that is named for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from toolchain.catalog.stages import involves
from toolchain.errors import PinError, UnsupportedError
from toolchain.request import Request
from toolchain.sources.edits import EditFile, shipped
from toolchain.sources.resolve import locate, part_of
from toolchain.sources.spec import SourceSpec
from toolchain.sources.store import Store
from toolchain.stages.llvm import local_triton
from toolchain.stages.triton_origin import from_source, triton_spec
from toolchain.stages.triton_tree import head_of

_SOURCE = "triton"
# Where LLVM's sources tell their version: since 19, and before.
_VERSION_FILES = ("cmake/Modules/LLVMVersion.cmake", "llvm/CMakeLists.txt")
_PART = r"set\(LLVM_VERSION_{0} ([0-9]+)\)"


def with_edits(request: Request, target: str) -> dict[str, tuple[Path, ...]]:
    """The patches of a request, the edits that its Triton takes before the user's own.

    An edit file is taken for its LLVM alone, and for a Triton at its commit, or a folder whose files are those that it
    edits. Without a named LLVM a Triton is built on its own pin and needs none.

    Args:
        target: the stage that is asked for.

    Raises:
        PatchError: a checkout at the commit of the edits, whose files differ.
    """
    patches = dict(request.patches)
    llvm = request.sources.get("llvm")
    if llvm is None or not involves(target, "triton") or not from_source(request):
        return patches
    release = llvm_release(llvm, request)
    given = {path.name for path in patches.get(_SOURCE, ())}  # a bundle brings them as patches
    wanted = [one for one in shipped() if one.source == _SOURCE and release and one.is_for(release)]
    taken = tuple(one.path for one in wanted if one.path.name not in given and _takes(request, one))
    return {**patches, _SOURCE: (*taken, *patches.get(_SOURCE, ()))} if taken else patches


def _takes(request: Request, edits: EditFile) -> bool:
    if (tree := local_triton(request)) is None:
        try:
            return triton_spec(request).version == edits.commit
        except (PinError, UnsupportedError):
            return False  # the plan says what is wrong
    if head_of(tree) == edits.commit:
        edits.check(tree)
        return True
    return edits.fits(tree)


def llvm_release(spec: SourceSpec, request: Request) -> str:
    """The version of the LLVM that a source names, e.g. `22.1.8`, as far as it is known without a network.

    A tree of LLVM's main branch calls itself `23.0.0`, a release `23.1.0` or later. Empty where nothing tells.
    """
    if spec.kind == "git" and (tagged := re.fullmatch(r"llvmorg-([0-9.]+)", spec.tag)):
        return tagged[1]
    if spec.path is not None and spec.path.is_dir():
        return version_in(spec.path)
    source = locate("llvm", spec, cache=request.cache, offline=request.offline)
    if source.kind == "distro":
        named = re.search(r"-([0-9]+)$", source.where)
        return source.version.partition("~")[0] or (f"{named[1]}.1" if named else "")
    tree = source.path
    if tree is None and source.digest is not None:
        store = Store(request.cache.store)
        parts = (part_of("llvm", tests=tests).name for tests in (False, True))
        tree = next((found for part in parts if (found := store.stored_tree(source.digest, part=part))), None)
    return version_in(tree) if tree is not None else ""


def version_in(tree: Path) -> str:
    """The version that a tree of LLVM calls itself; empty where it says none."""
    for name in _VERSION_FILES:
        try:
            text = (tree / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found: Mapping[str, re.Match[str] | None] = {
            part: re.search(_PART.format(part), text) for part in ("MAJOR", "MINOR", "PATCH")
        }
        if all(found.values()):
            return ".".join(match[1] for match in found.values() if match)
    return ""
