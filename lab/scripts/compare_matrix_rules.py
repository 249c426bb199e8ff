#!/usr/bin/env python3
"""Compare the rules of matrix instructions with mmasim, an independent implementation, bit by bit.

Needs `mmasim` and a checkout: `PYTHONPATH=.:lab/src python lab/scripts/compare_matrix_rules.py [PRODUCTS]`. Two NaN are
equal whatever their bits.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

import numpy as np
import torch
from mmasim.amd.sim import MFMA

from lab.tests.matrix_inputs import COLUMNS, SHAPES, by_rule, instruction, products, values

_ARCHITECTURES = {"gfx908": "CDNA1", "gfx90a": "CDNA2", "gfx942": "CDNA3"}
_TYPES = {"f16": (torch.float16, np.int16), "bf16": (torch.bfloat16, np.int16)}


def compare(gpu: str, shape: str, wanted: int) -> tuple[int, int, int]:
    """Compare at least so many results of an instruction: their number, those that are NaN, and those that differ."""
    _, depth, kind, suffix = instruction(shape)
    other = MFMA(_ARCHITECTURES[gpu], f"f32_{shape}")
    tensor, raw = _TYPES.get(kind, (torch.float32, np.int32))
    count = odd = nans = seed = 0
    while count < wanted:
        for a, b, c in products(str(seed), kind, depth):
            left, right = (torch.from_numpy(each.view(raw)).view(tensor) for each in (a, b))
            rows, columns = left[:, None].expand(-1, COLUMNS, -1), right[None].expand(len(left), -1, -1)
            expected = other.dpa(rows, columns, torch.from_numpy(c)).numpy()
            result = by_rule(gpu, kind + suffix, values(kind, a), values(kind, b), c)
            both = np.isnan(expected) & np.isnan(result)
            odd += int(((expected.view(np.uint32) != result.view(np.uint32)) & ~both).sum())
            nans += int(both.sum())
            count += c.size
        seed += 1
    return count, nans, odd


def main() -> None:
    """Print a line for each instruction; exit with 1 if a bit differs."""
    wanted, differing = int(sys.argv[1]) if sys.argv[1:] else 100_000, 0
    print(f"mmasim {version('mmasim')}, torch {torch.__version__}, numpy {np.__version__}")
    for gpu, shapes in SHAPES.items():
        for shape in shapes:
            count, nans, odd = compare(gpu, shape, wanted)
            differing += odd
            print(f"{gpu} v_mfma_f32_{shape}: {count} results, {nans} NaN, {odd} differ", flush=True)
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
