"""A worker of a Dask scheduler on this machine: the Triton image, the kernels' sources, and a worker before them."""

from __future__ import annotations

import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain.core import console
from toolchain.core.errors import ConfigError
from toolchain.core.locks import in_use, kept
from toolchain.pipeline.kernel_store import open_store, result_key
from toolchain.pipeline.plan import plan
from toolchain.pipeline.prefetch import Prefetch
from toolchain.pipeline.run import build
from toolchain.pipeline.workspace import BuildWorkspace
from toolchain.request.model import Request
from toolchain.stages.kernel_workers import kernel_limits
from toolchain.stages.stage import Built

if TYPE_CHECKING:
    from toolchain.kernels.worker import CompileSetup
    from toolchain.pipeline.reuse import Reuse


def serve_kernels(
    request: Request,
    stage: str,
    address: str,
    *,
    name: str = "",
    reuse: Reuse | None = None,
) -> None:
    """Compile kernels for the campaigns of a scheduler, until interrupted.

    Args:
        stage: whose kernels: `kernels`, `aotriton` or `triton-cache`.
        name: as campaigns see this machine; its host name otherwise.
        reuse: see `build.run.build`.

    Raises:
        ConfigError: an address or a store that cannot be used, or no Dask.
        UnreachableError: no scheduler answers for long.
        ToolchainError: Triton's image cannot be made, or the source is not available.
    """
    from toolchain.engine.progress import Progress  # noqa: PLC0415 - as for a build
    from toolchain.kernels.bounds import MemoryBounds  # noqa: PLC0415
    from toolchain.kernels.dask_link import check_address, security  # noqa: PLC0415
    from toolchain.kernels.dask_worker import serve  # noqa: PLC0415
    from toolchain.kernels.store import FolderStore  # noqa: PLC0415
    from toolchain.kernels.worker import KernelWorker  # noqa: PLC0415

    security(check_address(address), "worker")
    if request.kernel_store is None:
        raise ConfigError(
            "a worker needs --kernel-store", why="its results go there", fix="name the store of the campaign"
        )
    under = _under(stage, request)
    results = build(request, under, reuse=reuse)
    image = next(result for result in results if result.planned.name == under)
    (planned,) = (row.planned for row in plan(request, stage) if row.planned.name == stage)
    log = request.cache.logs / f"kernels-worker-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    request.cache.work.mkdir(parents=True, exist_ok=True)
    workspace = BuildWorkspace(
        request=request,
        log=log,
        progress=Progress("worker"),
        stage=f"{stage}-worker",
        prefetch=Prefetch(request, []),
    )
    source = workspace.fetch(planned.sources[0]).path if planned.sources else Path()
    with (
        in_use(request.cache, make=True),  # it may have been made since this verb began
        tempfile.TemporaryDirectory(dir=request.cache.work, prefix="kernel-worker-") as scratch,
        kept(Path(scratch)),
        open_store(request.kernel_store, request.cache, offline=request.offline) as store,
    ):
        if not isinstance(store, FolderStore):
            raise ConfigError(
                f"{store.ref} packs its results, and a campaign waits for each",
                fix="give the campaign's folder as --kernel-store",
            )
        out = Path(scratch) / "out"
        out.mkdir()
        slots, limits = workspace.jobs("kernel"), kernel_limits(request)
        bounds = MemoryBounds.of(workspace.memory(), slots, limits.memory)
        at = _setup(stage, source, image, out, workspace)
        with KernelWorker(
            at, store, name=name or socket.gethostname(), slots=slots, limits=limits, bounds=bounds,
            key=result_key(request.kernel_key),
        ) as worker:  # fmt: skip
            console.note(f"worker {worker.name}: {slots} kernels at once, for {address}; Ctrl-C ends it")
            serve(address, worker)


def _under(stage: str, request: Request) -> str:
    """The stage in whose image the kernels compile."""
    if stage != "triton-cache":
        return "triton"
    from toolchain.stages.triton_cache import stands_on  # noqa: PLC0415 - it alone makes calls

    return stands_on(request)[-1]


def _setup(stage: str, source: Path, image: Built, out: Path, workspace: BuildWorkspace) -> CompileSetup:
    if stage == "triton-cache":
        from toolchain.stages.triton_cache import compile_setup as calls  # noqa: PLC0415 - one of the three

        return calls(image, out, workspace)
    if stage == "kernels":
        from toolchain.stages.kernels import compile_setup  # noqa: PLC0415 - as above

        return compile_setup(source, image, out, workspace)
    from toolchain.stages.aotriton_images import compile_setup as images  # noqa: PLC0415

    return images(source, image, out, workspace)
