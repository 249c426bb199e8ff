"""`kernels status`: the progress of the campaigns in the cache."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from toolchain.cli import options as o
from toolchain.core import console
from toolchain.core.cache import LEDGER, cache_of
from toolchain.core.errors import ConfigError
from toolchain.request.option_values import scheduler as read_address

WatchOpt = Annotated[bool, typer.Option("--watch", "-w", help="Repeat until no campaign runs; redraws in a terminal.")]
_DRAWN_EVERY, _SAID_EVERY = 1.0, 30.0  # seconds
_NONE = "no unfinished campaign"


def kernels_status(
    cache: o.CacheOpt = None, scheduler: o.SchedulerOpt = None, watch: WatchOpt = False, json_: o.JsonOpt = False
) -> None:
    """Show each kernel campaign: progress, speed, workers, slow and failed kernels.

    With --scheduler, show the campaigns and workers of a Dask scheduler, from any machine.
    """
    if watch and json_:
        raise ConfigError("--watch and --json exclude each other", fix="leave one of them out")
    if scheduler is not None:
        if watch:
            raise ConfigError("--watch and --scheduler exclude each other", fix="leave one of them out")
        _show_scheduler(read_address(scheduler), as_json=json_)
        return
    work = cache_of(cache).work
    if watch:
        _watch(work)
        return
    rows = _read(work)
    if json_:
        console.data({"campaigns": rows})
    elif not rows:
        console.text(_NONE)
    for row in rows if not json_ else []:
        from toolchain.cli.kernels_view import screen  # noqa: PLC0415 - not for --json

        for text in screen(row):
            console.text(text)


def _show_scheduler(address: str, *, as_json: bool) -> None:
    from toolchain.kernels.dask_status import ask  # noqa: PLC0415 - Dask

    status = ask(address, watch=2.5)  # two heartbeats of a worker
    if as_json:
        console.data(status)
        return
    from toolchain.cli.kernels_view import machines, screen  # noqa: PLC0415 - not for --json

    for text in [line for row in status["campaigns"] for line in screen(row)] or ["no campaign"]:
        console.text(text)
    for text in list(machines(status["machines"])) or ["no worker"]:
        console.text(text)


def _read(work: Path) -> list[dict[str, Any]]:
    from toolchain.kernels.status import read  # noqa: PLC0415 - other verbs need none of it

    rows = []
    for path in sorted(work.glob(f"*/{LEDGER}")):
        # A campaign that ends in the meantime removes its folder.
        try:
            rows.append(read(path.parent))
        except ConfigError:
            if path.exists():
                raise
    return rows


def _watch(work: Path) -> None:
    from toolchain.cli.kernels_view import line, screen  # noqa: PLC0415 - not for --json
    from toolchain.kernels.status import RUNNING  # noqa: PLC0415

    terminal = sys.stdout.isatty()
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(_live()) if terminal else None
        while True:
            rows = _read(work)
            running = [row for row in rows if row["state"] == RUNNING]
            if live is not None:
                shown = "\n".join(console.plain(text) for row in rows for text in screen(row))
                live.update(shown or _NONE, refresh=True)
            else:
                for row in running or rows:
                    console.text(line(row))
            if not running:
                if not rows and not terminal:
                    console.text(_NONE)
                return
            time.sleep(_DRAWN_EVERY if terminal else _SAID_EVERY)


def _live() -> Any:
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.live import Live  # noqa: PLC0415

    plain = Console(markup=False, highlight=False, emoji=False)
    return Live(console=plain, auto_refresh=False, vertical_overflow="crop")
