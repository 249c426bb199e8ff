"""Kernels of control flow, functions that are not inlined, random numbers, and whole algorithms."""

import triton
import triton.language as tl


@triton.jit(noinline=True)
def _polynomial(x, a, b):
    return (x * a + b) * x + 1


@triton.jit(noinline=True)
def _both(x, y):
    low, high = tl.minimum(x, y), tl.maximum(x, y)
    return low, _polynomial(high, 3, 2)


@triton.jit
def called(x, y, out, n):
    """Call functions of scalars, one of which calls the other."""
    for i in range(n):
        a, b = tl.load(x + i), tl.load(y + i)
        tl.store(out + 3 * i, _polynomial(a, 3, b))
        low, high = _both(a, b)
        tl.store(out + 3 * i + 1, low)
        tl.store(out + 3 * i + 2, high)


@triton.jit(noinline=True)
def _row(x, N: tl.constexpr):
    return tl.sum(tl.load(x + tl.arange(0, N)), 0)


@triton.jit
def called_in_a_loop(x, out, rows, N: tl.constexpr):
    """Call a function with loads and a reduction in a loop whose length is an argument."""
    total = 0.0
    for row in range(rows):
        total = total * 0.5 + _row(x + row * N, N)
    tl.store(out, total)


@triton.jit
def collatz(x, out, N: tl.constexpr):
    """Run a loop that ends when all lanes are done, and a loop for a scalar."""
    i = tl.arange(0, N)
    a = tl.load(x + i)
    steps = tl.zeros_like(a)
    while tl.max(a, 0) > 1:
        going = a > 1
        a = tl.where(going, tl.where(a % 2 == 0, a // 2, 3 * a + 1), a)
        steps += going.to(steps.dtype)
    tl.store(out + i, steps)
    one, count = tl.load(x), 0
    while one > 1:
        if one % 2 == 0:  # noqa: SIM108 - the test needs a branch
            one = one // 2
        else:
            one = 3 * one + 1
        count += 1
    tl.store(out + N, count)


@triton.jit
def branches(x, out, n, N: tl.constexpr):
    """Run nested loops and branches by scalars; the outer loop of a program may have no iteration."""
    p = tl.program_id(0)
    i = tl.arange(0, N)
    total = tl.zeros([N], tl.int32)
    for j in range(p, n, 3):
        a = tl.load(x + j * N + i)
        if j % 2 == 0:
            total += a
        elif j % 5 == 0:
            total ^= a
        else:
            for _ in range(j % 3):
                total = total * 3 - a
    for k in tl.static_range(4):
        total += (i >> k) & 1
    tl.store(out + p * N + i, total)


@triton.jit
def random_numbers(out, uniform, normal, seed, N: tl.constexpr):
    """Draw integers, uniform numbers and normal numbers by Philox."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    a, b, c, d = tl.randint4x(seed, i)
    tl.store(out + 4 * i, a)
    tl.store(out + 4 * i + 1, b)
    tl.store(out + 4 * i + 2, c)
    tl.store(out + 4 * i + 3, d)
    tl.store(uniform + i, tl.rand(seed, i))
    tl.store(normal + i, tl.randn(seed, i))


@triton.jit
def softmax(x, out, n, N: tl.constexpr):
    """Compute the softmax of rows, with a mask."""
    p, i = tl.program_id(0), tl.arange(0, N)
    a = tl.load(x + p * n + i, mask=i < n, other=-float("inf")).to(tl.float32)
    a = tl.exp(a - tl.max(a, 0))
    tl.store(out + p * n + i, a / tl.sum(a, 0), mask=i < n)


@triton.jit
def layer_norm(x, weight, bias, out, n, epsilon, N: tl.constexpr):
    """Compute the layer normalization of rows."""
    p, i = tl.program_id(0), tl.arange(0, N)
    inside = i < n
    a = tl.load(x + p * n + i, mask=inside, other=0).to(tl.float32)
    mean = tl.sum(a, 0) / n
    centred = tl.where(inside, a - mean, 0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / n + epsilon)
    w, b = tl.load(weight + i, mask=inside).to(tl.float32), tl.load(bias + i, mask=inside).to(tl.float32)
    tl.store(out + p * n + i, (centred * scale * w + b).to(out.dtype.element_ty), mask=inside)


@triton.jit
def quantized(x, out, scale, M: tl.constexpr, N: tl.constexpr):
    """Quantize rows to int8; the scale of a row is its largest magnitude divided by 127."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    at = m[:, None] * N + n[None, :]
    a = tl.load(x + at)
    s = tl.max(tl.abs(a), 1) / 127.0
    q = a / s[:, None]
    tl.store(out + at, (q + tl.where(q >= 0, 0.5, -0.5)).to(tl.int8))
    tl.store(scale + m, s)


@triton.jit
def rotated(x, angle, out, ROWS: tl.constexpr, HALF: tl.constexpr):
    """Apply a rotary embedding to pairs."""
    r, h = tl.arange(0, ROWS)[:, None], tl.arange(0, HALF)[None, :]
    pairs = tl.load(x + r * (2 * HALF) + tl.arange(0, 2 * HALF)[None, :]).to(tl.float32)
    even, odd = tl.split(tl.reshape(pairs, (ROWS, HALF, 2)))
    t = tl.load(angle + h) * r
    turned = tl.join(even * tl.cos(t) - odd * tl.sin(t), even * tl.sin(t) + odd * tl.cos(t))
    result = tl.reshape(turned, (ROWS, 2 * HALF)).to(out.dtype.element_ty)
    tl.store(out + r * (2 * HALF) + tl.arange(0, 2 * HALF)[None, :], result)


@triton.jit
def cross_entropy(logits, target, loss, gradient, n, N: tl.constexpr):
    """Compute the loss and the gradient of one row; a negative target makes both zero."""
    p, i = tl.program_id(0), tl.arange(0, N)
    wanted = tl.load(target + p)
    if wanted < 0:
        tl.store(loss + p, 0.0)
        tl.store(gradient + p * n + i, tl.zeros([N], tl.float32), mask=i < n)
        return
    a = tl.load(logits + p * n + i, mask=i < n, other=-float("inf")).to(tl.float32)
    top = tl.max(a, 0)
    total = tl.sum(tl.exp(a - top), 0)
    tl.store(loss + p, tl.log(total) + top - tl.load(logits + p * n + wanted).to(tl.float32))
    tl.store(gradient + p * n + i, tl.exp(a - top) / total - tl.where(i == wanted, 1.0, 0.0), mask=i < n)


@triton.jit
def selective_scan(x, delta, a, b, c, out, steps, CHANNELS: tl.constexpr, STATES: tl.constexpr):
    """Compute the state space model of one sequence, step by step."""
    h, s = tl.arange(0, CHANNELS), tl.arange(0, STATES)
    decay = tl.load(a + h[:, None] * STATES + s[None, :])
    state = tl.zeros([CHANNELS, STATES], tl.float32)
    for t in range(steps):
        d, u = tl.load(delta + t * CHANNELS + h), tl.load(x + t * CHANNELS + h)
        state = tl.exp(d[:, None] * decay) * state + (d * u)[:, None] * tl.load(b + t * STATES + s)[None, :]
        tl.store(out + t * CHANNELS + h, tl.sum(state * tl.load(c + t * STATES + s)[None, :], 1))


@triton.jit
def convolution(x, weight, out, n, TAPS: tl.constexpr, N: tl.constexpr):
    """Compute a causal convolution along one axis, followed by SiLU."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for tap in tl.static_range(TAPS):
        at = i - (TAPS - 1) + tap
        total += tl.load(x + at, mask=(at >= 0) & (at < n), other=0).to(tl.float32) * tl.load(weight + tap)
    tl.store(out + i, (total * tl.sigmoid(total)).to(out.dtype.element_ty), mask=i < n)
