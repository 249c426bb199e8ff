"""`shell`: look around where a stage is built."""

from __future__ import annotations

from typing import Annotated

import typer

from toolchain import console
from toolchain.build.shell import open_shell
from toolchain.catalog import stages
from toolchain.cli import options as o
from toolchain.cli.request import CAMPAIGN, with_request
from toolchain.request import Request

StageArg = Annotated[str, typer.Argument(help=stages.choice(), autocompletion=o.stage())]
CommandArg = Annotated[
    list[str] | None, typer.Argument(help="Behind `--`: a command in place of a shell.", show_default=False)
]


@with_request(*CAMPAIGN, "contract", "json")
def shell(stage: StageArg, command: CommandArg = None, *, request: Request) -> None:
    """Open a shell where a stage is built: its container, sources and unfinished tree, without a network.

    Give the options of the build that failed. Nothing is kept: the next build goes on from the tree as it was.
    """
    code = open_shell(request, stage, command or [], show=console.text)
    if code:
        raise typer.Exit(code)
