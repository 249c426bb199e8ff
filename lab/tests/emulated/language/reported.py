"""Kernels with the operations for which public reports found wrong AMD code."""

import triton
import triton.language as tl


@triton.jit
def occupied(x, out, N: tl.constexpr, BINS: tl.constexpr):
    """Store the bins of a histogram that are not empty."""
    bins = tl.arange(0, BINS)
    counts = tl.histogram(tl.load(x + tl.arange(0, N)), BINS)
    tl.store(out + bins, counts, counts > 0)


@triton.jit
def product(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) * tl.load(y + i))


@triton.jit
def converted(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@triton.jit
def added_products(a, b, out, steps, M: tl.constexpr, K: tl.constexpr):
    """Multiply 8-bit matrices in a loop, with few columns in each iteration."""
    i, k = tl.arange(0, M), tl.arange(0, K)
    total = tl.zeros([M, M], tl.int32)
    for step in range(steps):
        left = tl.load(a + i[:, None] * (K * steps) + step * K + k[None, :])
        right = tl.load(b + (step * K + k[:, None]) * M + i[None, :])
        total += tl.dot(left, right)
    tl.store(out + i[:, None] * M + i[None, :], total)


@triton.jit
def numbered(counters, out, N: tl.constexpr, M: tl.constexpr):
    """Increment each counter by compare-and-swap, and store its old number in all columns."""
    i, j = tl.arange(0, N)[:, None], tl.arange(0, M)[None, :]
    before = tl.atomic_cas(counters + i, i, i + 1)
    tl.store(out + i * M + j, before + j * 0)


@triton.jit
def far(out):
    """Store whether the program is one of the first 65536."""
    if tl.program_id(0) < 65536:
        tl.store(out, 1)
    else:
        tl.store(out, 2)


@triton.jit
def counted(out, N: tl.constexpr, LEAST: tl.constexpr):
    """Count the iterations of nested loops, and store the count if it exceeds `LEAST`."""
    total = 0
    for i in range(N):
        for _ in range(i):
            total += 1
    if total > LEAST:
        tl.store(out, total)
