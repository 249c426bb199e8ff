#!/usr/bin/env python3
"""Compare the rules for matrix instructions bit by bit with mmasim, an independent implementation.

    PYTHONPATH=.:lab/src python lab/scripts/compare_matrix_rules.py [PRODUCTS]

The script needs `mmasim`, `numpy` and `torch`, and runs in a checkout. PRODUCTS is the minimum number of results to
compare for each instruction; the default is 100,000. Two NaNs are equal, even if their bits differ. mmasim drops a
partial sum that is infinite or NaN if the exponent of a bf8 product exceeds the sum's exponent by more than 25, because
mmasim takes the exponent of infinity as 0. The script counts such differences separately.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

import numpy as np
import torch
from mmasim.amd.sim import MFMA

from lab.tests.matrix_inputs import COLUMNS, SHAPES, by_rule, instruction, products, sides, values

_ARCHITECTURES = {"gfx908": "CDNA1", "gfx90a": "CDNA2", "gfx942": "CDNA3"}
_TYPES = {
    "f16": (torch.float16, np.int16), "bf16": (torch.bfloat16, np.int16),
    "fp8": (torch.float8_e4m3fnuz, np.uint8), "bf8": (torch.float8_e5m2fnuz, np.uint8),
}  # fmt: skip


def compare(gpu: str, shape: str, wanted: int) -> tuple[int, int, int, int]:
    """Compare at least `wanted` results of an instruction.

    Returns:
        The numbers of results, of NaNs, of differences, and of results for which mmasim dropped infinity or NaN.
    """
    _, depth, kind, suffix = instruction(shape)
    other = MFMA(_ARCHITECTURES[gpu], f"f32_{shape}")
    kinds = sides(kind)
    types = [_TYPES.get(each, (torch.float32, np.int32)) for each in kinds]
    count = odd = nans = dropped = seed = 0
    while count < wanted:
        for a, b, c in products(str(seed), kind, depth):
            left, right = (
                torch.from_numpy(each.view(raw)).view(tensor) for each, (tensor, raw) in zip((a, b), types, strict=True)
            )
            rows, columns = left[:, None].expand(-1, COLUMNS, -1), right[None].expand(len(left), -1, -1)
            expected = other.dpa(rows, columns, torch.from_numpy(c)).numpy()
            result = by_rule(gpu, kind + suffix, values(kinds[0], a), values(kinds[1], b), c)
            both = np.isnan(expected) & np.isnan(result)
            differ = (expected.view(np.uint32) != result.view(np.uint32)) & ~both
            lost = differ & ~np.isfinite(result) & np.isfinite(expected) & (kinds == ("bf8", "bf8"))
            odd += int((differ & ~lost).sum())
            dropped += int(lost.sum())
            nans += int(both.sum())
            count += c.size
        seed += 1
    return count, nans, odd, dropped


def main() -> None:
    """Print a line for each instruction, and exit with 1 if a result differs although mmasim dropped no sum."""
    wanted, differing = int(sys.argv[1]) if sys.argv[1:] else 100_000, 0
    print(f"mmasim {version('mmasim')}, torch {torch.__version__}, numpy {np.__version__}")
    for gpu, shapes in SHAPES.items():
        for shape in shapes:
            count, nans, odd, dropped = compare(gpu, shape, wanted)
            differing += odd
            lost = f", and {dropped} where mmasim dropped infinity or NaN" if dropped else ""
            print(f"{gpu} v_mfma_f32_{shape}: {count} results, {nans} NaN, {odd} differ{lost}", flush=True)
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
