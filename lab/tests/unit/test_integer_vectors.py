"""Single integer and lane instructions, each with the rule of AMD's manuals or LLVM's documents."""

from __future__ import annotations

import pytest

from lab.tests.emulator_fixtures import bits, get, half, pair, put, run, wave_of
from lab.tests.instruction_vectors import Vector, check, v

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
    v("null is 0 in 64 bits", "v_lshrrev_b64 v[0:1], 0, null", {"m0": 1}, {"v[0:1]": 0}, "gfx1100"),
    v("XAD is xor, then add", "v_xad_u32 v0, v1, v2, v3", {"v1": 6, "v2": 3, "v3": 10}, {"v0": 15}),
    v("BFI picks by the mask", "v_bfi_b32 v0, v1, v2, v3", {"v1": 0xFF, "v2": 0x1234, "v3": 0xABCD}, {"v0": 0xAB34}),
    v("BFE of width 0 is 0", "v_bfe_u32 v0, v1, 4, 0", {"v1": 0xFFFFFFFF}, {"v0": 0}),
    v(
        "PK_MOV takes the lower registers without op_sel",
        "v_pk_mov_b32 v[0:1], v[2:3], v[4:5]",
        {"v[2:3]": 0x300000002, "v[4:5]": 0x500000004},
        {"v[0:1]": 0x400000002},
    ),
    v(
        "PK_MOV's op_sel selects a register of each source",
        "v_pk_mov_b32 v[0:1], v[2:3], v[4:5] op_sel:[1,1]",
        {"v[2:3]": 0x300000002, "v[4:5]": 0x500000004},
        {"v[0:1]": 0x500000003},
    ),
    v("BFE_I extends the field's sign", "v_bfe_i32 v0, v1, 4, 4", {"v1": 0x80}, {"v0": 0xFFFFFFF8}),
    v(
        "BFE_I repeats bit 31 in a field that extends beyond it",
        "v_bfe_i32 v0, v1, 28, 8",
        {"v1": [0x80000000, 0x70000000]},
        {"v0": [0xFFFFFFF8, 7]},
    ),
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
    v(
        "the high half of a product of 24 bits",
        "v_mul_hi_u32_u24_e32 v0, v1, v2",
        {"v1": 0xFFFFFFFF, "v2": 0xFF800000},
        {"v0": 0x7FFF},
    ),
    v(
        "the high half of a product of 24 bits with their sign",
        "v_mul_hi_i32_i24_e32 v0, v1, v2",
        {"v1": 0x00FFFFFF, "v2": [0x00800000, 5]},
        {"v0": [0, 0xFFFFFFFF]},
    ),
    v(
        "MED3 of signed halves",
        "v_med3_i16 v0, v1, -1, v2",
        {"v1": [0xFFFE, 3], "v2": 7},
        {"v0": [0xFFFF, 3]},
    ),
    v(
        "MAXMIN is the maximum of two, or a limit",
        "v_maxmin_i32 v0, v1, v2, 5",
        {"v1": [0xFFFFFFFF, 9], "v2": 2},
        {"v0": [2, 5]},
        "gfx1100",
    ),
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
    *(
        v(
            f"{name} keeps the upper half: {keeps}",
            f"{name} v0, v1, v2, v3",
            {"v0": 0xABCD0000, "v1": 3, "v2": 4, "v3": 5},
            {"v0": 0xABCD0011 if keeps else 0x11},
        )
        for name, keeps in (
            ("v_mad_u16", True),
            ("v_mad_i16", True),
            ("v_mad_legacy_u16", False),
            ("v_mad_legacy_i16", False),
        )
    ),
    v(
        "a shift of LSHL_ADD_U64 by more than 4 is a shift by 0",
        "v_lshl_add_u64 v[0:1], v[2:3], v4, v[6:7]",
        {"v[2:3]": [3, 3, 3], "v4": [4, 5, 9], "v[6:7]": [1, 1, 1]},
        {"v[0:1]": [49, 4, 7]},
    ),
    v(
        "a product of 64 bits, a sum and its carry",
        "v_mad_u64_u32 v[0:1], s[0:1], v2, v3, v[4:5]",
        {"exec": 3, "v2": 2, "v3": 0x80000000, "v[4:5]": [1, 0xFFFFFFFF00000000]},
        {"v[0:1]": [0x100000001, 0], "s[0:1]": 0b10},
    ),
    v(
        "the carry of a signed product and sum is the sign of the exact sum",
        "v_mad_i64_i32 v[0:1], s[0:1], v2, v3, v[4:5]",
        {
            "exec": 0b1111,
            "v2": [0xFFFFFFFF, 3, 0x80000000, 0x80000000],
            "v3": [1, 5, 0x80000000, 0x7FFFFFFF],
            "v[4:5]": [0, 1 << 63, (1 << 63) - 1, 1 << 63],
        },
        {
            "v[0:1]": [(1 << 64) - 1, (1 << 63) + 15, (1 << 62) + (1 << 63) - 1, (1 << 62) + (1 << 31)],
            "s[0:1]": 0b1011,
        },
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
        "DPP reads the first source of SUBREV with a carry",
        "v_subrev_co_u32_dpp v0, vcc, v1, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf",
        {"exec": 0b1111, "v1": [1, 2, 3, 14], "v2": 10},
        {"v0": [8, 9, 0xFFFFFFFC, 7], "vcc": 0b100},
    ),
    v(
        "DPP reads the first source of ADDC",
        "v_addc_co_u32_dpp v0, vcc, v1, v2, vcc quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf",
        {"exec": 0b11, "vcc": 0b01, "v1": [1, 2], "v2": 10},
        {"v0": [13, 11], "vcc": 0},
    ),
    *(
        v(
            f"{name} reads the half that its text names",
            f"{name} v0.h, v1.h, v2.l {selected}quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf",
            {"v0": 0x1234, "v1": [half(value) << 16 for value in (1, 2, 3, 4)], "v2": half(8)},
            {"v0": [half(value) << 16 | 0x1234 for value in (10, 9, 12, 11)]},
            "gfx1100",
        )
        for name, selected in (("v_add_f16_e64_dpp", "op_sel:[1,0,1] "), ("v_add_f16_dpp", ""))
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
        "SDWA with a borrow",
        "v_sub_co_u32_sdwa v0, vcc, sext(v1), v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:BYTE_3",
        {"exec": 0b11, "v1": [0x7F, 0xFE], "v2": [0x80000000, 0x01000000]},
        {"v0": [0xFFFFFFFF, 0xFFFFFFFD], "vcc": 0b01},
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


@pytest.mark.parametrize("vector", [*INTEGER, *LANES], ids=lambda vector: vector.rule)
def test_instruction_follows_its_documented_rule(vector: Vector) -> None:
    check(vector)


def test_instruction_after_cmpx_with_dpp_uses_the_new_lanes() -> None:
    wave = wave_of("gfx1201")
    put(wave, "exec", 0b1111)
    put(wave, "v1", [0, 1, 2, 3])
    put(wave, "v2", [1, 1, 3, 3])
    put(wave, "v5", 9)
    run(
        wave,
        "v_cmpx_eq_u32_e64_dpp v1, v2 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf",
        "v_mov_b32_e32 v5, 1",
    )
    assert (get(wave, "exec"), get(wave, "v5")[:4]) == (0b0101, [1, 9, 1, 9])
