"""`kernels`: what the campaigns in the tool's own folder are at."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from toolchain import console
from toolchain.cache import LEDGER
from toolchain.cli import options as o
from toolchain.cli.request import make_request
from toolchain.errors import ConfigError

WatchOpt = Annotated[bool, typer.Option("--watch", "-w", help="Repeat until no campaign runs; redrawn in a terminal.")]
_DRAWN_EVERY, _SAID_EVERY = 1.0, 30.0  # seconds
_NONE = "no unfinished campaign"


def kernels_status(
    cache: o.CacheOpt = None, scheduler: o.SchedulerOpt = None, watch: WatchOpt = False, json_: o.JsonOpt = False
) -> None:
    """Show each kernel campaign: how far it is, how fast, what its workers do, what was slow and what failed.

    With --scheduler those of a Dask scheduler, and its workers, from anywhere.
    """
    if watch and json_:
        raise ConfigError("--json is one document, and --watch goes on", fix="leave --watch out, and ask again")
    if scheduler is not None:
        if watch:
            raise ConfigError("--watch looks at this machine", fix="leave --watch out, or --scheduler")
        _show_scheduler(make_request(scheduler=scheduler).scheduler or "", as_json=json_)
        return
    work = make_request(cache=cache).cache.work
    if watch:
        _watch(work)
        return
    rows = _read(work)
    if json_:
        console.data({"campaigns": rows})
    elif not rows:
        console.text(_NONE)
    for row in rows if not json_ else []:
        from toolchain.cli.kernels_view import screen  # noqa: PLC0415 - for people

        for said in screen(row):
            console.text(said)


def _show_scheduler(address: str, *, as_json: bool) -> None:
    from toolchain.kernels.dask_status import ask  # noqa: PLC0415 - Dask

    found = ask(address, watch=2.5)  # two signs of life of a worker
    if as_json:
        console.data(found)
        return
    from toolchain.cli.kernels_view import machines, screen  # noqa: PLC0415 - for people

    for said in [line for row in found["campaigns"] for line in screen(row)] or ["no campaign"]:
        console.text(said)
    for said in list(machines(found["machines"])) or ["no worker"]:
        console.text(said)


def _read(work: Path) -> list[dict[str, Any]]:
    from toolchain.kernels.status import read  # noqa: PLC0415 - other verbs need none of it

    rows = []
    for path in sorted(work.glob(f"*/{LEDGER}")):
        # A campaign that ends while we look takes its folder with it.
        try:
            rows.append(read(path.parent))
        except ConfigError:
            if path.exists():
                raise
    return rows


def _watch(work: Path) -> None:
    from toolchain.cli.kernels_view import line, screen  # noqa: PLC0415 - for people
    from toolchain.kernels.status import RUNNING, ask_for_more  # noqa: PLC0415

    terminal = sys.stdout.isatty()
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(_live()) if terminal else None
        while True:
            rows = _read(work)
            running = [row for row in rows if row["state"] == RUNNING]
            for row in running:
                ask_for_more(work / row["campaign"])
            if live is not None:
                shown = "\n".join(console.plain(said) for row in rows for said in screen(row))
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
    from rich.console import Console  # noqa: PLC0415 - only where somebody watches
    from rich.live import Live  # noqa: PLC0415

    plain = Console(markup=False, highlight=False, emoji=False)
    return Live(console=plain, auto_refresh=False, vertical_overflow="crop")
