"""8-bit floating-point types: values of the standards' tables, rounding, and overflow."""

from __future__ import annotations

import numpy as np
import pytest

from toolchain_lab.emulator.conversions import format_of
from toolchain_lab.emulator.float8 import TYPES
from toolchain_lab.emulator.wave import Target

# VALUES has bits with their values by type; ROUNDED has numbers with their bits without and with saturation.
VALUES = {
    "fp8e4nv": {0x00: 0.0, 0x01: 2.0**-9, 0x38: 1.0, 0x7E: 448.0, 0x7F: np.nan, 0xB8: -1.0, 0xFF: np.nan},
    "fp8e4b8": {0x01: 2.0**-10, 0x40: 1.0, 0x7F: 240.0, 0x80: np.nan, 0xC0: -1.0},
    "fp8e5": {0x01: 2.0**-16, 0x3C: 1.0, 0x7B: 57344.0, 0x7C: np.inf, 0x7D: np.nan, 0xFC: -np.inf},
    "fp8e5b16": {0x01: 2.0**-17, 0x40: 1.0, 0x7F: 57344.0, 0x80: np.nan},
}
ROUNDED = [
    ("fp8e4nv", 17.0, 0x58, 0x58), ("fp8e4nv", 19.0, 0x5A, 0x5A), ("fp8e4nv", 464.0, 0x7E, 0x7E),
    ("fp8e4nv", 465.0, 0x7F, 0x7E), ("fp8e4nv", np.inf, 0x7F, 0x7F), ("fp8e4nv", 2.0**-10, 0x00, 0x00),
    ("fp8e4nv", -(2.0**-11), 0x80, 0x80), ("fp8e4b8", -(2.0**-12), 0x00, 0x00), ("fp8e4b8", 248.0, 0x80, 0x7F),
    ("fp8e5", 61439.0, 0x7B, 0x7B), ("fp8e5", 61440.0, 0x7C, 0x7B), ("fp8e5b16", -1e9, 0x80, 0xFF),
]  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_decoded_values_match_and_encode_back(name: str) -> None:
    every = np.arange(256, dtype=np.uint8)
    decoded = TYPES[name].decode(every)
    assert np.array_equal(decoded[list(VALUES[name])], list(VALUES[name].values()), equal_nan=True)
    number = ~np.isnan(decoded)
    assert np.array_equal(TYPES[name].encode(decoded)[number], every[number])


@pytest.mark.parametrize(("name", "value", "plain", "saturated"), ROUNDED)
def test_numbers_round_to_even_and_overflow_or_saturate(name: str, value: float, plain: int, saturated: int) -> None:
    values = np.array([value])
    assert (TYPES[name].encode(values)[0], TYPES[name].encode(values, saturate=True)[0]) == (plain, saturated)


@pytest.mark.parametrize(("gpu", "name"), [("gfx940", "fp8e4b8"), ("gfx942", "fp8e4b8"), ("gfx950", "fp8e4nv")])
def test_fp8_format_depends_on_the_gpu(gpu: str, name: str) -> None:
    assert format_of(Target(gpu, 64), "fp8") is TYPES[name]
