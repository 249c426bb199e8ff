"""Tests that `Command` reads option values as Typer does, but without pydantic."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.core import TyperCommand
from typer.testing import CliRunner

from toolchain.cli.parsing import Command

CALLS: list[tuple[list[str], dict[str, str]]] = [
    ([], {}),
    (["word"], {}),
    (["--count", "3", "--many", "a", "--many", "b", "--path", "x/y", "--ratio", "0.5", "--flag", "word"], {}),
    (["--count", "x"], {}),
    (["--free", "7.5"], {}),
    (["--no-flag"], {}),
    (["--flag=x"], {}),
    ([], {"MANY": "a b", "COUNT": "4", "FLAG": "1", "TEXT": "t"}),
    ([], {"COUNT": "0"}),
    ([], {"FLAG": "perhaps"}),
    (["--help"], {}),
]  # fmt: skip


def program(cls: type[TyperCommand], seen: list[Any]) -> typer.Typer:
    made = typer.Typer()

    @made.command(cls=cls)
    def verb(
        word: str = "default",
        text: Annotated[str | None, typer.Option(envvar="TEXT")] = None,
        count: Annotated[int, typer.Option(min=1, envvar="COUNT")] = 2,
        free: Annotated[int | None, typer.Option()] = None,
        many: Annotated[list[str] | None, typer.Option(envvar="MANY")] = None,
        path: Annotated[Path | None, typer.Option()] = None,
        ratio: Annotated[float | None, typer.Option(min=0)] = None,
        flag: Annotated[bool, typer.Option("--flag/--no-flag", envvar="FLAG")] = True,
    ) -> None:
        """Record the values."""
        seen.extend([word, text, count, free, many, path, ratio, flag])

    return made


@pytest.mark.parametrize(("words", "env"), CALLS)
@pytest.mark.parametrize("values", [None, {"many": ["c"], "count": 5, "text": "u", "path": "z", "ratio": 1}])
def test_command_reads_options_as_typer_does(
    words: list[str], env: dict[str, str], values: dict[str, Any] | None
) -> None:
    told = []
    for cls in (TyperCommand, Command):
        seen: list[Any] = []
        done = CliRunner().invoke(program(cls, seen), words, env=env, default_map=values)
        told.append((done.exit_code, done.output, [(type(one), one) for one in seen]))
    assert told[0] == told[1]


def test_pydantic_is_not_loaded_if_no_value_is_converted() -> None:
    code = (
        "import sys; sys.argv = ['toolchain', 'plan', 'base', '--gpu', 'gfx942', '--base', 'debian13']\n"
        "from toolchain.cli.app import app\n"
        "try:\n    app()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "assert 'pydantic.type_adapter' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
