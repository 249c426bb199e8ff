"""The inputs of stages: an input digest names an uncompressed tree, so only what decides its bytes is an input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolchain.core.digest import EPOCH, FORMAT, sha256_file
from toolchain.request.model import Request
from toolchain.sources.tree import Source
from toolchain.stages.stage import Planned


def common_inputs(name: str, request: Request) -> dict[str, Any]:
    """Return the inputs that every stage has: its name, the format and time stamp of layers, the architecture.

    The compressor and the versions of this machine's programs are not among them. The compilers are in the base, whose
    digest is an input of the stages above.
    """
    return {
        "stage": name,
        "format": FORMAT,
        "epoch": EPOCH,
        "arch": request.arch[0],
    }


def stage_inputs(
    name: str, request: Request, resolved: Mapping[str, Any], more: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return the inputs of a stage; None while one of the resolved ones is not known.

    Args:
        resolved: input digests of the stages below, and `source_inputs`.
    """
    if None in resolved.values():
        return None
    return {**common_inputs(name, request), **resolved, **(more or {})}


def triton_id(planned: Planned) -> str:
    """Return the name of a stage's Triton in names of images above it."""
    return next((source.short_id for source in planned.sources if source.name == "triton"), "unknown")


def source_inputs(sources: Sequence[Source], patches: Mapping[str, Sequence[Path]]) -> list[dict[str, Any]] | None:
    """Return the sources as inputs, with their patches; None while one has no digest."""
    if any(source.digest is None for source in sources):
        return None
    return [
        {
            "name": source.name,
            "digest": source.digest,
            "patches": [sha256_file(p) for p in patches.get(source.name, ())],
        }
        for source in sorted(sources, key=lambda s: s.name)
    ]
