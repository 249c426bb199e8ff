"""The global memory of a launch, and the LDS of a workgroup."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from toolchain_lab.emulator.bits import QUAD, Array, signed
from toolchain_lab.emulator.errors import FaultyKernelError, OutsideError
from toolchain_lab.emulator.placement import ACROSS, Placement

_GAP = 256
_NEAR = 1 << 32  # bytes; an error message names the buffer below an address if the buffer ends within this distance
_ALIGN = 256
_ROWS = np.arange(16)[:, None]


class Views:
    """An array of bytes that several lanes can load from and store to at once."""

    def __init__(self, data: Array) -> None:
        self.bytes = data
        self.halves = data[: len(data) // 2 * 2].view(np.uint16)
        self.words = data[: len(data) // 4 * 4].view(np.uint32)

    def load(self, place: Array, size: int, bits: int | None = None) -> Array:
        """Load `size` bytes for each lane, and return `uint32[words, lanes]`; 1 or 2 bytes become one word.

        Args:
            place: the byte offset of each lane.
            bits: the bitwise OR of the offsets; None if the caller has not computed it.
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
        """Store `size` bytes for each lane from `uint32[words, lanes]`; of lanes with equal offsets, the last wins."""
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
    """The LDS of a workgroup, which detects data races between waves.

    Args:
        watch: whether to detect data races.
        limit: the number of bytes that the views in `numbers` cover; by default, they cover all bytes.
    """

    def __init__(self, data: Array, *, watch: bool, limit: int | None = None) -> None:
        super().__init__(data)
        self.watch = watch
        # Each view contains a number for each byte offset, so numbers of 2 or 4 bytes overlap. An index beyond the end
        # raises IndexError.
        size = len(data) if limit is None else limit
        self.numbers = {
            width: np.ndarray((max(size - width + 1, 0),), kind, data.data, strides=(1,))
            for width, kind in ((1, np.uint8), (2, np.uint16), (4, np.uint32))
        }
        self.wave = np.uint64(1)
        self._written, self._read, self._changed = (np.zeros(len(data) // 2, np.uint64) for _ in range(3))
        # Loads are checked at the next store, atomic access or barrier, because loads alone cannot race.
        self._loads: list[tuple[Any, Array, int, int]] = []
        self._stored = False

    def turn(self, number: int) -> None:
        """Set the number of the wave that performs the following accesses."""
        self.wave = np.uint64(1 << number)

    def barrier(self) -> None:
        """Check the recorded loads, and forget all accesses: accesses before and after a barrier do not race."""
        if self._stored:
            self._note_loads()
            self._written[:] = self._read[:] = self._changed[:] = 0
            self._stored = False
        self._loads.clear()

    def note(self, place: Array, size: int, pc: int, values: Array | None = None) -> None:
        """Record a load or a store. Accesses of single bytes are ignored.

        Args:
            place: the byte offset of each active lane.
            values: the words that a store will write, `uint32[words, lanes]`; None for a load. A store of the
                values that are already in LDS does not race with earlier accesses.

        FaultyKernelError is raised if two waves have accessed the same unit of 2 bytes since the last barrier, and at
        least one of the two accesses writes to it. A race between a load and an earlier store is detected at the next
        store, atomic access or barrier.
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
        """Record an atomic access, which races with other waves' loads and stores, but not with their atomics."""
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
    """Return the indices of an access's 2-byte units, lane by lane, with odd offsets rounded down."""
    return place >> 1 if size == 2 else ((place >> 1)[:, None] + np.arange(size // 2)).ravel()


def _meeting(pc: int) -> FaultyKernelError:
    return FaultyKernelError(
        "lds-race",
        f"the LDS access at {pc:#x} is a data race",
        why="another wave accessed the same bytes without a barrier in between, and at least one access is a write",
    )


class Memory:
    """The global memory of a launch: buffers with gaps between them, so that out-of-bounds accesses are detected.

    Args:
        random: the generator for the bytes in the gaps.
        writable: whether the kernel may write each buffer; all are writable by default.
        names: the names of the buffers, for error messages; a buffer without a name is the argument block.

    Attributes:
        addresses: the address of each buffer, as an unsigned number.
    """

    def __init__(
        self,
        buffers: Sequence[Array],
        *,
        random: np.random.Generator,
        writable: Sequence[bool] | None = None,
        names: Sequence[str] = (),
        placement: Placement = ACROSS,
    ) -> None:
        self._names = tuple(names)
        place, places = _GAP, []
        for buffer in buffers:
            places.append(place)
            place += (buffer.nbytes + _ALIGN - 1) // _ALIGN * _ALIGN + _GAP
        self.views = Views(random.integers(0, 256, place, dtype=np.uint8))
        for start, buffer in zip(places, buffers, strict=True):
            self.views.bytes[start : start + buffer.nbytes] = np.frombuffer(buffer.tobytes(), np.uint8)
        self._places = places
        self.addresses = placement.buffers(len(buffers))
        # For each buffer, these lists contain the signed address of its first byte, the signed address after its last
        # byte, and the number that must be added to an address to get an offset in `views`.
        self._starts = [signed(address, 64) for address in self.addresses]
        self._ends = [start + buffer.nbytes for start, buffer in zip(self._starts, buffers, strict=True)]
        self._moves = [place - start for place, start in zip(places, self._starts, strict=True)]
        self._may_write = [True] * len(buffers) if writable is None else list(writable)
        self._low, self._high = np.array(self._starts, np.int64), np.array(self._ends, np.int64)
        self._move = np.array(self._moves, np.int64)
        self._writable = np.array(self._may_write, np.bool_)

    def write(self, number: int, data: bytes) -> None:
        """Write bytes to the beginning of the buffer with the index `number`."""
        start = self._places[number]
        self.views.bytes[start : start + len(data)] = np.frombuffer(data, np.uint8)

    def content(self, number: int) -> bytes:
        """Return the bytes of the buffer with the index `number`."""
        start = self._places[number]
        return self.views.bytes[start : start + self._ends[number] - self._starts[number]].tobytes()

    def places(self, addresses: Array, size: int, what: str, pc: int, *, write: bool = False) -> Array:
        """Convert addresses to offsets in `views`, `int64[n]`.

        Args:
            addresses: the addresses, `uint64[n]`.
            size: the number of bytes that are accessed at each address.
            what, pc: the kind of access and the address of the instruction, for error messages.
        """
        place = addresses.view(np.int64)
        if not len(place):
            return place
        # This is the most frequent case, in which all lanes access the same buffer.
        low, high = int(np.minimum.reduce(place)), int(np.maximum.reduce(place)) + size
        number = bisect_right(self._starts, low) - 1
        if number >= 0 and high <= self._ends[number] and (not write or self._may_write[number]):
            return np.asarray(place + self._moves[number])
        buffer = np.searchsorted(self._low, place, "right") - 1
        bad = (buffer < 0) | (place > self._high[buffer] - size)  # `place + size` could exceed 64 bits
        if bad.any():
            raise OutsideError(
                "outside-buffers",
                f"{what} at {pc:#x} is outside of every buffer",
                why=f"{self._where(int(place[bad][0]))}; {int(bad.sum())} lanes access {size} bytes each",
            )
        if write and not self._writable[buffer].all():
            raise FaultyKernelError("buffer-read-only", f"{what} at {pc:#x} writes to a read-only buffer")
        return np.asarray(place + self._move[buffer])

    def _where(self, place: int) -> str:
        number = bisect_right(self._starts, place) - 1
        if number < 0 or place - self._ends[number] > _NEAR:
            return f"address {place & QUAD:#x}"
        name = self._names[number] if number < len(self._names) else "the argument block"
        distance = place - self._ends[number]  # negative if only the end of the access is outside
        return f"{name} ends {abs(distance)} bytes {'above' if distance < 0 else 'below'} the address"

    def place(self, address: int, size: int, pc: int) -> int:
        """Return the offset in `views` for the address of a scalar load."""
        return int(self.places(np.array([address], np.uint64), size, "a scalar load", pc)[0])
