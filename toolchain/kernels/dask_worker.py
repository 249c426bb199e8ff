"""A station behind a Dask scheduler: it stays where schedulers come and go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from pathlib import Path
from typing import Any

from toolchain.errors import UnreachableError
from toolchain.kernels.dask_link import KEY, check_address, library, security
from toolchain.kernels.station import Station, answer_as_text

LOG = logging.getLogger(__name__)
PATIENCE = 600.0
"""Seconds for which a worker and a campaign wait for a scheduler that is gone."""
_PAUSE = 1.0
_STATION = "toolchain_station"


def compile_kernel(order: str) -> str:
    """What a Dask task does: it runs on a worker of `serve`, in a thread. All that travels is text."""
    worker = library().get_worker()
    return answer_as_text(lambda: getattr(worker, _STATION), order)


def serve(address: str, station: Station, scratch: Path, *, patience: float = PATIENCE) -> None:
    """Work for a scheduler until somebody interrupts.

    Args:
        scratch: an empty folder for Dask.
        patience: seconds; see `PATIENCE`.

    Raises:
        ConfigError: see `dask_link`.
        UnreachableError: no scheduler answers for so long.
    """
    check_address(address)
    library()
    trust = security(address, "worker")
    asyncio.run(keep_serving(address, station, scratch, trust, patience=patience))


async def keep_serving(address: str, station: Station, scratch: Path, trust: Any, *, patience: float) -> None:
    """See `serve`."""
    last = time.monotonic()
    while True:
        try:
            async with make_worker(address, station, scratch, trust, patience=patience) as worker:
                LOG.info("worker %s serves %s", station.name, address)
                await worker.finished()
            last = time.monotonic()
            LOG.warning("the scheduler at %s is gone; waiting for it", address)
        except (OSError, TimeoutError) as error:
            if time.monotonic() - last > patience:
                raise UnreachableError(
                    f"no scheduler answers at {address}",
                    why=f"{str(error) or type(error).__name__}, for {patience:.0f} s",
                    fix="start one: `dask scheduler`, in the same version as here, then this worker again",
                ) from error
        await asyncio.sleep(_PAUSE)


@contextlib.asynccontextmanager
async def make_worker(address: str, station: Station, scratch: Path, trust: Any, *, patience: float = PATIENCE) -> Any:
    """A Dask worker that runs the orders of a station, while the block lasts."""
    tls = address.startswith("tls://")
    worker = library().Worker(
        address,
        nthreads=station.slots,
        # Nobody but this machine need reach it where the scheduler is here; otherwise Dask finds the way out.
        host=None if tls else "127.0.0.1",
        protocol="tls" if tls else "tcp",
        security=trust,
        # Kernels compile in processes of their own, which are bounded; Dask would measure this one alone.
        memory_limit=0,
        dashboard=False,
        dashboard_address="127.0.0.1:0",
        local_directory=str(scratch),
        startup_information={KEY: lambda _: json.dumps(station.describe())},
        metrics={KEY: lambda _: json.dumps(station.now())},
        # Seconds in which a scheduler must have answered.
        death_timeout=min(30.0, max(1.0, patience)),
    )
    setattr(worker, _STATION, station)
    try:
        await worker
        yield worker
    finally:
        with contextlib.suppress(OSError, TimeoutError):
            await worker.close(timeout=5, executor_wait=False)
