"""aotriton/triton_contract.py, which checks a built Triton, run on the pinned wheel of the test environment."""

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


def test_kernels_for_amd_and_nvidia_compile_without_a_gpu() -> None:
    code, found = contract("gfx942", "gfx1151")
    assert code == 0
    assert set(found["objects"]) == {"gfx942", "gfx1151"}
    assert found["ptx"]["bytes"] > 1000
    assert found["failed"] == {}


def test_gpu_that_does_not_compile_fails_the_contract() -> None:
    prelude = (
        "import triton\ncompiled = triton.compile\n"
        "def broken(*a, target, **k): return 1 / 0 if target.arch == 'gfx1100' else compiled(*a, target=target, **k)\n"
        "triton.compile = broken\n"
    )
    code, found = contract("gfx942", "gfx1100", prelude=prelude)
    assert code == 1
    assert set(found["objects"]) == {"gfx942"}
    assert "ZeroDivisionError" in found["failed"]["gfx1100"]


def test_unsupported_gpu_fails_only_if_it_is_the_only_one() -> None:
    code, found = contract("gfx942", "gfx999")
    assert (code, found["unsupported"], found["failed"]) == (0, ["gfx999"], {})
    code, found = contract("gfx999")
    assert (code, found["objects"]) == (1, {})


def test_missing_libdevice_is_the_reason_for_missing_ptx() -> None:
    prelude = (
        "import pathlib\nglob = pathlib.Path.glob\n"
        "pathlib.Path.glob = lambda self, what: [] if 'libdevice' in what else glob(self, what)\n"
    )
    code, found = contract(prelude=prelude)
    assert code == 0
    assert "libdevice" in found["ptx"]["missing"]
