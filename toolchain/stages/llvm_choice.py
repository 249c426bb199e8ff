"""Choose the LLVM that a request's Triton is built on, and the parts of LLVM that this Triton needs."""

from __future__ import annotations

from toolchain.catalog.components import LlvmRequirements, features_of, needs_for, newest_triton_on
from toolchain.catalog.pin_files import named_in_setup, pin_files, read_pin
from toolchain.catalog.release_data import LlvmPin, is_commit
from toolchain.catalog.releases import aotriton_release, newest_on_one_llvm, triton_release
from toolchain.core.errors import PinError, UnsupportedError
from toolchain.request.model import Request
from toolchain.sources.spec import SourceSpec, of_github
from toolchain.sources.tree import Source
from toolchain.stages.llvm_version import major
from toolchain.stages.triton_origin import DEFAULT_TRITON, local_triton, named_triton, unknown_commit, with_its_pin


def llvm_source(request: Request) -> Source:
    """Return the source of the request's LLVM, without using the network.

    The commit may be unknown, because the tree of Triton is not fetched yet or names the commit only by its first
    digits. If the lock does not contain the commit either, `pending` of the source describes the file that names it.
    """
    spec = request.sources.get("llvm")
    if spec is None and (names := _pending(request)):
        locked = request.lock.source("llvm") if request.lock is not None else None
        if locked is None or not is_commit(locked.ref):
            where = of_github("llvm/llvm-project", "").where
            return Source(
                name="llvm", kind="git", where=where, version="", digest=None, path=None, locked=False, pending=names
            )
        spec = SourceSpec(kind="git", where=locked.repository, version=locked.ref)
    if spec is None:
        pin = llvm_pin(request)
        spec = of_github(pin.repository, pin.commit)
    return request.locate("llvm", spec)


def llvm_pin(request: Request) -> LlvmPin:
    """Return the LLVM that the request's Triton pins, from an available tree of Triton or from the tool's data.

    An error is raised if the pin is unknown, for example because Triton is not fetched yet.
    """
    if (tree := local_triton(request)) is not None:
        return read_pin(tree)
    if request.aotriton and "triton" not in request.sources:
        return aotriton_release(request.aotriton).pin
    spec = request.sources.get("triton")
    if request.triton or spec is None:
        return triton_release(request.triton or DEFAULT_TRITON).pin
    if spec.wheel and (wheel := request.locate("triton", spec)).kind == "pypi":
        return triton_release(wheel.version).pin
    if spec.kind == "git":
        return triton_release(spec.version).pin
    raise PinError(
        "llvm-pin-unfetched",
        f"it is unknown which LLVM the Triton of --source triton={spec} pins",
        why="this Triton is not fetched yet, and the tool knows only the pins of releases and of a few commits",
        fix="give a checkout: --source triton=PATH; or name its LLVM: --source llvm=URL@COMMIT",
    )


def llvm_needs(request: Request, llvm: int | None = None) -> LlvmRequirements:
    """Return the projects and components of LLVM that the request's Triton needs.

    If `triton_of` returns None, these are the needs of the newest Triton for the version of the LLVM. While that
    version is unknown, they are those of the newest Triton without a separate LLVM for GPUs. If a tree of Triton is
    available, the needs that its build files state are added.

    Args:
        llvm: the LLVM's major version; None if it is not known yet.
    """
    tree = local_triton(request)
    features = features_of(tree) if tree is not None else ()
    triton = triton_of(request)
    if triton is None:
        triton = newest_on_one_llvm() if llvm is None else newest_triton_on(llvm)
    return needs_for(triton, request.arch[0], features=features)


def triton_of(request: Request) -> str | None:
    """Return the version or the commit of the Triton whose needs apply; None if the version of the LLVM determines it.

    The result is that of `named_triton`, unless that is a commit whose needs are not in the tool's data. For such a
    commit, it is a known Triton that pins the same LLVM, or None if there is no such Triton or if the request names
    the LLVM.
    """
    triton = named_triton(request)
    if triton is not None and is_commit(triton.lower()):
        try:
            needs_for(triton, request.arch[0])
        except UnsupportedError:
            return None if "llvm" in request.sources else with_its_pin(local_triton(request))
    return triton


def _pending(request: Request) -> str:
    """Return where the LLVM commit is named, if the full commit cannot be read yet; otherwise an empty string."""
    tree = local_triton(request)
    if tree is None:
        unknown = unknown_commit(request)
        return "" if unknown is None else f"the pin file of Triton {unknown.where}@{unknown.version}"
    if pin_files(tree) or (named := named_in_setup(tree)) is None:
        return ""
    if named.version:
        try:
            newest_triton_on(major(named.version))
        except UnsupportedError as error:
            error.why = f"its setup.py names {named}; {error.why}"
            raise
    return f"{named} in its setup.py"
