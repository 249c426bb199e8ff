"""aotriton/triton_contract.py on the pinned wheel of the test environment: the check that a built Triton gets."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "aotriton" / "triton_contract.py"


@pytest.fixture(autouse=True)
def _triton() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("NO TRITON in this environment: install the test extra")


def contract(*gpus: str, prelude: str = "") -> tuple[int, dict[str, Any]]:
    run = f"sys.argv = ['x', *{gpus!r}]; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    program = "\n".join(["import sys, runpy", prelude, run])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout.strip().splitlines()[-1])


def test_amd_and_nvidia_without_a_gpu() -> None:
    code, found = contract("gfx942", "gfx1151")
    assert code == 0
    assert set(found["objects"]) == {"gfx942", "gfx1151"}
    assert found["ptx"]["bytes"] > 1000
    assert found["failed"] == {}


def test_a_gpu_that_does_not_compile_fails_the_contract() -> None:
    code, found = contract("gfx942", "gfx999")
    assert code == 1
    assert set(found["objects"]) == {"gfx942"}
    assert "gfx999" in found["failed"]


def test_without_libdevice_there_is_no_ptx_and_it_says_why() -> None:
    prelude = (
        "import pathlib\nglob = pathlib.Path.glob\n"
        "pathlib.Path.glob = lambda self, what: [] if 'libdevice' in what else glob(self, what)\n"
    )
    code, found = contract(prelude=prelude)
    assert code == 0
    assert "libdevice" in found["ptx"]["missing"]
