"""Compile the FlashAttention of Triton's tutorial, inside a container with Triton and without a GPU.

    attention_of_its_time.py TUTORIAL GPU...

TUTORIAL is `06-fused-attention.py` of the tree from which the wheel was built. Only its kernels are used, because the
rest imports PyTorch and needs a GPU. For each GPU, 20 kernels are compiled: forward and backward, in several sizes.
The program prints one JSON object: `{"compiled": {GPU: count}, "failed": {GPU KERNEL: why}}`.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, "/recipe/aotriton")
FLOATS = {"M", "D", "Delta"}
SIZES = {
    "N_CTX": 1024, "FP8_OUTPUT": False, "warp_specialize": False, "IS_HOPPER": False, "BLK_SLICE_FACTOR": 2,
    "BLOCK_M1": 32, "BLOCK_N2": 32,
}  # fmt: skip


def kernels_alone(tutorial: Path, into: Path) -> None:
    """Write a module with only the kernels of a tutorial, without its imports and without autotuning."""
    text = tutorial.read_text(encoding="utf-8")
    parts = ["import triton", "import triton.language as tl"]
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(one) == "triton.jit" for one in node.decorator_list):
            lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
            parts += ["", "", "@triton.jit", *lines]
    into.write_text("\n".join(parts) + "\n", encoding="utf-8")


def variants() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield 20 kernels, each as the name of a function and the constants that differ between kernels."""
    heads = (64, 128)
    for head, rows, columns, stage in itertools.product(heads, (64, 128), (32, 64), (1, 3)):
        if (head, rows) != (128, 128):
            yield "_attn_fwd", {"HEAD_DIM": head, "BLOCK_M": rows, "BLOCK_N": columns, "STAGE": stage}
    for head in heads:
        yield "_attn_bwd_preprocess", {"HEAD_DIM": head, "BLOCK_M": 128}
        for rows in (64, 128):
            yield "_attn_bwd", {"HEAD_DIM": head, "BLOCK_N1": rows, "BLOCK_M2": rows, "CAUSAL": True}
    yield "_attn_bwd", {"HEAD_DIM": 64, "BLOCK_N1": 32, "BLOCK_M2": 32, "CAUSAL": True}
    yield "_attn_bwd_preprocess", {"HEAD_DIM": 64, "BLOCK_M": 64}


def types_of(function: Any, constants: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the types of a kernel's arguments by name, and the values of its constant arguments."""
    head = constants["HEAD_DIM"]
    given = {**SIZES, **constants, "BLOCK_DMODEL": head, "D_HEAD": head}
    types: dict[str, str] = {}
    for name, annotation in zip(function.arg_names, constant_arguments(function)):  # noqa: B905 - Python 3.9 runs this
        if annotation:
            types[name] = "constexpr"
        elif name == "sm_scale":
            types[name] = "fp32"
        elif name in {"Z", "H", "N_CTX"} or name.startswith("stride"):
            types[name] = "i32"
        else:
            types[name] = "*fp32" if name in FLOATS else "*fp16"
    return types, {name: given[name] for name, kind in types.items() if kind == "constexpr"}


def constant_arguments(function: Any) -> list[bool]:
    """Return, for each argument, whether it is a constant."""
    arguments = ast.parse(Path(function.fn.__code__.co_filename).read_text(encoding="utf-8")).body
    (node,) = [one for one in arguments if isinstance(one, ast.FunctionDef) and one.name == function.fn.__name__]
    return [one.annotation is not None and "constexpr" in ast.unparse(one.annotation) for one in node.args.args]


def main(tutorial: str, gpus: list[str]) -> int:
    """Run as a program."""
    contract = importlib.import_module("triton_contract")
    contract.prepare()
    found: dict[str, Any] = {"compiled": dict.fromkeys(gpus, 0), "failed": {}}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/cache"
        kernels_alone(Path(tutorial), Path(folder, "attention_kernels.py"))
        sys.path.insert(0, folder)
        module = importlib.import_module("attention_kernels")
        for gpu, (name, constants) in itertools.product(gpus, variants()):
            function = getattr(module, name)
            try:
                types, taken = types_of(function, constants)
                pointers = [at for at, kind in enumerate(types.values()) if kind.startswith("*")]
                contract.code_object(gpu, contract.kernel_of(function, types, taken, pointers))
                found["compiled"][gpu] += 1
            except Exception as error:  # noqa: BLE001 - each error of the compiler is reported
                traceback.print_exc()
                found["failed"][f"{gpu} {name} {sorted(constants.items())}"] = f"{type(error).__name__}: {error}"[:300]
    sys.stdout.write(json.dumps(found, sort_keys=True) + "\n")
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
