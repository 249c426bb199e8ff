"""Functions that other modules share: on bits, lane masks, bfloat16 numbers, clamping, exponents and magnitudes."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Most arrays contain an element for each lane, or are 0-dimensional if all lanes have the same value.
Array: TypeAlias = NDArray[Any]

WORD = 0xFFFFFFFF
QUAD = 0xFFFFFFFFFFFFFFFF


def signed(value: int, width: int) -> int:
    """Return the low `width` bits of `value`, read as a two's complement number."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def pack_lanes(mask: Array) -> int:
    """Convert a lane mask, `bool[lanes]`, to a number whose bit n stands for lane n."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def unpack_lanes(value: int, lanes: int) -> Array:
    """Convert a number, whose bit n stands for lane n, to a lane mask, `bool[lanes]`."""
    return np.unpackbits(np.frombuffer(value.to_bytes(lanes // 8, "little"), np.uint8), bitorder="little").view(
        np.bool_
    )


def widen_bf16(halves: Array) -> Array:
    """Convert bfloat16 numbers, given as `uint16` bits, to `float32`."""
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_bf16(values: Array) -> Array:
    """Round `float32` to the nearest bfloat16, ties to even, and return the bits as `uint16`. NaN stays NaN."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(np.asarray(values, np.float32)), quiet, rounded).astype(np.uint16)


def clamped(values: Array) -> Array:
    """Clamp floats to the range from 0 to 1, as the modifier `clamp` does: NaN becomes 0, and -0 becomes +0."""
    kind = values.dtype.type
    kept: Array = np.where(values > 0, np.minimum(values, kind(1)), kind(0))
    return kept


def exponent(values: Array) -> Array:
    """Return the biased exponent of each `float32` or `float64`, as `int32`."""
    if np.asarray(values).dtype == np.float64:
        quads: Array = np.asarray(values).view(np.uint64)
        return (quads >> np.uint64(52) & np.uint64(0x7FF)).astype(np.int32)
    bits: Array = np.asarray(values, np.float32).view(np.uint32)
    return ((bits >> np.uint32(23)) & np.uint32(255)).astype(np.int32)


def split_quads(values: Array) -> tuple[Array, Array]:
    """Split `uint64` values into two `uint32` arrays: the low 32 bits and the high 32 bits."""
    words = np.ascontiguousarray(np.atleast_1d(values)).view(np.uint32)
    return words[..., 0::2], words[..., 1::2]


def join_quads(low: Array, high: Array) -> Array:
    """Combine an array of low 32 bits and an array of high 32 bits into `uint64` values."""
    words: Array = np.empty((len(low), 2), np.uint32)
    words[:, 0], words[:, 1] = low, high
    return words.view(np.uint64).ravel()


def largest(values: Array) -> float:
    """Return the largest finite magnitude in an array; 0 if no element is finite."""
    magnitudes = np.abs(values)
    found = float(np.maximum.reduce(magnitudes, axis=None))
    return found if math.isfinite(found) else float(np.max(magnitudes, initial=0, where=np.isfinite(values)))
