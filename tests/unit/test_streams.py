"""Tests of a standard output that is full, closed, or a pipe without a reader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
WORDS = [["--version"], ["plan", "base", "--json"]]


def shell(script: str, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOOLCHAIN_")}
    env |= {"PYTHONPATH": str(TOP), "TOOLCHAIN_CACHE": str(folder / "cache"), "COLUMNS": "200"}
    return subprocess.run(
        ["bash", "-c", script, "bash", sys.executable, "-m", "toolchain", *words],
        capture_output=True, text=True, env=env, cwd=folder, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_closed_pipe_ends_the_command_by_sigpipe(words: list[str], tmp_path: Path) -> None:
    """The command ends silently, as `yes` does in `yes | true`."""
    done = shell('("$@"; echo "$?" >status) | true', words, tmp_path)
    assert done.stderr == ""
    assert int((tmp_path / "status").read_text()) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_full_standard_output_is_an_error(words: list[str], tmp_path: Path) -> None:
    done = shell('"$@" >/dev/full', words, tmp_path)
    assert done.returncode == 9
    assert "[output-incomplete]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_closed_standard_output_is_no_error(words: list[str], tmp_path: Path) -> None:
    done = shell('"$@" >&-', words, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_standard_output_does_not_become_a_file_of_the_tool(tmp_path: Path) -> None:
    """The next file that is opened could get descriptor 1, and the output of the tool would overwrite it."""
    words = ["lock", "base", "--open-base", "--cache", str(tmp_path / "cache")]
    done = shell('"$@" >&- 2>&- <&-', words, tmp_path)
    assert done.returncode == 0
    text = (tmp_path / "toolchain.lock").read_text()
    assert tomllib.loads(text)
    assert "written" not in text, "what the verb says of the file that it wrote is not in it"


def test_closed_pipe_for_errors_ends_the_command_by_sigpipe(tmp_path: Path) -> None:
    done = shell('("$@" 2>&1; echo "$?" >status) | true', ["plan", "nothing"], tmp_path)
    assert done.stderr == ""
    assert int((tmp_path / "status").read_text()) == 128 + signal.SIGPIPE


def test_full_standard_error_has_the_code_of_incomplete_output(tmp_path: Path) -> None:
    """The code of the failed command is lost, because its message is lost too."""
    done = shell('"$@" 2>/dev/full', ["plan", "nothing"], tmp_path)
    assert (done.returncode, done.stdout) == (9, "")


@pytest.mark.parametrize("width", ["99999999999999999999", "x", "-5", "0"])
def test_impossible_terminal_width_does_not_break_help(width: str, tmp_path: Path) -> None:
    done = shell(f'COLUMNS={width} "$@"', ["--help"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage" in done.stdout


def test_characters_outside_the_encoding_are_escaped(tmp_path: Path) -> None:
    done = shell(
        'PYTHONIOENCODING=ascii PYTHONUTF8=0 "$@"', ["plan", "llvm", "--source", "llvm=é😀", "--json"], tmp_path
    )
    assert done.returncode == 5
    assert "é😀" in json.loads(done.stdout)["what"]
