"""What is decided of a Triton from source: by the request, and then by its tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from toolchain.catalog.codegen import Codegen, codegens
from toolchain.core.errors import PinError
from toolchain.request.model import Request
from toolchain.sources.tree import Source
from toolchain.stages.codegen_llvm import bindings, triton_here
from toolchain.stages.stage import Planned
from toolchain.stages.triton_origin import triton_source
from toolchain.stages.triton_tree import Bindings, bindings_of


@dataclass(frozen=True, kw_only=True)
class TritonDetails:
    """The decisions about a Triton from source.

    Args:
        tree: of it, where that is here already.
        bindings: by that tree; without it as releases bind, see `refined`.
        rules: of the libraries for GPUs that it is built with.
        pythons: the versions that wheels are built for; where none is named a base's own.
        held: the one of them whose wheel the image holds; empty if that is known only after the build.
        cross: whether the wheels are for another machine.
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
        """What a request decides."""
        rules = tuple(rule for rule in codegens() if rule.stage in dependencies)
        source, tree = triton_source(request), triton_here(request)
        return cls(source=source, tree=tree, bindings=bindings(request, tree), rules=rules, pythons=pythons)


def refined(details: TritonDetails, tree: Path) -> TritonDetails:
    """The details once the tree is fetched, which alone says how it binds C++ to Python.

    Raises:
        PinError: by another project than was planned.
    """
    bound = bindings_of(tree)
    if bound.project != details.bindings.project:
        raise PinError(
            f"this Triton is bound by {bound.project}, which was not planned",
            fix="run the command again, now that its tree is here; it is planned by that",
        )
    return replace(details, bindings=bound)
