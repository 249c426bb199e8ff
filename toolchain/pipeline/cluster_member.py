"""Compile kernels on this machine for campaigns that use a Dask scheduler."""

from __future__ import annotations

import asyncio
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain.core import console
from toolchain.core.locks import in_use, kept
from toolchain.engine.progress import Progress
from toolchain.kernels.bounds import MemoryBounds
from toolchain.kernels.cluster import requirements
from toolchain.kernels.cluster_worker import Compiler, serve
from toolchain.pipeline.fetching import Prefetch
from toolchain.pipeline.plan import plan
from toolchain.pipeline.run import build
from toolchain.pipeline.workspace import BuildWorkspace
from toolchain.request.model import Request
from toolchain.stages import aotriton_images, kernels, triton_cache
from toolchain.stages.kernel_workers import SCRATCH, kernel_limits

if TYPE_CHECKING:
    from toolchain.pipeline.reuse import Reuse


def serve_kernels(request: Request, stage: str, address: str, *, name: str = "", reuse: Reuse | None = None) -> None:
    """Compile kernels for the campaigns of a Dask scheduler until the user interrupts this function.

    The image in which the kernels are compiled is built first if it is not finished here. The errors of `run.build` and
    `cluster_worker.serve` are raised.

    Args:
        stage: the stage whose kernels are compiled: `kernels`, `aotriton` or `triton-cache`.
        address: the address of the scheduler.
        name: the name of this worker at the scheduler; empty for this machine's host name.
        reuse: see `run.build`.
    """
    under = triton_cache.stands_on(request)[-1] if stage == "triton-cache" else "triton"
    image = next(built for built in build(request, under, reuse=reuse) if built.planned.name == under)
    planned = next(row.planned for row in plan(request, stage) if row.planned.name == stage)
    log = request.cache.logs / f"kernels-worker-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.log"
    for folder in (request.cache.logs, request.cache.work):
        folder.mkdir(parents=True, exist_ok=True)
    workspace = BuildWorkspace(
        request=request, log=log, progress=Progress("worker"), stage=f"{stage}-worker", prefetch=Prefetch(request, [])
    )
    source = workspace.fetch(planned.sources[0]).path if planned.sources else Path()
    with (
        in_use(request.cache, make=True),  # this process holds no lock yet if the build above created the cache
        tempfile.TemporaryDirectory(dir=request.cache.work, prefix="kernel-worker-") as scratch,
        kept(Path(scratch)),
    ):
        out = Path(scratch) / "out"
        out.mkdir()
        if stage == "triton-cache":
            setup = triton_cache.compile_setup(image, out, workspace)
        else:
            project = kernels.PROJECT if stage == "kernels" else aotriton_images.PROJECT
            setup = project.compile_setup(source, image, out, workspace, scratch=out.with_name(SCRATCH))
        slots, limits = workspace.jobs("kernel"), kernel_limits(request)
        bounds = MemoryBounds.of(workspace.memory(), slots, limits.memory)
        compiler, name = Compiler(setup, slots=slots, limits=limits, bounds=bounds), name or socket.gethostname()
        console.note(f"worker {name}: {slots} kernels at once, for {address}; Ctrl-C ends it")
        provides = requirements(setup, limits, request.runner).values()
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio replaces only this handler by its own
        asyncio.run(serve(address, compiler, name=name, provides=provides, scratch=Path(scratch) / "dask"))
