"""Single float64, narrow float and comparison instructions, each with the rule of AMD's manuals or LLVM's documents."""

from __future__ import annotations

import numpy as np
import pytest

from lab.tests.emulator_fixtures import bits, double, get, pair, put, run, wave_of
from lab.tests.instruction_vectors import INF, NAN, TINY, Vector, check, d, v

DOUBLE = [
    d("float64: a sum", "v_add_f64 v[0:1], v[2:3], -v[4:5]", 0.1, 0.2, -0.1),
    d("float64: a product", "v_mul_f64 v[0:1], |v[2:3]|, v[4:5]", -3, 0.5, 1.5),
    d("float64: a literal is the upper half", "v_mul_f64 v[0:1], 0x40080000, v[2:3]", 2, 6),
    d("float64: an integer constant is bits", "v_add_f64 v[0:1], v[2:3], 1", 0, 0, bits_of=1),
    v(
        "float64: FMA of huge scalars",
        "v_fma_f64 v[0:1], s[0:1], s[2:3], s[0:1]",
        {"s[0:1]": double(2.0**1000), "s[2:3]": double(2.0**-1000)},
        {"v[0:1]": double(2.0**1000)},
        "gfx1100",
    ),
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
# The numbers 1.5 and -2 in gfx942's FNUZ types and in OCP's types, and numbers that are too large.
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
        "FNUZ: two from the upper half",
        "v_cvt_pk_f32_fp8_sdwa v[0:1], v2 src0_sel:WORD_1",
        {"v2": 0xC8440000},
        {"v0": bits(1.5), "v1": bits(-2)},
    ),
    v("FNUZ: one by its byte", "v_cvt_f32_bf8_sdwa v0, v2 src0_sel:BYTE_3", {"v2": 0xC4000000}, {"v0": bits(-2)}),
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
    *(
        v(
            f"CLASS of a half: bits 0, 4, 7 and 8 are signaling NaN, denormals and positive numbers, {gpu}",
            f"v_cmp_class_f16_e64 {mask}, 0x191",
            {"exec": 0b11111, "v1": [value << shift for value in (0x7C01, 0x7E00, 0x0400, 0x03FF, 0x8001)]},
            {mask.partition(",")[0]: 0b11101},
            gpu,
        )
        for gpu, mask, shift in (("gfx942", "s[0:1], v1", 0), ("gfx1100", "s0, v1.h", 16))
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


@pytest.mark.parametrize("vector", [*DOUBLE, *NARROW, *COMPARE], ids=lambda vector: vector.rule)
def test_instruction_follows_its_documented_rule(vector: Vector) -> None:
    check(vector)


def test_float64_division_is_rounded_once() -> None:
    """LLVM's sequence of instructions for a division must give the bits of IEEE 754, also for extreme numbers."""
    random = np.random.default_rng(1)
    exponents = random.choice([0, 1, 54, 1023, 1151, 2044, 2045, 2046], (2, 64)).astype(np.uint64)
    words = random.integers(0, 1 << 52, (2, 64), dtype=np.uint64) | exponents << np.uint64(52)
    n, d = words.view(np.float64)
    wave = wave_of("gfx942")
    put(wave, "v[2:3]", words[0].tolist())
    put(wave, "v[4:5]", words[1].tolist())
    run(
        wave,
        "v_div_scale_f64 v[6:7], s[0:1], v[4:5], v[4:5], v[2:3]",
        "v_rcp_f64_e32 v[8:9], v[6:7]",
        "v_fma_f64 v[10:11], -v[6:7], v[8:9], 1.0",
        "v_fma_f64 v[8:9], v[8:9], v[10:11], v[8:9]",
        "v_fma_f64 v[10:11], -v[6:7], v[8:9], 1.0",
        "v_fma_f64 v[8:9], v[8:9], v[10:11], v[8:9]",
        "v_div_scale_f64 v[10:11], vcc, v[2:3], v[4:5], v[2:3]",
        "v_mul_f64 v[12:13], v[10:11], v[8:9]",
        "v_fma_f64 v[6:7], -v[6:7], v[12:13], v[10:11]",
        "v_div_fmas_f64 v[6:7], v[6:7], v[8:9], v[12:13]",
        "v_div_fixup_f64 v[0:1], v[6:7], v[4:5], v[2:3]",
    )
    with np.errstate(all="ignore"):
        assert get(wave, "v[0:1]") == (n / d).view(np.uint64).tolist()


@pytest.mark.parametrize(
    ("gpu", "text", "plain", "saturated"),
    [
        ("gfx942", "v_cvt_pk_fp8_f32 v0, v1, v2", 0x8080, 0xFF7F),
        ("gfx950", "v_cvt_pk_bf8_f32 v0, v1, v2", 0xFC7C, 0xFB7B),
        ("gfx950", "v_cvt_scalef32_pk_fp8_f32 v0, v1, v2, 0.5", 0xFF7F, 0xFE7E),
        ("gfx1201", "v_cvt_pk_fp8_f32 v0, v1, v2", 0xFF7F, 0xFE7E),
    ],
)
def test_infinity_becomes_the_largest_fp8_number_in_the_mode_that_clamps(
    gpu: str, text: str, plain: int, saturated: int
) -> None:
    wave = wave_of(gpu)
    for name, value in (("v0", 0), ("v1", bits(INF)), ("v2", bits(-1e30))):
        put(wave, name, value)
    run(wave, text)
    assert set(get(wave, "v0")) == {plain}
    run(wave, "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1", text)
    assert set(get(wave, "v0")) == {saturated}
