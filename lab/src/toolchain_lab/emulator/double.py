"""Instructions on float64."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np

from toolchain_lab.emulator import float_math
from toolchain_lab.emulator.bits import Array, exponent
from toolchain_lab.emulator.lanewise import Handler, LaneOp
from toolchain_lab.emulator.operands import Operands, Run
from toolchain_lab.emulator.wave import Wave

_SCALING = float_math.Scaling(768, 128, 53, np.float64(2.0**-1022))
_SPLIT = 2.0**27 + 1
# This is the number of fractional bits of 2/pi that V_TRIG_PREOP_F64 uses.
_TURN_BITS = 1201


def _halves(values: Array) -> tuple[Array, Array]:
    """Split each number into a high and a low part of at most 26 bits, so that products of parts are exact."""
    scaled = values * _SPLIT
    high = scaled - (scaled - values)
    return high, values - high


def _by_fractions(a: float, b: float, c: float, power: int) -> float:
    """Return (a*b+c) * 2^power, computed with exact fractions and rounded once."""
    exact = (Fraction(a) * Fraction(b) + Fraction(c)) * Fraction(2) ** power
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def fma(a: Array, b: Array, c: Array) -> Array:
    """Compute a*b+c, rounded once, by the method of Boldo and Melquiond, "Emulation of a FMA", 2008.

    Exact fractions are used for very large and very small arguments, because the method could overflow or underflow.
    """
    a, b, c = np.broadcast_arrays(*(np.atleast_1d(np.asarray(each, np.float64)) for each in (a, b, c)))
    product = a * b
    (high_a, low_a), (high_b, low_b) = _halves(a), _halves(b)
    rest = low_a * low_b - (((product - high_a * high_b) - low_a * high_b) - high_a * low_b)
    (middle, below), result = float_math.two_sum(c, rest), product + c
    top, lost = float_math.two_sum(product, middle)
    known = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0)
    far = [np.abs(exponent(values) - 1023) > limit for values, limit in ((a, 400), (b, 400), (c, 800))]
    slow = known & (far[0] | far[1] | (far[2] & (c != 0)))
    result = np.where(known, top + float_math.add_to_odd(below, lost), result)
    for lane in zip(*np.nonzero(slow), strict=True):
        result[lane] = _by_fractions(float(a[lane]), float(b[lane]), float(c[lane]), 0)
    return result


def div_fmas(a: Array, b: Array, c: Array, scaled: Array) -> Array:
    """Compute V_DIV_FMAS_F64, a fused multiply-add that also reverts the scaling in the lanes of the mask `scaled`."""
    plain = fma(a, b, c)
    if not np.count_nonzero(scaled):
        return plain
    a, b, c, plain, scaled = np.broadcast_arrays(a, b, c, plain, scaled)
    result: Array = plain.copy()
    for lane in np.flatnonzero(scaled):
        power = 128 if exponent(c[lane]) > 1023 else -128
        finite = all(math.isfinite(each[lane]) for each in (a, b, c))
        values = float(a[lane]), float(b[lane]), float(c[lane])
        result[lane] = _by_fractions(*values, power) if finite and plain[lane] else plain[lane]
    return result


def div_scale(operands: Operands) -> Run:
    """Decode V_DIV_SCALE_F64, which scales an operand, and writes a mask of the lanes to scale back later."""
    result, mask, *sources = operands.instruction.operands
    value, denominator, numerator = (operands.f64(text) for text in sources)
    put, put_mask = operands.put_u64(result), operands.put_mask(mask)

    def run(wave: Wave) -> None:
        scaled, lanes = float_math.scaled(value(wave), denominator(wave), numerator(wave), _SCALING)
        put(wave, scaled.view(np.uint64))
        put_mask(wave, lanes)

    return run


@cache
def _two_over_pi() -> int:
    """Return the first 1201 fractional bits of 2/pi as an integer, with pi computed by Machin's formula."""
    one = 1 << (_TURN_BITS + 64)

    def arc_tangent(inverse: int) -> int:
        total, term, number = 0, one // inverse, 1
        while term:
            total += term // number if number % 4 == 1 else -(term // number)
            term, number = term // inverse**2, number + 2
        return total

    pi = 4 * (4 * arc_tangent(5) - arc_tangent(239))
    return (2 * one << _TURN_BITS) // pi


def _turn_bits(value: Array, segment: Array) -> Array:
    """Compute V_TRIG_PREOP_F64: 53 bits of 2/pi, whose position depends on the segment and the value's exponent."""
    value, segment = np.broadcast_arrays(value, segment)
    large = exponent(value)
    shifts = (segment & np.uint32(31)).astype(np.int64) * 53 + np.maximum(large - 1077, 0)
    bits = [(_two_over_pi() << int(shift) & (1 << _TURN_BITS) - 1) >> _TURN_BITS - 53 for shift in shifts.reshape(-1)]
    powers = np.where(large >= 1968, 128, 0) - 53 - shifts
    scaled: Array = np.ldexp(np.array(bits, np.float64).reshape(value.shape), powers)
    return scaled


def _rows() -> dict[str, LaneOp]:
    def one(function: np.ufunc) -> LaneOp:
        return LaneOp("e", "e", lambda a: function(np.asarray(a)))

    largest = LaneOp("e", "ee", float_math.maximum)
    smallest = LaneOp("e", "ee", float_math.minimum)
    return {
        "v_add_f64": LaneOp("e", "ee", lambda a, b: a + b),
        "v_mul_f64": LaneOp("e", "ee", lambda a, b: a * b),
        **dict.fromkeys(("v_max_f64", "v_max_num_f64"), largest),
        **dict.fromkeys(("v_min_f64", "v_min_num_f64"), smallest),
        "v_maximum_f64": LaneOp("e", "ee", float_math.maximum_or_nan),
        "v_minimum_f64": LaneOp("e", "ee", float_math.minimum_or_nan),
        "v_fma_f64": LaneOp("e", "eee", fma),
        "v_fmac_f64": LaneOp("e", "eea", fma),
        **{f"v_{name}_f64": one(function) for name, function in _FUNCTIONS.items()},
        "v_rcp_f64": LaneOp("e", "e", lambda a: 1 / np.asarray(a)),
        "v_rsq_f64": LaneOp("e", "e", lambda a: 1 / np.sqrt(a)),
        "v_fract_f64": LaneOp("e", "e", float_math.fraction),
        "v_ldexp_f64": LaneOp("e", "ei", float_math.scale),
        "v_frexp_mant_f64": LaneOp("e", "e", float_math.mantissa),
        "v_frexp_exp_i32_f64": LaneOp("i", "e", float_math.mantissa_exponent),
        "v_trig_preop_f64": LaneOp("e", "eu", _turn_bits),
        "v_div_fmas_f64": LaneOp("e", "eeeb", div_fmas),
        "v_div_fixup_f64": LaneOp("e", "eee", float_math.div_fixup),
        "v_cvt_f32_f64": LaneOp("f", "e", lambda a: np.asarray(a).astype(np.float32)),
        "v_cvt_i32_f64": LaneOp("i", "e", float_math.to_i32),
        "v_cvt_u32_f64": LaneOp("u", "e", float_math.to_u32),
        **{
            f"v_cvt_f64_{kind}": LaneOp("e", letter, lambda a: np.asarray(a).astype(np.float64))
            for kind, letter in (("f32", "f"), ("i32", "i"), ("u32", "u"))
        },
    }


_FUNCTIONS = {"sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rndne": np.rint}
LANE_OPS: dict[str, LaneOp] = _rows()
HANDLERS: dict[str, Handler] = {"v_div_scale_f64": div_scale}
