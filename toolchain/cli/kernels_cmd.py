"""`kernels`: what the campaigns in the tool's own folder are at."""

from __future__ import annotations

from toolchain import console
from toolchain.cli import options as o
from toolchain.cli.request import make_request


def kernels_status(cache: o.CacheOpt = None, json_: o.JsonOpt = False) -> None:
    """Show the progress of each kernel campaign: how many of those asked for last are done, failed or timed out."""
    from toolchain.kernels.ledger import Ledger  # noqa: PLC0415 - build needs it only inside the stage

    request = make_request(cache=cache)
    rows = []
    for path in sorted(request.cache.work.glob("*/ledger.sqlite")):
        with Ledger(path) as ledger:
            count, asked = ledger.of_asked()
            rows.append({"campaign": path.parent.name, "count": count, "asked": asked, **ledger.summary().as_json()})
    if json_:
        console.data({"campaigns": rows})
    elif not rows:
        console.text("no unfinished campaign")
    for row in rows if not json_ else []:
        console.text("  ".join(f"{key} {value}" for key, value in row.items()))
