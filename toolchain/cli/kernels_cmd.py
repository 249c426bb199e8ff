"""The verb `kernels status`, which shows the progress of the campaigns in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolchain.cli import options as o
from toolchain.core import console
from toolchain.core.cache import LEDGER, cache_of
from toolchain.core.errors import ConfigError


def kernels_status(cache: o.CacheOpt = None, json_: o.JsonOpt = False) -> None:
    """Show each kernel campaign: its progress, speed and workers, and its slow and failed kernels."""
    rows = _read(cache_of(cache).work)
    if json_:
        console.data({"campaigns": rows})
        return
    if not rows:
        console.text("no unfinished campaign")
    from toolchain.cli.kernels_view import screen  # noqa: PLC0415 - `--json` does not need it

    for text in (text for row in rows for text in screen(row)):
        console.text(text)


def _read(work: Path) -> list[dict[str, Any]]:
    from toolchain.kernels.status import read  # noqa: PLC0415 - `--help` does not need it

    rows = []
    for path in sorted(work.glob(f"*/{LEDGER}")):
        try:
            rows.append(read(path.parent))
        except ConfigError:  # the campaign may have just ended and removed its folder
            if path.exists():
                raise
    return rows
