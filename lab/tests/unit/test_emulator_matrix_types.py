"""Matrix instructions on integers, narrow floats and float64, sums of float64 products, and refused types."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lab.tests.emulator_fixtures import bits, get, put, run, wave_of
from lab.tests.language_cases.number_formats import FORMATS
from lab.tests.matrix_inputs import by_rule
from toolchain_lab.emulator import double
from toolchain_lab.emulator.errors import FaultyKernelError, NotEmulatedError
from toolchain_lab.emulator.exactness import bound

# Text, GPU, rows, k, and the types of both factors; {} stands for the registers of result, factors and addend.
PRODUCTS = [
    ("v_mfma_i32_16x16x16i8 {}", "gfx90a", 16, 16, "i8", "i8"),
    ("v_mfma_i32_32x32x8i8 {}", "gfx90a", 32, 8, "i8", "i8"),
    ("v_mfma_i32_16x16x32_i8 {}", "gfx942", 16, 32, "i8", "i8"),
    ("v_mfma_i32_32x32x16_i8 {}", "gfx942", 32, 16, "i8", "i8"),
    ("v_mfma_i32_16x16x64_i8 {}", "gfx950", 16, 64, "i8", "i8"),
    ("v_mfma_i32_32x32x32_i8 {}", "gfx950", 32, 32, "i8", "i8"),
    ("v_mfma_f32_16x16x32_fp8_bf8 {}", "gfx942", 16, 32, "fp8e4b8", "fp8e5b16"),
    ("v_mfma_f32_32x32x16_bf8_fp8 {}", "gfx942", 32, 16, "fp8e5b16", "fp8e4b8"),
    ("v_mfma_f32_16x16x32_fp8_fp8 {}", "gfx950", 16, 32, "fp8e4nv", "fp8e4nv"),
    ("v_mfma_f32_16x16x128_f8f6f4 {} cbsz:1", "gfx950", 16, 128, "fp8e5", "fp8e4nv"),
    ("v_mfma_f32_32x32x64_f8f6f4 {} blgp:4", "gfx950", 32, 64, "fp8e4nv", "e2m1"),
    ("v_mfma_f64_16x16x4f64 {}", "gfx90a", 16, 4, "f64", "f64"),
    ("v_mfma_f64_16x16x4_f64 {}", "gfx942", 16, 4, "f64", "f64"),
    ("v_wmma_i32_16x16x16_iu8 {} neg_lo:[1,0,0]", "gfx1100", 16, 16, "i8", "u8"),
    ("v_wmma_i32_16x16x16_iu8 {} neg_lo:[1,1,0]", "gfx1201", 16, 16, "i8", "i8"),
    ("v_wmma_f32_16x16x16_fp8_bf8 {}", "gfx1201", 16, 16, "fp8e4nv", "fp8e5"),
]


def factor(random: np.random.Generator, rows: int, depth: int, kind: str) -> tuple[Any, Any]:
    """Return the bytes of each row, and its numbers; the numbers of narrow floats are small enough for exact sums."""
    if kind == "f64":
        values = random.integers(-9, 9, (rows, depth)).astype(np.float64)
        return values.view(np.uint8), values
    if kind in {"i8", "u8"}:
        values = random.integers(-128, 128, (rows, depth)).astype(np.int8)
        return values.view(np.uint8), (values.view(np.uint8) if kind == "u8" else values).astype(np.float64)
    if kind == "e2m1":
        codes = random.integers(0, 16, (rows, depth))
        return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8), FORMATS[kind].values()[codes]
    values = random.integers(-3, 4, (rows, depth)).astype(np.float64)
    return FORMATS[kind].encode(values.reshape(-1)).reshape(rows, depth), values


def put_factor(wave: Any, first: int, rows: Any, chunk: int) -> int:
    """Give each lane its parts of a row, `chunk` bytes at a time, and return the number of registers."""
    size, length = rows.shape
    parts = 1 if wave.target.generation == 11 else wave.lanes // size
    words = np.zeros(0, np.uint32)
    for lane in range(wave.lanes):
        part = (lane // size) % parts
        mine = rows[lane % size].reshape(length // (chunk * parts), parts, chunk)[:, part].tobytes()
        words = np.frombuffer(mine, np.uint32)
        for number, word in enumerate(words):
            wave.u[first + number][lane] = word
    return len(words)


def row_of(wave: Any, register: int, lane: int, size: int, kind: str) -> int:
    """Return the row of the result that a register holds in a lane."""
    if kind == "f64":
        return 4 * register + lane // 16
    if wave.target.generation == 11:
        return 2 * register + lane // 16
    if wave.target.generation == 12:
        return register + 8 * (lane // 16)
    return 8 * (register // 4) + 4 * (lane // 32) + register % 4 if size == 32 else 4 * (lane // 16) + register


@pytest.mark.parametrize(("text", "gpu", "size", "depth", "left", "right"), PRODUCTS, ids=str)
def test_matrix_product_of_each_type_is_exact(
    text: str, gpu: str, size: int, depth: int, left: str, right: str
) -> None:
    random, wave = np.random.default_rng(depth), wave_of(gpu)
    (codes_a, a), (codes_b, b) = factor(random, size, depth, left), factor(random, size, depth, right)
    parts = 1 if wave.target.generation == 11 else wave.lanes // size
    chunks = [16 if "f8f6f4" in text else codes.shape[1] // parts for codes in (codes_a, codes_b)]
    counts = [
        put_factor(wave, first, codes, c) for first, codes, c in ((64, codes_a, chunks[0]), (80, codes_b, chunks[1]))
    ]
    words = size * size // wave.lanes * (2 if left == "f64" else 1)
    one = {"i": 1, "f64": 0x3FF00000}.get("i" if "_i32_" in text else left, 0x3F800000)
    for register in range(words):
        put(wave, f"v{register}", one if left != "f64" or register % 2 else 0)
    registers = [f"v[0:{words - 1}]"] + [
        f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"
        for first, count in zip((64, 80), counts, strict=True)
    ]
    run(wave, text.format(", ".join([*registers, registers[0]])))
    wanted = a @ b.T + 1
    for register in range(size * size // wave.lanes):
        values = np.array(get(wave, f"v[{2 * register}:{2 * register + 1}]" if left == "f64" else f"v{register}"))
        kind = np.float64 if left == "f64" else np.int32 if "_i32_" in text else np.float32
        got = values.astype(np.uint64 if left == "f64" else np.uint32).view(kind)
        for lane in range(wave.lanes):
            assert got[lane] == wanted[row_of(wave, register, lane, size, left), lane % size], (register, lane)


def test_8_bit_floats_of_gfx942_follow_their_published_rule() -> None:
    random, wave = np.random.default_rng(2), wave_of("gfx942")
    codes = random.integers(1, 128, (2, 16, 32), np.uint8)
    put_factor(wave, 64, codes[0], 8)
    put_factor(wave, 80, codes[1], 8)
    wave.vectors[:4] = random.normal(size=(4, 64)).astype(np.float32).view(np.uint32)
    addend = np.zeros((16, 16), np.float32)
    lane = np.arange(64)
    for register in range(4):
        addend[4 * (lane // 16) + register, lane % 16] = wave.f[register]
    run(wave, "v_mfma_f32_16x16x32_fp8_fp8 v[0:3], v[64:65], v[80:81], v[0:3]")
    a, b = FORMATS["fp8e4b8"].values()[codes].astype(np.float64)
    wanted = by_rule("gfx942", "fp8", a, b, addend)
    assert (wanted != (a @ b.T + addend).astype(np.float32)).any()
    for register in range(4):
        assert (wave.f[register] == wanted[4 * (lane // 16) + register, lane % 16]).all()
    assert not bound("v_mfma_f32_16x16x32_fp8_fp8", wave.target)
    assert bound("v_mfma_f32_16x16x32_fp8_fp8", wave_of("gfx950").target)


def test_scale_applies_to_32_numbers_of_a_row() -> None:
    wave = wave_of("gfx950")
    ones = FORMATS["fp8e4nv"].encode(np.ones(128)).reshape(1, -1).repeat(16, 0)
    put_factor(wave, 64, ones, 16)
    put_factor(wave, 80, ones, 16)
    put(wave, "v100", [127 + lane // 16 << 8 for lane in range(64)])
    put(wave, "v101", 128)
    run(
        wave,
        "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[64:71], v[80:87], 0, v100, v101 op_sel:[1,0,0] op_sel_hi:[0,0,0]",
    )
    assert set(wave.f[0]) == {32.0 * 2 * (1 + 2 + 4 + 8)}


def test_bound_counts_an_addend_that_the_result_replaces() -> None:
    wave = wave_of("gfx950")
    for name in ("v64", "v65", "v80", "v81"):
        put(wave, name, 0x38383838)  # 1 in each byte, so each sum of products is 32
    for register in range(4):
        put(wave, f"v{register}", bits(-32.0))
    run(wave, "v_mfma_f32_16x16x32_fp8_fp8 v[0:3], v[64:65], v[80:81], v[0:3]")
    assert set(get(wave, "v0")) == {0}
    assert wave.group.magnitudes == {"v_mfma_f32_16x16x32_fp8_fp8": 64.0}


def test_int32_sums_wrap() -> None:
    wave = wave_of("gfx942")
    for name in ("v64", "v65", "v80", "v81"):
        put(wave, name, 0x01010101)
    run(wave, "v_mfma_i32_16x16x32_i8 v[0:3], v[64:65], v[80:81], -1")
    assert get(wave, "v0")[0] == 31
    for register in range(4):
        put(wave, f"v{register}", 0x7FFFFFFF)
    run(wave, "v_mfma_i32_16x16x32_i8 v[0:3], v[64:65], v[80:81], v[0:3]")
    assert get(wave, "v3")[9] == 0x8000001F


@pytest.mark.parametrize(
    ("gpu", "name", "factor", "addend", "result"),
    [
        ("gfx942", "i32_16x16x32_i8", 0x01010101, 0x7FFFFFFF, 0x8000001F),
        ("gfx942", "f32_16x16x16_bf16", 0x5F805F80, 0, bits(math.inf)),  # 16 products of 2^64
        ("gfx942", "f32_16x16x32_fp8_fp8", 0x7F7F7F7F, bits(math.inf), bits(math.inf)),
        ("gfx950", "f32_16x16x32_bf8_bf8", 0x7B7B7B7B, bits(math.inf), bits(math.inf)),
    ],
)
def test_matrix_product_that_overflows_is_refused_in_the_mode_that_clamps(
    gpu: str, name: str, factor: int, addend: int, result: int
) -> None:
    text, wave = f"v_mfma_{name} v[0:3], v[64:65], v[80:81], v[84:87]", wave_of(gpu)
    for register in (64, 65, 80, 81):
        put(wave, f"v{register}", factor)
    for register in range(84, 88):
        put(wave, f"v{register}", addend)
    run(wave, text)
    assert set(get(wave, "v0")) == {result}
    run(wave, "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1")
    with pytest.raises(NotEmulatedError):
        run(wave, text)
    for register in (64, 65):
        put(wave, f"v{register}", 0)
    for register in range(84, 88):
        put(wave, f"v{register}", bits(2.0))
    run(wave, text)
    assert set(get(wave, "v0")) == {bits(2.0)}


def test_sum_of_two_bf16_products_in_an_active_lane_is_refused() -> None:
    wave = wave_of("gfx1100")
    put(wave, "v1", [0x40400000, 0x4040, 0x40404040])
    put(wave, "v2", 0x40404040)
    put(wave, "exec", 0b011)
    run(wave, "v_dot2_bf16_bf16 v0.l, v1, v2, 0")
    assert [value & 0xFFFF for value in get(wave, "v0")[:2]] == [0x4110, 0x4110]
    put(wave, "exec", 0b111)
    with pytest.raises(NotEmulatedError):
        run(wave, "v_dot2_bf16_bf16 v0.l, v1, v2, 0")


@pytest.mark.parametrize(
    ("gpu", "text"),
    [
        ("gfx950", "v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[64:71], v[80:87], 0 cbsz:2"),
        ("gfx942", "v_mfma_i32_16x16x8_i8 v[0:3], v64, v80, 0"),
        ("gfx942", "v_cvt_sr_fp8_f32 v0, v1, v2"),
        ("gfx1100", "v_wmma_i32_16x16x16_iu4 v[0:7], v[64:65], v[80:81], v[0:7]"),
        ("gfx1100", "v_wmma_i32_16x16x16_iu8 v[0:7], v[64:67], v[80:83], v[0:7] clamp"),
        ("gfx1100", "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 2, 2), 3"),
    ],
)
def test_other_types_and_modes_are_refused(gpu: str, text: str) -> None:
    with pytest.raises(NotEmulatedError) as error:
        run(wave_of(gpu), text)
    assert text.split(maxsplit=1)[0] in error.value.what


def test_int8_wmma_of_gfx11_with_halves_of_a_wave_that_differ_is_a_fault() -> None:
    wave = wave_of("gfx1100")
    with pytest.raises(FaultyKernelError):
        run(wave, "v_wmma_i32_16x16x16_iu8 v[0:7], v[64:67], v[80:83], 0")


def test_float64_fma_is_rounded_once() -> None:
    random = np.random.default_rng(1)

    def numbers(spread: int) -> Any:
        return np.ldexp(random.uniform(-2, 2, 3000), random.integers(-spread, spread, 3000))

    for spread in (5, 60, 1000):
        a, b = numbers(spread), numbers(spread)
        with np.errstate(all="ignore"):
            near = np.nextafter(-(a * b), np.where(random.random(3000) < 0.5, 0, np.inf))
            c = np.where(random.random(3000) < 0.5, numbers(spread), np.where(np.isfinite(near), near, 1.0))
            got = double.fma(a, b, c)
        for x, y, z, result in zip(a, b, c, got, strict=True):
            exact = Fraction(x) * Fraction(y) + Fraction(z)
            try:
                assert result == float(exact)
            except OverflowError:
                assert math.isinf(result)


def test_transposed_byte_reads_give_each_lane_a_column() -> None:
    wave = wave_of("gfx950")
    lds = wave.group.lds
    lds.bytes[:128] = np.arange(128)
    put(wave, "v0", [8 * (lane % 16) for lane in range(64)])
    run(wave, "ds_read_b64_tr_b8 v[2:3], v0")
    values = get(wave, "v[2:3]")
    assert [values[3] >> 8 * row & 255 for row in range(8)] == [16 * row + 3 for row in range(8)]
