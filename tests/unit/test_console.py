"""Standard output under --json: one document, whatever comes of the command."""

from __future__ import annotations

import json

import pytest
import typer

from toolchain import console
from toolchain.cli.failing import handled
from toolchain.errors import NotReproducedError


@handled
def differs(json: bool = False, say: bool = True) -> None:
    if say:
        console.data({"equal": False})
    raise NotReproducedError("not the same", why="a.a: content")


def test_a_result_and_then_a_failure_are_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as stopped:
        differs(json=True)
    assert stopped.value.exit_code == NotReproducedError.code
    assert json.loads(capsys.readouterr().out) == {"equal": False}


def test_a_failure_alone_is_told_as_data_even_after_another_command(capsys: pytest.CaptureFixture[str]) -> None:
    console.data({"an earlier command": True})
    capsys.readouterr()
    with pytest.raises(typer.Exit):
        differs(json=True, say=False)
    assert json.loads(capsys.readouterr().out)["what"] == "not the same"


def test_without_json_nothing_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        differs(json=False, say=False)
    said = capsys.readouterr()
    assert said.out == ""
    assert "a.a: content" in said.err
