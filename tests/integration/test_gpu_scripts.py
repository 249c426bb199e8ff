"""Tests of the scripts that compile kernels to PTX with a real Triton, and write their launch data to JSON.

The launches themselves need a GPU; docs/measurements/kernels.md has the results of launches.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOP = Path(__file__).parents[2]
SCRIPTS = TOP / "scripts" / "gpu"
KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def scaled(X, Y, factor, n, stride_x, BIAS, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(X + at * stride_x, at < n) * factor
    if BIAS is not None:
        value += BIAS
    tl.store(Y + at, value, at < n)
"""
TABLE = """
[[kernel]]
family = "own"
role = "fwd"
root = "src"
file = "inner/kernel.py"
function = "scaled"
num_warps = 4
num_stages = 1
axes = { dtype = ["fp16", "bf16"], head = [64] }
grid = ["n/128"]
[kernel.arguments]
"[XY]" = "*{dtype}:16"
factor = "fp32"
n = "i32"
"stride_*" = "i32:16"
BIAS = "none"
BLOCK = 128
[kernel.values]
X = "x"
Y = "null"
factor = "scale"
n = "n"
"stride_*" = "x.1"

[[kernel]]
family = "own"
role = "dq"
like = "fwd"
root = "src"
file = "inner/kernel.py"
function = "{which}"
num_warps = 4
num_stages = 1
axes = { which = ["scaled", "nothing"], dtype = ["fp16"], head = [64] }
grid = ["n/64"]
[kernel.arguments]
BLOCK = 64
"""


@pytest.fixture
def run_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the runner as a module, with a stand-in for PyTorch."""
    monkeypatch.syspath_prepend(str(TOP / "aotriton" / "standin"))
    for name in [n for n in sys.modules if n.split(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    spec = importlib.util.spec_from_file_location("gpu_run", SCRIPTS / "run.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_run", module)
    spec.loader.exec_module(module)
    return module


def _compiled(tmp_path: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    (tmp_path / "tree" / "src" / "inner").mkdir(parents=True)
    (tmp_path / "tree" / "src" / "inner" / "kernel.py").write_text(KERNEL)
    (tmp_path / "table.toml").write_text(TABLE)
    command = [sys.executable, str(SCRIPTS / "compile.py"), str(tmp_path / "out"), "--kernels"]
    command += [str(tmp_path / "table.toml"), "--source", f"own={tmp_path / 'tree'}"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    made = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")}
    return said, made


def test_kernels_are_compiled_to_ptx_with_their_launch_data(tmp_path: Path, run_module: ModuleType) -> None:
    """The PTX has the parameters of the JSON, and another one for each scratch memory of the launch."""
    pytest.importorskip("triton")
    said, made = _compiled(tmp_path)
    assert sorted(made) == ["own-dq-scaled-fp16-64", "own-fwd-bf16-64", "own-fwd-fp16-64"], said.stderr
    about = made["own-fwd-fp16-64"]
    ptx = (tmp_path / "out" / "own-fwd-fp16-64.ptx").read_text()
    assert about["ptx_sha256"] == hashlib.sha256(ptx.encode()).hexdigest()
    assert [(p["name"], p["type"], p["value"], p["divisible"]) for p in about["parameters"]] == [
        ("X", "*fp16", "x", 16),
        ("Y", "*fp16", "null", 16),
        ("factor", "fp32", "scale", 1),
        ("n", "i32", "n", 1),
        ("stride_x", "i32", "x.1", 16),
    ]
    listed = run_module.entry(ptx, about["launch"]["name"])
    scratch = sum(key in about["launch"] for key in ("global_scratch_size", "profile_scratch_size"))
    assert len(re.findall(r"\.param", listed)) == 5 + scratch
    assert re.search(r"\.target sm_90a", ptx)
    assert made["own-dq-scaled-fp16-64"]["grid"] == ["n/64"], "what it is like has another grid"


def test_kernel_that_does_not_compile_is_reported_and_leaves_no_file(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    said, made = _compiled(tmp_path)
    assert said.returncode == 1
    assert "failed own-dq-nothing-fp16-64" in said.stdout
    assert not any("nothing" in name for name in made)


def test_launch_refuses_a_pointer_that_is_not_a_multiple_of_16(run_module: ModuleType) -> None:
    """The kernel is compiled for multiples of 16, so with another pointer it would access other data."""

    class Tensor:
        def __init__(self, pointer: int) -> None:
            self.pointer = pointer

        def data_ptr(self) -> int:
            return self.pointer

        def stride(self, dimension: int) -> int:
            return (4096, 64, 1)[dimension]

    run_module.torch.Tensor = Tensor
    parameter = {"name": "X", "type": "*fp16", "value": "x", "divisible": 16}
    assert run_module.argument(parameter, {"x": Tensor(4096)}).value == 4096
    with pytest.raises(ValueError, match=r"X = 4104 is not a multiple of 16"):
        run_module.argument(parameter, {"x": Tensor(4104)})
    stride = {"name": "stride_x", "type": "i32", "value": "x.1", "divisible": 16}
    assert run_module.argument(stride, {"x": Tensor(0)}).value == 64
    null = {"name": "B", "type": "*fp16", "value": "null", "divisible": 16}
    assert run_module.argument(null, {}).value == 0
    number = {"name": "p", "type": "fp32", "value": 0.5, "divisible": 1}
    assert isinstance(run_module.argument(number, {}), ctypes.c_float)
    assert [run_module.tiles(text, {"n": 129, "H": 3}) for text in ("n/128", "n/1", "H")] == [2, 129, 3]
