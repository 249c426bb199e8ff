"""Single instructions, each with the rule that its vector shows: of AMD's manuals, or of LLVM's AMDGPU documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from lab.tests.emulator_fixtures import bits, double, get, half, pair, put, run, wave_of

INF, NAN = float("inf"), float("nan")
TINY = bits(2.0**-140)  # a denormal


@dataclass(frozen=True)
class Vector:
    """Registers before and after an instruction. A list is lane by lane, and may be shorter than the wave."""

    rule: str
    text: str
    before: dict[str, Any]
    after: dict[str, Any]
    gpu: str = "gfx942"
    word: int = 0
    more: tuple[str, ...] = field(default=())


def v(
    rule: str, text: str, before: dict[str, Any], after: dict[str, Any], gpu: str = "gfx942", word: int = 0
) -> Vector:
    return Vector(rule, text, before, after, gpu, word)


INTEGER = [
    v("a sum drops its carry", "v_add_u32_e32 v0, v1, v2", {"v1": 0xFFFFFFFF, "v2": 2}, {"v0": 1}),
    v(
        "the carry that comes in may be what carries",
        "v_addc_co_u32_e32 v0, vcc, v1, v2, vcc",
        {"v1": 0xFFFFFFFF, "v2": 0, "vcc": (1 << 64) - 1},
        {"v0": 0, "vcc": (1 << 64) - 1},
    ),
    v(
        "the borrow that comes in may be what borrows",
        "v_subb_co_u32_e32 v0, vcc, v1, v2, vcc",
        {"v1": 5, "v2": 5, "vcc": (1 << 64) - 1},
        {"v0": 0xFFFFFFFF, "vcc": (1 << 64) - 1},
    ),
    v(
        "PERM takes another selector in each lane",
        "v_perm_b32 v0, v1, v2, v3",
        {"v1": 0x77665544, "v2": 0x33221100, "v3": [0x03020100, 0x07060504, 0x04000703]},
        {"v0": [0x33221100, 0x77665544, 0x44007733]},
    ),
    v("SUBREV subtracts the first from the second", "v_subrev_u32_e32 v0, 1, v2", {"v2": 5}, {"v0": 4}),
    v("a shift's amount has five bits", "v_lshlrev_b32_e32 v0, 33, v1", {"v1": 1}, {"v0": 2}),
    v("an arithmetic shift keeps the sign", "v_ashrrev_i32_e32 v0, 4, v1", {"v1": 0x80000000}, {"v0": 0xF8000000}),
    v("64 bits shift by six bits", "v_lshlrev_b64 v[0:1], 33, v[2:3]", {"v[2:3]": 1}, {"v[0:1]": 1 << 33}),
    v("XAD is xor, then add", "v_xad_u32 v0, v1, v2, v3", {"v1": 6, "v2": 3, "v3": 10}, {"v0": 15}),
    v("BFI picks by the mask", "v_bfi_b32 v0, v1, v2, v3", {"v1": 0xFF, "v2": 0x1234, "v3": 0xABCD}, {"v0": 0xAB34}),
    v("BFE of width 0 is 0", "v_bfe_u32 v0, v1, 4, 0", {"v1": 0xFFFFFFFF}, {"v0": 0}),
    v("BFE_I extends the field's sign", "v_bfe_i32 v0, v1, 4, 4", {"v1": 0x80}, {"v0": 0xFFFFFFF8}),
    v("ALIGNBIT shifts the pair right", "v_alignbit_b32 v0, v1, v2, 8", {"v1": 0x11, "v2": 0x2233}, {"v0": 0x11000022}),
    v(
        "PERM: 0-3 the second, 4-7 the first, 12 zero, 13 ones",
        "v_perm_b32 v0, v1, v2, s0",
        {"v1": 0x77665544, "v2": 0x33221100, "s0": 0x0D0C0700},
        {"v0": 0xFF007700},
    ),
    v(
        "PERM: 8 to 11 repeat the sign of a half",
        "v_perm_b32 v0, v1, v2, v3",
        {"v1": 0x00008000, "v2": 0x80000000, "v3": 0x0B0A0908},
        {"v0": 0x00FFFF00},
    ),
    v(
        "the high half of a product",
        "v_mul_hi_u32 v0, v1, v2",
        {"v1": 0xFFFFFFFF, "v2": 0xFFFFFFFF},
        {"v0": 0xFFFFFFFE},
    ),
    v("24 bits of both factors", "v_mul_u32_u24_e32 v0, v1, v2", {"v1": 0xFF000003, "v2": 5}, {"v0": 15}),
    v("24 bits with their sign", "v_mul_i32_i24_e32 v0, v1, v2", {"v1": 0x00FFFFFF, "v2": 5}, {"v0": 0xFFFFFFFB}),
    v("FFBH of 0 is all ones", "v_ffbh_u32_e32 v0, v1", {"v1": [0, 1, 0x80000000]}, {"v0": [0xFFFFFFFF, 31, 0]}),
    v("FFBL counts zeros below", "v_ffbl_b32_e32 v0, v1", {"v1": [0, 8, 0x80000000]}, {"v0": [0xFFFFFFFF, 3, 31]}),
    v(
        "BITOP3 is a table of truth",
        "v_bitop3_b32 v0, v1, v2, v3 bitop3:0x96",
        {"v1": 0b0011, "v2": 0b0101, "v3": 0b1111},
        {"v0": 0b0011 ^ 0b0101 ^ 0b1111},
        "gfx950",
    ),
    v(
        "the carry of a sum, 0 in lanes that are not active",
        "v_add_co_u32_e32 v0, vcc, v1, v2",
        {"exec": 0b101, "v1": 0xFFFFFFFF, "v2": 1, "v0": 7},
        {"v0": [0, 7, 0], "vcc": 0b101},
    ),
    v(
        "a chained sum takes the carry in",
        "v_addc_co_u32_e32 v0, vcc, v1, v2, vcc",
        {"vcc": 0b10, "v1": [1, 0xFFFFFFFF], "v2": 0},
        {"v0": [1, 0]},
    ),
    v(
        "a borrow",
        "v_sub_co_u32 v0, s[0:1], v1, v2",
        {"exec": 3, "v1": [1, 5], "v2": 2},
        {"v0": [0xFFFFFFFF, 3], "s[0:1]": 1},
    ),
    v(
        "a product of 64 bits, a sum and its carry",
        "v_mad_u64_u32 v[0:1], s[0:1], v2, v3, v[4:5]",
        {"exec": 3, "v2": 2, "v3": 0x80000000, "v[4:5]": [1, 0xFFFFFFFF00000000]},
        {"v[0:1]": [0x100000001, 0], "s[0:1]": 0b10},
    ),
    v("lanes that are not active keep their value", "v_mov_b32_e32 v0, 1", {"exec": 0b10, "v0": 9}, {"v0": [9, 1, 9]}),
    v("a literal is 32 bits", "v_mov_b32_e32 v0, 0x3fb8aa3b", {}, {"v0": 0x3FB8AA3B}),
    v("a small negative constant is extended", "v_and_b32_e32 v0, -2, v1", {"v1": 0xFF}, {"v0": 0xFE}),
    v(
        "CNDMASK takes the second where the mask is set",
        "v_cndmask_b32_e32 v0, v1, v2, vcc",
        {"vcc": 0b10, "v1": 1, "v2": 2},
        {"v0": [1, 2, 1]},
    ),
    v(
        "CNDMASK with a sign reads floats",
        "v_cndmask_b32_e64 v0, -v1, v2, s[0:1]",
        {"s[0:1]": 0, "v1": bits(1.5), "v2": 0},
        {"v0": bits(-1.5)},
    ),
    v(
        "accumulation registers are registers of their own",
        "v_accvgpr_write_b32 a3, v1",
        {"v1": 5, "v3": 1},
        {"a3": 5, "v3": 1},
    ),
    v(
        "gfx9 clears the upper half after 16 bits",
        "v_add_u16_e32 v0, v1, v2",
        {"v0": 0xAAAA0000, "v1": 0xFFFF, "v2": 3},
        {"v0": 2},
    ),
    v(
        "gfx11 keeps the other half",
        "v_add_nc_u16 v0.h, v1.l, v2.h",
        {"v0": 0xAAAA5555, "v1": 1, "v2": 0x20000},
        {"v0": 0x00035555},
        "gfx1100",
    ),
]
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
        "clamp keeps 0 to 1, and NaN is 0",
        "v_add_f32_e64 v0, v1, 0 clamp",
        {"v1": [bits(2), bits(-1), bits(NAN), bits(0.25)]},
        {"v0": [bits(1), 0, 0, bits(0.25)]},
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
        "MED3 is the middle one",
        "v_med3_f32 v0, v1, v2, v3",
        {"v1": bits(5), "v2": bits(-1), "v3": bits(2)},
        {"v0": bits(2)},
    ),
    v("EXP is 2 to the power", "v_exp_f32_e32 v0, v1", {"v1": [bits(3), bits(-INF)]}, {"v0": [bits(8), 0]}),
    v("EXP flushes a denormal result", "v_exp_f32_e32 v0, v1", {"v1": bits(-130)}, {"v0": 0}),
    v("LOG flushes a denormal", "v_log_f32_e32 v0, v1", {"v1": [bits(8), TINY]}, {"v0": [bits(3), bits(-INF)]}),
    v("RCP of 0 is infinity", "v_rcp_f32_e32 v0, v1", {"v1": [0, bits(4)]}, {"v0": [bits(INF), bits(0.25)]}),
    v("RNDNE: ties go to even", "v_rndne_f32_e32 v0, v1", {"v1": [bits(0.5), bits(1.5)]}, {"v0": [0, bits(2)]}),
    v("FRACT stays below 1", "v_fract_f32_e32 v0, v1", {"v1": bits(-1e-10)}, {"v0": 0x3F7FFFFF}),
    v("LDEXP", "v_ldexp_f32 v0, v1, v2", {"v1": bits(1.5), "v2": 0xFFFFFFFF}, {"v0": bits(0.75)}),
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


def d(rule: str, text: str, *numbers: float, bits_of: int | None = None) -> Vector:
    """An instruction on float64: sources in v[2:3] and following, and the result in v[0:1], which is last."""
    *sources, result = numbers
    before = {f"v[{2 * k + 2}:{2 * k + 3}]": double(value) for k, value in enumerate(sources)}
    return v(rule, text, before, {"v[0:1]": double(result) if bits_of is None else bits_of})


DOUBLE = [
    d("float64: a sum", "v_add_f64 v[0:1], v[2:3], -v[4:5]", 0.1, 0.2, -0.1),
    d("float64: a product", "v_mul_f64 v[0:1], |v[2:3]|, v[4:5]", -3, 0.5, 1.5),
    d("float64: a literal is the upper half", "v_mul_f64 v[0:1], 0x40080000, v[2:3]", 2, 6),
    d("float64: an integer constant is bits", "v_add_f64 v[0:1], v[2:3], 1", 0, 0, bits_of=1),
    d(
        "float64: FMA rounds once",
        "v_fma_f64 v[0:1], v[2:3], v[4:5], v[6:7]",
        1 + 2**-30,
        1 + 2**-30,
        -1,
        2**-29 + 2**-60,
    ),
    d(
        "float64: FMA of denormals rounds once",
        "v_fma_f64 v[0:1], v[2:3], v[4:5], v[6:7]",
        2.0**-600,
        1.5 * 2.0**-474,
        2.0**-1074,
        2.0**-1073,
    ),
    d("float64: FMA of a far smaller addend", "v_fma_f64 v[0:1], v[2:3], v[4:5], 1.0", 2.0**500, -1, 0, -(2.0**500)),
    d("float64: MAX is the number where the other is NaN", "v_max_f64 v[0:1], v[2:3], v[4:5]", NAN, 1, 1),
    d("float64: MIN, -0 is below +0", "v_min_f64 v[0:1], v[2:3], v[4:5]", 0, -0.0, -0.0),
    d("float64: RCP", "v_rcp_f64_e32 v[0:1], v[2:3]", -0.0, -INF),
    d("float64: RSQ", "v_rsq_f64_e32 v[0:1], v[2:3]", 0.25, 2),
    d("float64: SQRT", "v_sqrt_f64_e32 v[0:1], v[2:3]", 2.25, 1.5),
    d("float64: TRUNC", "v_trunc_f64_e32 v[0:1], v[2:3]", -1.9, -1),
    d("float64: FLOOR", "v_floor_f64_e32 v[0:1], v[2:3]", -1.1, -2),
    d("float64: CEIL", "v_ceil_f64_e32 v[0:1], v[2:3]", 1.1, 2),
    d("float64: RNDNE", "v_rndne_f64_e32 v[0:1], v[2:3]", 2.5, 2),
    d("float64: FRACT stays below 1", "v_fract_f64_e32 v[0:1], v[2:3]", -1e-30, 0, bits_of=0x3FEFFFFFFFFFFFFF),
    d("float64: LDEXP", "v_ldexp_f64 v[0:1], v[2:3], -2000", 2.0**1000, 2.0**-1000),
    d("float64: FREXP_MANT", "v_frexp_mant_f64_e32 v[0:1], v[2:3]", 12, 0.75),
    d("float64: DIV_FIXUP of 1/-0", "v_div_fixup_f64 v[0:1], v[2:3], v[4:5], 1.0", 9, -0.0, -INF),
    d("float64: DIV_FIXUP has the sign of both", "v_div_fixup_f64 v[0:1], v[2:3], v[4:5], 1.0", 0.5, -2, -0.5),
    d("float64: the first 53 bits of 2/pi", "v_trig_preop_f64 v[0:1], v[2:3], 0", 1, 0, bits_of=0x3FE45F306DC9C882),
    d("float64: the next ones", "v_trig_preop_f64 v[0:1], v[2:3], 1", 1, 0, bits_of=0x3C94A7F09D5F47D4),
    v(
        "float64: FMAC adds to the destination",
        "v_fmac_f64_e32 v[0:1], v[2:3], v[2:3]",
        {"v[0:1]": double(1), "v[2:3]": double(3)},
        {"v[0:1]": double(10)},
    ),
    v(
        "float64: FREXP_EXP",
        "v_frexp_exp_i32_f64_e32 v0, v[2:3]",
        {"v[2:3]": [double(12), double(INF)]},
        {"v0": [4, 0]},
    ),
    v("float64: to float32", "v_cvt_f32_f64_e32 v0, v[2:3]", {"v[2:3]": double(0.1)}, {"v0": bits(0.1)}),
    v("float64: from float32", "v_cvt_f64_f32_e32 v[0:1], v2", {"v2": bits(0.5)}, {"v[0:1]": double(0.5)}),
    v("float64: from a signed integer", "v_cvt_f64_i32_e32 v[0:1], v2", {"v2": 0xFFFFFFFF}, {"v[0:1]": double(-1)}),
    v(
        "float64: from an unsigned one",
        "v_cvt_f64_u32_e32 v[0:1], v2",
        {"v2": 0xFFFFFFFF},
        {"v[0:1]": double(2**32 - 1)},
    ),
    v(
        "float64: to a signed integer",
        "v_cvt_i32_f64_e32 v0, v[2:3]",
        {"v[2:3]": [double(-1.9), double(1e300), double(NAN)]},
        {"v0": [0xFFFFFFFF, 0x7FFFFFFF, 0]},
    ),
    v(
        "float64: to an unsigned one",
        "v_cvt_u32_f64_e32 v0, v[2:3]",
        {"v[2:3]": [double(-5), double(3.7)]},
        {"v0": [0, 3]},
    ),
    v(
        "float64: DIV_SCALE of 1/2 changes nothing",
        "v_div_scale_f64 v[0:1], vcc, v[2:3], v[4:5], v[2:3]",
        {"exec": 1, "v[2:3]": double(1), "v[4:5]": double(2)},
        {"v[0:1]": [double(1)], "vcc": 0},
    ),
    v(
        "float64: DIV_SCALE, far apart, scales the denominator",
        "v_div_scale_f64 v[0:1], vcc, v[4:5], v[4:5], v[2:3]",
        {"exec": 1, "v[2:3]": double(2.0**800), "v[4:5]": double(1)},
        {"v[0:1]": [double(2.0**128)], "vcc": 1},
    ),
    v(
        "float64: DIV_SCALE scales a denormal denominator",
        "v_div_scale_f64 v[0:1], vcc, v[2:3], v[2:3], v[4:5]",
        {"exec": 1, "v[2:3]": double(2.0**-1070), "v[4:5]": double(2.0**-1000)},
        {"v[0:1]": [double(2.0**-942)], "vcc": 0},
    ),
    v(
        "float64: DIV_FMAS scales back where VCC says so",
        "v_div_fmas_f64 v[0:1], v[2:3], v[2:3], v[4:5]",
        {"vcc": 0b10, "v[2:3]": double(1), "v[4:5]": 0},
        {"v[0:1]": [double(1), double(2.0**-128)]},
    ),
    v(
        "float64: NLT is true for NaN",
        "v_cmp_nlt_f64_e64 s[0:1], v[2:3], |v[4:5]|",
        {"exec": 7, "v[2:3]": [double(NAN), double(1), double(3)], "v[4:5]": double(-2)},
        {"s[0:1]": 0b101},
    ),
    v(
        "float64: CLASS",
        "v_cmp_class_f64_e64 s[0:1], v[2:3], 0x90",
        {"exec": 7, "v[2:3]": [double(2.0**-1050), double(-(2.0**-1050)), double(2.0**-1022)]},
        {"s[0:1]": 0b011},
    ),
]
# 1.5 and -2 as FNUZ types of gfx942 and as those of OCP; and the largest finite numbers.
NARROW = [
    v(
        "FNUZ: two to E4M3",
        "v_cvt_pk_fp8_f32 v0, v1, v2",
        {"v0": 0xAAAA0000, "v1": bits(1.5), "v2": bits(-2)},
        {"v0": 0xAAAAC844},
    ),
    v("FNUZ: two to E5M2", "v_cvt_pk_bf8_f32 v0, v1, v2", {"v0": 0, "v1": bits(1.5), "v2": bits(-2)}, {"v0": 0xC442}),
    v(
        "FP8: op_sel picks the upper half of the result",
        "v_cvt_pk_fp8_f32 v0, v1, 0 op_sel:[0,0,1]",
        {"v0": 0x1234, "v1": bits(1.5)},
        {"v0": 0x00441234},
    ),
    v("FNUZ: too large is NaN", "v_cvt_pk_fp8_f32 v0, v1, -v1", {"v0": 0, "v1": bits(1000)}, {"v0": 0x8080}),
    v(
        "OCP: two to E4M3",
        "v_cvt_pk_fp8_f32 v0, v1, v2",
        {"v0": 0, "v1": bits(1.5), "v2": bits(-2)},
        {"v0": 0xC03C},
        "gfx1201",
    ),
    v(
        "OCP: too large for E5M2 is infinite",
        "v_cvt_pk_bf8_f32 v0, v1, 0",
        {"v0": 0, "v1": bits(1e6)},
        {"v0": 0x7C},
        "gfx1201",
    ),
    v("FNUZ: two from E4M3", "v_cvt_pk_f32_fp8_e32 v[0:1], v2", {"v2": 0xC844}, {"v0": bits(1.5), "v1": bits(-2)}),
    v("FNUZ: two from E5M2", "v_cvt_pk_f32_bf8_e32 v[0:1], v2", {"v2": 0xC442}, {"v0": bits(1.5), "v1": bits(-2)}),
    v(
        "OCP: two from the upper half",
        "v_cvt_pk_f32_fp8_e64 v[0:1], v2 op_sel:[1,0]",
        {"v2": 0xC03C0000},
        {"v0": bits(1.5), "v1": bits(-2)},
        "gfx1201",
    ),
    v("OCP: one by its byte", "v_cvt_f32_fp8_e64 v0, v2 byte_sel:1", {"v2": 0xC03C}, {"v0": bits(-2)}, "gfx1201"),
    v(
        "scaled from E4M3",
        "v_cvt_scalef32_pk_f32_fp8 v[0:1], v2, 4.0",
        {"v2": 0xC03C},
        {"v0": bits(6), "v1": bits(-8)},
        "gfx950",
    ),
    v("scaled from E5M2", "v_cvt_scalef32_pk_f16_bf8 v0, v2, 0.5", {"v2": 0xC03E}, {"v0": pair(0.75, -1)}, "gfx950"),
    v(
        "scaled from E4M3 to bf16",
        "v_cvt_scalef32_pk_bf16_fp8 v0, v2, 1.0",
        {"v2": 0xC03C},
        {"v0": 0xC0003FC0},
        "gfx950",
    ),
    v(
        "scaled to E4M3",
        "v_cvt_scalef32_pk_fp8_f32 v0, v1, v2, 2.0",
        {"v0": 0, "v1": bits(3), "v2": bits(-4)},
        {"v0": 0xC03C},
        "gfx950",
    ),
    v(
        "scaled halves to E5M2",
        "v_cvt_scalef32_pk_bf8_f16 v0, v1, 1.0 op_sel:[0,0,1]",
        {"v0": 7, "v1": pair(1.5, -2)},
        {"v0": 0xC03E0007},
        "gfx950",
    ),
    v(
        "scaled bf16 to E4M3",
        "v_cvt_scalef32_pk_fp8_bf16 v0, v1, 1.0",
        {"v0": 0, "v1": 0xC0003FC0},
        {"v0": 0xC03C},
        "gfx950",
    ),
]
COMPARE = [
    v(
        "LT of NaN is false, NLT true",
        "v_cmp_nlt_f32_e32 vcc, v1, v2",
        {"exec": 7, "v1": [bits(NAN), bits(1), bits(3)], "v2": bits(2)},
        {"vcc": 0b101},
    ),
    v(
        "LG is false for NaN",
        "v_cmp_lg_f32_e64 s[0:1], v1, v2",
        {"exec": 3, "v1": [bits(NAN), bits(1)], "v2": 0},
        {"s[0:1]": 2},
    ),
    v(
        "NEQ is true for NaN",
        "v_cmp_neq_f32_e64 s[0:1], v1, v2",
        {"exec": 3, "v1": [bits(NAN), 0], "v2": 0},
        {"s[0:1]": 1},
    ),
    v(
        "a signed and an unsigned compare differ",
        "v_cmp_gt_i32_e32 vcc, 0, v1",
        {"exec": 1, "v1": 0xFFFFFFFF},
        {"vcc": 1},
    ),
    v("64 bits", "v_cmp_lt_u64_e32 vcc, v[0:1], v[2:3]", {"exec": 1, "v[0:1]": 1 << 32, "v[2:3]": 1 << 33}, {"vcc": 1}),
    v(
        "CLASS: bits 4 and 7 are denormals of both signs",
        "v_cmp_class_f32_e32 vcc, v1, v2",
        {"exec": 7, "v1": [TINY, TINY | 1 << 31, bits(1)], "v2": 0x90},
        {"vcc": 0b011},
    ),
    v(
        "CMPX on gfx11 writes EXEC alone",
        "v_cmpx_gt_i32_e32 2, v0",
        {"vcc_lo": 9, "exec": 15, "v0": [0, 1, 2, 3]},
        {"exec": 0b0011, "vcc_lo": 9},
        "gfx1100",
    ),
    v(
        "CMPX on gfx9 writes VCC too",
        "v_cmpx_gt_i32_e32 vcc, 2, v0",
        {"exec": 15, "v0": [0, 1, 2, 3]},
        {"exec": 3, "vcc": 3},
    ),
]
LANES = [
    v(
        "READFIRSTLANE reads the lowest active lane",
        "v_readfirstlane_b32 s0, v0",
        {"exec": 0b1100, "v0": [1, 2, 3, 4]},
        {"s0": 3},
    ),
    v("READLANE reads any lane", "v_readlane_b32 s0, v0, 1", {"exec": 1, "v0": [1, 2, 3]}, {"s0": 2}),
    v("WRITELANE writes any lane", "v_writelane_b32 v0, s0, 2", {"exec": 1, "v0": 0, "s0": 7}, {"v0": [0, 0, 7, 0]}),
    v(
        "row_shr with bound_ctrl: 0 from outside of the row",
        "v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1",
        {"v0": 9, "v1": list(range(1, 33))},
        {"v0": [0, *range(1, 16), 0, *range(17, 32)]},
    ),
    v(
        "without it those lanes are not written",
        "v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf",
        {"v0": 9, "v1": list(range(1, 33))},
        {"v0": [9, *range(1, 16), 9, *range(17, 32)]},
    ),
    v(
        "quad_perm within four lanes",
        "v_mov_b32_dpp v0, v1 quad_perm:[3,2,1,0] row_mask:0xf bank_mask:0xf",
        {"v1": list(range(8))},
        {"v0": [3, 2, 1, 0, 7, 6, 5, 4]},
    ),
    v(
        "row_bcast:15 gives a row's last lane to the next row",
        "v_mov_b32_dpp v0, v1 row_bcast:15 row_mask:0xa bank_mask:0xf",
        {"v0": 99, "v1": list(range(64))},
        {"v0": [99] * 16 + [15] * 16 + [99] * 16 + [47] * 16},
    ),
    v(
        "row_mask leaves rows out",
        "v_add_u32_dpp v0, v1, v2 row_mirror row_mask:0x1 bank_mask:0xf",
        {"v0": 5, "v1": list(range(16)), "v2": 100},
        {"v0": [*range(115, 99, -1), 5, 5]},
    ),
    v(
        "dpp8 within eight lanes",
        "v_mov_b32_dpp v0, v1 dpp8:[7,6,5,4,3,2,1,0]",
        {"v1": list(range(8))},
        {"v0": list(range(7, -1, -1))},
        "gfx1100",
    ),
    v(
        "row_share",
        "v_mov_b32_dpp v0, v1 row_share:3 row_mask:0xf bank_mask:0xf",
        {"v1": list(range(32))},
        {"v0": [3] * 16 + [19] * 16},
        "gfx1100",
    ),
    v(
        "SDWA picks parts of sources and places the result",
        "v_add_u32_sdwa v0, v1, v2 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_1 src1_sel:WORD_1",
        {"v0": 0xAAAABBBB, "v1": 0x1200, "v2": 0x00050000},
        {"v0": 0x0017BBBB},
    ),
    v(
        "SDWA pads with 0",
        "v_add_u32_sdwa v0, v1, v2 dst_sel:BYTE_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD",
        {"v0": 0xFFFFFFFF, "v1": 1, "v2": 2},
        {"v0": 0x300},
    ),
    v(
        "PERMLANEX16 reads the other row",
        "v_permlanex16_b32 v0, v1, s0, s1",
        {"v1": list(range(32)), "s0": 0x76543210, "s1": 0xFEDCBA98},
        {"v0": [*range(16, 32), *range(16)]},
        "gfx1100",
    ),
    v(
        "PERMLANE32_SWAP: halves change places between two registers",
        "v_permlane32_swap_b32_e32 v0, v1",
        {"v0": list(range(64)), "v1": list(range(100, 164))},
        {"v0": [*range(32), *range(100, 132)], "v1": [*range(32, 64), *range(132, 164)]},
        "gfx950",
    ),
    v("MBCNT counts below this lane", "v_mbcnt_lo_u32_b32 v0, -1, 0", {}, {"v0": [*range(32), *[32] * 32]}),
    v(
        "MBCNT_HI goes on from lane 32",
        "v_mbcnt_hi_u32_b32 v0, -1, v1",
        {"v1": 32},
        {"v0": [*[32] * 32, *range(32, 64)]},
    ),
    v(
        "BPERMUTE: 4 times the lane, 0 from one that is not active",
        "ds_bpermute_b32 v0, v1, v2",
        {"exec": 0b0111, "v0": 9, "v1": [4, 0, 12, 0], "v2": [10, 11, 12, 13]},
        {"v0": [11, 10, 0, 9]},
    ),
    v(
        "PERMUTE: the highest active lane that names a lane",
        "ds_permute_b32 v0, v1, v2",
        {"exec": 0b0111, "v0": 9, "v1": [4, 0, 4, 8], "v2": [10, 11, 12, 13]},
        {"v0": [11, 12, 0, 9]},
    ),
    v(
        "WREXEC writes the new EXEC",
        "s_and_not1_wrexec_b32 s3, s2",
        {"exec": 0b0110, "s2": 0b1100},
        {"exec": 0b1000, "s3": 0b1000, "scc": 1},
        "gfx1201",
    ),
    v(
        "MINIMUM of halves with a NaN is NaN",
        "v_minimum_f16 v0.l, v1.l, v1.h",
        {"v0": 0, "v1": [pair(2, 3), 0x7E000000 | half(2)]},
        {"v0": [half(2), 0x7E00]},
        "gfx1201",
    ),
    v(
        "SWIZZLE: xor mask in bits 10 to 14",
        "ds_swizzle_b32 v0, v1 offset:swizzle(SWAP,16)",
        {"v1": list(range(64))},
        {"v0": [*range(16, 32), *range(16), *range(48, 64), *range(32, 48)]},
        "gfx942",
        0xD87A401F,
    ),
]
SCALAR = [
    v("a sum's carry is SCC", "s_add_u32 s0, s1, s2", {"s1": 0xFFFFFFFF, "s2": 1}, {"s0": 0, "scc": 1}),
    v("a signed overflow is SCC", "s_add_i32 s0, s1, s2", {"s1": 0x7FFFFFFF, "s2": 1}, {"s0": 0x80000000, "scc": 1}),
    v("ADDC takes SCC in", "s_addc_u32 s0, s1, s2", {"scc": 1, "s1": 1, "s2": 1}, {"s0": 3, "scc": 0}),
    v("SUBB borrows", "s_subb_u32 s0, s1, s2", {"scc": 1, "s1": 0, "s2": 0}, {"s0": 0xFFFFFFFF, "scc": 1}),
    v(
        "logic sets SCC where the result is not 0",
        "s_and_b32 s0, s1, s2",
        {"s1": 1, "s2": 2, "scc": 1},
        {"s0": 0, "scc": 0},
    ),
    v("MOV leaves SCC", "s_mov_b32 s0, 0", {"scc": 1}, {"s0": 0, "scc": 1}),
    v("MUL leaves SCC", "s_mul_i32 s0, s1, s2", {"s1": 0x10000, "s2": 0x10000, "scc": 1}, {"s0": 0, "scc": 1}),
    v("a shift's amount has six bits for 64", "s_lshl_b64 s[0:1], s[2:3], 65", {"s[2:3]": 1}, {"s[0:1]": 2, "scc": 1}),
    v("ASHR extends the sign", "s_ashr_i32 s0, s1, 31", {"s1": 0x80000000}, {"s0": 0xFFFFFFFF}),
    v("BFE: offset in the low bits, width from bit 16", "s_bfe_u32 s0, s1, 0x40008", {"s1": 0xABCD}, {"s0": 0xB}),
    v("BFE_I extends the sign", "s_bfe_i32 s0, s1, 0x40008", {"s1": 0xABCD}, {"s0": 0xFFFFFFFB}),
    v("LSHL_ADD's carry is SCC", "s_lshl2_add_u32 s0, s1, s2", {"s1": 0x40000000, "s2": 5}, {"s0": 5, "scc": 1}),
    v(
        "MIN sets SCC where the first is it",
        "s_min_i32 s0, s1, s2",
        {"s1": 0xFFFFFFFF, "s2": 1},
        {"s0": 0xFFFFFFFF, "scc": 1},
    ),
    v("CSELECT by SCC", "s_cselect_b32 s0, 1, 2", {"scc": 0}, {"s0": 2}),
    v("a constant of 16 bits has a sign", "s_movk_i32 s0, 0xfffe", {}, {"s0": 0xFFFFFFFE}),
    v("CMPK_U has none", "s_cmpk_lt_u32 s0, 0xffff", {"s0": 0xFFFE}, {"scc": 1}),
    v(
        "SAVEEXEC: the old EXEC, and the new",
        "s_and_saveexec_b64 s[0:1], vcc",
        {"exec": 0b1110, "vcc": 0b0111},
        {"s[0:1]": 0b1110, "exec": 0b0110, "scc": 1},
    ),
    v(
        "ANDN2 is with the other one inverted",
        "s_andn2_b64 s[0:1], s[2:3], s[4:5]",
        {"s[2:3]": 0xFF, "s[4:5]": 0x0F},
        {"s[0:1]": 0xF0},
    ),
    v("ABS", "s_abs_i32 s0, s1", {"s1": 0xFFFFFFFB}, {"s0": 5, "scc": 1}),
    v("FF1 of 0 is -1", "s_ff1_i32_b32 s0, s1", {"s1": 0}, {"s0": 0xFFFFFFFF}),
    v("a bit is tested", "s_bitcmp1_b32 s0, 3", {"s0": 8}, {"scc": 1}),
    v("a bit is set", "s_bitset1_b32 s0, 4", {"s0": 1}, {"s0": 17}),
    v("writes to null are dropped, reads of it are 0", "s_add_co_u32 s0, null, 7", {}, {"s0": 7}, "gfx1201"),
    v(
        "a scalar float",
        "s_fmac_f32 s0, s1, s2",
        {"s0": bits(1), "s1": bits(2), "s2": bits(3)},
        {"s0": bits(7)},
        "gfx1201",
    ),
    v(
        "gfx12: MAX's SCC is set where both are equal",
        "s_max_u32 s0, s1, s2",
        {"s1": 4, "s2": 4},
        {"s0": 4, "scc": 1},
        "gfx1201",
    ),
]


@pytest.mark.parametrize(
    "vector", [*INTEGER, *FLOAT, *DOUBLE, *NARROW, *COMPARE, *LANES, *SCALAR], ids=lambda vector: vector.rule
)
def test_an_instruction_does_what_the_rule_says(vector: Vector) -> None:
    wave = wave_of(vector.gpu)
    for name, value in vector.before.items():
        if name != "exec":
            put(wave, name, value)
    if "exec" in vector.before:
        put(wave, "exec", vector.before["exec"])

    run(wave, vector.text, word=vector.word)

    for name, wanted in vector.after.items():
        got = get(wave, name)
        if isinstance(wanted, list):
            assert got[: len(wanted)] == wanted, name
        elif isinstance(got, list):
            active = [value for lane, value in enumerate(got) if wave.exec_bits >> lane & 1]
            assert set(active) == {wanted}, name
        else:
            assert got == wanted, name
