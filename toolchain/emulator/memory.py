"""Device memory: buffers with gaps between them, and loads and stores by lane."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toolchain.emulator.bits import Array
from toolchain.errors import NumbersError

# Addresses begin here: far from zero, so that a null pointer with an offset is no buffer.
BASE = 0x7F1000000000
_GAP = 4096
_ALIGN = 256


class Views:
    """Bytes seen as numbers of 1, 2 and 4 bytes; what loads and stores of all kinds share."""

    def __init__(self, data: Array) -> None:
        self.bytes = data
        self.halves = data[: len(data) // 2 * 2].view(np.uint16)
        self.words = data[: len(data) // 4 * 4].view(np.uint32)

    def load(self, place: Array, size: int) -> list[Array]:
        """Gather at byte offsets `place`; a `uint32` array for each 4 bytes, or one for 1 or 2 bytes."""
        if size == 1:
            return [self.bytes[place].astype(np.uint32)]
        if size == 2:
            if (place & 1).any():
                return [self.bytes[place].astype(np.uint32) | self.bytes[place + 1].astype(np.uint32) << np.uint32(8)]
            return [self.halves[place >> 1].astype(np.uint32)]
        if (place & 3).any():
            return [self._unaligned(place + 4 * word) for word in range(size // 4)]
        first = place >> 2
        return [self.words[first + word] for word in range(size // 4)]

    def _unaligned(self, place: Array) -> Array:
        value: Array = np.zeros(len(place), np.uint32)
        for byte in range(4):
            value |= self.bytes[place + byte].astype(np.uint32) << np.uint32(8 * byte)
        return value

    def store(self, place: Array, size: int, values: Sequence[Array]) -> None:
        """Scatter to byte offsets; where lanes meet, the highest one stays."""
        if size == 1:
            self.bytes[place] = values[0].astype(np.uint8)
        elif size == 2 and not (place & 1).any():
            self.halves[place >> 1] = values[0].astype(np.uint16)
        elif size < 4 or (place & 3).any():
            for byte in range(size):
                self.bytes[place + byte] = (values[byte // 4] >> np.uint32(8 * (byte % 4))).astype(np.uint8)
        else:
            first = place >> 2
            for word in range(size // 4):
                self.words[first + word] = values[word]


class Memory:
    """All buffers of a launch.

    Args:
        buffers: their contents; each gets an address of its own.
        writable: which of them the kernel may write; all by default.
        random: fills the gaps.
    """

    def __init__(
        self, buffers: Sequence[Array], *, random: np.random.Generator, writable: Sequence[bool] | None = None
    ) -> None:
        place, places = _GAP, []
        for buffer in buffers:
            places.append(place)
            place += (buffer.nbytes + _ALIGN - 1) // _ALIGN * _ALIGN + _GAP
        self.views = Views(random.integers(0, 256, place, dtype=np.uint8))
        for start, buffer in zip(places, buffers, strict=True):
            self.views.bytes[start : start + buffer.nbytes] = np.frombuffer(buffer.tobytes(), np.uint8)
        self.addresses = tuple(BASE + start for start in places)
        self._low = np.array(places, np.int64)
        self._high = np.array([p + b.nbytes for p, b in zip(places, buffers, strict=True)], np.int64)
        self._writable = np.array([True] * len(buffers) if writable is None else list(writable), np.bool_)

    def write(self, number: int, data: bytes) -> None:
        """Put bytes at the beginning of a buffer."""
        start = int(self._low[number])
        self.views.bytes[start : start + len(data)] = np.frombuffer(data, np.uint8)

    def content(self, number: int) -> bytes:
        """The bytes of a buffer."""
        return self.views.bytes[int(self._low[number]) : int(self._high[number])].tobytes()

    def places(self, addresses: Array, size: int, what: str, pc: int, *, write: bool = False) -> Array:
        """Offsets in the views for addresses, `uint64`.

        Raises:
            NumbersError: one of them is not wholly in a buffer, or in one that must not be written.
        """
        place = addresses.astype(np.int64) - BASE
        buffer = np.searchsorted(self._low, place, "right") - 1
        bad = (buffer < 0) | (place + size > self._high[buffer])
        if bad.any():
            raise NumbersError(
                f"{what} at {pc:#x} is outside of every buffer",
                why=f"address {int(addresses[bad][0]):#x}, {size} bytes, {int(bad.sum())} lanes",
            )
        if write and not self._writable[buffer].all():
            raise NumbersError(f"{what} at {pc:#x} writes to a buffer that the kernel may only read")
        return place

    def read(self, address: int, size: int, pc: int) -> bytes:
        """Bytes for a scalar load."""
        start = int(self.places(np.array([address], np.uint64), size, "a scalar load", pc)[0])
        return self.views.bytes[start : start + size].tobytes()
