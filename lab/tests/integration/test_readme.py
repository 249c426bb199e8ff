"""The commands of README.md on files that a reader already has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_image import make

TOP = Path(__file__).resolve().parents[3]
# These commands download a wheel, or need a wheel that another command downloads.
_NETWORK = ("pip download", "toolchain audit jax", "toolchain inspect pypi:")


def test_first_commands_of_readme_succeed(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    pytest.importorskip("numpy")
    text = (TOP / "README.md").read_text(encoding="utf-8").partition("## A minute on files that you have")[2]
    block = re.search(r"```\n(.*?)```", text, re.DOTALL)
    assert block is not None
    lines = [line for line in block[1].splitlines() if line and not line.startswith(_NETWORK)]
    verbs = {line.split("#")[0].split()[1] for line in lines if line.startswith("toolchain ")}
    assert {"kernels", "report", "emulate", "verify"} <= verbs
    make(tmp_path / "tiny")[0].rename(tmp_path / "DIR")
    (tmp_path / "examples").symlink_to(TOP / "examples")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TOOLCHAIN_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        ["/bin/sh", "-ec", "\n".join(lines)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 changed" in done.stdout, "the two caches hold one kernel, compiled twice"
    assert "0 unknown" in done.stdout
    assert (tmp_path / "kernels.html").stat().st_size > 100_000
