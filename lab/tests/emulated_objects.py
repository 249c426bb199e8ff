"""Code objects that tests emulate, compiled by the worker that compiles the kernels of images."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WORKER = HERE.parents[1] / "aotriton" / "worker.py"
KERNELS = HERE / "emulated" / "kernels.py"
POINTER = "*{}:16"
# The signature and constants of each kernel; "{}" stands for the type of its elements.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "add": {"x": "*fp32:16", "y": "*fp32:16", "out": "*fp32:16", "n": "i32", "BLOCK": 256},
    "row_sum": {"x": "*fp32:16", "out": "*fp32:16", "BLOCK": 512},
    "matmul": {"a": POINTER, "b": POINTER, "c": "*fp32:16", "M": 32, "N": 32, "K": 32},
    "attention": {
        "q": POINTER, "k": POINTER, "v": POINTER, "out": POINTER, "lse": "*fp32:16", "scale": "fp32", "n": "i32",
        "BM": 32, "BN": 32, "D": 32, "CAUSAL": True,
    },
}  # fmt: skip


def rule(
    folder: Path, kernel: str, gpu: str, *, element: str = "fp16", warps: int = 4, **constants: Any
) -> dict[str, Any]:
    """Return the rule by which the worker compiles a kernel of `emulated/kernels.py` for a GPU."""
    arguments = {**ARGUMENTS[kernel], **constants}
    types = {name: v.format(element) if isinstance(v, str) else "constexpr" for name, v in arguments.items()}
    label = "-".join([kernel, element, *(f"{name}{value}" for name, value in constants.items())])
    return {
        "id": f"{gpu}-{label}",
        "root": str(KERNELS.parent),
        "source": str(KERNELS),
        "kernel": kernel,
        "signature": types,
        "constexprs": {name: value for name, value in arguments.items() if not isinstance(value, str)},
        "target": gpu,
        "num_warps": warps,
        "num_stages": 1,
        "waves_per_eu": 0,
        "out": str(folder / gpu / f"{label}.hsaco"),
    }


def compile_all(rules: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Compile rules, one after the other, in one worker."""
    done = subprocess.run(
        [sys.executable, str(WORKER)],
        input="".join(json.dumps(each) + "\n" for each in rules),
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()[1:]]
    bad = [answer for answer in answers if answer["status"] != "done"]
    assert not bad, bad
    return [Path(answer["object"]) for answer in answers]
