"""Buffer and scratch instructions that load from memory or store to it."""

from __future__ import annotations

import numpy as np

from toolchain_lab.emulator.bits import Array, signed
from toolchain_lab.emulator.errors import FaultyKernelError
from toolchain_lab.emulator.lanewise import Handler
from toolchain_lab.emulator.loads import Access, active, gather, reader, scatter, spread, writer
from toolchain_lab.emulator.operands import GetNumber, Operands, Run
from toolchain_lab.emulator.wave import Wave


def _scratch(access: Access) -> Handler:
    def build(operands: Operands) -> Run:
        texts, pc, size = operands.instruction.operands, operands.instruction.address, access.size
        register, vector, scalar = (texts[0], texts[1], texts[2]) if access.load else (texts[1], texts[0], texts[2])
        offset = np.int64(operands.instruction.modifiers.number("offset"))
        index = None if vector == "off" else operands.i32(vector)
        base = None if scalar in {"off", "null"} else operands.number(scalar)
        if size < 4:
            raise operands.instruction.unknown("a scratch access of less than a word")

        def places(wave: Wave) -> tuple[Array, Array]:
            place = np.zeros(wave.lanes, np.int64) + offset
            if index is not None:
                place = place + index(wave)
            if base is not None:
                place = place + base(wave)
            place = active(wave, place)
            limit = wave.group.code.descriptor.scratch
            bad = (place < 0) | (place + size > limit) | (place & 3 != 0)
            if bad.any():
                raise _outside(pc, size, int(place[bad][0]), limit)
            return place >> 2, active(wave, np.arange(wave.lanes))

        if index is None:
            # All lanes have the same offset, so an access covers whole rows.
            return _scratch_rows(operands, register, access, base=base, offset=int(offset))
        if access.load:
            write = writer(operands, register, access)

            def load(wave: Wave) -> None:
                first, lanes = places(wave)
                write(wave, spread(wave, wave.scratch[first + np.arange(size // 4)[:, None], lanes]))

            return load
        read = reader(operands, register, access)

        def store(wave: Wave) -> None:
            first, lanes = places(wave)
            for word, value in enumerate(read(wave)):
                wave.scratch[first + word, lanes] = active(wave, value)

        return store

    return build


def _scratch_rows(operands: Operands, register: str, access: Access, *, base: GetNumber | None, offset: int) -> Run:
    pc, size = operands.instruction.address, access.size

    def row(wave: Wave) -> int:
        place = offset if base is None else offset + base(wave)
        limit = wave.group.code.descriptor.scratch
        if (place < 0 or place + size > limit or place & 3) and (wave.all_lanes or wave.mask.any()):
            raise _outside(pc, size, place, limit)
        return place >> 2

    if access.load:
        write = writer(operands, register, access)

        def load(wave: Wave) -> None:
            first = row(wave)
            write(wave, wave.scratch[first : first + size // 4])

        return load
    read = reader(operands, register, access)

    def store(wave: Wave) -> None:
        first = row(wave)
        for word, value in enumerate(read(wave)):
            if wave.all_lanes:
                wave.scratch[first + word] = value
            else:
                np.copyto(wave.scratch[first + word], value, where=wave.mask)

    return store


def _outside(pc: int, size: int, place: int, limit: int) -> FaultyKernelError:
    return FaultyKernelError(
        "scratch-outside",
        f"a scratch access at {pc:#x} is outside of the kernel's scratch memory",
        why=f"it accesses {size} bytes at offset {place:#x} of {limit} bytes",
    )


class BufferAddress:
    """The computation of the addresses that a buffer instruction accesses.

    Args:
        vector: the register with an offset for each lane; ignored without the modifier `offen`.
        resource: the four scalar registers with the buffer descriptor.
        scalar: the scalar operand with an offset for all lanes.
        size: the number of bytes that each lane accesses.
    """

    def __init__(self, operands: Operands, vector: str, resource: str, scalar: str, size: int) -> None:
        instruction = operands.instruction
        modifiers = instruction.modifiers
        if modifiers.flag("idxen") or modifiers.flag("lds") or modifiers.flag("tfe"):
            raise instruction.unknown("the modifier idxen, lds or tfe")
        register = operands.register(resource)
        if register is None or register.vector or register.count != 4:
            raise instruction.unknown(f"{resource} as a buffer resource")
        self._resource = operands.read(register).index
        self._lane = operands.u32(vector) if modifiers.flag("offen") else None
        self._scalar = None if scalar in {"null", "0", "off"} else operands.number(scalar)
        self._offset, self._size = modifiers.number("offset"), size
        self._old = operands.target.generation == 9
        # These numbers are a mask of the checked fields in the last word of the descriptor, the values of these fields
        # for a raw buffer, and a mask of the format, which must not be 0.
        self._fields, self._raw, self._format = (
            (0xC7980000, 0, 0x78000) if self._old else (0xFE9C0000, 0x30000000, 0x3F000)
        )
        self._instruction = instruction

    def of(self, wave: Wave) -> tuple[Array, Array]:
        """Return the addresses, `uint64[lanes]`, and a mask of the lanes that are active and in bounds."""
        first = self._resource
        base = int(wave.s[first]) | signed(int(wave.s[first + 1]), 16) << 32
        if int(wave.s[first + 1]) >> 16 & 0x3FFF:
            raise self._instruction.unknown("a buffer with a stride")
        if int(wave.s[first + 1]) >> 30 & 3:
            raise self._instruction.unknown("a swizzled buffer")
        last = int(wave.s[first + 3])
        if last & self._fields != self._raw or not last & self._format:
            raise self._instruction.unknown(f"a buffer descriptor that ends with {last:#x}")
        records = int(wave.s[first + 2])
        scalar = 0 if self._scalar is None else self._scalar(wave)
        lane = np.int64(0) if self._lane is None else self._lane(wave).astype(np.int64)
        place: Array = np.asarray(lane + np.int64(self._offset))
        if not place.ndim:
            place = np.broadcast_to(place, (wave.lanes,))
        # The bounds check includes the scalar offset on gfx9, but not on later GPUs.
        end = records - (scalar if self._old else 0)
        inside: Array = place <= end - self._size
        if np.count_nonzero(inside) != wave.lanes and np.count_nonzero(~inside & (place < end) & wave.mask):
            raise self._instruction.unknown("an access that is only partly in bounds")
        if not wave.all_lanes:
            inside = inside & wave.mask
        return (place + np.int64(base + scalar)).astype(np.uint64), inside


def _buffer(access: Access) -> Handler:
    def build(operands: Operands) -> Run:
        texts = operands.instruction.operands
        if len(texts) != 4:
            raise operands.instruction.unknown(f"{len(texts)} operands")
        if operands.target.gpu == "gfx90a" and texts[1] == "off" and access.size >= 4:
            return _scratch_or_buffer(operands, access)
        return _in_buffer(operands, access)

    return build


def _scratch_or_buffer(operands: Operands, access: Access) -> Run:
    """Decode a buffer instruction that may access scratch memory.

    The instruction accesses scratch memory if the wave has a scratch address and the descriptor is swizzled. The base
    address of the descriptor must then be the scratch address.
    """
    texts, pc = operands.instruction.operands, operands.instruction.address
    resource = operands.register(texts[2])
    if resource is None:
        raise operands.instruction.unknown(f"the resource {texts[2]}")
    base = None if texts[3] == "0" else operands.number(texts[3])
    rows = _scratch_rows(operands, texts[0], access, base=base, offset=operands.instruction.modifiers.number("offset"))
    plain, first = _in_buffer(operands, access), resource.index

    def run(wave: Wave) -> None:
        high = int(wave.s[first + 1])
        if not wave.scratch_address or not high >> 31:
            plain(wave)
            return
        if int(wave.s[first]) | (high & 0xFFFF) << 32 != wave.scratch_address:
            raise FaultyKernelError(
                "scratch-outside", f"the scratch access at {pc:#x} is outside of the wave's scratch memory"
            )
        rows(wave)

    return run


def _in_buffer(operands: Operands, access: Access) -> Run:
    texts, pc, size = operands.instruction.operands, operands.instruction.address, access.size
    where = BufferAddress(operands, texts[1], texts[2], texts[3], size)
    if access.load:
        write = writer(operands, texts[0], access)

        def load(wave: Wave) -> None:
            addresses, inside = where.of(wave)
            write(wave, spread(wave, gather(wave, addresses[inside], size, "a buffer load", pc, lanes=inside), inside))

        return load
    read = reader(operands, texts[0], access)

    def store(wave: Wave) -> None:
        addresses, inside = where.of(wave)
        scatter(wave, addresses[inside], size, "a buffer store", pc, values=read(wave), lanes=inside)

    return store


def handler_of(name: str) -> Handler | None:
    """Return the decoder for a buffer or scratch instruction; None if this module does not support the instruction."""
    access = Access(name)
    if not access.known:
        return None
    if name.startswith("scratch_"):
        return _scratch(access)
    return _buffer(access) if name.startswith("buffer_") else None
