"""`cache`: what the tool's own folder holds, and removing what nobody uses any more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from toolchain import console
from toolchain.cache import Cache, default_cache
from toolchain.cli import options as o
from toolchain.errors import ConfigError
from toolchain.locks import alone

if TYPE_CHECKING:
    from toolchain.build.cache_usage import Item

ImagesArg = Annotated[
    list[str] | None, typer.Argument(metavar="IMAGE", help="Name of a finished image (`toolchain images`).")
]
DaysOpt = Annotated[
    int, typer.Option("--unused-for", metavar="DAYS", min=1, help="Remove what was not used for so many days.")
]
DryOpt = Annotated[bool, typer.Option("--dry-run", "-n", help="Only list what would be removed.")]
UnfinishedOpt = Annotated[
    bool, typer.Option("--unfinished", help="Also unfinished work of any age: builds and campaigns start anew.")
]
_SMALL = 10**6
_DAY = 86400.0


def cache_ls(cache: o.CacheOpt = None, json_: o.JsonOpt = False) -> None:
    """What is in the cache, how large it is and when it was last used."""
    from toolchain.build.cache_usage import survey  # noqa: PLC0415 - other verbs need none of it

    where = Cache((cache or default_cache()).absolute())
    where.check(write=False)
    found = survey(where)
    if json_:
        console.data({"cache": str(where.root), "bytes": _total(found), "items": _rows(found)})
        return
    _show(found)
    console.note(f"{where.root}: {console.size(_total(found))}")


def cache_prune(
    images: ImagesArg = None,
    unused_for: DaysOpt = 30,
    unfinished: UnfinishedOpt = False,
    dry_run: DryOpt = False,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Remove images, sources, unfinished work and logs that were not used for long. A build would make them again.

    With IMAGE only the images that are named go, whenever they were used.
    """
    from toolchain.build.cache_usage import Pruned, prune  # noqa: PLC0415 - other verbs need none of it
    from toolchain.build.images import named_images  # noqa: PLC0415

    where = Cache((cache or default_cache()).absolute())
    where.check(write=not dry_run)
    named = named_images(where, images or ())
    if not where.root.is_dir():
        done = Pruned()
    elif dry_run:
        done = prune(where, unused_for=unused_for * _DAY, unfinished=unfinished, dry=True, images=named)
    else:
        with alone(where):
            done = prune(where, unused_for=unused_for * _DAY, unfinished=unfinished, images=named)
    if json_:
        failed = [{"name": name, "why": why} for name, why in done.failed]
        console.data({"cache": str(where.root), "dry_run": dry_run, "bytes": _total(done.gone),
                      "items": _rows(done.gone), "failed": failed})  # fmt: skip
    else:
        _show(done.gone)
        console.note(f"{console.size(_total(done.gone))} {'would be' if dry_run else 'were'} freed")
    if done.failed:
        raise ConfigError(
            f"{len(done.failed)} of {len(done.gone) + len(done.failed)} entries could not be removed",
            why="\n".join(f"{name}: {why}" for name, why in done.failed[:10]),
            fix="remove them by hand, as the user who made them",
        )


def _total(items: Sequence[Item]) -> int:
    return sum(item.bytes for item in items)


def _rows(items: Sequence[Item]) -> list[dict[str, object]]:
    return [item.as_json() for item in items]


def _show(items: Sequence[Item]) -> None:
    """A row for everything of some size; the rest of each kind together."""
    from toolchain.build.cache_usage import KINDS  # noqa: PLC0415 - other verbs need none of it

    table = Table(box=None, pad_edge=False)
    for name in ("kind", "what"):
        table.add_column(name, overflow="fold")
    for name in ("size", "last used"):
        table.add_column(name, justify="right", overflow="fold")
    for kind in KINDS:
        of_kind = [item for item in items if item.kind == kind]
        shown = [one for one in of_kind if one.bytes >= _SMALL or kind == "image"]
        for one in shown:
            table.add_row(kind, Text(console.plain(one.name)), console.size(one.bytes), _ago(one.used))
        if rest := [one for one in of_kind if one not in shown]:
            table.add_row(kind, f"{len(rest)} small ones", console.size(_total(rest)), _ago(max(r.used for r in rest)))
    if items:
        console.show(table)


def _ago(used: float) -> str:
    days = int(max(0.0, time.time() - used) // _DAY)
    return "today" if days == 0 else f"{days} day{'s' if days > 1 else ''} ago"
