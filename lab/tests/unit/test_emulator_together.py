"""Waves that run together have the same results as waves that run one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from lab.tests.emulator_fixtures import program, workgroup
from toolchain_lab.emulator.disassembly import Line
from toolchain_lab.emulator.rows import rows_of
from toolchain_lab.emulator.syntax import parse
from toolchain_lab.emulator.wave import Target
from toolchain_lab.emulator.workgroup import Workgroup

# v0 holds the numbers of the lanes; the instructions put the wave's number into s2.
NUMBER = ("v_lshrrev_b32_e32 v1, 6, v0", "v_readfirstlane_b32 s2, v1")
PROGRAMS: Mapping[str, Sequence[str]] = {
    "numbers that differ": (*NUMBER, "s_mul_i32 s3, s2, 5", "v_add_u32_e32 v2, s3, v0"),
    "a number that turns out to be the same": (
        "v_mov_b32_e32 v1, 7", "v_readfirstlane_b32 s2, v1", "s_add_u32 s3, s2, 1", "v_mov_b32_e32 v2, s3",
    ),
    "lanes that are not active": (
        "v_cmp_gt_u32_e32 vcc, 70, v0", "s_and_saveexec_b64 s[8:9], vcc", "v_mov_b32_e32 v2, 1",
        "v_readfirstlane_b32 s3, v0", "s_or_b64 exec, exec, s[8:9]", "v_writelane_b32 v3, s3, 5",
        "v_readlane_b32 s4, v0, 9", "s_not_b64 s[10:11], vcc",
    ),
    "lanes that a value activates": (
        *NUMBER, "v_mov_b32_e32 v3, 0", "v_add_u32_e32 v1, 5, v1", "v_readlane_b32 exec_lo, v1, 0",
        "v_mov_b32_e32 v3, 1", "v_readfirstlane_b32 exec_hi, v0", "v_mov_b32_e32 v4, v3",
    ),
    "a branch that one wave takes": (
        *NUMBER, "s_cmp_eq_u32 s2, 1", "s_cbranch_scc1 1", "v_mov_b32_e32 v2, 3", "v_add_u32_e32 v3, 1, v0",
    ),
    "a loop that runs once more in each wave": (
        *NUMBER, "v_mov_b32_e32 v2, 0", "v_add_u32_e32 v2, v2, v0", "s_sub_u32 s2, s2, 1", "s_cmp_ge_i32 s2, 0",
        "s_cbranch_scc1 -4", "v_add_u32_e32 v3, 1, v2",
    ),
    "values through LDS": (
        "v_lshlrev_b32_e32 v1, 2, v0", "v_and_b32_e32 v1, 0xff, v1", "v_mov_b32_e32 v2, 9", "ds_write_b32 v1, v2",
        "s_waitcnt lgkmcnt(0)", "s_barrier", "ds_read_b32 v3, v1", "s_waitcnt lgkmcnt(0)",
    ),
}  # fmt: skip
# All waves write different numbers to the same addresses, so the result depends on their order.
MEETING = ("v_and_b32_e32 v1, 63, v0", "v_lshlrev_b32_e32 v1, 2, v1", "global_store_dword v1, v0, s[4:5]", "s_endpgm")


def ran(name: str, *, together: bool) -> Workgroup:
    texts, words = [], {}
    for place, text in enumerate(PROGRAMS[name]):
        # Wait states follow each instruction, so a branch must skip them too.
        if text.startswith("s_cbranch"):
            words[2 * place] = 2 * int(text.split()[1]) + 1 & 0xFFFF
        texts += [text, "s_nop 7"]
    made = program("gfx942", [*texts, "s_endpgm"], words)
    made.together = together
    group = workgroup(made, waves=3)
    group.run(reverse=False)
    assert made.together is together
    return group


@pytest.mark.parametrize("name", PROGRAMS)
def test_waves_that_run_together_leave_the_same_registers_and_counts(name: str) -> None:
    one, other = ran(name, together=True), ran(name, together=False)
    assert np.array_equal(one.vectors, other.vectors)
    assert np.array_equal(one.scalars, other.scalars)
    assert [(wave.count, wave.scc) for wave in one.waves] == [(wave.count, wave.scc) for wave in other.waves]
    assert one.program.executed() == other.program.executed()


@pytest.mark.parametrize("reverse", [False, True])
def test_waves_that_write_to_the_same_address_run_one_after_the_other(reverse: bool) -> None:
    made = program("gfx942", MEETING)
    group = workgroup(made, [np.zeros(64, np.uint32)], waves=2)
    assert group.run(reverse=reverse) == 8
    assert not made.together
    assert made.executed()["global_store_dword"] == 2
    left = np.frombuffer(group.memory.content(0), np.uint32)
    assert np.array_equal(left, np.arange(64) + (0 if reverse else 64))


@pytest.mark.parametrize(("source", "known"), [("s[4:5]", True), ("0", True), ("null", False)])
def test_only_pairs_of_registers_are_read_for_all_waves_at_once(source: str, known: bool) -> None:
    # M0 follows the register `null`, so the two are not a pair.
    instruction = parse(Line(0, f"s_or_b64 s[0:1], s[2:3], {source}", (0,)))
    assert (rows_of(instruction, Target("gfx1100", 64)) is not None) == known
