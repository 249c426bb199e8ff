"""Define the element types of a kernel's tensors, and lay out tensors in memory for a launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain_lab.emulator.bits import round_bf16, widen_bf16

Array = NDArray[Any]


@dataclass(frozen=True)
class Element:
    """A floating-point type of a tensor's elements.

    Args:
        name: Triton's name for the type.
        storage: the numpy type of the stored elements.
        precision: the error, relative to the largest value, that a check allows in addition to twice the error of a
            plain implementation.
    """

    name: str
    storage: type[np.generic]
    precision: float

    def encode(self, values: Array) -> Array:
        """Round numbers to the type, and return their stored form."""
        if self.name == "bf16":
            return round_bf16(np.asarray(values, np.float32))
        return np.asarray(values).astype(self.storage)

    def decode(self, stored: Array) -> Array:
        """Return stored values as `float64`."""
        wide = widen_bf16(stored) if self.name == "bf16" else stored
        return np.asarray(wide).astype(np.float64)

    def rounded(self, values: Array) -> Array:
        """Round numbers to the type, and return them as `float64`."""
        return self.decode(self.encode(values))


# The precisions of fp16 and bf16 are one unit in the last place, as in scripts/gpu/run.py. The precision of fp32 is
# eight units, because exp2 and log2 are approximate.
FP16 = Element("fp16", np.float16, 2.0**-10)
BF16 = Element("bf16", np.uint16, 2.0**-7)
FP32 = Element("fp32", np.float32, 2.0**-20)
# The xf32 matrix instructions of gfx942 truncate fp32 to 10 bits of mantissa, as many as in fp16. The precision is
# twice that of fp16, because truncation causes twice the error of rounding.
XF32 = Element("xf32", np.float32, 2.0**-9)
ELEMENTS = {element.name: element for element in (FP16, BF16, FP32)}


@dataclass(frozen=True)
class Tensor:
    """A tensor [batch, head, row, column] in memory.

    Elements of `data` whose indices are not in `places` are NaN, so that a kernel that uses them has wrong results.

    Args:
        data: the memory of the tensor, a one-dimensional array.
        places: the index of each element in `data`, `int64[batch, head, row, column]`.
        strides: the stride of each dimension, in elements.
    """

    element: Element
    data: Array
    places: Array
    strides: tuple[int, int, int, int]

    def read(self) -> Array:
        """Return the tensor's elements as `float64[batch, head, row, column]`."""
        return self.element.decode(self.data[self.places])


def tensor(
    element: Element,
    shape: tuple[int, int, int, int],
    fill: Callable[[tuple[int, ...]], Array],
    *,
    pitch: int = 0,
    guard: int = 8,
) -> Tensor:
    """Return a tensor that is stored as [batch, row, head, pitch], with guard rows after each batch.

    Args:
        shape: the numbers of batches, heads, rows and columns.
        fill: a function that returns values of a given shape.
        pitch: the number of elements from one head to the next; the number of columns if that is larger.
        guard: the number of guard rows after each batch.
    """
    batch, heads, rows, columns = shape
    pitch = max(pitch, columns)
    strides = ((rows + guard) * heads * pitch, pitch, heads * pitch, 1)
    parts = np.ix_(*(np.arange(count) for count in shape))
    places = sum((part * stride for part, stride in zip(parts, strides, strict=True)), np.zeros(shape, np.int64))
    data = element.encode(np.full(batch * strides[0], np.nan, np.float32))
    data[places] = element.encode(fill(shape))
    return Tensor(element, data, places, strides)


def rows_tensor(batch: int, heads: int, rows: int, values: Array | None = None) -> Tensor:
    """Return a tensor with one float32 per row, stored as [batch, head, row], followed by 16 guard elements.

    Args:
        values: the numbers, `[batch, heads, rows]`; NaN by default.
    """
    shape, strides = (batch, heads, rows, 1), (heads * rows, rows, 1, 1)
    parts = np.ix_(*(np.arange(count) for count in shape))
    places = sum((part * stride for part, stride in zip(parts, strides, strict=True)), np.zeros(shape, np.int64))
    data = np.full(batch * heads * rows + 16, np.nan, np.float32)
    if values is not None:
        data[places[..., 0]] = values
    return Tensor(FP32, data, places, strides)
