"""Single scalar instructions, each with the rule of AMD's manuals or LLVM's documents."""

from __future__ import annotations

import pytest

from lab.tests.emulator_fixtures import bits, half, pair
from lab.tests.instruction_vectors import NAN, Vector, check, v

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
    v("CMPK_U takes a constant of 16 bits without a sign", "s_cmpk_lt_u32 s0, 0xffff", {"s0": 0xFFFE}, {"scc": 1}),
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
    v(
        "the difference of ABSDIFF wraps to 32 bits",
        "s_absdiff_i32 s0, s1, s2",
        {"s1": 0x80000000, "s2": 1},
        {"s0": 0x7FFFFFFF, "scc": 1},
    ),
    v("ABSDIFF of equal numbers", "s_absdiff_i32 s0, s1, s2", {"s1": 5, "s2": 5}, {"s0": 0, "scc": 0}),
    *(
        v(
            f"{gpu}: SCC of MAX is {scc} where both are equal",
            "s_max_i32 s0, s1, s2",
            {"s1": 4, "s2": 4},
            {"s0": 4, "scc": scc},
            gpu,
        )
        for gpu, scc in (("gfx90a", 0), ("gfx942", 1), ("gfx950", 1), ("gfx1100", 0), ("gfx1151", 1))
    ),
    v("FF1 of 0 is -1", "s_ff1_i32_b32 s0, s1", {"s1": 0}, {"s0": 0xFFFFFFFF}),
    *(
        v(f"{count} leading bits of {value:#x} equal the sign", f"s_flbit_i32 s0, {value:#x}", {}, {"s0": count})
        for value, count in ((0xCCCC, 16), (0xFFFF3333, 16), (0x80000000, 1), (0, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF))
    ),
    v("leading signs of 64 bits", "s_cls_i32_i64 s0, s[2:3]", {"s[2:3]": 0xFFFFFFFFCCCC0000}, {"s0": 34}, "gfx1100"),
    v("the order of 64 bits is reversed", "s_brev_b64 s[0:1], s[2:3]", {"s[2:3]": 0xD}, {"s[0:1]": 0xB << 60}),
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
    *(
        v(f"{name} ignores NaN", f"{name} s0, s1, s2", {"s1": 0x7F800001, "s2": bits(3)}, {"s0": bits(3)}, "gfx1201")
        for name in ("s_max_num_f32", "s_min_num_f32")
    ),
    *(
        v(
            f"a scalar comparison {name} of a number and {other} gives {scc}",
            f"s_cmp_{name}_f32 s0, s1",
            {"s0": bits(1), "s1": bits(other)},
            {"scc": scc},
            "gfx1201",
        )
        for name, other, scc in (
            ("o", NAN, 0),
            ("u", NAN, 1),
            ("nge", NAN, 1),
            ("nge", 0.5, 0),
            ("lg", NAN, 0),
            ("lg", 2.0, 1),
            ("nlg", NAN, 1),
            ("neq", NAN, 1),
            ("eq", NAN, 0),
            ("nlt", 2.0, 0),
            ("ngt", 2.0, 1),
            ("nle", 2.0, 0),
        )
    ),
    v(
        "a scalar float16 is the lower half, and the upper half becomes 0",
        "s_fmac_f16 s0, s1, 2.0",
        {"s0": pair(1, 9), "s1": pair(3, 9)},
        {"s0": half(7)},
        "gfx1201",
    ),
    v("a scalar float16 is widened", "s_cvt_f32_f16 s0, s1", {"s1": pair(-1.5, 9)}, {"s0": bits(-1.5)}, "gfx1201"),
    v("a scalar float is narrowed", "s_cvt_f16_f32 s0, s1", {"s1": bits(2049)}, {"s0": half(2048)}, "gfx1151"),
    v("scalar halves are compared", "s_cmp_ngt_f16 s0, 1.0", {"s0": pair(1, 9)}, {"scc": 1}, "gfx1201"),
    v("PACK_HL", "s_pack_hl_b32_b16 s0, s1, s2", {"s1": 0x11112222, "s2": 0x33334444}, {"s0": 0x44441111}, "gfx1100"),
    v(
        "gfx12: MAX's SCC is set where both are equal",
        "s_max_u32 s0, s1, s2",
        {"s1": 4, "s2": 4},
        {"s0": 4, "scc": 1},
        "gfx1201",
    ),
]


@pytest.mark.parametrize("vector", SCALAR, ids=lambda vector: vector.rule)
def test_instruction_follows_its_documented_rule(vector: Vector) -> None:
    check(vector)
