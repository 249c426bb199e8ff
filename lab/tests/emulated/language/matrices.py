"""Kernels of matrix products, of every type that `tl.dot` takes."""

import triton
import triton.language as tl


@triton.jit
def _tile(pointer, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    return tl.load(pointer + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :])


@triton.jit
def _put(pointer, value, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    tl.store(pointer + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :], value)


@triton.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Multiply matrices with an accumulator of the result's type."""
    _put(c, tl.dot(_tile(a, M, K), _tile(b, K, N), out_dtype=c.dtype.element_ty), M, N)


@triton.jit
def product_by(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    """Multiply float32 matrices with a given input precision."""
    _put(c, tl.dot(_tile(a, M, K), _tile(b, K, N), input_precision=PRECISION), M, N)


@triton.jit
def accumulated(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Add a product to the numbers in the buffer of the result."""
    start = _tile(c, M, N)
    _put(c, tl.dot(_tile(a, M, K), _tile(b, K, N), start), M, N)


@triton.jit
def transposed(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Multiply two transposed operands, and store the transpose of the product."""
    result = tl.dot(tl.trans(_tile(a, K, M)), tl.trans(_tile(b, N, K)))
    _put(c, tl.trans(result), N, M)


@triton.jit
def batched(a, b, c, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Multiply three-dimensional operands."""
    h, m, n, k = tl.arange(0, B), tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + h[:, None, None] * (M * K) + m[None, :, None] * K + k[None, None, :])
    right = tl.load(b + h[:, None, None] * (K * N) + k[None, :, None] * N + n[None, None, :])
    tl.store(c + h[:, None, None] * (M * N) + m[None, :, None] * N + n[None, None, :], tl.dot(left, right))


@triton.jit
def looped(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Multiply matrices in blocks, with masks on all three axes."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, k, BK):
        middle = start + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * k + middle[None, :], (rows[:, None] < m) & (middle[None, :] < k), 0.0)
        right = tl.load(b + middle[:, None] * n + columns[None, :], (middle[:, None] < k) & (columns[None, :] < n), 0.0)
        total = tl.dot(left, right, total)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty), inside)


@triton.jit
def dequantized(a, b, scale, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Multiply fp16 by int8, which has a scale for each column."""
    right = _tile(b, K, N).to(tl.float16)
    result = tl.dot(_tile(a, M, K), right) * tl.load(scale + tl.arange(0, N))[None, :]
    _put(c, result, M, N)


@triton.jit
def unpacked(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Multiply fp16 by int4; a byte holds two numbers of int4."""
    packed = _tile(b, K // 2, N)
    low, high = (packed & 15).to(tl.float16) - 8.0, (packed >> 4).to(tl.float16) - 8.0
    right = tl.permute(tl.join(low, high), (0, 2, 1)).reshape(K, N)
    _put(c, tl.dot(_tile(a, M, K), right), M, N)


@triton.jit
def scaled(
    a, a_scale, b, b_scale, c,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, FORMAT: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Multiply micro-scaled operands, which have one scale for 32 elements."""
    left, right = _tile(a, M, K // PACKED), _tile(b, K // PACKED, N)
    result = tl.dot_scaled(left, _tile(a_scale, M, K // 32), FORMAT, right, _tile(b_scale, N, K // 32), FORMAT)
    _put(c, result, M, N)


@triton.jit
def split(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PART: tl.constexpr):
    """Split a product along K, and add its parts by atomics."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.program_id(0) * PART + tl.arange(0, PART)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + n[None, :])
    tl.atomic_add(c + m[:, None] * N + n[None, :], tl.dot(left, right), sem="relaxed")


@triton.jit
def described(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Multiply matrices that are read and written through tensor descriptors."""
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [M, K]).load([0, 0])
    right = tl.make_tensor_descriptor(b, [K, N], [N, 1], [K, N]).load([0, 0])
    tl.make_tensor_descriptor(c, [M, N], [N, 1], [M, N]).store([0, 0], tl.dot(left, right))


@triton.jit
def chained(a, b, d, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Round a product, and multiply it by a third matrix."""
    first = tl.dot(_tile(a, M, K), _tile(b, K, N))
    _put(c, tl.dot(first.to(d.dtype.element_ty), _tile(d, N, N)), M, N)
