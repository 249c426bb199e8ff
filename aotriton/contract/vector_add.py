"""The kernel that triton_contract.py compiles: a vector addition with loads, arithmetic, a mask and a store."""

import triton
import triton.language as tl


@triton.jit
def vector_add(x, y, out, count, BLOCK: tl.constexpr):  # noqa: N803 - Triton's constants are in upper case
    """Set out[i] = x[i] + y[i] for i < count; each program computes one block of BLOCK elements."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    total = tl.load(x + index, mask=inside) + tl.load(y + index, mask=inside)
    tl.store(out + index, total, mask=inside)
