"""`report`: write an HTML page about a build, a campaign, a comparison or an audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolchain.cli import options as o
from toolchain.core import console
from toolchain.core.cache import cache_of

WhatArg = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="Finished image; campaign, by name, folder or ledger; JSON of `kernels diff` or `audit`; or any place with"
        " kernels.",
    ),
]
OutOpt = Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write; replaced if it exists.")]


def report(what: WhatArg, out: OutOpt = Path("report.html"), cache: o.CacheOpt = None) -> None:
    """Write one HTML file with charts, and tables that can be sorted, filtered and compared row by row.

    The page loads nothing from the network. A campaign may still be running.
    """
    from toolchain.core.digest import require_output, write_output  # noqa: PLC0415
    from toolchain_lab.report.page import html  # noqa: PLC0415 - `--help` does not need it
    from toolchain_lab.report.subject import report_of  # noqa: PLC0415

    require_output(out, option="--out", make_folder=True)
    page = html(report_of(what, cache_of(cache))).encode(errors="backslashreplace")
    write_output(out, page, option="--out")
    console.text(str(out), console.size(len(page)))
