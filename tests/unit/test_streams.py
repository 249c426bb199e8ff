"""Standard output that no one reads, that is full, or that is closed."""

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
def test_a_reader_that_has_gone_is_no_error(words: list[str], tmp_path: Path) -> None:
    """It ends as `yes | true` does: silently, and by SIGPIPE."""
    done = shell('("$@"; echo "$?" >status) | true', words, tmp_path)
    assert done.stderr == ""
    assert int((tmp_path / "status").read_text()) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_full_disk_behind_standard_output_is_told(words: list[str], tmp_path: Path) -> None:
    done = shell('"$@" >/dev/full', words, tmp_path)
    assert done.returncode == 9
    assert "[output-incomplete]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_closed_standard_output_is_silence(words: list[str], tmp_path: Path) -> None:
    done = shell('"$@" >&-', words, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_closed_gets_no_file_of_the_tool(tmp_path: Path) -> None:
    """The next file that is opened would have the number of standard output, and be written over."""
    words = ["lock", "base", "--open-base", "--cache", str(tmp_path / "cache")]
    done = shell('"$@" >&- 2>&- <&-', words, tmp_path)
    assert done.returncode == 0
    text = (tmp_path / "toolchain.lock").read_text()
    assert tomllib.loads(text)
    assert "written" not in text, "what the verb says of the file that it wrote is not in it"


def test_a_reader_of_errors_that_has_gone(tmp_path: Path) -> None:
    done = shell('("$@" 2>&1; echo "$?" >status) | true', ["plan", "nothing"], tmp_path)
    assert done.stderr == ""
    assert int((tmp_path / "status").read_text()) == 128 + signal.SIGPIPE
    assert shell('"$@" 2>/dev/full', ["plan", "nothing"], tmp_path).returncode in {7, 9}


@pytest.mark.parametrize("width", ["99999999999999999999", "x", "-5", "0"])
def test_a_width_that_no_terminal_has(width: str, tmp_path: Path) -> None:
    done = shell(f'COLUMNS={width} "$@"', ["--help"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage" in done.stdout


def test_what_an_encoding_lacks_is_escaped(tmp_path: Path) -> None:
    done = shell(
        'PYTHONIOENCODING=ascii PYTHONUTF8=0 "$@"', ["plan", "llvm", "--source", "llvm=é😀", "--json"], tmp_path
    )
    assert done.returncode == 5
    assert "é😀" in json.loads(done.stdout)["what"]
