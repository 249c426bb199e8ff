"""Triton, as a request names it: from source, or a wheel of the index."""

from __future__ import annotations

from toolchain.request import Request
from toolchain.stages.stage import Stage
from toolchain.stages.triton_source import TritonSourceStage, from_source
from toolchain.stages.triton_wheel import TritonWheelStage


def of_request(request: Request) -> Stage:
    """The one of the two stages that the request means."""
    return TritonSourceStage() if from_source(request) else TritonWheelStage()


def stands_on(request: Request) -> tuple[str, ...]:
    """From source it stands on the LLVM layer; a wheel does not."""
    return ("base", "llvm") if from_source(request) else ("base",)
