"""Completion of command lines in shells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolchain.catalog import stages
from toolchain.catalog.gpus import known_gpus

TOP = Path(__file__).resolve().parents[2]


def completed(line: str) -> list[str]:
    """What bash would show for a line whose last word is to be completed."""
    words = line.split(" ")
    env = {**os.environ, "PYTHONPATH": str(TOP), "_TOOLCHAIN_COMPLETE": "complete_bash"}
    env |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    code = "import sys; sys.argv[0] = 'toolchain'; from toolchain.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("line", ["toolchain build ", "toolchain bundle export oci:x "])
def test_stages(line: str) -> None:
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
def test_values(line: str, some: list[str]) -> None:
    assert completed(line) == some
