"""The verbs `cache ls`, which shows the size of the cache, and `cache prune`, which removes unused entries."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from toolchain.cli import options as o
from toolchain.cli.parsing import COMMAND_LINE, source_of
from toolchain.core import console
from toolchain.core.cache import cache_of
from toolchain.core.errors import ConfigError
from toolchain.core.locks import alone
from toolchain.engine.resources import disk_bytes

if TYPE_CHECKING:
    from toolchain.pipeline.cache_usage import Item

ImagesArg = Annotated[
    list[str] | None, typer.Argument(metavar="IMAGE", help="Name of a finished image (`toolchain images`).")
]
DaysOpt = Annotated[
    int, typer.Option("--unused-for", metavar="DAYS", min=1, help="Remove items not used for this many days.")
]
DryOpt = Annotated[bool, typer.Option("--dry-run", "-n", help="Only list what would be removed.")]
UnfinishedOpt = Annotated[
    bool, typer.Option("--unfinished", help="Also remove unfinished builds and campaigns of any age; they start over.")
]
_DAY = 86400.0


def cache_ls(cache: o.CacheOpt = None, json_: o.JsonOpt = False) -> None:
    """Show the size of the cache."""
    where = cache_of(cache)
    if where.mounts.is_dir() and not os.access(where.mounts, os.R_OK | os.X_OK):
        from toolchain.engine.namespace import enter  # noqa: PLC0415 - root does not need it

        enter()  # some folders that builds create are unreadable outside the user namespace
    size = disk_bytes(where.root.resolve())  # the cache may be a link to a folder on a larger disk
    if json_:
        console.data({"cache": str(where.root), "bytes": size})
        return
    console.text(f"{where.root}: {console.size(size)}")


def cache_prune(
    context: typer.Context,
    images: ImagesArg = None,
    unused_for: DaysOpt = 30,
    unfinished: UnfinishedOpt = False,
    dry_run: DryOpt = False,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Remove images, sources, unfinished work and logs that have not been used for a while.

    Later builds fetch or build again what they need. With IMAGE, remove only the named images, even if they were used
    recently.
    """
    from toolchain.pipeline.cache_usage import Pruned, prune  # noqa: PLC0415 - `cache ls` does not need it
    from toolchain.pipeline.finished_images import named_images  # noqa: PLC0415

    aged = source_of(context, "unused_for") == COMMAND_LINE
    if images and (unfinished or aged):
        raise ConfigError(
            "options-exclude",
            f"{'--unfinished' if unfinished else '--unused-for'} and IMAGE exclude each other",
            why="with IMAGE, only the named images are removed, even if they were used recently",
            fix="run the command once for each",
        )
    where = cache_of(cache)
    if not dry_run:
        where.check()
    named = named_images(where, images or ())
    if not where.root.is_dir():
        done = Pruned()
    elif dry_run or not where.is_ours:
        # No lock is needed: a dry run removes nothing, and `prune` raises an error for a folder without a cache's mark.
        done = prune(where, unused_for=unused_for * _DAY, unfinished=unfinished, dry=True, images=named)
    else:
        with alone(where):
            done = prune(where, unused_for=unused_for * _DAY, unfinished=unfinished, images=named)
    if json_:
        failed = [{"name": name, "why": why} for name, why in done.failed]
        console.data({"cache": str(where.root), "dry_run": dry_run, "bytes": _total(done.gone),
                      "items": [item.as_json() for item in done.gone], "failed": failed})  # fmt: skip
    else:
        _show(done.gone)
        console.note(f"{'would free' if dry_run else 'freed'} {console.size(_total(done.gone))}")
    if done.failed:
        raise ConfigError(
            "cache-not-emptied",
            f"{len(done.failed)} of {len(done.gone) + len(done.failed)} entries could not be removed",
            why="\n".join(f"{name}: {why}" for name, why in done.failed[:10]),
            fix="remove them manually, as the user who created them",
        )


def _total(items: Sequence[Item]) -> int:
    return sum(item.bytes for item in items)


def _show(items: Sequence[Item]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("what", overflow="fold")
    for name in ("size", "last used"):
        table.add_column(name, justify="right", overflow="fold")
    for item in items:
        table.add_row(Text(console.plain(item.name)), console.size(item.bytes), _ago(item.used))
    if items:
        console.show(table)


def _ago(used: float) -> str:
    if not used:
        return "never"
    days = int(max(0.0, time.time() - used) // _DAY)
    return "today" if days == 0 else f"{days} day{'s' if days > 1 else ''} ago"
