"""The four 8-bit floating-point types of AMD's matrix instructions, encoded as `uint8`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from toolchain_lab.emulator.bits import Array


@dataclass(frozen=True)
class Float8:
    """An 8-bit type with a sign bit, an exponent and a mantissa.

    Args:
        largest: the bits of the largest finite number.
        infinite: whether the type has infinities.
        nan: the bits that `encode` returns for a positive NaN; if they are 0x80, the type has no negative zero.
    """

    mantissa: int
    bias: int
    largest: int
    infinite: bool
    nan: int

    @cached_property
    def _positive(self) -> Array:
        """The numbers that the codes from 0 to `largest` encode, as `float64`."""
        bits = np.arange(self.largest + 1)
        exponent, fraction = bits >> self.mantissa, bits & (1 << self.mantissa) - 1
        normal = fraction + (exponent > 0) * (1 << self.mantissa)
        values: Array = np.ldexp(normal.astype(np.float64), np.maximum(exponent, 1) - self.bias - self.mantissa)
        return values

    @cached_property
    def _values(self) -> Array:
        table = np.full(128, np.nan)
        table[: self.largest + 1] = self._positive
        if self.infinite:
            table[self.largest + 1] = np.inf
        both = np.concatenate([table, -table])
        if self.nan == 0x80:
            both[0x80] = np.nan
        return both.astype(np.float32)

    def decode(self, bits: Array) -> Array:
        """Return the numbers that `uint8` bits encode, as `float32`."""
        return np.asarray(self._values[bits])

    def encode(self, values: Array, *, saturate: bool = False) -> Array:
        """Round values to the nearest number of the type, ties to even, and return the `uint8` bits.

        Args:
            saturate: whether a finite number that is too large becomes the largest finite number. Otherwise it becomes
                infinity, or NaN if the type has no infinity.
        """
        wide = np.asarray(values, np.float64)
        magnitude, table = np.abs(wide), self._positive
        # Neighbouring numbers have consecutive codes, so of two neighbours, the one with the even code has the even
        # mantissa.
        above = np.minimum(np.searchsorted(table, magnitude), self.largest)
        below = np.maximum(above - 1, 0)
        middle = (table[below] + table[above]) / 2
        bits = np.where((magnitude > middle) | ((magnitude == middle) & (above % 2 == 0)), above, below)
        limit = 1.5 * table[-1] - table[-2] / 2
        over = (magnitude > limit) | ((magnitude == limit) & (self.largest % 2 == 1))
        over &= ~np.isfinite(wide) if saturate else True
        bits = np.where(over, self.largest + 1 if self.infinite else self.nan, bits)
        bits = np.where(np.isnan(wide), self.nan, bits)
        negative = np.signbit(wide) & ((bits != 0) | (self.nan != 0x80))
        return np.where(negative, bits | 0x80, bits).astype(np.uint8)


E4M3FN = Float8(3, 7, 0x7E, infinite=False, nan=0x7F)
E4M3FNUZ = Float8(3, 8, 0x7F, infinite=False, nan=0x80)
E5M2 = Float8(2, 15, 0x7B, infinite=True, nan=0x7F)
E5M2FNUZ = Float8(2, 16, 0x7F, infinite=False, nan=0x80)
# The keys are Triton's names for the types.
TYPES = {"fp8e4nv": E4M3FN, "fp8e4b8": E4M3FNUZ, "fp8e5": E5M2, "fp8e5b16": E5M2FNUZ}
