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

WatchOpt = Annotated[bool, typer.Option("--watch", "-w", help="Repeat until no campaign runs; redraws in a terminal.")]
_DRAWN_EVERY, _SAID_EVERY = 1.0, 30.0  # seconds
_NONE = "no unfinished campaign"


def kernels_status(cache: o.CacheOpt = None, watch: WatchOpt = False, json_: o.JsonOpt = False) -> None:
    """Show each kernel campaign: progress, speed, workers, slow and failed kernels."""
    if watch and json_:
        raise ConfigError("--watch and --json exclude each other", fix="leave one of them out")
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
