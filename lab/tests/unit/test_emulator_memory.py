"""The emulator's memory: buffers, descriptors, atomics and LDS."""

from __future__ import annotations

import numpy as np
import pytest

from lab.tests.emulator_fixtures import bits, get, program, put, run, wave_of, workgroup
from tests.refusals import refused
from toolchain_lab.emulator.errors import FaultyKernelError, NotEmulatedError, OutsideError
from toolchain_lab.emulator.memory import Memory
from toolchain_lab.emulator.placement import UPPER


def test_global_load_gathers_and_store_scatters() -> None:
    wave = wave_of("gfx942", [np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)])
    put(wave, "v0", [4 * (63 - lane) for lane in range(64)])
    run(wave, "global_load_dword v1, v0, s[4:5]", "v_lshlrev_b32_e32 v2, 2, v1", "global_store_dword v2, v1, s[6:7]")
    assert get(wave, "v1") == list(range(63, -1, -1))
    assert np.frombuffer(wave.group.memory.content(1), np.uint32).tolist() == list(range(64))


def test_access_beyond_a_buffer_is_reported_with_its_distance() -> None:
    memory = Memory([np.zeros(10, np.uint8)], random=np.random.default_rng(0), names=["out"])
    for offset, distance in ((8, 2), (10, 0), (13, 3)):
        with refused("outside-buffers", f" {distance} bytes"):
            memory.place(memory.addresses[0] + offset, 4, pc=0)


def test_access_at_the_end_of_the_addresses_is_outside_of_every_buffer() -> None:
    wave = wave_of("gfx942", [np.zeros(64, np.uint32)])
    for half, value in (("v2", 0xFFFFFFFC), ("v3", 0x7FFFFFFF)):
        put(wave, half, value)
    with refused("outside-buffers", "0x7ffffffffffffffc"):
        run(wave, "global_load_dwordx2 v[4:5], v[2:3], off")


def test_only_active_lanes_access_memory() -> None:
    wave = wave_of("gfx942", [np.arange(4, dtype=np.uint32)])
    put(wave, "v0", 0xFFFFFFF)  # outside of the buffer; lane 1 gets another offset
    put(wave, "v1", 7)
    wave.u[0][1] = 8
    wave.set_exec(0b10)
    run(wave, "global_load_dword v1, v0, s[4:5]")
    assert get(wave, "v1")[:3] == [7, 2, 7]


@pytest.mark.parametrize(
    "text",
    [
        "global_load_dword v1, v0, s[4:5]",
        "global_store_dword v0, v1, s[4:5]",
        "global_load_dwordx4 v[4:7], v0, s[4:5] offset:-16",
        "ds_read_b32 v1, v0",
        "ds_write_b64 v0, v[2:3] offset:248",
        "scratch_load_dword v1, v0, off",
    ],
)
def test_access_outside_of_its_buffer_is_a_fault(text: str) -> None:
    wave = wave_of("gfx942", [np.zeros(4, np.uint32)])
    put(wave, "v0", [0, 1 << 20])
    wave.set_exec(0b11)
    with pytest.raises(FaultyKernelError) as error:
        run(wave, text)
    assert "0x0" in error.value.what


def test_address_without_its_carry_is_outside_of_the_buffer() -> None:
    wave = wave_of("gfx942", [np.arange(8, dtype=np.uint32)])
    run(wave, "s_add_u32 s8, s4, 16", "s_addc_u32 s9, s5, 0", "s_load_dword s0, s[8:9], 0x4")
    assert get(wave, "s0") == 5
    put(wave, "s9", get(wave, "s5"))
    with pytest.raises(OutsideError):
        run(wave, "s_load_dword s0, s[8:9], 0x4")


@pytest.mark.parametrize("text", ["s[4:5], 0x2", "s[4:5], s8", "s[4:5], s8 offset:0x2", "s[10:11], 0x2"])
def test_scalar_load_is_refused_if_a_part_of_its_address_is_not_aligned(text: str) -> None:
    wave = wave_of("gfx942", [np.arange(8, dtype=np.uint32)])
    put(wave, "s8", 2)
    put(wave, "s[10:11]", get(wave, "s[4:5]") + 2)
    with pytest.raises(NotEmulatedError):
        run(wave, f"s_load_dword s0, {text}")


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942"])
def test_scalar_offset_beyond_the_range_of_a_buffer_gives_0_on_gfx9(gpu: str) -> None:
    wave = wave_of(gpu, [np.arange(8, dtype=np.uint32)])
    put(wave, "s5", get(wave, "s5") & 0xFFFF)
    put(wave, "s6", 32)
    put(wave, "s7", 0x27000)
    put(wave, "s8", 16)
    put(wave, "v0", [8, 12, 16, 28])
    wave.set_exec(0b1111)
    run(wave, "buffer_load_dword v1, v0, s[4:7], s8 offen")
    assert get(wave, "v1")[:4] == [6, 7, 0, 0]


def test_descriptor_needs_the_lower_48_bits_of_an_upper_address() -> None:
    made = program("gfx942", ["s_endpgm"])
    wave = workgroup(made, [np.arange(8, dtype=np.uint32)], placement=UPPER).waves[0]
    put(wave, "s6", 32)
    put(wave, "s7", 0x27000)
    with pytest.raises(NotEmulatedError, match="stride"):
        run(wave, "buffer_load_dword v1, off, s[4:7], 0 offset:12")
    run(wave, "s_and_b32 s5, s5, 0xffff", "buffer_load_dword v1, off, s[4:7], 0 offset:12")
    assert get(wave, "v1")[0] == 3


def test_buffer_load_outside_of_its_range_returns_0_and_store_is_dropped() -> None:
    wave = wave_of("gfx942", [np.arange(1, 9, dtype=np.uint32)])
    wave.s[8], wave.s[9], wave.s[10], wave.s[11] = wave.s[4], int(wave.s[5]) & 0xFFFF, 16, 0x27000
    put(wave, "v0", [4 * lane for lane in range(64)])
    put(wave, "v2", 77)
    run(wave, "buffer_load_dword v1, v0, s[8:11], 0 offen", "buffer_store_dword v2, v0, s[8:11], 0 offen")
    assert get(wave, "v1")[:6] == [1, 2, 3, 4, 0, 0]
    assert np.frombuffer(wave.group.memory.content(0), np.uint32).tolist() == [77] * 4 + [5, 6, 7, 8]


def test_atomic_sum_adds_lanes_in_order() -> None:
    wave = wave_of("gfx942", [np.array([5, 100], np.uint32)])
    put(wave, "v0", 0)
    put(wave, "v1", 2)
    wave.set_exec(0b1011)
    run(wave, "global_atomic_add v3, v0, v1, s[4:5] sc0")
    assert [get(wave, "v3")[lane] for lane in (0, 1, 3)] == [5, 7, 9]
    assert np.frombuffer(wave.group.memory.content(0), np.uint32).tolist() == [11, 100]


@pytest.mark.parametrize(("gpu", "kept"), [("gfx90a", 0), ("gfx942", 2.0**-139), ("gfx1200", 2.0**-139)])
def test_atomic_sum_of_float32_in_memory_flushes_denormals_on_gfx90a(gpu: str, kept: float) -> None:
    wave = wave_of(gpu, [np.array([2.0**-140, 2.0**-140], np.float32)])
    put(wave, "v0", [0, 4])
    put(wave, "v1", [bits(2.0**-140), bits(2.0**-120)])
    wave.set_exec(0b11)
    run(wave, "global_atomic_add_f32 v0, v1, s[4:5]")
    expected = [kept, 2.0**-120 + kept / 2]
    assert np.frombuffer(wave.group.memory.content(0), np.float32).tolist() == expected


def test_short_loads_extend_or_keep_halves() -> None:
    wave = wave_of("gfx1100", [np.array([0x80, 0xFF, 0x34, 0x12], np.uint8)])
    put(wave, "v0", 0)
    put(wave, "v[1:4]", 0)
    put(wave, "v4", 0xAAAABBBB)
    run(
        wave,
        "global_load_u8 v1, v0, s[4:5]",
        "global_load_i8 v2, v0, s[4:5]",
        "global_load_i16 v3, v0, s[4:5]",
        "global_load_d16_hi_b16 v4, v0, s[4:5] offset:2",
    )
    assert [get(wave, name)[0] for name in ("v1", "v2", "v3", "v4")] == [0x80, 0xFFFFFF80, 0xFFFFFF80, 0x1234BBBB]


@pytest.mark.parametrize("gpu", ["gfx90a", "gfx942", "gfx950"])
def test_loads_of_halves_set_the_other_half_to_0_on_cdna(gpu: str) -> None:
    wave = wave_of(gpu, [np.array([0x80, 0xFF, 0x34, 0x12], np.uint8)])
    put(wave, "v0", 0)
    put(wave, "v[1:3]", 0xAAAABBBBAAAABBBBAAAABBBB)
    wave.group.lds.halves[1] = 0x5678
    run(
        wave,
        "global_load_sbyte_d16 v1, v0, s[4:5]",
        "global_load_short_d16_hi v2, v0, s[4:5] offset:2",
        "ds_read_u16_d16 v3, v0 offset:2",
    )
    assert [get(wave, name)[0] for name in ("v1", "v2", "v3")] == [0xFF80, 0x12340000, 0x5678]


def test_lds_pairs_count_their_offsets_in_elements() -> None:
    wave = wave_of("gfx942")
    put(wave, "v0", 0)
    wave.set_exec(1)
    put(wave, "v1", 11)
    put(wave, "v2", 22)
    run(wave, "ds_write2_b32 v0, v1, v2 offset0:1 offset1:3", "ds_read2_b32 v[4:5], v0 offset0:3 offset1:1")
    assert get(wave, "v4")[0] == 22
    assert get(wave, "v5")[0] == 11
    assert wave.group.lds.words[[1, 3]].tolist() == [11, 22]


def test_transposed_reads_give_each_lane_a_column() -> None:
    wave = wave_of("gfx950")
    wave.group.lds.halves[:64] = np.arange(64)
    put(wave, "v0", [8 * (lane % 16) for lane in range(64)])
    run(wave, "ds_read_b64_tr_b16 v[2:3], v0")
    assert get(wave, "v2")[5] == 5 | 21 << 16
    assert get(wave, "v3")[5] == 37 | 53 << 16


def test_scalar_loads_read_memory() -> None:
    wave = wave_of("gfx1201", [np.arange(8, dtype=np.uint32)])
    run(wave, "s_load_b64 s[10:11], s[4:5], 0x8")
    assert get(wave, "s[10:11]") == 2 | 3 << 32
