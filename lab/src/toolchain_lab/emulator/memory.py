"""Device memory: buffers with gaps between them, and loads and stores by lane."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from toolchain_lab.emulator.bits import Array
from toolchain_lab.emulator.errors import FaultyKernelError, OutsideError

# Addresses begin here: far from zero, so that a null pointer with an offset is not a buffer.
BASE = 0x7F1000000000
_GAP = 4096
_NEAR = 1 << 32  # bytes behind a buffer that a message still names
_ALIGN = 256
_ROWS = np.arange(16)[:, None]


class Views:
    """Bytes seen as numbers of 1, 2 and 4 bytes; what loads and stores of all kinds share."""

    def __init__(self, data: Array) -> None:
        self.bytes = data
        self.halves = data[: len(data) // 2 * 2].view(np.uint16)
        self.words = data[: len(data) // 4 * 4].view(np.uint32)

    def load(self, place: Array, size: int, bits: int | None = None) -> Array:
        """Gather at byte offsets `place`; `uint32[words, lanes]`, one row for 1 or 2 bytes.

        Args:
            bits: all bits of the offsets, where the caller has them.
        """
        if size == 1:
            return np.asarray(self.bytes.take(place).astype(np.uint32)[None])
        odd = int(np.bitwise_or.reduce(place)) if bits is None else bits
        if size == 2:
            if odd & 1:
                wide = self.bytes[place].astype(np.uint32) | self.bytes[place + 1].astype(np.uint32) << np.uint32(8)
                return np.asarray(wide[None])
            return np.asarray(self.halves.take(place >> 1).astype(np.uint32)[None])
        if odd & 3:
            return np.array([self._unaligned(place + 4 * word) for word in range(size // 4)])
        words: Array = self.words.take((place >> 2) + _ROWS[: size // 4])
        return words

    def _unaligned(self, place: Array) -> Array:
        value: Array = np.zeros(len(place), np.uint32)
        for byte in range(4):
            value |= self.bytes[place + byte].astype(np.uint32) << np.uint32(8 * byte)
        return value

    def store(self, place: Array, size: int, values: Array) -> None:
        """Scatter to byte offsets; where lanes meet, the highest one stays."""
        if size == 1:
            self.bytes[place] = values[0].astype(np.uint8)
        elif size == 2 and not int(np.bitwise_or.reduce(place)) & 1:
            self.halves[place >> 1] = values[0].astype(np.uint16)
        elif size < 4 or int(np.bitwise_or.reduce(place)) & 3:
            for byte in range(size):
                self.bytes[place + byte] = (values[byte // 4] >> np.uint32(8 * (byte % 4))).astype(np.uint8)
        else:
            self.words[(place >> 2) + _ROWS[: size // 4]] = values


class Lds(Views):
    """LDS, which records the waves that touched each half word since the last barrier.

    Args:
        watch: whether to note it.
        limit: bytes that a kernel may read; all by default.
    """

    def __init__(self, data: Array, *, watch: bool, limit: int | None = None) -> None:
        super().__init__(data)
        self.watch = watch
        # A number at each byte, aligned or not; an index beyond the end raises IndexError.
        size = len(data) if limit is None else limit
        self.numbers = {
            width: np.ndarray((max(size - width + 1, 0),), kind, data.data, strides=(1,))
            for width, kind in ((1, np.uint8), (2, np.uint16), (4, np.uint32))
        }
        self.wave = np.uint64(1)
        self._written, self._read, self._changed = (np.zeros(len(data) // 2, np.uint64) for _ in range(3))
        # Loads are noted when something is stored: where nothing is, none of them matters.
        self._loads: list[tuple[Any, Array, int, int]] = []
        self._stored = False

    def turn(self, number: int) -> None:
        """Set the wave that runs."""
        self.wave = np.uint64(1 << number)

    def barrier(self) -> None:
        """Forget what was noted."""
        if self._stored:
            self._note_loads()
            self._written[:] = self._read[:] = self._changed[:] = 0
            self._stored = False
        self._loads.clear()

    def note(self, place: Array, size: int, pc: int, values: Array | None = None) -> None:
        """Note an access.

        Args:
            values: what a store will write; to write what is already there changes nothing.

        Raises:
            FaultyKernelError: another wave touched the same since the last barrier, and one of both writes.
        """
        if not self.watch or size < 2 or not len(place):
            return
        if values is None:
            self._loads.append((self.wave, place, size, pc))
            return
        self._note_loads()
        self._stored = True
        halves = _halves(place, size)
        touched = self._written.take(halves) | self._read.take(halves) | self._changed.take(halves)
        if int(np.bitwise_or.reduce(touched)) & ~int(self.wave) and not self._same(place, size, values):
            raise _meeting(pc)
        self._written[halves] |= self.wave

    def note_atomic(self, place: Array, size: int, pc: int) -> None:
        """Note an atomic access, which may meet atomic ones of other waves, but none of their loads and stores.

        Raises:
            FaultyKernelError: another wave loaded or stored the same since the last barrier.
        """
        if not self.watch or not len(place):
            return
        self._note_loads()
        self._stored = True
        halves = _halves(place, size)
        if int(np.bitwise_or.reduce(self._written.take(halves) | self._read.take(halves))) & ~int(self.wave):
            raise _meeting(pc)
        self._changed[halves] |= self.wave

    def _note_loads(self) -> None:
        for wave, place, size, pc in self._loads:
            halves = _halves(place, size)
            if int(np.bitwise_or.reduce(self._written.take(halves) | self._changed.take(halves))) & ~int(wave):
                raise _meeting(pc)
            self._read[halves] |= wave
        self._loads.clear()

    def _same(self, place: Array, size: int, values: Array) -> bool:
        there = self.load(place, size)
        kept = np.uint32(0xFFFFFFFF if size > 2 else 0xFFFF)
        return all(np.array_equal(old, new & kept) for old, new in zip(there, values, strict=True))


def _halves(place: Array, size: int) -> Array:
    """The halves of words that an access touches."""
    return place >> 1 if size == 2 else ((place >> 1)[:, None] + np.arange(size // 2)).ravel()


def _meeting(pc: int) -> FaultyKernelError:
    return FaultyKernelError(
        "lds-race",
        f"two waves meet in LDS at {pc:#x}",
        why="another wave touched the same bytes, without a barrier between, and one of both writes",
    )


class Memory:
    """All buffers of a launch.

    Args:
        buffers: their contents; each gets an address of its own.
        writable: which of them the kernel may write; all by default.
        random: fills the gaps.
        names: the names of buffers, for messages; later ones may have none.
    """

    def __init__(
        self,
        buffers: Sequence[Array],
        *,
        random: np.random.Generator,
        writable: Sequence[bool] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self._names = tuple(names)
        place, places = _GAP, []
        for buffer in buffers:
            places.append(place)
            place += (buffer.nbytes + _ALIGN - 1) // _ALIGN * _ALIGN + _GAP
        self.views = Views(random.integers(0, 256, place, dtype=np.uint8))
        for start, buffer in zip(places, buffers, strict=True):
            self.views.bytes[start : start + buffer.nbytes] = np.frombuffer(buffer.tobytes(), np.uint8)
        self.addresses = tuple(BASE + start for start in places)
        self._starts, self._ends = places, [p + b.nbytes for p, b in zip(places, buffers, strict=True)]
        self._may_write = [True] * len(buffers) if writable is None else list(writable)
        self._low, self._high = np.array(self._starts, np.int64), np.array(self._ends, np.int64)
        self._writable = np.array(self._may_write, np.bool_)

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
            FaultyKernelError: one of them is not wholly in a buffer, or its buffer must not be written.
        """
        place = addresses.astype(np.int64) - BASE
        if not len(place):
            return place
        # Most often all lanes are in one buffer.
        low, high = int(np.minimum.reduce(place)), int(np.maximum.reduce(place)) + size
        number = bisect_right(self._starts, low) - 1
        if number >= 0 and high <= self._ends[number] and (not write or self._may_write[number]):
            return place
        buffer = np.searchsorted(self._low, place, "right") - 1
        bad = (buffer < 0) | (place + size > self._high[buffer])
        if bad.any():
            raise OutsideError(
                "outside-buffers",
                f"{what} at {pc:#x} is outside of every buffer",
                why=f"{self._where(int(place[bad][0]))}; {size} bytes, {int(bad.sum())} lanes",
            )
        if write and not self._writable[buffer].all():
            raise FaultyKernelError(
                "buffer-read-only", f"{what} at {pc:#x} writes to a buffer that the kernel may only read"
            )
        return place

    def _where(self, place: int) -> str:
        """Describe an offset that no buffer holds, by the nearest buffer below it."""
        number = bisect_right(self._starts, place) - 1
        if number < 0 or place - self._ends[number] > _NEAR:
            return f"address {place + BASE:#x}"
        name = self._names[number] if number < len(self._names) else "the argument block"
        return f"{name} ends {place - self._ends[number]} bytes below"

    def read(self, address: int, size: int, pc: int) -> bytes:
        """Bytes for a scalar load."""
        start = int(self.places(np.array([address], np.uint64), size, "a scalar load", pc)[0])
        return self.views.bytes[start : start + size].tobytes()
