"""Tests of the first lines of `plan`, which name untried combinations."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from toolchain.cli.app import app

NEAR_22 = "d8da7c998c75c88691e0ec157fcfd92b49d7060a"
LLVM = ("--source", "llvm=distro:llvm-toolchain-22")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(folder / "cache"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def planned(*words: str) -> tuple[str, dict[str, bool]]:
    """Return the lines about untried combinations, and by stage the field `tried` of `--json`."""
    done = CliRunner().invoke(app, ["plan", *words])
    assert done.exit_code == 0, done.output
    data = CliRunner().invoke(app, ["plan", *words, "--json"])
    stages = json.loads(data.stdout)["stages"]
    first = "\n".join(itertools.takewhile(lambda line: line.startswith("untried: "), done.stdout.splitlines()))
    return first, {row["name"]: row["tried"] for row in stages if "tried" in row}


TRITON = ("--source", f"triton=https://github.com/triton-lang/triton@{NEAR_22}", "--allow-binary", "libdevice")
OF_11 = ("--aotriton", "0.11b", "--drop-binary", "libdevice")
NEAR_21 = "91822318570f76e8952b9a49934df97e8871492e"
BY_OTHER = (
    *("--source", f"triton=https://github.com/triton-lang/triton@{NEAR_21}"),
    *("--source", "llvm=distro:llvm-toolchain-21"),
)


@pytest.mark.parametrize(
    ("words", "untried", "stages"),
    [
        (("llvm", *LLVM), [], {"llvm": True}),
        (("llvm", *LLVM, "--triton", "3.6.0"), ["with the parts for Triton 3.6"], {"llvm": False}),
        (("llvm", *LLVM, "--arch", "ppc64le"), ["LLVM 22.1.8 for ppc64le"], {"llvm": False}),
        (
            ("llvm", "--triton", "3.5.0"),
            ["LLVM 7d5de3033187 for glibc 2.31 with the parts"],
            {"llvm": False},
        ),
        (("triton", *LLVM, *TRITON), [], {"llvm": True, "triton": True}),
        (("triton", "--triton", "3.6.0"), ["Triton v3.6.0 on LLVM f6ded0be897e"], {"llvm": False, "triton": False}),
        (
            ("aotriton", *OF_11, *BY_OTHER, "--gpu", "gfx942", "--rocm", "6"),
            [],
            {"llvm": True, "triton": True, "aotriton": True},
        ),
        (
            ("aotriton", *OF_11, *BY_OTHER, "--gpu", "gfx942,gfx950", "--rocm", "6"),
            ["AOTriton 972223c501ff by Triton 91822318570f for gfx942, gfx950"],
            {"llvm": True, "triton": True, "aotriton": False},
        ),
        (
            ("aotriton", *OF_11, *BY_OTHER, "--gpu", "gfx942", "--rocm", "7"),
            ["AOTriton 972223c501ff"],
            {"llvm": True, "triton": True, "aotriton": False},
        ),
        (
            ("aotriton", *OF_11, "--gpu", "gfx942", "--rocm", "6"),
            ["AOTriton 972223c501ff by Triton b59fb1f66f02"],
            {"llvm": False, "triton": False, "aotriton": False},
        ),
        (
            ("aotriton", "--aotriton", "0.10b", "--drop-binary", "libdevice", "--gpu", "gfx942", "--rocm", "6"),
            ["AOTriton 6fca155f4dee"],
            {"llvm": False, "triton": False, "aotriton": False},
        ),
    ],
)
def test_plan_names_untried_combinations(words: Sequence[str], untried: list[str], stages: dict[str, bool]) -> None:
    line, listed = planned(*words)
    assert listed == stages
    assert line.startswith("untried: ") == (not all(stages.values()))
    assert all(part in line for part in untried)


def test_part_of_llvm_and_triton_wheel_have_no_tried_field() -> None:
    assert planned("llvm", *LLVM, "--only", "tablegen", "--base", "debian12")[1] == {}
    assert planned("triton", "--source", "triton=pypi:3.7.1")[1] == {}
