"""The workers of a stage that compiles kernels: as many as cores and memory carry, each held to its share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolchain import console
from toolchain.request import Request
from toolchain.stages.stage import Workspace

if TYPE_CHECKING:
    from toolchain.kernels.executors import LocalExecutor
    from toolchain.kernels.worker_process import MakeWorker

# What runs beside Triton in a worker, below the recipe root: it counts in what a kernel's result depends on.
WORKER_FILES = ("aotriton/worker.py", "aotriton/shared_stages.py")


def local_workers(make: MakeWorker, workspace: Workspace) -> LocalExecutor:
    """Workers on this machine, as the request says.

    Args:
        make: starts one.
    """
    from toolchain.kernels.bounds import MemoryBounds, patience  # noqa: PLC0415 - a plan compiles nothing
    from toolchain.kernels.executors import LocalExecutor  # noqa: PLC0415

    request, count = workspace.request, workspace.jobs("kernel")
    bounds = MemoryBounds.of(workspace.memory(), count, (request.kernel_memory or 0) * 10**6)
    return LocalExecutor(make, workers=count, timeout=patience(request.kernel_timeout), bounds=bounds)


def limits(request: Request) -> dict[str, float]:
    """What counts as an input: with --keep-going, what takes too much is marked as known bad, so it makes other
    results. Otherwise it fails the build."""
    asked = {"timeout": request.kernel_timeout, "memory": request.kernel_memory}
    return {name: value for name, value in asked.items() if value and request.keep_going}


def tell(lines: Sequence[str]) -> None:
    """The end of a campaign, for people."""
    for line in lines:
        console.note(line)
