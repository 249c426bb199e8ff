"""Compile a kernel for gfx942 into the cache of Triton, without a GPU: `python add.py [BLOCK]`."""

import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
block = int(sys.argv[1]) if len(sys.argv) > 1 else 256
triton.compile(ASTSource(add, signature, {"BLOCK": block}), target=GPUTarget("hip", "gfx942", 64))
