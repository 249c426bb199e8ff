"""Choose the stage that builds a request's Triton, and the stages below it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from toolchain.catalog.codegen import Codegen, codegens
from toolchain.core.errors import PinError, UnsupportedError
from toolchain.request.model import Request
from toolchain.sources.tree import Source
from toolchain.stages.codegen_llvm import bindings, refuse_unused, rules_of, triton_here
from toolchain.stages.stage import Planned, Stage
from toolchain.stages.triton_origin import from_source, triton_source
from toolchain.stages.triton_tree import Bindings, bindings_of

# Wheels have been cross-compiled and tested for these architectures.
_CROSS = ("arm64",)


@dataclass(frozen=True, kw_only=True)
class TritonDetails:
    """The decisions about a Triton that is built from source.

    Args:
        tree: Triton's tree; None if it is not available before the build.
        bindings: the C++ bindings of the tree. Without a tree they are derived from the tool's data, and `refined`
            compares them with the fetched tree.
        rules: the rules for the code generator libraries that Triton is built with.
        pythons: the Python versions for which wheels are built; empty for the base's own Python.
        held: the Python version whose wheel the image contains; empty if it is known only after the build.
    """

    source: Source
    tree: Path | None
    bindings: Bindings
    rules: tuple[Codegen, ...]
    pythons: tuple[str, ...]
    held: str = ""
    cross: bool = False

    @classmethod
    def of(cls, request: Request, dependencies: Mapping[str, Planned], pythons: tuple[str, ...]) -> TritonDetails:
        """Return the decisions about the Triton of a request; `held` and `cross` have their default values."""
        rules = tuple(rule for rule in codegens() if rule.stage in dependencies)
        source, tree = triton_source(request), triton_here(request)
        return cls(source=source, tree=tree, bindings=bindings(request, tree), rules=rules, pythons=pythons)


def refined(details: TritonDetails, tree: Path) -> TritonDetails:
    """Return the details with the bindings of the fetched tree.

    PinError is raised if the plan assumed the bindings of another project, such as pybind11 instead of nanobind.
    """
    bound = bindings_of(tree)
    if bound.project != details.bindings.project:
        raise PinError(
            "plan-outdated",
            f"this Triton is built with {bound.project}, and the plan expected {details.bindings.project}",
            fix="run the command again: the plan will then read the fetched tree",
        )
    return replace(details, bindings=bound)


def triton_stage(_: str, request: Request) -> Stage:
    """Return the stage for a wheel from the package index, for portable wheels, or for wheels bound to a base."""
    # ruff: noqa: PLC0415 - a plan needs only one of these modules, and two of them import this one
    if not from_source(request):
        from toolchain.stages.triton_wheel import TritonWheelStage

        return TritonWheelStage()
    if request.glibc:
        from toolchain.stages.triton_portable import TritonPortableStage

        return TritonPortableStage()
    from toolchain.stages.triton_source import TritonSourceStage

    return TritonSourceStage()


def stands_on(request: Request) -> tuple[str, ...]:
    """Return the names of the stages below Triton.

    A wheel from the package index needs only the base. A build from source also needs LLVM. A portable build further
    needs the stages `sysroot` and `python`, and any code generator libraries of this Triton with their LLVMs. An error
    is raised if the tool cannot build such a library, if a Triton with such libraries is not built portably, or if the
    request names an LLVM that this Triton does not use.
    """
    if not from_source(request):
        return ("base",)
    rules = rules_of(request)
    refuse_unused(request, rules)
    if rules and not request.glibc:
        raise UnsupportedError(
            "stage-not-for-base",
            f"a Triton with a separate LLVM for {', '.join(rule.target for rule in rules)} is not built for a base",
            why="its libraries are compiled against an old system, on a portable LLVM",
            fix="leave out --base",
        )
    further = (*(rule.llvm for rule in rules), *(rule.stage for rule in rules))
    return ("base", "sysroot", "python", "llvm", *further) if request.glibc else ("base", "llvm")


def cross_machines(request: Request) -> tuple[str, ...]:
    """Return the architectures for which Triton can be cross-compiled; none unless it is built portably from source."""
    return _CROSS if request.glibc and from_source(request) else ()
