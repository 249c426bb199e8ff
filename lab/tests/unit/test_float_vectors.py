"""Single floating-point instructions, each with the rule of AMD's manuals or LLVM's documents."""

from __future__ import annotations

import numpy as np
import pytest

from lab.tests.emulator_fixtures import bits, half, pair
from lab.tests.instruction_vectors import INF, NAN, TINY, Vector, check, v
from toolchain_lab.emulator import float_math
from toolchain_lab.emulator.float_math import fma

FLOAT = [
    v(
        "FMA rounds once",
        "v_fma_f32 v0, v1, v2, v3",
        {"v1": bits(1 + 2**-12), "v2": bits(1 + 2**-12), "v3": bits(-1)},
        {"v0": bits(2**-11 + 2**-24)},
    ),
    v(
        "FMA: what is lost behind a tie decides",
        "v_fma_f32 v0, v1, v2, v3",
        {"v1": bits(2**-12 * (1 + 2**-23)), "v2": bits(2**-12 * (1 - 2**-23)), "v3": bits(1 + 2**-23)},
        {"v0": bits(1 + 2**-23)},
    ),
    v(
        "FMAC adds to the destination",
        "v_fmac_f32_e32 v0, v1, v2",
        {"v0": bits(1), "v1": bits(2), "v2": bits(3)},
        {"v0": bits(7)},
    ),
    v(
        "FMAC of a half adds to that half of the destination",
        "v_fmac_f16_e64 v0.h, v1.l, -v2.h op_sel:[0,1,1,1]",
        {"v0": pair(9, 1), "v1": pair(2, 9), "v2": pair(9, 3)},
        {"v0": pair(9, -5)},
        "gfx1100",
    ),
    v(
        "FMAMK: the constant is the second factor",
        "v_fmamk_f32 v0, v1, 0x40000000, v2",
        {"v1": bits(3), "v2": bits(1)},
        {"v0": bits(7)},
    ),
    v(
        "signs are taken from the sources",
        "v_add_f32_e64 v0, -|v1|, v2",
        {"v1": bits(-3), "v2": bits(1)},
        {"v0": bits(-2)},
    ),
    v(
        "clamp keeps 0 to 1, and NaN and -0 are 0",
        "v_add_f32_e64 v0, v1, v1 clamp",
        {"v1": [bits(2), bits(-1), bits(NAN), bits(0.25), bits(-0.0)]},
        {"v0": [bits(1), 0, 0, bits(0.5), 0]},
    ),
    v(
        "a clamped half is not -0",
        "v_add_f16_e64 v0, v1, v1 clamp",
        {"v1": [half(2), half(-0.0)]},
        {"v0": [half(1), 0]},
    ),
    v(
        "MAX of NaN and a number is the number",
        "v_max_f32_e32 v0, v1, v2",
        {"v1": [bits(NAN), bits(1)], "v2": [bits(1), bits(NAN)]},
        {"v0": [bits(1), bits(1)]},
    ),
    v("MAX: +0 is above -0", "v_max_f32_e32 v0, v1, v2", {"v1": bits(-0.0), "v2": 0}, {"v0": 0}),
    v("MIN: -0 is below +0", "v_min_f32_e32 v0, v1, v2", {"v1": 0, "v2": bits(-0.0)}, {"v0": bits(-0.0)}),
    v(
        "gfx12: MAXIMUM: +0 is above -0, and NaN stays NaN",
        "v_maximum_f32 v0, v1, v2",
        {"v1": [0, bits(-0.0), bits(NAN)], "v2": [bits(-0.0), 0, bits(1)]},
        {"v0": [0, 0, bits(NAN)]},
        "gfx1201",
    ),
    v(
        "gfx12: MINIMUM3: -0 is below +0, and NaN stays NaN",
        "v_minimum3_f32 v0, v1, v2, v3",
        {"v1": [0, bits(-0.0), bits(1)], "v2": [bits(-0.0), 0, bits(NAN)], "v3": [0, 0, bits(-1)]},
        {"v0": [bits(-0.0), bits(-0.0), bits(NAN)]},
        "gfx1201",
    ),
    v(
        "MED3 is the middle one",
        "v_med3_f32 v0, v1, v2, v3",
        {"v1": bits(5), "v2": bits(-1), "v3": bits(2)},
        {"v0": bits(2)},
    ),
    v(
        "MAXMIN of halves is the maximum of two, or a limit",
        "v_maxmin_num_f16 v0.l, v1.l, v1.h, 4.0 op_sel:[0,1,0,0]",
        {"v0": 0, "v1": [pair(1, 3), pair(9, 3)]},
        {"v0": [half(3), half(4)]},
        "gfx1201",
    ),
    v("MAX3 of halves", "v_max3_f16 v0, v1, |v2|, v3", {"v1": half(1), "v2": half(-3), "v3": half(2)}, {"v0": half(3)}),
    v(
        "MED3 drops the first number that equals the maximum, and +0 equals -0",
        "v_med3_f32 v0, v1, v2, v3",
        {"v1": bits(-1), "v2": [bits(-0.0), 0, bits(-0.0)], "v3": [0, bits(-0.0), bits(-0.0)]},
        {"v0": [0, bits(-0.0), bits(-0.0)]},
    ),
    v("EXP is 2 to the power", "v_exp_f32_e32 v0, v1", {"v1": [bits(3), bits(-INF)]}, {"v0": [bits(8), 0]}),
    v("EXP flushes a denormal result", "v_exp_f32_e32 v0, v1", {"v1": bits(-130)}, {"v0": 0}),
    v("LOG flushes a denormal", "v_log_f32_e32 v0, v1", {"v1": [bits(8), TINY]}, {"v0": [bits(3), bits(-INF)]}),
    v("RCP of 0 is infinity", "v_rcp_f32_e32 v0, v1", {"v1": [0, bits(4)]}, {"v0": [bits(INF), bits(0.25)]}),
    v("RNDNE: ties go to even", "v_rndne_f32_e32 v0, v1", {"v1": [bits(0.5), bits(1.5)]}, {"v0": [0, bits(2)]}),
    v("FRACT stays below 1", "v_fract_f32_e32 v0, v1", {"v1": bits(-1e-10)}, {"v0": 0x3F7FFFFF}),
    v("LDEXP", "v_ldexp_f32 v0, v1, v2", {"v1": bits(1.5), "v2": 0xFFFFFFFF}, {"v0": bits(0.75)}),
    v(
        "LDEXP of a half is rounded once",
        "v_ldexp_f16_e64 v0, v1, v2",
        {"v1": [half(1.5), 0x07FF, half(-1)], "v2": [1, 0xFFFF, 0x7FFF]},
        {"v0": [half(3), 0x0400, half(-INF)]},
    ),
    v("FREXP gives a mantissa of half and more", "v_frexp_mant_f32_e32 v0, v1", {"v1": bits(12)}, {"v0": bits(0.75)}),
    v(
        "FREXP: the exponent of infinity is 0",
        "v_frexp_exp_i32_f32_e32 v0, v1",
        {"v1": [bits(12), bits(INF)]},
        {"v0": [4, 0]},
    ),
    v(
        "to a signed integer: towards zero, kept in range, NaN is 0",
        "v_cvt_i32_f32_e32 v0, v1",
        {"v1": [bits(-1.9), bits(1e20), bits(NAN), bits(-INF)]},
        {"v0": [0xFFFFFFFF, 0x7FFFFFFF, 0, 0x80000000]},
    ),
    v(
        "to an unsigned integer: below 0 is 0",
        "v_cvt_u32_f32_e32 v0, v1",
        {"v1": [bits(-5), bits(5e9), bits(3.7)]},
        {"v0": [0, 0xFFFFFFFF, 3]},
    ),
    v("an unsigned integer is rounded", "v_cvt_f32_u32_e32 v0, v1", {"v1": 0xFFFFFFFF}, {"v0": bits(2**32)}),
    v(
        "to a half: overflow is infinity",
        "v_cvt_f16_f32_e32 v0, v1",
        {"v1": [bits(65520), bits(1), bits(2**-25)], "v0": 0xFFFFFFFF},
        {"v0": [half(INF), half(1), 0]},
    ),
    v(
        "gfx11 writes one half alone",
        "v_cvt_f16_f32_e32 v0.h, v1",
        {"v1": bits(1), "v0": 0x1234},
        {"v0": half(1) << 16 | 0x1234},
        "gfx1100",
    ),
    v(
        "two halves towards zero",
        "v_cvt_pkrtz_f16_f32 v0, v1, v2",
        {"v1": bits(1 + 2**-10 + 2**-11), "v2": bits(65535)},
        {"v0": half(1 + 2**-10) | half(65504) << 16},
    ),
    v(
        "two bf16 to nearest, ties to even",
        "v_cvt_pk_bf16_f32 v0, v1, v2",
        {"v1": 0x3F808000, "v2": 0x3F818000},
        {"v0": 0x3F823F80},
        "gfx950",
    ),
    v("a byte as a number", "v_cvt_f32_ubyte2_e32 v0, v1", {"v1": 0x00FF0000}, {"v0": bits(255)}),
    v(
        "DIV_SCALE scales a small denominator's numerator",
        "v_div_scale_f32 v0, vcc, v1, v2, v1",
        {"exec": 1, "v1": bits(1), "v2": bits(2)},
        {"v0": [bits(1)], "vcc": 0},
    ),
    v(
        "DIV_SCALE: far apart, the denominator is scaled",
        "v_div_scale_f32 v0, vcc, v2, v2, v1",
        {"exec": 1, "v1": bits(2.0**100), "v2": bits(1)},
        {"v0": [bits(2.0**64)], "vcc": 1},
    ),
    v(
        "RCP flushes denormals",
        "v_rcp_f32_e32 v0, v1",
        {"v1": [TINY, bits(2.0**127)]},
        {"v0": [bits(INF), 0]},
    ),
    v("SQRT flushes denormals", "v_sqrt_f32_e32 v0, v1", {"v1": TINY}, {"v0": 0}),
    v("RSQ of a denormal is infinity", "v_rsq_f32_e32 v0, v1", {"v1": TINY}, {"v0": bits(INF)}),
    v(
        "SIN of a number of turns, by the manual's examples",
        "v_sin_f32_e32 v0, v1",
        {"v1": [0xFF7FFFFF, 0x80000000, 0x3E800000]},
        {"v0": [0, 0x80000000, 0x3F800000]},
    ),
    v(
        "COS of a number of turns, by the manual's examples",
        "v_cos_f32_e32 v0, v1",
        {"v1": [0xFF7FFFFF, 0x80000000, 0x3E800000]},
        {"v0": [0x3F800000, 0x3F800000, 0]},
    ),
    v(
        "DIV_SCALE scales a denormal denominator, and the numerator with it",
        "v_div_scale_f32 v0, vcc, v1, v2, v1",
        {"exec": 3, "v1": [bits(2.0**-130), bits(2.0**-40)], "v2": TINY},
        {"v0": [bits(2.0**-66), bits(2.0**24)], "vcc": 0},
    ),
    v(
        "DIV_SCALE scales both of a tiny numerator, and nothing is taken back",
        "v_div_scale_f32 v0, vcc, v2, v2, v1",
        {"exec": 1, "v1": bits(2.0**-110), "v2": bits(2.0**-50)},
        {"v0": [bits(2.0**14)], "vcc": 0},
    ),
    v(
        "DIV_SCALE of 0 is NaN without a scale",
        "v_div_scale_f32 v0, vcc, v1, v2, v1",
        {"exec": 1, "v1": 0, "v2": bits(2)},
        {"v0": [0x7FC00000], "vcc": 0},
    ),
    v(
        "DIV_FMAS scales back where VCC says so",
        "v_div_fmas_f32 v0, v1, v2, v3",
        {"vcc": 0b10, "v1": bits(1), "v2": bits(1), "v3": 0},
        {"v0": [bits(1), bits(2.0**-64)]},
    ),
    v(
        "DIV_FIXUP: 0/0 is NaN, 1/0 infinity with the sign",
        "v_div_fixup_f32 v0, v1, v2, v3",
        {"v1": bits(1), "v2": [bits(-0.0), bits(2)], "v3": [bits(1), bits(6)]},
        {"v0": [bits(-INF), bits(1)]},
    ),
    v(
        "FMA_MIX reads halves where op_sel_hi says so",
        "v_fma_mix_f32 v0, v1, v2, v3 op_sel:[0,1,0] op_sel_hi:[1,1,0]",
        {"v1": pair(2, 9), "v2": pair(9, 3), "v3": bits(0.5)},
        {"v0": bits(6.5)},
    ),
    v(
        "FMA_MIXHI writes the upper half alone",
        "v_fma_mixhi_f16 v0, v1, v2, v3",
        {"v0": 0x1234, "v1": bits(2), "v2": bits(3), "v3": bits(1)},
        {"v0": half(7) << 16 | 0x1234},
    ),
    v(
        "PK_FMA_F16 does both halves",
        "v_pk_fma_f16 v0, v1, v2, v3",
        {"v1": pair(1, 2), "v2": pair(3, 4), "v3": pair(5, 6)},
        {"v0": pair(8, 14)},
    ),
    v(
        "the constant 2.0 is a float32 for packed integers",
        "v_pk_add_u16 v0, v1, 2.0",
        {"v1": 0x00030005},
        {"v0": 0x40030005},
    ),
    v("and -1 is both halves", "v_pk_add_u16 v0, v1, -1", {"v1": 0x00030005}, {"v0": 0x00020004}),
    v("for packed floats 2.0 is the lower half", "v_pk_add_f16 v0, v1, 2.0", {"v1": pair(1, 3)}, {"v0": pair(3, 3)}),
    v("PERMLANE64 does nothing in a wave of 32", "v_permlane64_b32 v0, v1", {"v0": 7, "v1": 5}, {"v0": 7}, "gfx1100"),
    v(
        "op_sel picks halves, neg_hi a sign",
        "v_pk_add_f16 v0, v1, v2 op_sel:[1,0] op_sel_hi:[0,1] neg_hi:[0,1]",
        {"v1": pair(1, 2), "v2": pair(10, 20)},
        {"v0": pair(12, -19)},
    ),
    v(
        "PK_MUL_F32 on pairs of registers",
        "v_pk_mul_f32 v[0:1], v[2:3], v[4:5] op_sel_hi:[1,0]",
        {"v2": bits(2), "v3": bits(3), "v4": bits(5), "v5": bits(7)},
        {"v0": bits(10), "v1": bits(15)},
    ),
    v(
        "PACK takes halves by op_sel",
        "v_pack_b32_f16 v0, v1, v2 op_sel:[1,0,0]",
        {"v1": 0x22221111, "v2": 0x44443333},
        {"v0": 0x33332222},
    ),
    v(
        "SDWA clamps a result that it writes to the upper half",
        "v_add_f16_sdwa v0, v1, v2 clamp dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1 src1_sel:WORD_0",
        {"v0": 0x1234, "v1": pair(0, 3), "v2": [half(4), half(-2.5), half(-8), half(NAN)]},
        {"v0": [0x3C001234, 0x38001234, 0x00001234, 0x00001234]},
        "gfx90a",
    ),
    v(
        "DOT2 sums two products",
        "v_dot2acc_f32_f16 v0, v1, v2",
        {"v0": bits(1), "v1": pair(2, 3), "v2": pair(4, 5)},
        {"v0": bits(24)},
        "gfx1100",
    ),
    v(
        "a constant of DOT2 is its lower half alone",
        "v_dot2c_f32_f16_e32 v0, 1.0, v1",
        {"v0": bits(1), "v1": pair(2, 3)},
        {"v0": bits(3)},
    ),
    v(
        "DOT2 adds them to a third source",
        "v_dot2_f32_f16 v0, v1, v2, v3",
        {"v1": pair(2, 3), "v2": pair(4, 5), "v3": bits(1)},
        {"v0": bits(24)},
        "gfx1200",
    ),
    v(
        "DOT2 of CDNA flushes a denormal source",
        "v_dot2c_f32_f16_e32 v0, v1, v2",
        {"v0": bits(1), "v1": pair(2.0**-15, 2), "v2": pair(2.0**14, 3)},
        {"v0": bits(7)},
        "gfx950",
    ),
    v(
        "DOT2 of CDNA flushes a denormal addend, also with a third source",
        "v_dot2_f32_f16 v0, v1, v2, v3",
        {"v1": pair(0, 0), "v2": pair(4, 5), "v3": TINY},
        {"v0": 0},
        "gfx90a",
    ),
    v(
        "DOT2 of RDNA keeps denormals of float16",
        "v_dot2_f32_f16 v0, v1, v2, v3",
        {"v1": pair(2.0**-15, 2), "v2": pair(2.0**14, 3), "v3": bits(1)},
        {"v0": bits(7.5)},
        "gfx1100",
    ),
    v(
        "DOT2 to bfloat16 flushes denormals",
        "v_dot2_bf16_bf16 v0.l, v1, v2, 0",
        {"v0": 0, "v1": 0x0040, "v2": 0x4080},  # 2^-127 * 4
        {"v0": 0},
        "gfx1100",
    ),
    v(
        "DOT2 by a constant with one half is a product, and keeps the upper half",
        "v_dot2_bf16_bf16 v0.l, v1, 0x4040, 0",  # 3 in bfloat16
        {"v0": 0xABCD0000, "v1": [0x40A0, 0x7FC040A0]},  # 5, and 5 below a NaN
        {"v0": [0xABCD4170, 0xABCD7FC0]},
        "gfx1100",
    ),
    v(
        "DOT2 of bfloat16 cuts the product off",
        "v_dot2_bf16_bf16 v0.l, v1, v2, 0",
        {"v0": 0, "v1": [0x3F83, 0xBF83], "v2": 0x3F83},  # 1.0234375 squared is 1.04742431640625
        {"v0": [0x3F86, 0xBF86]},
        "gfx1200",
    ),
    v(
        "DOT4 adds products of signed bytes to the old result",
        "v_dot4c_i32_i8 v0, v1, v2",
        {"v0": 7, "v1": 0x80FF0102, "v2": 0x80030405},
        {"v0": 7 + 16384 - 3 + 4 + 10},
    ),
    v(
        "DOT4 has a sign for each source",
        "v_dot4_i32_iu8 v0, v1, v2, v3 neg_lo:[1,0,0]",
        {"v1": 0xFF000002, "v2": 0xFF000003, "v3": 1},
        {"v0": (1 + 6 - 255) & 0xFFFFFFFF},
        "gfx1100",
    ),
    v("SUBREV of halves", "v_subrev_u16_e32 v0, 56, v1", {"v1": 0xABCD0010}, {"v0": 0xFFD8}, "gfx950"),
    v("a half is widened", "v_cvt_u32_u16_e32 v0, v1.h", {"v1": 0xFEDC1234}, {"v0": 0xFEDC}, "gfx1100"),
    v(
        "two instructions in one read before either writes",
        "v_dual_mov_b32 v0, v1 :: v_dual_mov_b32 v1, v0",
        {"v0": 1, "v1": 2},
        {"v0": 2, "v1": 1},
        "gfx1100",
    ),
    v(
        "one of two instructions is DOT2",
        "v_dual_dot2acc_f32_f16 v0, v1, v2 :: v_dual_mov_b32 v3, v1",
        {"v0": bits(1), "v1": pair(2, 3), "v2": pair(4, 5)},
        {"v0": bits(24), "v3": pair(2, 3)},
        "gfx1100",
    ),
]


@pytest.mark.parametrize("vector", [*FLOAT], ids=lambda vector: vector.rule)
def test_instruction_follows_its_documented_rule(vector: Vector) -> None:
    check(vector)


def test_float32_division_is_rounded_once() -> None:
    """LLVM's sequence of instructions for a division must give the bits of IEEE 754, also for denormals."""
    words = np.random.default_rng(1).integers(0, 1 << 32, (2, 20000), dtype=np.uint32)
    words[:, :5000] &= 0x807FFFFF
    words[0, 5000:10000] &= 0x807FFFFF
    n, d = words.view(np.float32)
    with np.errstate(all="ignore"):
        (below, _), (above, back) = float_math.div_scale(d, d, n), float_math.div_scale(n, d, n)
        inverse = float_math.reciprocal(below)
        inverse = fma(fma(-below, inverse, np.ones_like(n)), inverse, inverse)
        quotient = np.asarray(above * inverse)
        quotient = fma(fma(-below, quotient, above), inverse, quotient)
        last = float_math.div_fmas(fma(-below, quotient, above), inverse, quotient, back)
        result, wanted = float_math.div_fixup(last, d, n), n / d
    same = result.view(np.uint32) == wanted.view(np.uint32)
    assert (same | (np.isnan(result) & np.isnan(wanted))).all()
