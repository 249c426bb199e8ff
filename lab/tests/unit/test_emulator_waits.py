"""Faults that a GPU may hide: loads without a wait, and instructions that follow each other too closely."""

from __future__ import annotations

import pytest

from lab.tests.emulator_fixtures import program
from toolchain_lab.emulator.errors import FaultyKernelError
from toolchain_lab.emulator.scoreboard import State


def state_after(gpu: str, texts: list[str], words: dict[int, int] | None = None) -> State:
    made = program(gpu, texts, words)
    operations = tuple(made.operation(place) for place in range(len(texts)))
    return made.scoreboard.after(made.scoreboard.start, 0, operations)


LOAD, LDS, SCALAR = "global_load_dword v1, v0, s[4:5]", "ds_read_b32 v2, v0", "s_load_dword s8, s[4:5], 0x0"
NEW_LOAD, NEW_LDS = "global_load_b32 v1, v0, s[4:5]", "ds_load_b32 v2, v0"
LDS_STORE = "ds_write_b32 v0, v9"
STORE = "global_store_dword v0, v9, s[4:5]"
# The rows follow LLVM's SIInsertWaitcnts and its counters.
WAITS = [
    ("gfx942", [LOAD], "vmcnt(0)", "v_mov_b32_e32 v3, v1", 0),
    ("gfx942", [LOAD, LOAD.replace("v1", "v5")], "vmcnt(1)", "v_mov_b32_e32 v3, v1", 0),
    ("gfx942", [LOAD, STORE], "vmcnt(1)", "v_mov_b32_e32 v3, v1", 0),  # gfx9 counts stores too
    ("gfx942", [LOAD], "lgkmcnt(0)", "v_mov_b32_e32 v3, v1", 1),
    ("gfx942", [LOAD], "vmcnt(0)", "v_mov_b32_e32 v1, v3", 0),
    ("gfx942", [LDS, LDS.replace("v2", "v3")], "lgkmcnt(1)", "v_mov_b32_e32 v4, v2", 0),
    # Scalar loads have no order, so only a count of 0 waits for one of two accesses.
    ("gfx942", [SCALAR, LDS], "lgkmcnt(1)", "s_mov_b32 s0, s8", 1),
    ("gfx942", [SCALAR, LDS], "lgkmcnt(0)", "s_mov_b32 s0, s8", 0),
    ("gfx942", ["flat_load_dword v1, v[2:3]"], "vmcnt(0)", "v_mov_b32_e32 v3, v1", 1),
    ("gfx942", ["flat_load_dword v1, v[2:3]"], "vmcnt(0) lgkmcnt(0)", "v_mov_b32_e32 v3, v1", 0),
    ("gfx942", [LDS_STORE], "vmcnt(0)", "s_barrier", 1),
    ("gfx942", [LDS_STORE], "lgkmcnt(0)", "s_barrier", 0),
    ("gfx1100", [NEW_LOAD, "global_store_b32 v0, v9, s[4:5]"], "vmcnt(0)", "v_mov_b32_e32 v3, v1", 0),
    ("gfx1100", [NEW_LOAD], "vmcnt(1)", "v_mov_b32_e32 v3, v1", 1),
]


@pytest.mark.parametrize(("gpu", "before", "counts", "after", "faults"), WAITS)
def test_register_may_be_used_after_the_wait_for_its_load(
    gpu: str, before: list[str], counts: str, after: str, faults: int
) -> None:
    texts = [*before, f"s_waitcnt {counts}", after]
    if faults:
        with pytest.raises(FaultyKernelError) as error:
            state_after(gpu, texts)
        assert before[0] in error.value.why
    else:
        state_after(gpu, texts)
        with pytest.raises(FaultyKernelError):
            state_after(gpu, [*before, after])


@pytest.mark.parametrize(
    ("wait", "after", "faults"),
    [
        ("s_wait_loadcnt 0x0", "v_mov_b32_e32 v3, v1", 0),
        ("s_wait_dscnt 0x0", "v_mov_b32_e32 v3, v1", 1),
        ("s_wait_loadcnt_dscnt 0x1", "v_mov_b32_e32 v3, v2", 0),
        ("s_wait_kmcnt 0x0", "s_mov_b32 s0, s8", 0),
        ("s_wait_loadcnt_dscnt 0x100", "s_barrier_signal -1", 0),
        ("s_wait_loadcnt 0x0", "s_barrier_signal -1", 1),
    ],
)
def test_gfx12_has_a_wait_counter_for_each_kind_of_access(wait: str, after: str, faults: int) -> None:
    texts = [NEW_LOAD, NEW_LDS, "ds_store_b32 v0, v9", "s_load_b32 s8, s[4:5], 0x0", wait, after]
    if faults:
        with pytest.raises(FaultyKernelError):
            state_after("gfx1201", texts)
    else:
        state_after("gfx1201", texts)


def test_loads_of_both_halves_of_a_register_need_no_wait_between() -> None:
    low, high = "global_load_d16_u8 v1, v[0:1], off", "global_load_d16_hi_u8 v1, v0, s[4:5]"
    for second in (high, "ds_load_u8_d16_hi v1, v0"):
        state_after("gfx1100", [low, second, "s_waitcnt vmcnt(0) lgkmcnt(0)", "v_mov_b32_e32 v3, v1"])
    other = [
        "ds_store_b8 v0, v1",
        "ds_load_u8_d16_hi v5, v0",
        "v_add_nc_u16 v1.l, v2.l, v3.l",
        "v_mov_b16_e32 v3.l, v1.l",
    ]
    for after in other:
        state_after("gfx1100", [high, after])
    for first, after in [(low, after) for after in other if "v1" in after] + [(high, "v_mov_b32_e32 v3, v1")]:
        with pytest.raises(FaultyKernelError):
            state_after("gfx1100", [first, after])


def test_scoreboard_of_a_loop_reaches_a_fixed_state() -> None:
    made = program("gfx942", [LOAD, "s_waitcnt vmcnt(1)", STORE])
    block = tuple(made.operation(place) for place in range(3))
    states = [made.scoreboard.start]
    for _ in range(6):
        states.append(made.scoreboard.after(states[-1], 0, block))
    assert states[-1] is states[-2]


MFMA = "v_mfma_f32_32x32x8_f16 v[16:31], v[0:1], v[2:3], v[16:31]"
SMALL = "v_mfma_f32_16x16x16_f16 v[16:19], v[0:1], v[2:3], v[16:19]"
WMMA = "v_wmma_f32_16x16x16_f16 v[16:23], v[0:7], v[8:15], v[16:23]"
# GPU, the first and the second instruction, and the wait states that LLVM's GCNHazardRecognizer wants between them.
DISTANCES = [
    ("gfx942", MFMA, "v_mov_b32_e32 v4, v20", 11),
    ("gfx950", MFMA.replace("32x8", "32x16").replace("v[0:1], v[2:3]", "v[0:3], v[4:7]"), "v_mov_b32_e32 v40, v20", 12),
    ("gfx90a", MFMA, "v_mov_b32_e32 v4, v20", 19),
    ("gfx942", SMALL, "v_mov_b32_e32 v4, v16", 7),
    ("gfx90a", SMALL, "v_mov_b32_e32 v4, v16", 11),
    ("gfx942", "v_mfma_f32_32x32x2_f32 v[16:31], v0, v1, v[16:31]", "v_mov_b32_e32 v4, v20", 18),
    ("gfx942", MFMA, MFMA, 0),  # the addend is the whole result, which is forwarded
    ("gfx942", MFMA, MFMA.replace("[16:31]", "[20:35]"), 9),
    ("gfx942", MFMA, MFMA.replace("v[0:1]", "v[16:17]").replace("v[16:31]", "v[32:47]"), 11),
    ("gfx942", MFMA, "v_mov_b32_e32 v31, 0", 11),
    ("gfx942", MFMA.replace(", v[16:31]", ", v[32:47]"), "v_mov_b32_e32 v40, 0", 7),
    ("gfx942", MFMA, "ds_write_b32 v4, v20", 11),
    ("gfx942", "v_mov_b32_e32 v0, v9", MFMA, 2),
    ("gfx942", "v_readfirstlane_b32 s4, v0", "global_load_dword v1, v0, s[4:5]", 5),
    ("gfx942", "v_mov_b32_e32 v1, v9", "v_add_f32_dpp v2, v1, v1 row_shr:1 row_mask:0xf bank_mask:0xf", 2),
    ("gfx942", "v_cmp_eq_u32_e32 vcc, v0, v1", "v_div_fmas_f32 v0, v1, v2, v3", 4),
    ("gfx942", "v_cmp_eq_u32_e32 vcc, v0, v1", "v_cndmask_b32_e32 v0, v1, v2, vcc", 2),
    ("gfx90a", "v_cmp_eq_u32_e32 vcc, v0, v1", "v_cndmask_b32_e32 v0, v1, v2, vcc", 0),
    ("gfx942", "v_readfirstlane_b32 s4, v0", "v_readlane_b32 s5, v1, s4", 4),
    ("gfx942", "v_exp_f32_e32 v1, v0", "v_add_f32_e32 v2, v1, v1", 1),
    ("gfx942", "global_store_dwordx4 v0, v[4:7], s[4:5]", "v_mov_b32_e32 v5, 0", 2),
    ("gfx90a", "global_store_dwordx4 v0, v[4:7], s[4:5]", "v_mov_b32_e32 v5, 0", 1),
    ("gfx942", "buffer_store_dwordx4 v[4:7], v0, s[8:11], 0 offen", "v_mov_b32_e32 v5, 0", 2),
    ("gfx950", "buffer_store_dwordx4 v[4:7], v0, s[8:11], s3 offen", "v_mov_b32_e32 v5, 0", 1),
    ("gfx942", "global_store_dwordx2 v0, v[4:5], s[4:5]", "v_mov_b32_e32 v5, 0", 0),
]  # fmt: skip


@pytest.mark.parametrize(("gpu", "first", "second", "states"), DISTANCES)
def test_instructions_need_the_wait_states_of_llvm(gpu: str, first: str, second: str, states: int) -> None:
    state_after(gpu, [first, *["s_nop 0"] * states, second])
    if states:
        state_after(gpu, [first, f"s_nop {states - 1}", second])
        with pytest.raises(FaultyKernelError) as error:
            state_after(gpu, [first, *["s_nop 0"] * (states - 1), second])
        assert first in error.value.why


def test_last_matrix_instruction_that_writes_a_register_sets_its_wait_states() -> None:
    later = SMALL.replace("v[16:19], v[0:1]", "v[14:17], v[0:1]")
    reads = "v_mfma_f32_16x16x16_f16 v[20:23], v[0:1], v[2:3], {}"
    state_after("gfx942", [SMALL, SMALL, later, reads.format("v[14:17]")])
    with pytest.raises(FaultyKernelError):
        state_after("gfx942", [SMALL, SMALL, later, reads.format("v[16:19]")])


EXP, OTHER = "v_exp_f32_e32 v1, v0", "v_mov_b32_e32 v9, 0"
USE = "v_add_f32_e32 v2, v1, v1"


@pytest.mark.parametrize(
    ("gpu", "texts", "faults"),
    [
        ("gfx1100", [EXP, USE], 1),
        ("gfx1100", [EXP, *[OTHER] * 5, USE], 1),
        ("gfx1100", [EXP, *[OTHER] * 6, USE], 0),
        ("gfx1100", [EXP, *["v_exp_f32_e32 v8, v0"] * 2, USE], 0),
        ("gfx1100", [EXP, "s_waitcnt_depctr depctr_va_vdst(0)", USE], 0),
        ("gfx1100", [EXP, "ds_store_b32 v0, v3", USE], 0),
        ("gfx1150", [EXP, USE], 0),
        ("gfx1201", [EXP, USE], 0),
        ("gfx1100", [WMMA, "v_wmma_f32_16x16x16_f16 v[24:31], v[0:7], v[16:23], v[24:31]"], 1),
        ("gfx1201", [WMMA.replace("v[0:7], v[8:15]", "v[0:3], v[4:7]"),
                     "v_wmma_f32_16x16x16_f16 v[24:31], v[16:19], v[4:7], v[24:31]"], 1),
        ("gfx1100", [WMMA, OTHER, "v_wmma_f32_16x16x16_f16 v[24:31], v[16:23], v[8:15], v[24:31]"], 0),
        ("gfx1100", [WMMA, WMMA], 0),
    ],
)  # fmt: skip
def test_rdna_hazards_between_vector_instructions_are_faults(gpu: str, texts: list[str], faults: int) -> None:
    words = {place: 0x0FFF for place, text in enumerate(texts) if "depctr" in text}
    if faults:
        with pytest.raises(FaultyKernelError):
            state_after(gpu, texts, words)
    else:
        state_after(gpu, texts, words)
