"""LDS instructions that load or store values, or permute lanes."""

from __future__ import annotations

import re

import numpy as np

from toolchain_lab.emulator.bits import Array
from toolchain_lab.emulator.errors import FaultyKernelError
from toolchain_lab.emulator.lanewise import Handler
from toolchain_lab.emulator.loads import Access, active, reader, spread, writer
from toolchain_lab.emulator.operands import Get, Operands, Run
from toolchain_lab.emulator.wave import Wave

_PAIR = re.compile(r"ds_(?:(read|write)2(st64)?|(load|store)_2addr(_stride64)?)_b(32|64)$")


def places(wave: Wave, address: Array, offset: int, size: int, pc: int) -> tuple[Array, int]:
    """Return the offset in LDS, in bytes, for each active lane, and the bitwise OR of these offsets.

    FaultyKernelError is raised if an access extends beyond the end of the workgroup's LDS.
    """
    place = active(wave, address).astype(np.int64)
    if offset:
        place += offset
    limit, bits = wave.group.lds_size, int(np.bitwise_or.reduce(place))
    # No offset is larger than the bitwise OR of all offsets, so the exact maximum is rarely needed.
    if bits + size > limit and len(place) and int(np.maximum.reduce(place)) + size > limit:
        raise FaultyKernelError(
            "lds-outside",
            f"an LDS access at {pc:#x} is outside of the workgroup's LDS",
            why=f"it accesses {size} bytes at offset {int(place.max()):#x} of {limit} bytes",
        )
    return place, bits


def _note(wave: Wave, place: Array, size: int, pc: int, values: Array | None = None) -> None:
    """Record an access by the active lanes; `values` are the values that a store writes, or None for a load."""
    accesses = wave.group.accesses
    if accesses is None:
        wave.group.lds.note(place, size, pc, values)
    elif values is None:
        accesses.lds.load(place, size, wave.owners())
    else:
        accesses.lds.store(place, size, wave.owners(), values)


def _load(wave: Wave, address: Array, offset: int, size: int, pc: int) -> Array:
    lds = wave.group.lds
    if size <= 4:
        place = active(wave, address).astype(np.int64)
        if offset:
            place += offset
        try:
            numbers = lds.numbers[size][place]
        except IndexError:
            places(wave, address, offset, size, pc)  # this raises an error that names the offset
            raise
        _note(wave, place, size, pc)
        return spread(wave, numbers.astype(np.uint32, copy=False)[None])
    place, bits = places(wave, address, offset, size, pc)
    _note(wave, place, size, pc)
    return spread(wave, lds.load(place, size, bits))


def _store(wave: Wave, address: Array, offset: int, size: int, pc: int, *, values: Array) -> None:
    (place, _), lds = places(wave, address, offset, size, pc), wave.group.lds
    stored = values if wave.all_lanes else values[:, wave.mask]
    _note(wave, place, size, pc, stored)
    lds.store(place, size, stored)


def _single(access: Access) -> Handler:
    def build(operands: Operands) -> Run:
        pc, size = operands.instruction.address, access.size
        offset = operands.instruction.modifiers.number("offset")
        first, second = operands.instruction.operands
        if access.load:
            address, write = operands.u32(second), writer(operands, first, access)
            return lambda wave: write(wave, _load(wave, address(wave), offset, size, pc))
        address, read = operands.u32(first), reader(operands, second, access)
        return lambda wave: _store(wave, address(wave), offset, size, pc, values=read(wave))

    return build


def _pair(*, load: bool, size: int, stride: int) -> Handler:
    """Return the decoder for an instruction that performs two loads or two stores.

    Args:
        size: the number of bytes in each of the two accesses.
        stride: the unit of the two offsets, in bytes.
    """

    def build(operands: Operands) -> Run:
        pc, modifiers = operands.instruction.address, operands.instruction.modifiers
        offsets = [modifiers.number(name) * stride for name in ("offset0", "offset1")]
        texts, words = operands.instruction.operands, size // 4
        if load:
            result, base = texts
            address = operands.u32(base)
            puts = [operands.put_u32(result, word) for word in range(2 * words)]

            def run_load(wave: Wave) -> None:
                place = address(wave)
                values = [*_load(wave, place, offsets[0], size, pc), *_load(wave, place, offsets[1], size, pc)]
                for put, value in zip(puts, values, strict=True):
                    put(wave, value)

            return run_load
        base, first, second = texts
        address = operands.u32(base)
        gets = [[operands.u32(text, word) for word in range(words)] for text in (first, second)]

        def run_store(wave: Wave) -> None:
            place = address(wave)
            for offset, values in zip(offsets, gets, strict=True):
                _store(wave, place, offset, size, pc, values=np.array([get(wave) for get in values]))

        return run_store

    return build


def _wide(wave: Wave, values: Array) -> Array:
    return values if values.ndim else np.broadcast_to(values, (wave.lanes,))


def _fetched(wave: Wave, get: Get, lanes: Array) -> Array:
    """Return the values of a register in the given lanes, with 0 for inactive lanes."""
    values = _wide(wave, get(wave))[lanes]
    return values if wave.all_lanes else np.where(wave.mask[lanes], values, np.uint32(0))


def _refuse_two_halves(operands: Operands) -> None:
    """Raise NotEmulatedError for a wave of 64 lanes on gfx11, where these instructions reach only 32 lanes."""
    if operands.target.generation == 11 and operands.target.lanes == 64:
        raise operands.instruction.unknown("64 lanes on gfx11")


def backward_permute(operands: Operands) -> Run:
    """Decode DS_BPERMUTE_B32: each lane reads the lane that its address selects, or 0 if that lane is inactive."""
    _refuse_two_halves(operands)
    result, address, data = operands.instruction.operands
    lane, get, put = operands.u32(address), operands.u32(data), operands.put_u32(result)
    offset = operands.instruction.modifiers.number("offset")

    def run(wave: Wave) -> None:
        lanes = ((lane(wave).astype(np.int64) + offset) >> 2) & (wave.lanes - 1)
        put(wave, _fetched(wave, get, _wide(wave, lanes)))

    return run


def forward_permute(operands: Operands) -> Run:
    """Decode DS_PERMUTE_B32: each active lane writes to the lane that its address selects; the highest writer wins."""
    _refuse_two_halves(operands)
    result, address, data = operands.instruction.operands
    lane, get, put = operands.u32(address), operands.u32(data), operands.put_u32(result)
    offset = operands.instruction.modifiers.number("offset")

    def run(wave: Wave) -> None:
        lanes = _wide(wave, ((lane(wave).astype(np.int64) + offset) >> 2) & (wave.lanes - 1))
        given = np.zeros(wave.lanes, np.uint32)
        given[lanes[wave.mask]] = _wide(wave, get(wave))[wave.mask]
        put(wave, given)

    return run


def swizzle(operands: Operands) -> Run:
    """Decode DS_SWIZZLE_B32, which permutes lanes by the pattern in the offset field of the instruction."""
    result, data = operands.instruction.operands
    operands.instruction.modifiers.text("offset")
    pattern = operands.instruction.line.words[0] & 0xFFFF
    lane = np.arange(operands.target.lanes)
    if pattern & 0x8000 and pattern & 0x7F00:
        raise operands.instruction.unknown(f"the pattern {pattern:#x}")
    if pattern & 0x8000:
        lanes = (lane & ~3) + np.array([pattern >> 2 * k & 3 for k in range(4)])[lane & 3]
    else:
        inner = (((lane & 31) & (pattern & 31)) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31)
        lanes = (lane & ~31) | inner
    get, put = operands.u32(data), operands.put_u32(result)
    return lambda wave: put(wave, _fetched(wave, get, lanes))


def transposed_read(operands: Operands) -> Run:
    """Decode DS_READ_B64_TR_B16 and DS_READ_B64_TR_B8, which read a transposed matrix.

    Each group of 16 lanes reads rows of 16 elements, 8 bytes per lane, and each lane receives one column. With 16-bit
    elements, lane 4r + c reads the elements 4c to 4c+3 of row r; with 8-bit elements, lane 2r + c reads the elements 8c
    to 8c+7 of row r. This order is derived from Triton's layouts.
    """
    result, base = operands.instruction.operands
    pc, offset = operands.instruction.address, operands.instruction.modifiers.number("offset")
    address = operands.u32(base)
    puts = [operands.put_u32(result, word) for word in range(2)]
    kind = np.uint16 if operands.instruction.name.endswith("16") else np.uint8

    def run(wave: Wave) -> None:
        if not wave.all_lanes:
            raise operands.instruction.unknown("inactive lanes")
        words = _load(wave, address(wave), offset, 8, pc).T
        # The shape is [group of 16 lanes, row, 16 columns].
        rows = np.ascontiguousarray(words).view(kind).reshape(wave.lanes // 16, -1, 16)
        columns = np.ascontiguousarray(rows.transpose(0, 2, 1)).view(np.uint32).reshape(wave.lanes, 2)
        for word, put in enumerate(puts):
            put(wave, columns[:, word])

    return run


HANDLERS: dict[str, Handler] = {
    "ds_bpermute_b32": backward_permute,
    "ds_permute_b32": forward_permute,
    "ds_swizzle_b32": swizzle,
    "ds_read_b64_tr_b16": transposed_read,
    "ds_read_b64_tr_b8": transposed_read,
}


def handler_of(name: str) -> Handler | None:
    """Return the decoder for an LDS instruction; None if this module does not support the instruction."""
    if name in HANDLERS:
        return HANDLERS[name]
    if match := _PAIR.match(name):
        size = int(match[5]) // 8
        stride = size * (64 if match[2] or match[4] else 1)
        return _pair(load=(match[1] or match[3]) in {"read", "load"}, size=size, stride=stride)
    access = Access(name)
    return _single(access) if name.startswith("ds_") and access.known else None
