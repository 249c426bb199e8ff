"""The emulator beyond single instructions: matrices, control flow, waits and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.tests.emulator_fixtures import LDS, SCRATCH, code_object, get, pair, program, put, run, wave_of, workgroup
from tests.refusals import refused
from toolchain_lab import bridge
from toolchain_lab.emulator.control import wait
from toolchain_lab.emulator.decode import decode
from toolchain_lab.emulator.disassembly import Disassembler, Line, disassemble
from toolchain_lab.emulator.errors import (
    CodeObjectError,
    DisassemblerError,
    EmulatorError,
    FaultyKernelError,
    LaunchError,
    NotEmulatedError,
    OutsideError,
)
from toolchain_lab.emulator.memory import Lds
from toolchain_lab.emulator.program import Program
from toolchain_lab.emulator.syntax import parse
from toolchain_lab.emulator.wave import Target
from toolchain_lab.emulator.workgroup import Workgroup, refuse

GFX942, GFX1100, GFX1201 = Target("gfx942", 64), Target("gfx1100", 32), Target("gfx1201", 32)


def test_fix_for_missing_numpy_does_not_install_another_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "find_spec", lambda _: None)
    with refused("numpy-missing") as refusal:
        bridge.require_numpy("--check")
    # Another project has this project's name on the package index.
    assert "install 'toolchain" not in refusal.value.fix


# -------------------------------------------------------------------- matrices


def mfma_operands(size: int, depth: int) -> tuple[Any, Any, Any]:
    """Return two matrices of small integers, and the product of the first and the transpose of the second."""
    random = np.random.default_rng(size)
    a, b = random.integers(-4, 5, (size, depth)), random.integers(-4, 5, (size, depth))
    return a, b, a @ b.T


@pytest.mark.parametrize(("size", "depth", "gpu"), [(32, 8, "gfx942"), (16, 16, "gfx942"), (16, 32, "gfx950")])
def test_mfma_holds_rows_in_registers_and_columns_in_lanes(size: int, depth: int, gpu: str) -> None:
    wave = wave_of(gpu)
    a, b, product = mfma_operands(size, depth)
    each = depth * size // 64  # the count of numbers in a lane
    for matrix, first in ((a, 0), (b, 8)):
        for lane in range(64):
            start = lane // size * each
            values = matrix[lane % size, start : start + each].astype(np.float16)
            for register, word in enumerate(values.view(np.uint32)):
                wave.u[first + register][lane] = word
    registers, last = size * size // 64, each // 2 - 1
    run(wave, f"v_mfma_f32_{size}x{size}x{depth}_f16 v[20:{19 + registers}], v[0:{last}], v[8:{8 + last}], 1.0")
    for register in range(registers):
        for lane in range(64):
            row = 8 * (register // 4) + 4 * (lane // 32) + register % 4 if size == 32 else 4 * (lane // 16) + register
            assert wave.f[20 + register][lane] == product[row, lane % size] + 1


@pytest.mark.parametrize("gpu", ["gfx1100", "gfx1201"])
def test_wmma_multiplies_matrices_on_both_generations(gpu: str) -> None:
    wave = wave_of(gpu)
    a, b, product = mfma_operands(16, 16)
    each = 16 if gpu == "gfx1100" else 8
    for matrix, first in ((a, 0), (b, 8)):
        for lane in range(32):
            start = 0 if gpu == "gfx1100" else 8 * (lane // 16)
            words = matrix[lane % 16, start : start + each].astype(np.float16).view(np.uint32)
            for register, word in enumerate(words):
                wave.u[first + register][lane] = word
    last = each // 2 - 1
    put(wave, "v[20:27]", 0)
    run(wave, f"v_wmma_f32_16x16x16_f16 v[20:27], v[0:{last}], v[8:{8 + last}], v[20:27]")
    for register in range(8):
        for lane in range(32):
            row = 2 * register + lane // 16 if gpu == "gfx1100" else register + 8 * (lane // 16)
            assert wave.f[20 + register][lane] == product[row, lane % 16]


def test_wmma_of_gfx11_with_halves_of_a_wave_that_differ_is_a_fault() -> None:
    wave = wave_of("gfx1100")
    put(wave, "v[0:31]", 0)
    put(wave, "v3", [0] * 20 + [pair(1, 0)] + [0] * 11)
    with pytest.raises(FaultyKernelError):
        run(wave, "v_wmma_f32_16x16x16_f16 v[20:27], v[0:7], v[8:15], v[20:27]")


# -------------------------------------------------------------------- control


def test_loop_runs_and_its_instructions_are_counted() -> None:
    made = program(
        "gfx942", ["s_mov_b32 s0, 0", "s_add_i32 s0, s0, 1", "s_cmp_lt_i32 s0, 5", "s_cbranch_scc1 65533", "s_endpgm"],
        {3: 0xFFFD},
    )  # fmt: skip
    group = workgroup(made)
    assert group.run(reverse=False) == 1 + 5 * 3 + 1
    assert int(group.waves[0].s[0]) == 5
    assert made.executed() == {"s_mov_b32": 1, "s_add_i32": 5, "s_cmp_lt_i32": 5, "s_cbranch_scc1": 5, "s_endpgm": 1}


def test_endless_kernel_is_stopped() -> None:
    made = program("gfx942", ["s_nop 0", "s_branch 65534"], {1: 0xFFFE})
    with refused("kernel-endless"):
        workgroup(made).run(reverse=False, limit=1000)


BARRIER = [
    "v_lshlrev_b32_e32 v1, 2, v0",
    "ds_write_b32 v1, v0",
    "s_waitcnt lgkmcnt(0)",
    "s_barrier",
    "v_xor_b32_e32 v1, 0x100, v1",
    "ds_read_b32 v2, v1",
    "s_waitcnt lgkmcnt(0)",
]


def exchanged(texts: list[str], *, reverse: bool, watch: bool = True) -> list[int]:
    """Run instructions on two waves of 64 lanes, and return v2 of all lanes."""
    made = program("gfx942", [*texts, "s_endpgm"])
    group = workgroup(made, waves=2)
    group.lds_size = 512
    group.lds = Lds(np.full(512, 0xEE, np.uint8), watch=watch)
    group.run(reverse=reverse)
    return [int(value) for wave in group.waves for value in wave.u[2]]


def test_waves_meet_at_a_barrier_and_its_removal_is_a_race() -> None:
    right = [*range(64, 128), *range(64)]
    assert exchanged(BARRIER, reverse=False) == right
    assert exchanged(BARRIER, reverse=True) == right
    without = [text for text in BARRIER if text != "s_barrier"]
    with refused("lds-race"):
        exchanged(without, reverse=False)
    # Two stores of the same value are not a race.
    exchanged(["v_mov_b32_e32 v1, 0", "v_mov_b32_e32 v3, 1", *["ds_write_b32 v1, v3"] * 2], reverse=False)
    assert exchanged(without, reverse=False, watch=False) != exchanged(without, reverse=True, watch=False)


@pytest.mark.parametrize(
    ("first", "then", "meets"),
    [
        ("ds_add_u32 v1, v3", "ds_add_u32 v1, v3", False),
        ("ds_add_f64 v1, v[4:5]", "ds_read_b32 v2, v1", True),
        ("ds_read_b32 v2, v1", "ds_add_u32 v1, v3", True),
        ("ds_write_b32 v1, v3", "ds_add_u32 v1, v3", True),
        ("ds_add_u32 v1, v3", "ds_write_b32 v1, v3", True),
    ],
)
def test_lds_atomics_race_with_loads_and_stores_of_other_waves(first: str, then: str, meets: bool) -> None:
    wait = "s_waitcnt lgkmcnt(0)"
    start = ["v_mov_b32_e32 v1, 0", "v_mov_b32_e32 v3, 1"]
    exchanged([*start, first, wait, "s_barrier", then, wait], reverse=False)
    if not meets:
        exchanged([*start, first, wait, then, wait], reverse=False)
        return
    with refused("lds-race"):
        exchanged([*start, first, wait, then, wait], reverse=False)


@pytest.mark.parametrize(
    ("gpu", "word", "another"),
    [
        ("gfx942", 0x27000, 0),
        ("gfx942", 0x00827000, 1),
        ("gfx942", 0x00127000, 1),
        ("gfx942", 0x01027000, 1),
        ("gfx942", 0, 1),
        ("gfx1100", 0x31027000, 0),
        ("gfx1100", 0x01027000, 1),
        ("gfx1100", 0x31000000, 1),
    ],
)
def test_buffer_descriptor_of_another_kind_is_refused(gpu: str, word: int, another: int) -> None:
    wave = wave_of(gpu, [np.zeros(64, np.uint32)])
    wave.s[6:8] = 256, word
    put(wave, "v0", 0)
    if not another:
        run(wave, "buffer_load_dword v1, v0, s[4:7], 0 offen")
        return
    with refused("instruction-not-emulated"):
        run(wave, "buffer_load_dword v1, v0, s[4:7], 0 offen")


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("s_waitcnt vmcnt(3) lgkmcnt(0)", {"vm": 3, "lgkm": 0}),
        ("s_waitcnt_vscnt null, 0x0", {"vs": 0}),
        ("s_wait_loadcnt 0x2", {"load": 2}),
        ("s_wait_loadcnt_dscnt 0x301", {"load": 3, "ds": 1}),
        ("s_wait_kmcnt 0x0", {"km": 0}),
        ("s_nop 3", {}),
        ("s_waitcnt_depctr 0xfffd", {}),
    ],
)
def test_counts_of_waits_are_read(text: str, counts: dict[str, int]) -> None:
    assert wait(parse(Line(0, text, (0,)))) == counts


def test_wait_for_a_number_in_a_register_is_refused() -> None:
    with pytest.raises(NotEmulatedError):
        wait(parse(Line(0, "s_waitcnt_vscnt s0, 0x0", (0,))))


# -------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("text", "target", "named"),
    [
        ("v_mqsad_u32_u8 v[0:3], v[4:5], v6, v[8:11]", GFX942, "v_mqsad_u32_u8"),
        ("v_add_f32_e64 v0, v1, v2 mul:2", GFX942, "mul"),
        ("v_add3_u32 v0, v1, v2, v3 clamp", GFX942, "clamp"),
        ("v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15] cbsz:1", GFX942, "cbsz"),
        ("v_mfma_f32_32x32x64_f16 v[0:15], v[16:17], v[18:19], v[0:15]", GFX942, "v_mfma_f32_32x32x64_f16"),
        ("buffer_load_dword v1, v0, s[8:11], 0 idxen", GFX942, "idxen"),
        ("global_load_lds_dword v0, s[0:1]", GFX942, "global_load_lds_dword"),
        ("s_getreg_b32 s0, hwreg(HW_REG_MODE)", GFX942, "s_getreg_b32"),
        ("v_mov_b32_e32 v0, src_shared_base", GFX942, "src_shared_base"),
        ("v_mov_b32_e32 v0, -v1", GFX942, "v1"),
        ("v_cvt_f32_fp8_sdwa v0, v1 src0_sel:WORD_1", GFX942, "src0_sel:WORD_1"),
        (
            "v_add_co_u32_sdwa v0, vcc, v1, v2 dst_sel:BYTE_1 dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:DWORD",
            GFX942,
            "v_add_co_u32: dst_sel:BYTE_1",
        ),
        ("v_add_u16_e64 v0, v1, 1.0", GFX942, "v_add_u16: the constant 1.0"),
        ("v_add_nc_u16 v0.l, v1.l, 3 op_sel:[0,1,0]", GFX1100, "v_add_nc_u16: the upper half of the constant 3"),
        ("v_pk_mov_b32 v[0:1], v[2:3], 3 op_sel:[0,1]", GFX942, "v_pk_mov_b32: the upper half of the constant 3"),
        ("v_cvt_f32_bf16_e32 v0, 1.0", Target("gfx950", 64), "v_cvt_f32_bf16: the constant 1.0"),
        ("s_and_b64 s[0:1], s[2:3], 0xffffffff", GFX942, "0xffffffff"),
        ("v_dual_mov_b32 v0, v1 :: v_dual_nonsense v1, v0", GFX1100, "v_nonsense"),
        ("s_and_saveexec_b64 s[0:1], vcc", GFX1100, "EXEC"),
        ("s_load_b32 null, s[4:5], 0x0", GFX1201, "null"),
        ("v_cndmask_b32_e64 v0, v1, v2, null", Target("gfx1100", 64), "null as a lane mask"),
        ("s_setkill 1", GFX1201, "s_setkill"),
        ("s_barrier_signal -2", GFX1201, "s_barrier_signal"),
        ("s_barrier_wait 1", GFX1201, "s_barrier_wait"),
        ("v_dot2acc_f32_f16_e32 v0, 1.0, v1", GFX1100, "v_dot2acc_f32_f16: the constant 1.0"),
        ("v_dot2_bf16_bf16 v0.l, v1, 0x4040, v2.l", GFX1100, "v_dot2_bf16_bf16"),
        ("ds_bpermute_b32 v0, v1, v2", Target("gfx1100", 64), "ds_bpermute_b32: 64 lanes"),
        (
            "v_cmpx_eq_u32_e64_dpp v1, v2 quad_perm:[1,0,3,2] row_mask:0x1 bank_mask:0xf",
            GFX1100,
            "v_cmpx_eq_u32: lanes",
        ),
        ("v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf fi:1", GFX1100, "v_mov_b32: fi"),
        ("ds_permute_b32 v0, v1, v2", Target("gfx1151", 64), "ds_permute_b32: 64 lanes"),
        ("v_wmma_f16_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]", GFX1100, "v_wmma_f16_16x16x16_f16"),
    ],
)
def test_unknown_instruction_or_operand_is_refused_by_name(text: str, target: Target, named: str) -> None:
    with pytest.raises(NotEmulatedError) as error:
        decode(Line(0x40, text, (0,)), target)
    assert bridge.translated(error.value).code == 23
    assert named in error.value.what
    assert text in error.value.why


@pytest.mark.parametrize(
    "changes",
    [
        {"rsrc1": 0xC0 << 12},
        {"properties": 1 << 3 | 1 << 1},
        {"properties": 1 << 3 | 1 << 2},
        {"properties": 1 << 3 | 1 << 11},
        {"rsrc2": 1 << 10},
    ],
    ids=["float mode", "dispatch packet", "queue", "dynamic stack", "workgroup info"],
)
def test_kernel_with_unsupported_descriptor_is_refused(changes: dict[str, int]) -> None:
    code = code_object("gfx942")
    refuse(code)
    with pytest.raises(NotEmulatedError):
        refuse(replace(code, descriptor=replace(code.descriptor, **changes)))


def test_all_unknown_instructions_of_a_program_are_listed() -> None:
    made = program(
        "gfx942", ["v_mqsad_u32_u8 v[0:3], v[4:5], v6, v[8:11]", "s_getreg_b32 s0, 1", "s_endpgm", "s_nop 0"]
    )
    assert [bridge.translated(error).code for error in made.unknown()] == [23, 23]


# -------------------------------------------------------------------- the start of a wave


def test_registers_lds_and_scratch_start_with_garbage_of_a_seed() -> None:
    made = program("gfx942", ["s_endpgm"])
    first, second, same = (workgroup(made, seed=seed) for seed in (1, 2, 1))
    assert first.waves[0].u[7].tobytes() == same.waves[0].u[7].tobytes()
    for a, b in (
        (first.waves[0].u[7], second.waves[0].u[7]),
        (first.lds.bytes, second.lds.bytes),
        (first.waves[0].scratch, second.waves[0].scratch),
    ):
        assert a.tobytes() != b.tobytes()
    assert first.lds_size == LDS
    assert len(first.waves[0].scratch) >= SCRATCH // 4


def test_workgroup_ids_are_in_the_registers_of_each_generation() -> None:
    old = workgroup(program("gfx1100", ["s_endpgm"]), waves=2).waves[1]
    assert old.s[2:4].tolist() == [3, 5]
    assert old.u[0].tolist() == list(range(32, 64))
    new = workgroup(program("gfx1201", ["s_endpgm"]), waves=2).waves[1]
    assert get(new, "ttmp9") == 3
    assert get(new, "ttmp7") == 5
    assert get(new, "ttmp8") >> 25 & 31 == 1


def test_scratch_buffer_of_gfx90a_needs_the_offset_of_its_wave() -> None:
    moved = ["s_add_u32 s0, s0, s8", "s_addc_u32 s1, s1, 0"]
    used = [
        "buffer_store_dword v1, off, s[0:3], 0 offset:8",
        "s_waitcnt vmcnt(0)",
        "buffer_load_dword v2, off, s[0:3], 0 offset:8",
        "s_waitcnt vmcnt(0)",
        "s_endpgm",
    ]
    # The SGPRs are four of the buffer, two of the arguments, two IDs, and the wave's offset.
    descriptor = replace(code_object("gfx90a").descriptor, rsrc2=1 | 6 << 1 | 1 << 7 | 1 << 8, properties=1 << 3 | 1)

    def ran(texts: list[str]) -> Workgroup:
        lines = [Line(4 * place, text, (0,)) for place, text in enumerate(texts)]
        group = workgroup(Program(code_object("gfx90a", descriptor=descriptor), lines), waves=2)
        group.run(reverse=False)
        return group

    for wave in ran([*moved, *used]).waves:
        assert (wave.u[2] == wave.u[1]).all()
        assert (wave.scratch[2] == wave.u[1]).all()
    with refused("scratch-outside"):
        ran(used)


def test_disassembly_of_register_halves_needs_llvm_22() -> None:
    asked: list[Sequence[str | Path]] = []

    def run(command: Sequence[str | Path], _: float) -> str:
        asked.append(command)
        return ""

    for gpu, version in (("gfx942", 19), ("gfx1201", 22)):
        disassemble(Path("kernel.hsaco"), gpu, Disassembler(Path("objdump"), (version, 0, 0), run))
    assert [("--mattr=+real-true16" in command) for command in asked] == [False, True]
    for gpu in ("gfx1100", "gfx1201"):
        with pytest.raises(NotEmulatedError):
            disassemble(Path("kernel.hsaco"), gpu, Disassembler(Path("objdump"), (21, 1, 8), run))


def test_program_that_is_not_a_disassembler_is_refused() -> None:
    with refused("disassembler-unusable", "/bin/true"):
        bridge.disassembler(Path("/bin/true"))


def test_every_error_has_an_exit_code() -> None:
    codes = {CodeObjectError: 12, DisassemblerError: 8, FaultyKernelError: 24, LaunchError: 3, NotEmulatedError: 23}
    assert codes.keys() == set(EmulatorError.__subclasses__())
    codes[OutsideError] = 27
    for kind, code in codes.items():
        told = bridge.translated(kind("some-id", "it failed", why="so", fix="do"))
        assert (told.id, told.code, told.what, told.why, told.fix) == ("some-id", code, "it failed", "so", "do")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["s_branch 65535"], {0: 0xFFFF}),
        (["s_cbranch_scc0 65535", "s_endpgm"], {0: 0xFFFF}),
        (["s_barrier", "s_branch 65534"], {1: 0xFFFE}),
        (["s_branch 0", "s_branch 65534"], {0: 0, 1: 0xFFFE}),
    ],
)
def test_endless_loops_of_branches_and_barriers_are_stopped(lines: list[str], words: dict[int, int]) -> None:
    with refused("kernel-endless"):
        workgroup(program("gfx942", lines, words)).run(reverse=False, limit=1000)
