"""Number formats that numpy does not have, written from their definitions: bfloat16, and floats of 8 and 4 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Small:
    """A floating-point format of few bits.

    Attributes:
        infinity: whether an exponent of all ones means infinity and NaN, as in IEEE 754.
        negative_zero: None if the code of -0 is NaN.
    """

    exponent: int
    mantissa: int
    bias: int
    infinity: bool = False
    negative_zero: float | None = -0.0
    last_is_nan: bool = False

    def values(self) -> Array:
        """Return the value of each code."""
        codes = np.arange(1 << (1 + self.exponent + self.mantissa))
        fraction = codes & ((1 << self.mantissa) - 1)
        exponent = codes >> self.mantissa & ((1 << self.exponent) - 1)
        sign = np.where(codes >> (self.exponent + self.mantissa), -1.0, 1.0)
        one = 1 << self.mantissa
        size = np.where(
            exponent == 0,
            fraction / one * 2.0 ** (1 - self.bias),
            (1 + fraction / one) * 2.0 ** (exponent - self.bias),
        )
        top = exponent == (1 << self.exponent) - 1
        if self.infinity:
            size = np.where(top, np.where(fraction == 0, np.inf, np.nan), size)
        elif self.last_is_nan:
            size = np.where(top & (fraction == one - 1), np.nan, size)
        result = sign * size
        if self.negative_zero is None:
            result[len(codes) // 2] = np.nan
        return result

    def encode(self, values: Array) -> Array:
        """Return the codes nearest to values, even codes at ties; no value may exceed the largest number."""
        table = self.values()
        half = table[: len(table) // 2]
        finite = half[np.isfinite(half)]
        size = np.abs(np.asarray(values, np.float64))
        assert size.max(initial=0) <= finite[-1]
        above = np.clip(np.searchsorted(finite, size), 1, len(finite) - 1)
        below = above - 1
        down, up = size - finite[below], finite[above] - size
        code = np.where((down < up) | ((down == up) & (below % 2 == 0)), below, above)
        negative = np.signbit(values) & ((code != 0) | (self.negative_zero is not None))
        return (code | np.where(negative, len(table) // 2, 0)).astype(np.uint8)


FORMATS = {
    "fp8e4nv": Small(4, 3, 7, last_is_nan=True),
    "fp8e5": Small(5, 2, 15, infinity=True),
    "fp8e4b8": Small(4, 3, 8, negative_zero=None),
    "fp8e5b16": Small(5, 2, 16, negative_zero=None),
    "e2m1": Small(2, 1, 1),
}
NUMPY: dict[str, Any] = {
    "i1": np.uint8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "fp16": np.float16, "fp32": np.float32, "fp64": np.float64,
}  # fmt: skip


def storage(element: str) -> Any:
    """Return the numpy type of a buffer of these elements."""
    return np.uint16 if element == "bf16" else np.uint8 if element in FORMATS else NUMPY[element]


def encode(values: Any, element: str) -> Array:
    """Return a buffer with the numbers nearest to values."""
    array = np.asarray(values)
    if element in FORMATS:
        return FORMATS[element].encode(array)
    if element != "bf16":
        return array.astype(NUMPY[element])
    word = np.atleast_1d(array.astype(np.float32)).view(np.uint32)
    rounded = (word + 0x7FFF + (word >> 16 & 1)) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16).reshape(array.shape)


def decode(buffer: Array, element: str) -> Array:
    """Return the numbers in a buffer: floats as float64, integers without a change."""
    if element in FORMATS:
        result: Array = FORMATS[element].values()[buffer]
        return result
    with np.errstate(invalid="ignore"):  # a wrong kernel may write signaling NaNs
        if element == "bf16":
            return (buffer.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return buffer.astype(np.float64) if element.startswith("fp") else buffer
