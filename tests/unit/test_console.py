"""Standard output under --json: one document, whatever comes of the command."""

from __future__ import annotations

import json
import logging

import pytest
import typer

from toolchain import console, logs
from toolchain.cli.failing import handled
from toolchain.errors import NotReproducedError


@handled
def differs(json: bool = False, say: bool = True) -> None:
    if say:
        console.data({"equal": False})
    raise NotReproducedError("not the same", why="a.a: content")


def test_names_of_strangers_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2K\x1b[1A\x1b[32mtrusted\r\x9b31m"
    logs.setup(0)
    console.note(evil)
    console.warn(evil)
    console.failure(NotReproducedError(evil, why=evil, fix=evil), as_json=False)
    logging.getLogger("some").warning("%s", evil)
    console.text(f"a\t{evil}")
    said = capsys.readouterr()
    assert not {"\x1b", "\r", "\x9b"} & set(said.err + said.out)
    assert said.out == "a\t\\x1b[2K\\x1b[1A\\x1b[32mtrusted\\x0d\\x9b31m\n"
    console.data({"a": f"{evil}\x7f"})
    assert json.loads(capsys.readouterr().out) == {"a": f"{evil}\x7f"}


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
