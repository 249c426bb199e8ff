"""Kernels of reductions, scans, sorts and other movements between lanes."""

import triton
import triton.language as tl


@triton.jit
def reductions(x, out, M: tl.constexpr, N: tl.constexpr):
    """Compute sums and extremes along both axes and of all elements."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(x + m[:, None] * N + n[None, :])
    tl.store(out + m, tl.sum(a, 1))
    tl.store(out + M + m, tl.max(a, 1))
    tl.store(out + 2 * M + m, tl.min(a, 1))
    tl.store(out + 3 * M + n, tl.sum(a, 0))
    tl.store(out + 3 * M + N + n, tl.max(a, 0))
    tl.store(out + 3 * M + 2 * N, tl.sum(a))
    tl.store(out + 3 * M + 2 * N + 1, tl.min(tl.ravel(a), 0))


@triton.jit
def places(x, largest, smallest, value, M: tl.constexpr, N: tl.constexpr):
    """Store the places of the extremes; of several equal extremes, the place of the first."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(x + m[:, None] * N + n[None, :])
    tl.store(largest + m, tl.argmax(a, 1))
    tl.store(smallest + n, tl.argmin(a, 0))
    top, where = tl.max(a, 1, return_indices=True)
    tl.store(value + m, top.to(tl.float32) + where)


@triton.jit
def parity(x, out, N: tl.constexpr):
    """Reduce by exclusive or, and by inclusive or."""
    a = tl.load(x + tl.arange(0, N))
    tl.store(out, tl.xor_sum(a, 0))
    tl.store(out + 1, tl.reduce_or(a, 0))


@triton.jit
def _welford(mean1, m1, w1, mean2, m2, w2):
    weight = w1 + w2
    delta = mean2 - mean1
    return mean1 + delta * (w2 / weight), m1 + m2 + delta * delta * (w1 * w2 / weight), weight


@triton.jit
def moments(x, mean, variance, M: tl.constexpr, N: tl.constexpr):
    """Compute mean and variance by a reduction of three values."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(x + m[:, None] * N + n[None, :])
    middle, squares, weight = tl.reduce((a, tl.zeros_like(a), tl.full([M, N], 1.0, tl.float32)), 1, _welford)
    tl.store(mean + m, middle)
    tl.store(variance + m, squares / weight)


@triton.jit
def sums(x, out, M: tl.constexpr, N: tl.constexpr):
    """Compute running sums along both axes, and backwards along one axis."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    at = m[:, None] * N + n[None, :]
    a = tl.load(x + at)
    tl.store(out + at, tl.cumsum(a, 1))
    tl.store(out + M * N + at, tl.cumsum(a, 0))
    tl.store(out + 2 * M * N + at, tl.cumsum(a, 1, reverse=True))


@triton.jit
def products(x, out, N: tl.constexpr):
    """Compute running products."""
    i = tl.arange(0, N)
    tl.store(out + i, tl.cumprod(tl.load(x + i), 0))


@triton.jit
def _largest(a, b):
    return tl.maximum(a, b)


@triton.jit
def _linear(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def recurrence(x, y, out, top, N: tl.constexpr):
    """Compute a linear recurrence by a scan of pairs, and a running maximum from the end."""
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    _, result = tl.associative_scan((a, b), 0, _linear)
    tl.store(out + i, result)
    tl.store(top + i, tl.associative_scan(b, 0, _largest, reverse=True))


@triton.jit
def sorted_rows(x, up, down, M: tl.constexpr, N: tl.constexpr):
    """Sort rows in both directions."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + at)
    tl.store(up + at, tl.sort(a))
    tl.store(down + at, tl.sort(a, descending=True))


@triton.jit
def largest(x, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Store the `K` largest numbers of each row."""
    m = tl.arange(0, M)
    a = tl.load(x + m[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out + m[:, None] * K + tl.arange(0, K)[None, :], tl.topk(a, K))


@triton.jit
def counts(x, out, masked, n, N: tl.constexpr, BINS: tl.constexpr):
    """Compute two histograms, one of them with a mask."""
    i, b = tl.arange(0, N), tl.arange(0, BINS)
    a = tl.load(x + i)
    tl.store(out + b, tl.histogram(a, BINS))
    tl.store(masked + b, tl.histogram(a, BINS, mask=i < n))


@triton.jit
def gathered(x, index, out, M: tl.constexpr, N: tl.constexpr):
    """Gather along both axes."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a, where = tl.load(x + at), tl.load(index + at)
    tl.store(out + at, tl.gather(a, where % M, 0))
    tl.store(out + M * N + at, tl.gather(a, where, 1))


@triton.jit
def indirect(x, index, out, n, N: tl.constexpr):
    """Load and store at indices that are read from memory, with masks."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    where = tl.load(index + i, mask=i < n, other=0)
    tl.store(out + where, tl.load(x + where, mask=i < n) + i, mask=i < n)


@triton.jit
def shapes(x, y, out, N: tl.constexpr):
    """Interleave, split, reshape, flip, permute, concatenate, broadcast and transpose."""
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    mixed = tl.interleave(a, b)
    tl.store(out + tl.arange(0, 2 * N), mixed)
    even, odd = tl.split(tl.reshape(mixed, (N, 2)))
    tl.store(out + 2 * N + i, even - odd)
    tl.store(out + 3 * N + i, tl.flip(a, 0))
    cube = tl.permute(tl.reshape(mixed, (4, N // 4, 2)), (2, 0, 1))
    tl.store(out + 4 * N + tl.arange(0, 2 * N), tl.ravel(cube))
    tl.store(out + 6 * N + tl.arange(0, 2 * N), tl.cat(a, b, can_reorder=True) * 0 + 3)
    wide = tl.broadcast_to(tl.reshape(a, (N // 4, 4))[:, None, :], (N // 4, 2, 4))
    tl.store(out + 8 * N + tl.arange(0, 2 * N), tl.reshape(wide, (2 * N,)))
    tl.store(out + 10 * N + i, tl.ravel(tl.trans(tl.reshape(b, (N // 8, 8)))))


@triton.jit
def blocks(x, out, m, n, M: tl.constexpr, N: tl.constexpr):
    """Transpose a matrix through block pointers with checked bounds, which a loop moves."""
    source = tl.make_block_ptr(x, (m, n), (n, 1), (tl.program_id(0) * M, 0), (M, N), (1, 0))
    target = tl.make_block_ptr(out, (n, m), (m, 1), (0, tl.program_id(0) * M), (N, M), (1, 0))
    for _ in range(0, n, N):
        a = tl.load(source, boundary_check=(0, 1), padding_option="zero")
        tl.store(target, tl.trans(a) + 1, boundary_check=(0, 1))
        source, target = tl.advance(source, (0, N)), tl.advance(target, (N, 0))


@triton.jit
def described_blocks(x, out, total, m, n, M: tl.constexpr, N: tl.constexpr):
    """Load, store and add atomically through tensor descriptors, also at the edge of a tensor."""
    source = tl.make_tensor_descriptor(x, [m, n], [n, 1], [M, N])
    target = tl.make_tensor_descriptor(out, [m, n], [n, 1], [M, N])
    added = tl.make_tensor_descriptor(total, [m, n], [n, 1], [M, N])
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    a = source.load([row, column])
    target.store([row, column], a * 2)
    added.atomic_add([row, column], a)
