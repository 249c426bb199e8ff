"""Vector instructions on floating-point numbers."""

from __future__ import annotations

from functools import partial

import numpy as np

from toolchain_lab.emulator import float_math
from toolchain_lab.emulator.bits import Array, round_bf16, widen_bf16
from toolchain_lab.emulator.lanewise import Handler, LaneOp, of_three, refuse_overflow
from toolchain_lab.emulator.operands import Get, Operands, Run
from toolchain_lab.emulator.wave import Wave


def _f32(function: np.ufunc) -> LaneOp:
    return LaneOp("f", "f", lambda a: function(np.asarray(a)))


def _from_integer(values: Array) -> Array:
    return np.asarray(values).astype(np.float32)


def _byte(number: int) -> LaneOp:
    place = np.uint32(8 * number)
    return LaneOp("f", "u", lambda a: ((np.asarray(a) >> place) & np.uint32(255)).astype(np.float32))


def _packed(low: Array, high: Array) -> Array:
    return np.asarray(low).astype(np.uint32) | np.asarray(high).astype(np.uint32) << np.uint32(16)


def _pair(values: Array, *, bf16: bool, flush: bool) -> Array:
    """Return the two 16-bit floats in each word as `float64[..., 2]`; if `flush` is set, denormals become 0."""
    words = np.ascontiguousarray(values)
    halves = widen_bf16(words.view(np.uint16)) if bf16 else words.view(np.float16)
    pairs: Array = halves.astype(np.float64).reshape(*np.shape(values), 2)
    return np.where(np.abs(pairs) < (2.0**-126 if bf16 else 2.0**-14), 0.0, pairs) if flush else pairs


def _dot2(a: Array, b: Array, add: Array, *, bf16: bool = False, flush: bool = False) -> Array:
    """Add two products of 16-bit floats to a float32 number in float64, and round the sum to float32.

    Args:
        flush: whether denormal sources and results become 0.
    """
    left, right = (_pair(each, bf16=bf16, flush=flush) for each in np.broadcast_arrays(np.asarray(a), np.asarray(b)))
    total: Array = ((left * right).sum(-1) + (float_math.flushed(add) if flush else add)).astype(np.float32)
    return float_math.flushed(total) if flush else total


LANE_OPS: dict[str, LaneOp] = {
    "v_add_f32": LaneOp("f", "ff", np.add),
    "v_sub_f32": LaneOp("f", "ff", np.subtract),
    "v_subrev_f32": LaneOp("f", "ff", lambda a, b: b - a),
    "v_mul_f32": LaneOp("f", "ff", np.multiply),
    **dict.fromkeys(
        ("v_mul_legacy_f32", "v_mul_dx9_zero_f32"),
        LaneOp("f", "ff", lambda a, b: np.where((a == 0) | (b == 0), np.float32(0), a * b)),
    ),
    **dict.fromkeys(("v_max_f32", "v_max_num_f32"), LaneOp("f", "ff", float_math.maximum)),
    **dict.fromkeys(("v_min_f32", "v_min_num_f32"), LaneOp("f", "ff", float_math.minimum)),
    "v_maximum_f32": LaneOp("f", "ff", float_math.maximum_or_nan),
    "v_minimum_f32": LaneOp("f", "ff", float_math.minimum_or_nan),
    **dict.fromkeys(("v_mad_f32", "v_madmk_f32", "v_madak_f32"), LaneOp("f", "fff", float_math.mad)),
    "v_mac_f32": LaneOp("f", "ffd", float_math.mad),
    "v_fma_f32": LaneOp("f", "fff", float_math.fma),
    "v_fmac_f32": LaneOp("f", "ffd", float_math.fma),
    **dict.fromkeys(("v_fmamk_f32", "v_fmaak_f32"), LaneOp("f", "fff", float_math.fma)),
    "v_maximum3_f32": LaneOp("f", "fff", float_math.maximum_or_nan),
    "v_minimum3_f32": LaneOp("f", "fff", float_math.minimum_or_nan),
    **of_three(
        float_math.maximum,
        float_math.minimum,
        float_math.median,
        {"f": ("f32", "num_f32"), "h": ("f16", "num_f16")},
    ),
    "v_exp_f32": LaneOp("f", "f", float_math.exp2),
    "v_log_f32": LaneOp("f", "f", float_math.log2),
    "v_sqrt_f32": LaneOp("f", "f", float_math.sqrt),
    **dict.fromkeys(("v_rcp_f32", "v_rcp_iflag_f32"), LaneOp("f", "f", float_math.reciprocal)),
    "v_rsq_f32": LaneOp("f", "f", float_math.reciprocal_sqrt),
    "v_sin_f32": LaneOp("f", "f", float_math.sine),
    "v_cos_f32": LaneOp("f", "f", float_math.cosine),
    "v_floor_f32": _f32(np.floor),
    "v_ceil_f32": _f32(np.ceil),
    "v_trunc_f32": _f32(np.trunc),
    "v_rndne_f32": _f32(np.rint),
    "v_fract_f32": LaneOp("f", "f", float_math.fraction),
    "v_ldexp_f32": LaneOp("f", "fi", float_math.scale),
    "v_frexp_mant_f32": LaneOp("f", "f", float_math.mantissa),
    "v_frexp_exp_i32_f32": LaneOp("i", "f", float_math.mantissa_exponent),
    "v_div_fixup_f32": LaneOp("f", "fff", float_math.div_fixup),
    "v_div_fmas_f32": LaneOp("f", "fffb", float_math.div_fmas),
    "v_cvt_f32_i32": LaneOp("f", "i", _from_integer),
    "v_cvt_f32_u32": LaneOp("f", "u", _from_integer),
    "v_cvt_i32_f32": LaneOp("i", "f", float_math.to_i32),
    "v_cvt_u32_f32": LaneOp("u", "f", float_math.to_u32),
    **{f"v_cvt_f32_ubyte{number}": _byte(number) for number in range(4)},
    "v_cvt_f32_f16": LaneOp("f", "h", lambda a: np.asarray(a).astype(np.float32)),
    "v_cvt_f16_f32": LaneOp("h", "f", lambda a: np.asarray(a).astype(np.float16)),
    "v_cvt_f32_bf16": LaneOp("f", "w", lambda a: widen_bf16(np.asarray(a))),
    **dict.fromkeys(
        ("v_cvt_pkrtz_f16_f32", "v_cvt_pk_rtz_f16_f32"),
        LaneOp(
            "u",
            "ff",
            lambda a, b: float_math.half_towards_zero(a) | float_math.half_towards_zero(b) << np.uint32(16),
        ),
    ),
    "v_cvt_pk_bf16_f32": LaneOp("u", "ff", lambda a, b: _packed(round_bf16(a), round_bf16(b))),
    "v_dot2acc_f32_f16": LaneOp("f", "ppd", _dot2),
    "v_dot2c_f32_f16": LaneOp("f", "ppd", partial(_dot2, flush=True)),
    "v_add_f16": LaneOp("h", "hh", np.add),
    "v_sub_f16": LaneOp("h", "hh", np.subtract),
    "v_subrev_f16": LaneOp("h", "hh", lambda a, b: b - a),
    "v_mul_f16": LaneOp("h", "hh", np.multiply),
    **dict.fromkeys(("v_max_f16", "v_max_num_f16"), LaneOp("h", "hh", float_math.maximum)),
    **dict.fromkeys(("v_min_f16", "v_min_num_f16"), LaneOp("h", "hh", float_math.minimum)),
    "v_maximum_f16": LaneOp("h", "hh", float_math.maximum_or_nan),
    "v_minimum_f16": LaneOp("h", "hh", float_math.minimum_or_nan),
    "v_fma_f16": LaneOp("h", "hhh", float_math.fma_half, keeps_high=True),
    "v_fmac_f16": LaneOp("h", "hho", float_math.fma_half),
    **dict.fromkeys(("v_fmamk_f16", "v_fmaak_f16"), LaneOp("h", "hhh", float_math.fma_half)),
    "v_div_fixup_f16": LaneOp("h", "hhh", float_math.div_fixup_half, keeps_high=True),
    "v_ldexp_f16": LaneOp("h", "hs", lambda a, b: float_math.scale(np.asarray(a, np.float32), b).astype(np.float16)),
    "v_cvt_f16_i16": LaneOp("h", "s", lambda a: np.asarray(a).astype(np.float16)),
    "v_cvt_f16_u16": LaneOp("h", "w", lambda a: np.asarray(a).astype(np.float16)),
    "v_cvt_i16_f16": LaneOp("s", "h", lambda a: float_math.to_integer(a, -32768.0, 32767.0).astype(np.int16)),
    "v_cvt_u16_f16": LaneOp("w", "h", lambda a: float_math.to_integer(a, 0.0, 65535.0).astype(np.uint16)),
    "v_rcp_f16": LaneOp("h", "h", lambda a: np.reciprocal(np.asarray(a, np.float64)).astype(np.float16)),
    "v_sqrt_f16": LaneOp("h", "h", lambda a: np.sqrt(np.asarray(a, np.float64)).astype(np.float16)),
}


def div_scale(operands: Operands) -> Run:
    """Decode V_DIV_SCALE_F32, which scales an operand, and writes a mask of the lanes to scale back later."""
    result, mask, *sources = operands.instruction.operands
    value, denominator, numerator = (operands.f32(text) for text in sources)
    put, put_mask = operands.put_f32(result), operands.put_mask(mask)

    def run(wave: Wave) -> None:
        scaled, lanes = float_math.div_scale(value(wave), denominator(wave), numerator(wave))
        put(wave, scaled)
        put_mask(wave, lanes)

    return run


def _mixed(operands: Operands) -> list[Get]:
    """Return the functions that read the three sources as float32; `op_sel_hi` selects those that are float16."""
    modifiers = operands.instruction.modifiers
    high, is_half = modifiers.vector("op_sel", [0, 0, 0]), modifiers.vector("op_sel_hi", [0, 0, 0])
    gets: list[Get] = []
    for number, text in enumerate(operands.instruction.operands[1:]):
        if is_half[number]:
            gets.append(_widened(operands.half(text, high[number])))
        elif high[number]:
            raise operands.instruction.unknown("op_sel for a source of 32 bits")
        else:
            gets.append(operands.f32(text))
    return gets


def _widened(half: Get) -> Get:
    return lambda wave: half(wave).astype(np.float32)


def fma_mix(operands: Operands) -> Run:
    """Decode V_FMA_MIX_F32, a fused multiply-add of float16 and float32 sources."""
    first, second, third = _mixed(operands)
    put = operands.put_f32(operands.instruction.operands[0], clamp=operands.instruction.modifiers.flag("clamp"))
    return lambda wave: put(wave, float_math.fma(first(wave), second(wave), third(wave)))


def _fma_mix_half(high: int) -> Handler:
    def build(operands: Operands) -> Run:
        first, second, third = _mixed(operands)
        put = operands.put_half_bits(operands.instruction.operands[0], high)

        def run(wave: Wave) -> None:
            value = float_math.fma(first(wave), second(wave), third(wave)).astype(np.float16)
            if wave.clamps_overflow:
                refuse_overflow(wave, operands.instruction, value)
            put(wave, value.view(np.uint16))

        return run

    return build


def _dot2_of(*, bf16: bool) -> Handler:
    """Return the decoder for V_DOT2_F32_F16 or V_DOT2_F32_BF16, whose addend is a separate source."""

    def build(operands: Operands) -> Run:
        result, first, second, third = operands.instruction.operands
        for text in (first, second):
            if operands.register(text) is None:
                raise operands.instruction.unknown(f"the constant {text} as two halves")
        left, right, add = operands.u32(first), operands.u32(second), operands.f32(third)
        put = operands.put_f32(result, clamp=operands.instruction.modifiers.flag("clamp"))
        # CDNA's manuals say that its DOT2 instructions flush denormals whatever the mode is.
        compute = partial(_dot2, bf16=bf16, flush=operands.target.generation == 9)
        return lambda wave: put(wave, compute(left(wave), right(wave), add(wave)))

    return build


def dot2_bf16(operands: Operands) -> Run:
    """Decode V_DOT2_BF16_BF16 if the addend is 0; the function that runs it refuses two finite nonzero products.

    The product that is not 0 is truncated to bfloat16, as was measured in triton#11227 on gfx1200. Sums of two finite
    nonzero products are refused, because their rounding is not documented.
    """
    result, first, second, third = operands.instruction.operands
    # The last element of op_sel can be ignored, because the text of the destination also names the half.
    *selected, _ = operands.instruction.modifiers.vector("op_sel", [0, 0, 0, 0])
    if third != "0" or any(selected) or operands.instruction.modifiers.left() or "." in first + second:
        raise operands.instruction.unknown("a sum of two products")
    left, right, put = operands.u32(first), operands.u32(second), operands.put_half_bits(result)
    none = np.zeros((), np.float32)
    product = partial(_dot2, bf16=True, flush=True)  # the manuals of RDNA3 and RDNA4 say that denormals are flushed

    def run(wave: Wave) -> None:
        a, b = left(wave), right(wave)
        low = product(a & np.uint32(0xFFFF), b & np.uint32(0xFFFF), none)
        high = product(a >> np.uint32(16), b >> np.uint32(16), none)
        if np.count_nonzero((low != 0) & (high != 0) & np.isfinite(low) & np.isfinite(high) & wave.mask):
            raise operands.instruction.unknown("a sum of two products")
        total = np.asarray(low + high, np.float32)
        bits = total.view(np.uint32) >> np.uint32(16)
        put(wave, np.where(np.isnan(total), bits | np.uint32(0x40), bits).astype(np.uint16))

    return run


def pack_as_halves(operands: Operands) -> Run:
    """Decode V_CVT_PK_F16_F32, which rounds two float32 sources to float16 and packs them."""
    result, first, second = operands.instruction.operands
    low, high, put = operands.f32(first), operands.f32(second), operands.put_u32(result)

    def run(wave: Wave) -> None:
        below, above = np.asarray(low(wave)).astype(np.float16), np.asarray(high(wave)).astype(np.float16)
        if wave.clamps_overflow:
            refuse_overflow(wave, operands.instruction, below)
            refuse_overflow(wave, operands.instruction, above)
        put(wave, _packed(below.view(np.uint16), above.view(np.uint16)))

    return run


HANDLERS: dict[str, Handler] = {
    "v_cvt_pk_f16_f32": pack_as_halves,
    "v_div_scale_f32": div_scale,
    "v_dot2_bf16_bf16": dot2_bf16,
    "v_dot2_f32_f16": _dot2_of(bf16=False),
    "v_dot2_f32_bf16": _dot2_of(bf16=True),
    "v_fma_mix_f32": fma_mix,
    "v_fma_mixlo_f16": _fma_mix_half(0),
    "v_fma_mixhi_f16": _fma_mix_half(1),
}
