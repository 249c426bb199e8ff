"""Inputs of matrix products at the edges of the rules: denormals, infinities, NaN, cancellation, far exponents."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.tests.language_cases.number_formats import FORMATS
from toolchain_lab.emulator.accumulation import rule_of
from toolchain_lab.emulator.wave import Target

Array = NDArray[Any]
ROWS, COLUMNS = 16, 32
# The instructions of each GPU whose rule is published and which the emulator has, by shape and type as in the name.
SHAPES = {
    "gfx908": ("32x32x2f32", "16x16x4f32", "32x32x8f16", "16x16x16f16", "32x32x4bf16", "16x16x8bf16"),
    "gfx90a": (
        "32x32x2f32", "16x16x4f32", "32x32x8f16", "16x16x16f16", "32x32x4bf16", "16x16x8bf16", "32x32x8bf16_1k",
        "16x16x16bf16_1k",
    ),
    "gfx942": (
        "32x32x2_f32", "16x16x4_f32", "32x32x4_xf32", "16x16x8_xf32", "32x32x8_f16", "16x16x16_f16", "32x32x8_bf16",
        "16x16x16_bf16", "32x32x16_fp8_fp8", "32x32x16_fp8_bf8", "32x32x16_bf8_fp8", "32x32x16_bf8_bf8",
        "16x16x32_fp8_fp8", "16x16x32_fp8_bf8", "16x16x32_bf8_fp8", "16x16x32_bf8_bf8",
    ),
}  # fmt: skip
# The number of bits of each format, and of its mantissa.
_FORMATS = {"f16": (16, 10), "bf16": (16, 7), "f32": (32, 23), "xf32": (32, 23), "fp8": (8, 3), "bf8": (8, 2)}
# Triton's names of gfx942's 8-bit types. Their only NaN has the bits of -0, and they have no infinity.
_NARROW = {"fp8": "fp8e4b8", "bf8": "fp8e5b16"}
_NARROW_NAN = 0x80
MODES = ("any", "near", "wide", "denormal", "small", "large", "special", "cancel")


def instruction(shape: str) -> tuple[int, int, str, str]:
    """Return size, depth, type (of both factors, if they differ) and suffix from a shape's name."""
    match = re.fullmatch(r"(\d+)x\d+x(\d+)_?([xb]?f\d\d|[fb][pf]8_[fb][pf]8)(_1k)?", shape)
    if match is None:
        raise ValueError(shape)
    return int(match[1]), int(match[2]), match[3], match[4] or ""


def sides(kind: str) -> tuple[str, str]:
    """Return the types of both factors."""
    left, _, right = kind.removesuffix("_1k").partition("_")
    return left, right or left


def by_rule(gpu: str, kind: str, a: Array, b: Array, c: Array) -> Array:
    """Return a*b+c by the rule of a GPU and a type, also `bf16_1k` and `fp8_bf8`; a and b are `float64[row, k]`."""
    left, right = sides(kind)
    rule = rule_of(Target(gpu, 64), kind if kind.endswith("_1k") else left)
    if rule is None:
        raise ValueError(kind)
    with np.errstate(all="ignore"):
        return rule.add(rule.factor(a, left), rule.factor(b, right), c)


class Bits:
    """A stream of bits that does not depend on the version of numpy."""

    def __init__(self, seed: str) -> None:
        self._seed, self._taken = seed, 0

    def __call__(self, shape: tuple[int, ...], width: int = 8) -> Array:
        self._taken += 1
        count = int(np.prod(shape)) * width // 8
        data = hashlib.shake_256(f"{self._seed}/{self._taken}".encode()).digest(count)
        return np.frombuffer(data, f"<u{width // 8}").reshape(shape)


def elements(bits: Bits, kind: str, shape: tuple[int, ...], mode: str) -> Array:
    """Return numbers of a type, as their bits."""
    width, mantissa = _FORMATS[kind]
    words = bits(shape, width).astype(np.int64)
    if mode == "any":
        return words.astype(f"u{width // 8}")
    # The largest exponent of a number; the 8-bit types have no exponent for infinity and NaN.
    most = (1 << width - 1 - mantissa) - (1 if width == 8 else 2)
    middle = most // 2
    first, count = {
        "near": (middle - 1, 3), "wide": (middle - 20, 41), "denormal": (0, 3), "small": (middle // 2 - 15, 21),
        "large": (most - 2, 3), "special": (middle - 3, 7), "cancel": (middle - 20, 41),
    }[mode]  # fmt: skip
    if width == 8 and mode == "special":
        first, count = most - 7, 8  # the products are on both sides of 2^25, from which an addend of 1 is dropped
    exponent = np.clip(first + bits(shape).astype(np.int64) % count, 0, most)
    fraction = words & ((1 << mantissa) - 1)
    chance = bits(shape)
    exponent, fraction = np.where(chance < 24, 0, exponent), np.where(chance < 24, 0, fraction)
    signs = words >> (width - 1) << (width - 1)
    if width == 8:
        codes = _without_nan((signs | exponent << mantissa | fraction).astype(np.uint8))
        return np.where((mode == "special") & (chance > 247), np.uint8(_NARROW_NAN), codes)
    if mode == "special":
        exponent, fraction = np.where(chance > 247, most + 1, exponent), np.where(chance > 248, 0, fraction)
    return (signs | exponent << mantissa | fraction).astype(f"u{width // 8}")


def _without_nan(codes: Array) -> Array:
    """Return 8-bit codes with 0 in place of NaN."""
    return np.where(codes == _NARROW_NAN, np.uint8(0), codes)


def values(kind: str, words: Array) -> Array:
    """Return the numbers of bits of a type as `float64`; xf32 loses its low bits."""
    if kind in _NARROW:
        return FORMATS[_NARROW[kind]].values()[words]
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        if kind == "f16":
            return words.view(np.float16).astype(np.float64)
        if kind == "bf16":
            return (words.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
        kept = np.uint32(0xFFFFE000 if kind == "xf32" else 0xFFFFFFFF)
        return (words & kept).view(np.float32).astype(np.float64)


def products(seed: str, kind: str, depth: int) -> Iterator[tuple[Array, Array, Array]]:
    """Yield one product in each mode.

    Yields:
        Bits of a, `[ROWS, depth]`, and of b, `[COLUMNS, depth]`, and c, `float32[ROWS, COLUMNS]`.
    """
    for mode in MODES:
        bits = Bits(f"{seed}/{kind}/{mode}")
        left, right = sides(kind)
        a, b = elements(bits, left, (ROWS, depth), mode), elements(bits, right, (COLUMNS, depth), mode)
        half = depth // 2
        if mode == "cancel":
            a[:, half:], b[:, half:] = a[:, :half], b[:, :half] ^ b.dtype.type(1 << 8 * b.itemsize - 1)
            b = _without_nan(b) if right in _NARROW else b
        shape, choice = (ROWS, COLUMNS), bits((ROWS, COLUMNS)) % 4
        other = elements(bits, "f32", shape, "near" if mode == "cancel" else mode).view(np.float32)
        far = elements(bits, "f32", shape, "wide").view(np.float32)
        with np.errstate(all="ignore"):
            sums = (values(left, a) @ values(right, b).T).astype(np.float32)
            c = np.select([choice == 0, choice == 1, choice == 2], [np.float32(0) * sums, -sums, far * sums], other)
        yield a, b, np.where(np.isnan(c) & (mode != "special"), np.float32(1), c).astype(np.float32)
