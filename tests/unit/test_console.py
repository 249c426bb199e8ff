"""Tests of the console: one JSON document under --json, and no unsafe characters in any output."""

from __future__ import annotations

import json
import logging
import sys
import unicodedata

import pytest
import typer

from toolchain.cli.failing import handled
from toolchain.cli.listing import Listing
from toolchain.core import console, logs
from toolchain.core.errors import NotReproducedError
from toolchain.engine.progress import Progress


@handled
def differs(json: bool = False, say: bool = True) -> None:
    if say:
        console.data({"equal": False})
    raise NotReproducedError("test-error", "not the same", why="a.a: content")


def test_a_log_record_is_one_line_with_its_level(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(0)
    logging.getLogger("some").warning("%s is slow", "a host")
    logging.getLogger("some").info("not shown")
    assert capsys.readouterr().err == "WARNING: a host is slow\n"


def test_failure_after_a_result_prints_no_second_document(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as stopped:
        differs(json=True)
    assert stopped.value.exit_code == NotReproducedError.code
    assert json.loads(capsys.readouterr().out) == {"equal": False}


def test_failure_is_printed_as_json_even_after_a_document_of_another_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console.data({"an earlier command": True})
    capsys.readouterr()
    with pytest.raises(typer.Exit):
        differs(json=True, say=False)
    assert json.loads(capsys.readouterr().out)["what"] == "not the same"


EVIL = {
    "newline": "x\n::error::forged",
    "escape": "x\x1b[2K\x1b[1A",
    "carriage return": "x\rtrusted",
    "OSC": "x\x1b]0;title\x07",
    "C1": "x\x9b31m",
    "right to left": "x\u202egnp.exe",
    "isolate": "x\u2066y",
    "line separator": "x\u2028::error::forged",
    "paragraph separator": "x\u2029y",
    "next line": "x\x85::error::forged",
    "zero width": "ad\u200bmin",
    "joiner": "ad\u200dmin",
    "byte order mark": "\ufeffx",
    "soft hyphen": "ad\xadmin",
    "tag": "x\U000e0041",
    "half a pair": "x\ud800",
    "tab": "x\ttrusted",
    "command": "::error::forged",
    "command behind spaces": "  \t::set-output name=x::y",
    "old command": "x ##[error]forged",
}
HARMLESS = ("a::b", "std::vector<int>", "#[derive]", "caf\u00e9 \u65e5\u672c\u8a9e \U0001f600", "100%")


@pytest.mark.parametrize("github", [True, False])
@pytest.mark.parametrize("kind", EVIL)
def test_unsafe_text_is_escaped_in_all_output(
    kind: str, github: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    if github:
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
    evil = EVIL[kind]
    logs.setup(0)
    console.note(evil)
    console.warn(evil)
    console.failure(NotReproducedError("test-error", evil, why=evil, fix=evil), as_json=False)
    logging.getLogger("some").warning("%s", evil)
    console.text(evil)
    console.show(Listing(columns=("what",), rows=[(evil,)], head=("what",)))
    with Progress(evil, console=console.err()) as progress:
        progress.weigh({evil: 1.0}, ninja={})
        progress.line(f"@step {evil}")
        progress.line(f"@count 1/2 {evil}")
    said = capsys.readouterr()
    for line in (said.err + said.out).split("\n"):
        assert not {unicodedata.category(char) for char in line} & {"Cc", "Cf", "Cs", "Zl", "Zp"}, repr(line)
        ours = line.startswith(("::warning::", "::error::Not reproduced [test-error]: ", "::group::", "::endgroup::"))
        assert not line.strip().startswith("::") or (github and ours), line
        assert "##[" not in line


def test_json_escapes_unsafe_text_and_preserves_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    for value in EVIL.values():
        console.data({value: [value]})
        said = capsys.readouterr().out
        assert not {unicodedata.category(char) for char in said.replace("\n", "")} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
        assert "##[" not in said
        assert json.loads(said) == {value: [value]}


def test_escaping_changes_only_unsafe_text() -> None:
    assert [console.plain(text) for text in HARMLESS] == list(HARMLESS)
    assert console.plain_lines("a\nb\n::error::c") == "a\nb\n\\x3a:error::c"
    assert console.one_line("a\nb\u202ec") == "a?b?c"


def test_every_character_of_an_unsafe_category_is_escaped() -> None:
    """The categories come from the Unicode database of the running Python."""
    shown = [
        char
        for char in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and console.plain(char) == char
    ]
    assert shown == []


def test_percent_sign_is_escaped_in_github_annotations(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    console.warn("50 %0A::error::forged")
    assert capsys.readouterr().err == "::warning::50 %250A::error::forged\n"


def test_control_characters_are_escaped_in_text_output(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2K\x1b[1A\x1b[32mtrusted\r\x9b31m"
    logs.setup(0)
    console.note(evil)
    console.warn(evil)
    console.failure(NotReproducedError("test-error", evil, why=evil, fix=evil), as_json=False)
    logging.getLogger("some").warning("%s", evil)
    console.text("a", evil)
    said = capsys.readouterr()
    assert not {"\x1b", "\r", "\x9b"} & set(said.err + said.out)
    assert said.out == "a\t\\x1b[2K\\x1b[1A\\x1b[32mtrusted\\x0d\\x9b31m\n"
    console.data({"a": f"{evil}\x7f"})
    assert json.loads(capsys.readouterr().out) == {"a": f"{evil}\x7f"}
