"""The verb `shell`, which opens a shell in the build container of a stage."""

from __future__ import annotations

from typing import Annotated

import typer

from toolchain.catalog import stages
from toolchain.cli import options as o
from toolchain.cli.build_options import HOW, with_request
from toolchain.core import console
from toolchain.pipeline.stage_shell import open_shell
from toolchain.request.model import Request

StageArg = Annotated[str, typer.Argument(help=stages.choice(), autocompletion=o.complete_stage)]
CommandArg = Annotated[
    list[str] | None, typer.Argument(help="Command to run instead of a shell, after `--`.", show_default=False)
]


@with_request(*HOW, "contract", "json")
def shell(stage: StageArg, command: CommandArg = None, *, request: Request) -> None:
    """Open a shell in the build container of a stage, with its sources and unfinished tree, without a network.

    Use the options of the failed build. Changes are discarded: the next build continues from the tree as it was.
    """
    code = open_shell(request, stage, command or [], show=console.text)
    if code:
        raise typer.Exit(code)
