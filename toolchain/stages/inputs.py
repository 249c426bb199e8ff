"""Collect the inputs of stages.

An input digest identifies an uncompressed tree, so only facts that determine the tree's bytes are inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolchain.catalog.stages import source_license
from toolchain.core.digest import EPOCH, FORMAT, sha256_file
from toolchain.core.record import Patch, RecordedSource
from toolchain.request.model import Request
from toolchain.sources.patch import listed
from toolchain.sources.tree import Source
from toolchain.stages.stage import Planned


def common_inputs(name: str, request: Request) -> dict[str, Any]:
    """Return the inputs that every stage has: its name, the format and time stamp of layers, and the architecture.

    The compressor is not an input, because it does not change the tree.
    """
    return {"stage": name, "format": FORMAT, "epoch": EPOCH, "arch": request.arch[0]}


def stage_inputs(
    name: str, request: Request, resolved: Mapping[str, Any], more: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return the inputs of a stage; None while a value of `resolved` is None.

    Args:
        resolved: inputs that may not be known yet, such as the input digests of the stages below.
    """
    if None in resolved.values():
        return None
    return {**common_inputs(name, request), **resolved, **(more or {})}


def triton_id(planned: Planned) -> str:
    """Return the short id of a stage's Triton source, for names of images; `unknown` if it has no such source."""
    return next((source.short_id for source in planned.sources if source.name == "triton"), "unknown")


def source_inputs(sources: Sequence[Source], patches: Mapping[str, Sequence[Path]]) -> list[dict[str, Any]] | None:
    """Return the name, the digest and the digests of the patches of each source; None while a source has no digest."""
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


def recorded_source(request: Request, source: Source) -> RecordedSource:
    """Return the entry of a build record for a source, with the patches that the request applies to the source."""
    return RecordedSource(
        name=source.name,
        ref=source.ref,
        repository=source.repository,
        digest=source.digest,
        tag=source.tag,
        kind=source.kind,
        license=source.license or source_license(source.name),
        locked=source.locked,
        patches=tuple(Patch(**patch) for patch in listed(request.patches.get(source.name, ()))),
    )
