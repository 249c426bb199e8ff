"""The floating-point functions that instructions compute.

Each array contains an element for each lane, or one number for all lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toolchain_lab.emulator.bits import Array, exponent

_TINY = np.float32(2.0**-126)
_HALFWAY = np.uint64(1 << 28)
_BELOW = np.uint64((1 << 29) - 1)
_DENORMAL = np.uint32((1 << 24) - 1)
_ONE_32 = np.uint32(1)
_ONE, _MINUS_ONE = np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)


def fma(a: Array, b: Array, c: Array) -> Array:
    """Compute a*b+c, rounded once to `float32`.

    The product of two float32 numbers is exact in float64, but the sum is rounded to float64 before it is rounded to
    float32. If a float64 sum is halfway between two float32 numbers, or if a result is denormal, the sums are first
    rounded to odd, because the second rounding could otherwise be wrong.
    """
    product = np.multiply(a, b, dtype=np.float64)
    addend = np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    result = total.astype(np.float32)
    near = (total.view(np.uint64) & _BELOW) == _HALFWAY
    # The shift drops the sign. After the subtraction, a denormal is below the limit, and 0 has wrapped around to a
    # large number.
    denormal = (result.view(np.uint32) << _ONE_32) - _ONE_32 < _DENORMAL
    if np.count_nonzero(near | denormal):
        return _to_odd(total, _lost(product, addend, total)).astype(np.float32)
    return result


def _lost(a: Array, b: Array, total: Array) -> Array:
    """Return the rounding error of `total`, the float64 sum of a and b."""
    back = total - a
    return np.asarray((a - (total - back)) + (b - back))


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum of two float64 arrays, and its rounding error."""
    total = np.asarray(a + b)
    return total, _lost(a, b, total)


def _to_odd(total: Array, lost: Array) -> Array:
    """Return sums rounded to odd: inexact sums with an even mantissa move by one unit towards the exact sum.

    A later rounding of the result to fewer bits is then correct.
    """
    step = np.where((lost > 0) == (total > 0), _ONE, _MINUS_ONE)
    moves = (total.view(np.uint64) & _ONE == 0) & np.isfinite(total) & (lost != 0)
    return np.where(moves, total.view(np.uint64) + step, total.view(np.uint64)).view(np.float64)


def add_to_odd(a: Array, b: Array) -> Array:
    """Add two `float64` arrays, rounding to odd, so that a later rounding to fewer bits is correct."""
    return _to_odd(*two_sum(a, b))


def fma_half(a: Array, b: Array, c: Array) -> Array:
    """Compute a*b+c, rounded once to `float16`."""
    product = np.multiply(a, b, dtype=np.float64)
    return add_to_odd(product, np.asarray(c, np.float64)).astype(np.float16)


def maximum(a: Array, b: Array) -> Array:
    """Compute V_MAX: the maximum, or the other argument if one is NaN; +0 is greater than -0."""
    result = np.fmax(a, b)
    if np.count_nonzero(result) == np.size(result):
        return result
    zeros = (result == 0) & (np.asarray(a) == 0) & (np.asarray(b) == 0) & ~(np.signbit(a) & np.signbit(b))
    return np.where(zeros, np.abs(result), result)


def minimum(a: Array, b: Array) -> Array:
    """Compute V_MIN: the minimum, or the other argument if one is NaN; -0 is less than +0."""
    result = np.fmin(a, b)
    if np.count_nonzero(result) == np.size(result):
        return result
    zeros = (result == 0) & (np.asarray(a) == 0) & (np.asarray(b) == 0) & (np.signbit(a) | np.signbit(b))
    return np.where(zeros, -np.abs(result), result)


def maximum_or_nan(first: Array, *others: Array) -> Array:
    """Compute V_MAXIMUM or V_MAXIMUM3: the maximum, or NaN if an argument is NaN; +0 is greater than -0."""
    result = first
    for other in others:
        result = np.where(np.isnan(result) | np.isnan(other), np.maximum(result, other), maximum(result, other))
    return result


def minimum_or_nan(first: Array, *others: Array) -> Array:
    """Compute V_MINIMUM or V_MINIMUM3: the minimum, or NaN if an argument is NaN; -0 is less than +0."""
    result = first
    for other in others:
        result = np.where(np.isnan(result) | np.isnan(other), np.minimum(result, other), minimum(result, other))
    return result


def median(a: Array, b: Array, c: Array) -> Array:
    """Compute V_MED3: the median of three numbers, or the minimum of the others if one is NaN.

    It is the maximum of the two numbers that are left after the first one that equals the maximum of all three. As +0
    equals -0, this determines the sign of a result that is 0.
    """
    largest = maximum(maximum(a, b), c)
    middle = np.where(largest == a, maximum(b, c), np.where(largest == b, maximum(a, c), maximum(a, b)))
    return np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), minimum(minimum(a, b), c), middle)


def flushed(values: Array) -> Array:
    """Return float32 numbers with each denormal replaced by a zero of its sign."""
    small = np.abs(values) < _TINY
    return np.where(small, np.copysign(np.float32(0), values), values) if np.count_nonzero(small) else values


def mad(a: Array, b: Array, c: Array) -> Array:
    """Compute V_MAD_F32: a*b+c, where the product and the sum are both rounded, and all denormals are flushed."""
    product = flushed(np.asarray(flushed(a) * flushed(b), np.float32))
    return flushed(np.asarray(product + flushed(c), np.float32))


def exp2(values: Array) -> Array:
    """Compute V_EXP_F32: 2 to the power of the argument; denormal arguments and results are flushed."""
    return flushed(np.exp2(flushed(values).astype(np.float64)).astype(np.float32))


def log2(values: Array) -> Array:
    """Compute V_LOG_F32: the logarithm to base 2; denormal arguments are flushed."""
    return np.log2(flushed(values).astype(np.float64)).astype(np.float32)


def sqrt(values: Array) -> Array:
    """Compute V_SQRT_F32: the square root, correctly rounded; denormal arguments are flushed."""
    return np.sqrt(flushed(np.asarray(values, np.float32)))


def reciprocal(values: Array) -> Array:
    """Compute V_RCP_F32: the reciprocal, correctly rounded; denormal arguments and results are flushed."""
    return flushed(np.reciprocal(flushed(np.asarray(values, np.float32)).astype(np.float64)).astype(np.float32))


def reciprocal_sqrt(values: Array) -> Array:
    """Compute V_RSQ_F32: the reciprocal square root; denormal arguments are flushed."""
    return (1 / np.sqrt(flushed(np.asarray(values, np.float32)).astype(np.float64))).astype(np.float32)


def _quarters(values: Array) -> tuple[Array, Array, Array]:
    """Return the nearest quarter turn, 0 to 3, of angles in turns, and the sine and the cosine of the remainder."""
    turns = np.asarray(values, np.float64)
    nearest = np.rint(turns * 4)
    rest = np.where(nearest == 0, turns, turns - nearest / 4) * (2 * np.pi)
    return np.mod(nearest, 4), np.sin(rest), np.cos(rest)


def sine(values: Array) -> Array:
    """Compute V_SIN_F32: the sine of an angle in turns."""
    quarter, sin, cos = _quarters(values)
    return np.select([quarter == 1, quarter == 2, quarter == 3], [cos, -sin, -cos], sin).astype(np.float32)


def cosine(values: Array) -> Array:
    """Compute V_COS_F32: the cosine of an angle in turns; it is never -0."""
    quarter, sin, cos = _quarters(values)
    signed = np.select([quarter == 1, quarter == 2, quarter == 3], [-sin, -cos, sin], cos)
    return np.asarray(signed + 0.0).astype(np.float32)


def fraction(values: Array) -> Array:
    """Compute V_FRACT: the fractional part, limited to the largest number below 1."""
    values = np.asarray(values)
    below: Array = np.minimum(values - np.floor(values), np.nextafter(values.dtype.type(1), values.dtype.type(0)))
    return below


def scale(values: Array, power: Array) -> Array:
    """Compute V_LDEXP: a number times a power of two."""
    scaled: Array = np.ldexp(values, np.clip(power, -2200, 2200))
    return scaled


def mantissa(values: Array) -> Array:
    """Compute V_FREXP_MANT: the mantissa, whose magnitude is in [0.5, 1); 0, infinity and NaN are unchanged."""
    part: Array = np.frexp(values)[0]
    return part


def mantissa_exponent(values: Array) -> Array:
    """Compute V_FREXP_EXP_I32: the exponent that goes with the mantissa of V_FREXP_MANT; 0 for infinity and NaN."""
    return np.where(np.isfinite(values), np.frexp(values)[1], 0).astype(np.int32)


def to_integer(values: Array, low: float, high: float) -> Array:
    """Truncate numbers to integers, and clamp them to the range from `low` to `high`, as `int64`; NaN becomes 0."""
    wide = np.nan_to_num(np.trunc(np.asarray(values, np.float64)), nan=0.0, posinf=high, neginf=low)
    kept: Array = np.clip(wide, low, high).astype(np.int64)
    return kept


def to_i32(values: Array) -> Array:
    """Compute V_CVT_I32: truncate numbers to integers, and clamp them to the range of `int32`."""
    return to_integer(values, -2147483648.0, 2147483647.0).astype(np.int32)


def to_u32(values: Array) -> Array:
    """Compute V_CVT_U32: truncate numbers to integers, and clamp them to the range of `uint32`."""
    return to_integer(values, 0.0, 4294967295.0).astype(np.uint32)


def half_towards_zero(values: Array) -> Array:
    """Round `float32` numbers towards zero to `float16`, and return the bits as `uint32`."""
    values = np.asarray(values, np.float32)
    near = values.astype(np.float16)
    over = np.abs(near.astype(np.float32)) > np.abs(values)
    bits: Array = near.view(np.uint16).astype(np.uint32)
    return np.where(over, bits - 1, bits).astype(np.uint32)


def classify(values: Array, wanted: Array) -> Array:
    """Compute V_CMP_CLASS: whether each number belongs to one of the classes whose bits are set in `wanted`."""
    values = np.asarray(values)
    negative, magnitude = np.signbit(values), np.abs(values)
    about = np.finfo(values.dtype)
    tiny, quiet = about.smallest_normal, (values.view(f"u{values.itemsize}") >> (about.nmant - 1) & 1).astype(np.bool_)
    tests = (
        np.isnan(values) & ~quiet,
        np.isnan(values) & quiet,
        np.isinf(values) & negative,
        np.isfinite(values) & (magnitude >= tiny) & negative,
        (magnitude > 0) & (magnitude < tiny) & negative,
        (values == 0) & negative,
        (values == 0) & ~negative,
        (magnitude > 0) & (magnitude < tiny) & ~negative,
        np.isfinite(values) & (magnitude >= tiny) & ~negative,
        np.isinf(values) & ~negative,
    )
    result: Array = np.zeros(np.broadcast(values, wanted).shape, np.bool_)
    for place, test in enumerate(tests):
        result |= test & ((wanted >> np.uint32(place)) & np.uint32(1)).astype(np.bool_)
    return result


@dataclass(frozen=True)
class Scaling:
    """The parameters of V_DIV_SCALE for a type.

    Args:
        distance: the denominator is scaled if the numerator's exponent exceeds that of the denominator by this or more.
        power: an operand is usually scaled by 2^power or 2^-power.
        small: both operands are scaled if the numerator's biased exponent is at most this.
        tiny: the smallest normal number of the type.
    """

    distance: int
    power: int
    small: int
    tiny: np.floating


_FP32 = Scaling(96, 64, 23, _TINY)


def div_scale(value: Array, denominator: Array, numerator: Array) -> tuple[Array, Array]:
    """Compute V_DIV_SCALE_F32; see `scaled`."""
    value, denominator, numerator = (np.asarray(each, np.float32) for each in (value, denominator, numerator))
    return scaled(value, denominator, numerator, _FP32)


def scaled(value: Array, denominator: Array, numerator: Array, by: Scaling) -> tuple[Array, Array]:
    """Scale one operand of a division so that the steps of the division neither overflow nor underflow.

    Args:
        value: the operand to scale, which is either the denominator or the numerator.

    Returns:
        The scaled operand, which is NaN in lanes where the numerator or the denominator is 0, and a mask of the lanes
        whose quotient V_DIV_FMAS must scale back.
    """
    value, denominator, numerator = np.broadcast_arrays(value, denominator, numerator)

    def denormal(values: Array) -> Array:
        return np.asarray((values != 0) & (np.abs(values) < by.tiny))

    small_quotient, small_inverse = denormal(numerator / denominator), denormal(1 / denominator)
    is_denominator, is_numerator = value == denominator, value == numerator
    everything = np.ones(value.shape, np.bool_)
    # The manual lists these cases, and the first one whose condition holds is applied. Each case consists of a
    # condition, the exponent of a power of 2, the lanes that are scaled, and whether V_DIV_FMAS must scale back.
    cases = (
        (exponent(numerator) - exponent(denominator) >= by.distance, by.power, is_denominator, True),
        (denormal(denominator), by.power, everything, False),
        # AMD's manual gives a positive power here, with which the denominator becomes infinite.
        (small_inverse & small_quotient, -by.power, is_denominator, True),
        (small_inverse, -by.power, everything, False),
        (small_quotient, by.power, is_numerator, True),
        (exponent(numerator) <= by.small, by.power, everything, False),
    )
    invalid = (numerator == 0) | (denominator == 0)
    power, back, left = np.zeros(value.shape, np.int32), np.zeros(value.shape, np.bool_), ~invalid
    for holds, amount, which, taken_back in cases:
        power[left & holds & which] = amount
        back |= left & holds & taken_back
        left &= ~holds
    return np.where(invalid, value.dtype.type(np.nan), np.ldexp(value, power)), back


def div_fmas(a: Array, b: Array, c: Array, scaled: Array) -> Array:
    """Compute V_DIV_FMAS_F32, a fused multiply-add that also reverts the scaling in the lanes of the mask `scaled`."""
    plain = fma(a, b, c)
    power = np.where(exponent(c) > 127, 2.0**64, 2.0**-64)
    exact = (np.multiply(a, b, dtype=np.float64) + c) * power
    return np.where(scaled, exact.astype(np.float32), plain)


def _special_quotients(result: Array, sign: Array, denominator: Array, numerator: Array) -> Array:
    """Return quotients with the correct results for zeros, infinities and NaN; all arrays have the same type."""
    kind = sign.dtype.type
    result = np.where(np.isinf(denominator) | (numerator == 0), sign * kind(0), result)
    result = np.where((denominator == 0) | np.isinf(numerator), sign * kind(np.inf), result)
    invalid = ((denominator == 0) & (numerator == 0)) | (np.isinf(denominator) & np.isinf(numerator))
    result = np.where(invalid, kind(np.nan), result)
    result = np.where(np.isnan(denominator), denominator, result)
    return np.where(np.isnan(numerator), numerator, result).astype(kind)


def div_fixup(quotient: Array, denominator: Array, numerator: Array) -> Array:
    """Compute V_DIV_FIXUP_F32 or V_DIV_FIXUP_F64, which corrects a quotient in special cases of a division."""
    quotient, denominator, numerator = np.broadcast_arrays(quotient, denominator, numerator)
    kind = quotient.dtype.type
    sign = np.where(np.signbit(denominator) ^ np.signbit(numerator), kind(-1), kind(1))
    result = sign * np.abs(quotient)
    result = np.where(np.isnan(quotient), sign * kind(np.inf), result)
    least = -1075 if kind is np.float64 else -150
    result = np.where(exponent(numerator) - exponent(denominator) < least, sign * kind(0), result)
    return _special_quotients(result, sign, denominator, numerator)


def div_fixup_half(quotient: Array, denominator: Array, numerator: Array) -> Array:
    """Compute V_DIV_FIXUP_F16, which corrects a quotient in special cases of a division."""
    quotient, denominator, numerator = np.broadcast_arrays(quotient, denominator, numerator)
    sign = np.where(np.signbit(denominator) ^ np.signbit(numerator), np.float16(-1), np.float16(1))
    return _special_quotients(sign * np.abs(quotient), sign, denominator, numerator)
