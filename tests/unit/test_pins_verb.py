"""Output of `toolchain pins` for all rows, for a version and for a checkout."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.unit.test_pins import HASH
from toolchain.catalog import release_data as pins
from toolchain.cli.pins_cmd import pins as verb
from toolchain.core.errors import PinError, ToolchainError


@pytest.fixture
def run() -> CliRunner:
    return CliRunner()


def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(verb)
    return made


def test_json_lists_all_rows(run: CliRunner) -> None:
    content = json.loads(run.invoke(app(), ["--json"]).stdout)
    assert {name: len(rows) for name, rows in content.items()} == {
        "triton": len(pins.triton_releases()),
        "aotriton": len(pins.aotriton_releases()),
        "pytorch": len(pins.pytorch_rows()),
    }
    unknown = next(row for row in content["aotriton"] if row["name"] == "0.14.1b")
    assert (unknown["commit"], unknown["llvm"]) == (None, None)
    tags = {row["version"]: row["tag"] for row in content["triton"]}
    assert (tags["3.7.1"], list(tags.values()).count("")) == ("v3.7.1", 0)


def test_pytorch_resolves_to_llvm(run: CliRunner) -> None:
    content = json.loads(run.invoke(app(), ["--pytorch", "2.9.1", "--json"]).stdout)
    assert content["aotriton"]["name"] == "0.11b"
    assert content["llvm"]["commit"] == "570885128351868c1308bb22e8ca351d318bc4a1"
    assert content["llvm"]["warnings"]


def test_home_in_path_is_expanded(run: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell does not expand `~` in `--from=~/FILE`; `plan --triton` accepts such a path."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "llvm-hash.txt").write_text(HASH)
    for option in ("--from", "--triton"):
        assert HASH in run.invoke(app(), [f"{option}=~/llvm-hash.txt"]).stdout


def test_a_checkout_shows_every_llvm_that_it_pins(run: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "cmake").mkdir()
    (tmp_path / "cmake/llvm-hash.txt").write_text(HASH)
    (tmp_path / "cmake/amd-llvm-info.json").write_text(json.dumps({"llvm_hash": "6" * 40, "build_number": 2}))
    for option in ("--from", "--triton"):
        said = run.invoke(app(), [option, str(tmp_path)]).stdout
        assert HASH in said
        assert re.search(rf"^llvm-amdgpu\.llvm +{'6' * 40}$", said, re.MULTILINE)
        found = json.loads(run.invoke(app(), [option, str(tmp_path), "--json"]).stdout)
        assert (found["llvm"]["commit"], found["llvm-amdgpu"]["build"]) == (HASH, 2)


def test_pytorch_with_incomplete_aotriton_is_refused(run: CliRunner) -> None:
    result = run.invoke(app(), ["--pytorch", "2.10"])
    assert isinstance(result.exception, PinError)
    assert result.stdout == ""
    (release,) = (row.aotriton for row in pins.pytorch_rows() if row.version == "2.10")
    assert f"AOTriton {release}," in result.exception.what
    assert f"--aotriton {release} " in result.exception.fix
    assert isinstance(run.invoke(app(), ["--aotriton", ""]).exception, ToolchainError)


def test_two_versions_are_a_usage_error(run: CliRunner) -> None:
    assert run.invoke(app(), ["--triton", "3.2", "--pytorch", "2.9"]).exit_code == 2
