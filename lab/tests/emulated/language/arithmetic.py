"""Kernels of elementwise arithmetic, on every type that Triton has."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def integers(x, y, out, N: tl.constexpr):
    """Compute fifteen operations of integers; no number of `y` is zero."""
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    shift = b & 7
    tl.store(out + i, a + b)
    tl.store(out + N + i, a - b)
    tl.store(out + 2 * N + i, a * b)
    tl.store(out + 3 * N + i, a // b)
    tl.store(out + 4 * N + i, a % b)
    tl.store(out + 5 * N + i, a & b)
    tl.store(out + 6 * N + i, a | b)
    tl.store(out + 7 * N + i, a ^ b)
    tl.store(out + 8 * N + i, ~a)
    tl.store(out + 9 * N + i, a << shift)
    tl.store(out + 10 * N + i, a >> shift)
    tl.store(out + 11 * N + i, tl.minimum(a, b))
    tl.store(out + 12 * N + i, tl.maximum(a, b))
    tl.store(out + 13 * N + i, tl.where(a < b, a, b + a))
    tl.store(out + 14 * N + i, (a <= b).to(a.dtype) + (a == b).to(a.dtype) * 2)


@triton.jit
def high_product(x, y, out, N: tl.constexpr):
    """Compute the upper half of each product."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.umulhi(tl.load(x + i), tl.load(y + i)))


@triton.jit
def divide_by_scalar(x, quotient, rest, divisor, N: tl.constexpr):
    """Divide 64-bit numbers, and a scalar, by one number."""
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(quotient + i, a // divisor)
    tl.store(rest + i, a % divisor)
    one = tl.load(x)
    tl.store(quotient + N, one // divisor)
    tl.store(rest + N, one % divisor)


@triton.jit
def floats(x, y, out, N: tl.constexpr):
    """Compute eleven operations of floating-point numbers."""
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, a + b)
    tl.store(out + N + i, a - b)
    tl.store(out + 2 * N + i, a * b)
    tl.store(out + 3 * N + i, a / b)
    tl.store(out + 4 * N + i, tl.minimum(a, b))
    tl.store(out + 5 * N + i, tl.maximum(a, b))
    tl.store(out + 6 * N + i, tl.abs(a))
    tl.store(out + 7 * N + i, -a)
    tl.store(out + 8 * N + i, tl.where(a < b, a, b))
    tl.store(out + 9 * N + i, tl.fma(a, b, a))
    tl.store(out + 10 * N + i, tl.clamp(a, -0.5, 0.75))


@triton.jit
def functions(x, out, N: tl.constexpr):
    """Compute functions of `tl.math`; no number of `x` is negative."""
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out + i, tl.exp(a))
    tl.store(out + N + i, tl.exp2(a))
    tl.store(out + 2 * N + i, tl.log(a))
    tl.store(out + 3 * N + i, tl.log2(a))
    tl.store(out + 4 * N + i, tl.sin(a))
    tl.store(out + 5 * N + i, tl.cos(a))
    tl.store(out + 6 * N + i, tl.sqrt(a))
    tl.store(out + 7 * N + i, tl.rsqrt(a))
    tl.store(out + 8 * N + i, tl.erf(a))
    tl.store(out + 9 * N + i, tl.floor(a))
    tl.store(out + 10 * N + i, tl.ceil(a))


@triton.jit
def rounded_well(x, y, out, N: tl.constexpr):
    """Divide, and take square roots, with rounding to nearest even."""
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, tl.div_rn(a, b))
    tl.store(out + N + i, tl.sqrt_rn(a))
    tl.store(out + 2 * N + i, tl.fdiv(a, b, ieee_rounding=True))


@triton.jit
def device_library(x, y, out, N: tl.constexpr):
    """Compute functions of the device library; no number of `x` is negative."""
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, libdevice.tanh(b))
    tl.store(out + N + i, libdevice.pow(a, b))
    tl.store(out + 2 * N + i, libdevice.log1p(a))
    tl.store(out + 3 * N + i, libdevice.expm1(b))
    tl.store(out + 4 * N + i, libdevice.atan2(b, a))
    tl.store(out + 5 * N + i, libdevice.rint(b))
    tl.store(out + 6 * N + i, libdevice.trunc(b))
    tl.store(out + 7 * N + i, libdevice.fmod(b, a))
    tl.store(out + 8 * N + i, libdevice.copysign(a, b))
    tl.store(out + 9 * N + i, libdevice.hypot(a, b))


@triton.jit
def not_numbers(x, y, out, flags, N: tl.constexpr):
    """Compare and clamp NaN, infinities and signed zeros, and take their minimum and maximum."""
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + N + i, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 2 * N + i, tl.minimum(a, b))
    tl.store(out + 3 * N + i, tl.maximum(a, b))
    tl.store(out + 4 * N + i, tl.clamp(a, -1.0, 1.0, propagate_nan=tl.PropagateNan.ALL))
    tl.store(flags + i, a < b)
    tl.store(flags + N + i, a <= b)
    tl.store(flags + 2 * N + i, a == b)
    tl.store(flags + 3 * N + i, a != b)
    tl.store(flags + 4 * N + i, (a > b) | ~(a >= b))


@triton.jit
def integers_to_floats(x, half, brain, single, double, N: tl.constexpr):
    """Convert integers to all floating-point types."""
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(half + i, a.to(tl.float16))
    tl.store(brain + i, a.to(tl.bfloat16))
    tl.store(single + i, a.to(tl.float32))
    tl.store(double + i, a.to(tl.float64))


@triton.jit
def floats_to_integers(x, byte, short, word, long, N: tl.constexpr):
    """Convert floating-point numbers to integers of each width, towards zero."""
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(byte + i, a.to(byte.dtype.element_ty))
    tl.store(short + i, a.to(short.dtype.element_ty))
    tl.store(word + i, a.to(word.dtype.element_ty))
    tl.store(long + i, a.to(long.dtype.element_ty))


@triton.jit
def between_floats(x, half, brain, single, back, N: tl.constexpr):
    """Convert float64 to the narrower types, and float16 back to float64."""
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(half + i, a.to(tl.float32).to(tl.float16))
    tl.store(brain + i, a.to(tl.float32).to(tl.bfloat16))
    tl.store(single + i, a.to(tl.float32))
    tl.store(back + i, a.to(tl.float32).to(tl.float16).to(tl.float64))


@triton.jit
def widths(x, byte, short, word, long, N: tl.constexpr):
    """Extend and truncate integers."""
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(byte + i, a.to(byte.dtype.element_ty))
    tl.store(short + i, a.to(short.dtype.element_ty))
    tl.store(word + i, a.to(word.dtype.element_ty))
    tl.store(long + i, a.to(long.dtype.element_ty))


@triton.jit
def bits(x, out, back, N: tl.constexpr):
    """Read the bits of floats as integers, change them, and read them as floats again."""
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = a.to(out.dtype.element_ty, bitcast=True)
    tl.store(out + i, (b << 1) ^ (b >> 3))
    tl.store(back + i, (b ^ 1).to(a.dtype, bitcast=True))


@triton.jit
def widen(x, half, brain, single, N: tl.constexpr):
    """Convert 8-bit floats to wider ones."""
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(half + i, a.to(tl.float16))
    tl.store(brain + i, a.to(tl.bfloat16))
    tl.store(single + i, a.to(tl.float32))


@triton.jit
def narrow(x, out, N: tl.constexpr):
    """Convert to 8-bit floats, with rounding to nearest even."""
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@triton.jit
def scalars(out, wide, byte, short, word, long, single, double, flag, N: tl.constexpr):
    """Read scalar arguments of seven types."""
    i = tl.arange(0, N)
    total = byte.to(tl.int64) + short.to(tl.int64) + word.to(tl.int64) + long
    tl.store(out + i, total + i)
    tl.store(wide + i, tl.where(flag, single.to(tl.float64) * double, double) + i)


@triton.jit
def booleans(x, y, out, packed, N: tl.constexpr):
    """Combine one-bit values; store the results as bytes, a sum and a maximum."""
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    p, q = a > 3, b > a
    both = (p & q) | (~p & ~q)
    tl.store(out + i, both)
    tl.store(out + N + i, p ^ q)
    tl.store(packed, tl.sum(both.to(tl.int32), 0))
    tl.store(packed + 1, tl.max((p ^ q).to(tl.int32), 0))


@triton.jit
def assembly(x, y, out, N: tl.constexpr):
    """Run an instruction of inline assembly."""
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    c = tl.inline_asm_elementwise("v_mul_u32_u24 $0, $1, $2", "=v,v,v", [a, b], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out + i, c)
