"""Triton kernels that tests compile for AMD GPUs and emulate."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out + i, tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


@triton.jit
def row_sum(x, out, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    tl.store(out + p, tl.sum(tl.load(x + p * BLOCK + tl.arange(0, BLOCK)), 0))


@triton.jit
def matmul(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(left, right))


@triton.jit
def attention(q, k, v, out, lse, scale, n, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    rows, keys, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    left = tl.load(q + rows[:, None] * D + d[None, :], mask=rows[:, None] < n, other=0.0)
    top = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(0, n, BN):
        key = start + keys
        right = tl.load(k + key[None, :] * D + d[:, None], mask=key[None, :] < n, other=0.0)
        s = tl.dot(left, right) * (scale * 1.4426950408889634)
        inside = key[None, :] < n
        if CAUSAL:
            inside = inside & (rows[:, None] >= key[None, :])
        s = tl.where(inside, s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        alpha = tl.exp2(top - new)
        total = total * alpha + tl.sum(p, 1)
        value = tl.load(v + key[:, None] * D + d[None, :], mask=key[:, None] < n, other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p.to(value.dtype), value)
        top = new
    result = (acc * (1 / total)[:, None]).to(out.type.element_ty)
    tl.store(out + rows[:, None] * D + d[None, :], result, mask=rows[:, None] < n)
    tl.store(lse + rows, top + tl.log2(total), mask=rows < n)
