"""Tests of the completion of command lines in shells."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from toolchain.catalog import stages
from toolchain.catalog.gpus import known_gpus
from toolchain.cli.app import app


def completed(line: str) -> list[str]:
    """Return the completions that bash shows for the last word of a line."""
    env = {"_TOOLCHAIN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = CliRunner().invoke(app, [], env=env, prog_name="toolchain")
    return done.stdout.split()


@pytest.mark.parametrize("line", ["toolchain build ", "toolchain bundle export oci:x "])
def test_stages_are_completed(line: str) -> None:
    assert completed(line) == list(stages.targets())


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("toolchain build ll", ["llvm", "llvm-amdgpu"]),
        ("toolchain plan llvm --triton 3.7", ["3.7.0", "3.7.1"]),
        ("toolchain plan aotriton --gpu gfx11", [gpu for gpu in known_gpus() if gpu.startswith("gfx11")]),
        ("toolchain plan aotriton --gpu gfx942,gfx9", ["gfx942,gfx90a", "gfx942,gfx950"]),
        ("toolchain publish --compression z", ["zstd"]),
    ],
)
def test_stage_prefixes_and_option_values_are_completed(line: str, some: list[str]) -> None:
    assert completed(line) == some
