"""Floating-point functions that numpy lacks, as AMD's instruction set manuals describe them."""

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
    """a*b+c, rounded once to `float32`.

    The product of two float32 is exact in float64. The sum is rounded there first; where that may be halfway between
    two float32, normal or denormal, the part that was lost decides.
    """
    product = np.multiply(a, b, dtype=np.float64)
    addend = np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    result = total.astype(np.float32)
    near = (total.view(np.uint64) & _BELOW) == _HALFWAY
    # Shifted and less 1, a denormal is small, and 0 is not.
    denormal = (result.view(np.uint32) << _ONE_32) - _ONE_32 < _DENORMAL
    if np.count_nonzero(near | denormal):
        return _to_odd(total, _lost(product, addend, total)).astype(np.float32)
    return result


def _lost(a: Array, b: Array, total: Array) -> Array:
    """The error of a sum of float64."""
    back = total - a
    return np.asarray((a - (total - back)) + (b - back))


def _to_odd(total: Array, lost: Array) -> Array:
    """Move sums with even bits by one unit towards what they lost, so that rounding them once more is right."""
    step = np.where((lost > 0) == (total > 0), _ONE, _MINUS_ONE)
    moves = (total.view(np.uint64) & _ONE == 0) & np.isfinite(total) & (lost != 0)
    return np.where(moves, total.view(np.uint64) + step, total.view(np.uint64)).view(np.float64)


def add_to_odd(a: Array, b: Array) -> Array:
    """a+b of `float64`; a sum that is not exact gets the neighbour with odd bits, so a later rounding is right."""
    total = np.asarray(a + b)
    return _to_odd(total, _lost(a, b, total))


def fma_half(a: Array, b: Array, c: Array) -> Array:
    """The same for `float16`."""
    product = np.multiply(a, b, dtype=np.float64)
    return add_to_odd(product, np.asarray(c, np.float64)).astype(np.float16)


def maximum(a: Array, b: Array) -> Array:
    """V_MAX: the number where the other is NaN, and +0 above -0."""
    result = np.fmax(a, b)
    if np.count_nonzero(result) == np.size(result):
        return result
    zeros = (result == 0) & (np.asarray(a) == 0) & (np.asarray(b) == 0) & ~(np.signbit(a) & np.signbit(b))
    return np.where(zeros, np.abs(result), result)


def minimum(a: Array, b: Array) -> Array:
    """V_MIN: the number where the other is NaN, and -0 below +0."""
    result = np.fmin(a, b)
    if np.count_nonzero(result) == np.size(result):
        return result
    zeros = (result == 0) & (np.asarray(a) == 0) & (np.asarray(b) == 0) & (np.signbit(a) | np.signbit(b))
    return np.where(zeros, -np.abs(result), result)


def median(a: Array, b: Array, c: Array) -> Array:
    """V_MED3; the smallest where one is NaN."""
    middle = maximum(minimum(a, b), minimum(maximum(a, b), c))
    return np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), minimum(minimum(a, b), c), middle)


def _flushed(values: Array) -> Array:
    small = np.abs(values) < _TINY
    return np.where(small, np.copysign(np.float32(0), values), values) if np.count_nonzero(small) else values


def mad(a: Array, b: Array, c: Array) -> Array:
    """V_MAD_F32: the product is rounded too, and denormals are flushed throughout."""
    product = _flushed(np.asarray(_flushed(a) * _flushed(b), np.float32))
    return _flushed(np.asarray(product + _flushed(c), np.float32))


def exp2(values: Array) -> Array:
    """V_EXP_F32: denormals are flushed on both sides."""
    return _flushed(np.exp2(_flushed(values).astype(np.float64)).astype(np.float32))


def log2(values: Array) -> Array:
    """V_LOG_F32: denormals are flushed."""
    return np.log2(_flushed(values).astype(np.float64)).astype(np.float32)


def sqrt(values: Array) -> Array:
    """V_SQRT_F32, correctly rounded; denormals are flushed."""
    return np.sqrt(_flushed(np.asarray(values, np.float32)))


def reciprocal(values: Array) -> Array:
    """V_RCP_F32, correctly rounded; denormals are flushed on both sides."""
    return _flushed(np.reciprocal(_flushed(np.asarray(values, np.float32)).astype(np.float64)).astype(np.float32))


def reciprocal_sqrt(values: Array) -> Array:
    """V_RSQ_F32, correctly rounded; denormals are flushed."""
    return (1 / np.sqrt(_flushed(np.asarray(values, np.float32)).astype(np.float64))).astype(np.float32)


def _quarters(values: Array) -> tuple[Array, Array, Array]:
    """Turns as the nearest quarter, 0 to 3, and sine and cosine of the rest, which the subtraction leaves exact."""
    turns = np.asarray(values, np.float64)
    nearest = np.rint(turns * 4)
    rest = np.where(nearest == 0, turns, turns - nearest / 4) * (2 * np.pi)
    return np.mod(nearest, 4), np.sin(rest), np.cos(rest)


def sine(values: Array) -> Array:
    """V_SIN_F32: of a number of turns."""
    quarter, sin, cos = _quarters(values)
    return np.select([quarter == 1, quarter == 2, quarter == 3], [cos, -sin, -cos], sin).astype(np.float32)


def cosine(values: Array) -> Array:
    """V_COS_F32: of a number of turns; never -0."""
    quarter, sin, cos = _quarters(values)
    signed = np.select([quarter == 1, quarter == 2, quarter == 3], [-sin, -cos, sin], cos)
    return np.asarray(signed + 0.0).astype(np.float32)


def fraction(values: Array) -> Array:
    """V_FRACT: below 1 always."""
    values = np.asarray(values)
    below: Array = np.minimum(values - np.floor(values), np.nextafter(values.dtype.type(1), values.dtype.type(0)))
    return below


def scale(values: Array, power: Array) -> Array:
    """V_LDEXP."""
    scaled: Array = np.ldexp(values, np.clip(power, -2200, 2200))
    return scaled


def mantissa(values: Array) -> Array:
    """V_FREXP_MANT."""
    part: Array = np.frexp(values)[0]
    return part


def mantissa_exponent(values: Array) -> Array:
    """V_FREXP_EXP_I32: 0 for infinity and NaN."""
    return np.where(np.isfinite(values), np.frexp(values)[1], 0).astype(np.int32)


def to_integer(values: Array, low: float, high: float) -> Array:
    """Truncated, kept within `low` and `high`, NaN as 0; `int64`."""
    wide = np.nan_to_num(np.trunc(np.asarray(values, np.float64)), nan=0.0, posinf=high, neginf=low)
    kept: Array = np.clip(wide, low, high).astype(np.int64)
    return kept


def to_i32(values: Array) -> Array:
    """V_CVT_I32."""
    return to_integer(values, -2147483648.0, 2147483647.0).astype(np.int32)


def to_u32(values: Array) -> Array:
    """V_CVT_U32."""
    return to_integer(values, 0.0, 4294967295.0).astype(np.uint32)


def half_towards_zero(values: Array) -> Array:
    """`float32` to the bits of `float16`, rounded towards zero, as `uint32`."""
    values = np.asarray(values, np.float32)
    near = values.astype(np.float16)
    over = np.abs(near.astype(np.float32)) > np.abs(values)
    bits: Array = near.view(np.uint16).astype(np.uint32)
    return np.where(over, bits - 1, bits).astype(np.uint32)


def classify(values: Array, wanted: Array) -> Array:
    """V_CMP_CLASS: whether a number is of one of the classes whose bits are set."""
    values = np.asarray(values)
    negative, magnitude = np.signbit(values), np.abs(values)
    tiny: np.float32 | np.float64 = _TINY
    if values.dtype == np.float64:
        tiny, quiet = np.float64(2.0**-1022), (values.view(np.uint64) & np.uint64(1 << 51)) != 0
    else:
        quiet = (values.view(np.uint32) & np.uint32(1 << 22)) != 0
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
    """The numbers of V_DIV_SCALE for one type.

    Args:
        distance: the difference of the exponents from which the quotient is scaled.
        power: the power of 2 that the operands are scaled by.
        both_small: the power where the quotient and the inverse of the denominator are denormal.
        small: the largest exponent of a numerator that is scaled.
        tiny: the smallest normal number.
    """

    distance: int
    power: int
    both_small: int
    small: int
    tiny: np.floating


# AMD's manual prints 64 for `both_small`, which makes the denominator infinite and the quotient NaN.
_FP32 = Scaling(96, 64, -64, 23, _TINY)


def div_scale(value: Array, denominator: Array, numerator: Array) -> tuple[Array, Array]:
    """V_DIV_SCALE_F32; see `scaled`."""
    value, denominator, numerator = (np.asarray(each, np.float32) for each in (value, denominator, numerator))
    return scaled(value, denominator, numerator, _FP32)


def scaled(value: Array, denominator: Array, numerator: Array, by: Scaling) -> tuple[Array, Array]:
    """Scale one of the two operands of a division so that its steps neither overflow nor vanish.

    Returns:
        The scaled value, and the lanes whose quotient V_DIV_FMAS must scale back.
    """
    value, denominator, numerator = np.broadcast_arrays(value, denominator, numerator)

    def denormal(values: Array) -> Array:
        return np.asarray((values != 0) & (np.abs(values) < by.tiny))

    small_quotient, small_inverse = denormal(numerator / denominator), denormal(1 / denominator)
    is_denominator, is_numerator = value == denominator, value == numerator
    everything = np.ones(value.shape, np.bool_)
    # The first case of the manual that holds: the power of 2, the value that gets it, and whether it is taken back.
    cases = (
        (exponent(numerator) - exponent(denominator) >= by.distance, by.power, is_denominator, True),
        (denormal(denominator), by.power, everything, False),
        (small_inverse & small_quotient, by.both_small, is_denominator, True),
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
    """V_DIV_FMAS_F32: the last step of a division, which takes the scale back."""
    plain = fma(a, b, c)
    power = np.where(exponent(c) > 127, 2.0**64, 2.0**-64)
    exact = (np.multiply(a, b, dtype=np.float64) + c) * power
    return np.where(scaled, exact.astype(np.float32), plain)


def _special_quotients(result: Array, sign: Array, denominator: Array, numerator: Array) -> Array:
    """Put the results of divisions by or of zero, infinity and NaN in place; all arrays have one type of float."""
    kind = sign.dtype.type
    result = np.where(np.isinf(denominator) | (numerator == 0), sign * kind(0), result)
    result = np.where((denominator == 0) | np.isinf(numerator), sign * kind(np.inf), result)
    invalid = ((denominator == 0) & (numerator == 0)) | (np.isinf(denominator) & np.isinf(numerator))
    result = np.where(invalid, kind(np.nan), result)
    result = np.where(np.isnan(denominator), denominator, result)
    return np.where(np.isnan(numerator), numerator, result).astype(kind)


def div_fixup(quotient: Array, denominator: Array, numerator: Array) -> Array:
    """V_DIV_FIXUP_F32 and V_DIV_FIXUP_F64: the special cases of a division."""
    quotient, denominator, numerator = np.broadcast_arrays(quotient, denominator, numerator)
    kind = quotient.dtype.type
    sign = np.where(np.signbit(denominator) ^ np.signbit(numerator), kind(-1), kind(1))
    result = sign * np.abs(quotient)
    result = np.where(np.isnan(quotient), sign * kind(np.inf), result)
    least = -1075 if kind is np.float64 else -150
    result = np.where(exponent(numerator) - exponent(denominator) < least, sign * kind(0), result)
    return _special_quotients(result, sign, denominator, numerator)


def div_fixup_half(quotient: Array, denominator: Array, numerator: Array) -> Array:
    """V_DIV_FIXUP_F16: the special cases of a division of halves."""
    quotient, denominator, numerator = np.broadcast_arrays(quotient, denominator, numerator)
    sign = np.where(np.signbit(denominator) ^ np.signbit(numerator), np.float16(-1), np.float16(1))
    return _special_quotients(sign * np.abs(quotient), sign, denominator, numerator)
