"""Atomic instructions on memory and LDS. The lanes of a wave execute them one after the other, in ascending order."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from toolchain_lab.emulator import float_math
from toolchain_lab.emulator.bits import Array, round_bf16, split_quads, widen_bf16
from toolchain_lab.emulator.buffers import BufferAddress
from toolchain_lab.emulator.errors import FaultyKernelError
from toolchain_lab.emulator.lanewise import Handler
from toolchain_lab.emulator.loads import active, global_address, spread
from toolchain_lab.emulator.local import places
from toolchain_lab.emulator.operands import Operands, Run
from toolchain_lab.emulator.wave import Wave

# A `Change` computes the new value from the old value and the lane's operands. All are numpy scalars of one type.
Change = Callable[..., Any]
_NAME = re.compile(r"(global|flat|buffer)_atomic_(\w+)$")
_LDS = re.compile(r"ds_(add|sub|min|max|and|or|xor)(?:_num)?(_rtn)?_([iub]\d+|f32|f64)$")
_INTEGERS: dict[str, Change] = {
    "add": lambda old, new: old + new, "sub": lambda old, new: old - new, "min": min, "max": max,
    "and": lambda old, new: old & new, "or": lambda old, new: old | new, "xor": lambda old, new: old ^ new,
    "swap": lambda _, new: new,
}  # fmt: skip
_FLOATS: dict[str, Change] = {
    "add": lambda old, new: old + new,
    "min": lambda old, new: float_math.minimum(old, new)[()],
    "max": lambda old, new: float_math.maximum(old, new)[()],
}
_TYPES: dict[str, type[np.generic]] = {
    "u32": np.uint32, "i32": np.int32, "b32": np.uint32, "u64": np.uint64, "i64": np.int64, "b64": np.uint64,
    "f32": np.float32, "f64": np.float64,
}  # fmt: skip


def _pair_of_halves(old: np.generic, new: np.generic) -> np.generic:
    total = np.array(old, np.uint32).reshape(1).view(np.float16) + np.array(new, np.uint32).reshape(1).view(np.float16)
    return np.uint32(total.view(np.uint32)[0])


def _pair_of_bf16(old: np.generic, new: np.generic) -> np.generic:
    left, right = (widen_bf16(np.array(each, np.uint32).reshape(1).view(np.uint16)) for each in (old, new))
    return np.uint32(round_bf16(left + right).view(np.uint32)[0])


def _change(name: str) -> tuple[Change, type[np.generic]] | None:
    """Return the operation that the end of a mnemonic names, and its numeric type; None if the name is unknown."""
    if name in {"pk_add_f16", "pk_add_bf16"}:
        return (_pair_of_halves if name.endswith("f16") and "bf16" not in name else _pair_of_bf16), np.uint32
    name = name.replace("_num_", "_")
    operation, _, kind = name.rpartition("_")
    if kind not in _TYPES:
        # On gfx9, the signedness is a prefix of the operation, as in `smax`, and the suffix `_x2` means 64 bits.
        wide = name.endswith("_x2")
        operation = name.removesuffix("_x2")
        sign = operation in {"smin", "smax"}
        if operation in {"smin", "smax", "umin", "umax"}:
            operation = operation[1:]
        kind = ("i" if sign else "u") + ("64" if wide else "32")
    table = _FLOATS if kind[0] == "f" else _INTEGERS
    return (table[operation], _TYPES[kind]) if operation in table else None


def _flushing_sum(old: Any, new: Any) -> Any:
    """Add two float32 numbers, with denormals replaced by 0."""
    return float_math.flushed(old)[()] + float_math.flushed(new)[()]


def _returns(operands: Operands) -> bool:
    """Return whether an atomic instruction returns the old value."""
    modifiers = operands.instruction.modifiers
    if operands.target.generation == 12:
        return "RETURN" in modifiers.text("th")
    return modifiers.flag("sc0" if operands.target.cdna3 or operands.target.gpu == "gfx950" else "glc")


def _numbers(wave: Wave, first: int, kind: np.dtype[np.generic], lanes: Array | None) -> Array:
    """Return the numbers in vector registers, for the lanes in the mask `lanes` or, if it is None, the active lanes."""
    rows = [row if lanes is None else row[lanes] for row in wave.u[first : first + kind.itemsize // 4]]
    if lanes is None:
        rows = [active(wave, row) for row in rows]
    return np.ascontiguousarray(np.stack(rows, axis=1)).view(kind).reshape(-1)


def _compare_and_swap(old: Any, new: Any, wanted: Any) -> Any:
    return new if old == wanted else old


def _apply(data: Array, place: Array, change: Change, *values: Array) -> Array:
    """Apply an atomic operation to memory at the byte offsets `place`, lane by lane, and return the old values."""
    kind = values[0].dtype
    memory, old = data[: len(data) // kind.itemsize * kind.itemsize].view(kind), np.zeros_like(values[0])
    for lane, number in enumerate(place // kind.itemsize):
        old[lane] = memory[number]
        memory[number] = change(old[lane], *(each[lane] for each in values))
    return old


def _nowhere(_: Wave) -> Array:
    return np.zeros(0, np.uint64)


def _words(values: Array) -> Array:
    """Convert 32-bit or 64-bit numbers to the contents of registers, `uint32[words, lanes]`."""
    if values.dtype.itemsize == 4:
        return values.view(np.uint32)[None]
    return np.stack(split_quads(values.view(np.uint64)))


def _memory(form: str, change: Change, kind: type[np.generic], *, operands_of_lane: int = 1) -> Handler:
    """Return the decoder for an atomic instruction on memory.

    Args:
        operands_of_lane: the number of values in each lane's data: 2 for a compare-and-swap, and otherwise 1.
    """

    def build(operands: Operands) -> Run:
        texts, pc = list(operands.instruction.operands), operands.instruction.address
        dtype = np.dtype(kind)
        size, words = dtype.itemsize, dtype.itemsize // 4
        returns = _returns(operands)
        # CDNA2 flushes denormal operands of these additions in every mode, and LLVM assumes that later GPUs do not.
        flushes = kind is np.float32 and change is _FLOATS["add"] and operands.target.gpu == "gfx90a"
        apply = _flushing_sum if flushes else change
        buffer = BufferAddress(operands, texts[1], texts[2], texts[3], size) if form == "buffer" else None
        result = texts[0] if returns else None
        if form != "buffer" and returns:
            texts.pop(0)
        if len(texts) != {"buffer": 4, "global": 3, "flat": 2}[form]:
            raise operands.instruction.unknown(f"{len(texts)} operands")
        scalar = texts[2] if form == "global" else None
        address = _nowhere if buffer is not None else global_address(operands, texts[0], scalar)
        data = operands.read(operands.vector(texts[0 if buffer is not None else 1]), words * operands_of_lane)
        puts = [] if result is None else [operands.put_u32(result, word) for word in range(words)]

        def run(wave: Wave) -> None:
            memory, lanes = wave.group.memory, None
            if buffer is not None:
                addresses, lanes = buffer.of(wave)
                addresses = addresses[lanes]
            else:
                addresses = active(wave, address(wave))
            place = memory.places(addresses, size, "an atomic access", pc, write=True)
            if (place % size).any():
                raise FaultyKernelError(
                    "misaligned-atomic", f"an atomic access at {pc:#x} is not aligned to its {size} bytes"
                )
            values = [_numbers(wave, data.index + words * one, dtype, lanes) for one in range(operands_of_lane)]
            if wave.group.accesses is not None:
                wave.group.accesses.memory.change(place, size, wave.owners(lanes))
            old = _apply(memory.views.bytes, place, apply, *values)
            for put, row in zip(puts, spread(wave, _words(old), lanes), strict=bool(puts)):
                put(wave, row)

        return run

    return build


def _lds(change: Change, kind: type[np.generic], *, returns: bool) -> Handler:
    def build(operands: Operands) -> Run:
        texts, pc = list(operands.instruction.operands), operands.instruction.address
        offset, dtype = operands.instruction.modifiers.number("offset"), np.dtype(kind)
        result = texts.pop(0) if returns else None
        address, data = operands.u32(texts[0]), operands.read(operands.vector(texts[1]), dtype.itemsize // 4)
        words = dtype.itemsize // 4
        puts = [] if result is None else [operands.put_u32(result, word) for word in range(words)]

        def run(wave: Wave) -> None:
            place, _ = places(wave, address(wave), offset, dtype.itemsize, pc)
            if (place % dtype.itemsize).any():
                raise FaultyKernelError(
                    "misaligned-atomic", f"an atomic access at {pc:#x} is not aligned to its {dtype.itemsize} bytes"
                )
            if wave.group.accesses is None:
                wave.group.lds.note_atomic(place, dtype.itemsize, pc)
            else:
                wave.group.accesses.lds.change(place, dtype.itemsize, wave.owners())
            old = _apply(wave.group.lds.bytes, place, change, _numbers(wave, data.index, dtype, None))
            for put, row in zip(puts, spread(wave, _words(old)), strict=bool(puts)):
                put(wave, row)

        return run

    return build


def handler_of(name: str) -> Handler | None:
    """Return the decoder for an atomic instruction; None if this module does not support the instruction."""
    if match := _LDS.match(name):
        found = _change(f"{match[1]}_{match[3]}")
        return None if found is None else _lds(*found, returns=match[2] is not None)
    if (match := _NAME.match(name)) is None:
        return None
    form, rest = match[1], match[2]
    if rest.startswith("cmpswap"):
        wide = rest in {"cmpswap_x2", "cmpswap_b64"}
        known = wide or rest in {"cmpswap", "cmpswap_b32"}
        kind = np.uint64 if wide else np.uint32
        return _memory(form, _compare_and_swap, kind, operands_of_lane=2) if known else None
    found = _change(rest)
    return None if found is None else _memory(form, *found)
