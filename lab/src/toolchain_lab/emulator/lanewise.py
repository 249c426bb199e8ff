"""Instructions that do one thing in each lane, as rows of a table: result, sources, and a function of arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from toolchain_lab.emulator.bits import Array
from toolchain_lab.emulator.operands import Get, Operands, Put, Run
from toolchain_lab.emulator.syntax import Instruction
from toolchain_lab.emulator.wave import Wave

Compute = Callable[..., Array]
Handler = Callable[[Operands], Run]


@dataclass(frozen=True, slots=True)
class LaneOp:
    """One instruction.

    Args:
        result: type of the destination, a letter.
        sources: a letter for each source, in order.
        compute: takes an array for each source and gives the result.
        keeps_high: a 16-bit result leaves the upper half of its register as it is on gfx9 too.

    Letters of 32 bits: `u` uint32, `t` uint32 of which the text may name a half, `p` two halves, `i` int32, `f`
    float32, `d` the destination's old value as float32. Of 16 bits: `h` float16, `s` int16, `w` uint16. Of 64 bits: `q`
    uint64, `l` int64, `e` float64, `a` the destination's old value as float64. And `b`: a lane mask, VCC where it is
    left out.
    """

    result: str
    sources: str
    compute: Compute
    keeps_high: bool = False


def handler(row: LaneOp) -> Handler:
    """The decoder of an instruction of the table."""

    def build(operands: Operands) -> Run:
        gets, put = sources_and_put(operands, row)
        if isinstance(row.compute, np.ufunc) and len(gets) == 2 and row.result in "uif":
            return _in_place(operands, row, gets, put)
        compute = _joined(row.compute, gets)
        return lambda wave: put(wave, compute(wave))

    return build


def _in_place(operands: Operands, row: LaneOp, gets: list[Get], put: Put) -> Run:
    """Two sources and a function of numpy's own, which writes straight to the register where all lanes are active."""
    function, (left, right) = row.compute, gets
    index = operands.vector(operands.instruction.operands[0]).index
    letter = row.result
    if letter == "f" and operands.instruction.modifiers.flag("clamp"):
        return lambda wave: put(wave, function(left(wave), right(wave)))

    def run(wave: Wave) -> None:
        if wave.all_lanes:
            rows = wave.u if letter == "u" else wave.f if letter == "f" else wave.i
            function(left(wave), right(wave), out=rows[index])
        else:
            put(wave, function(left(wave), right(wave)))

    return run


def parts(operands: Operands, row: LaneOp) -> tuple[Get, Put]:
    """The function that computes an instruction's result, and the one that writes it."""
    gets, put = sources_and_put(operands, row)
    return _joined(row.compute, gets), put


def sources_and_put(operands: Operands, row: LaneOp) -> tuple[list[Get], Put]:
    """The functions that read an instruction's sources, and the one that writes its result."""
    instruction = operands.instruction
    texts = list(instruction.operands)
    # A compare in its short form names VCC like any destination; other short forms leave it out.
    first = 1 if row.result != "b" or len(texts) > len(row.sources) else 0
    selected = instruction.modifiers.vector("op_sel", [0] * (len(row.sources) + 1)) if _has_halves(row) else []
    gets: list[Get] = []
    position = first
    for number, letter in enumerate(row.sources):
        if letter in "da":
            gets.append(operands.f32(texts[0]) if letter == "d" else operands.f64(texts[0]))
            continue
        if letter == "b" and position >= len(texts):
            gets.append(operands.mask(operands.vcc))
            continue
        high = selected[number] if number < len(selected) else 0
        gets.append(source(operands, letter, texts[position], high))
        position += 1
    if position != len(texts):
        raise instruction.unknown(f"{len(texts)} operands")
    target = texts[0] if first else operands.vcc
    high_result = selected[len(row.sources)] if len(selected) > len(row.sources) else None
    return gets, destination(operands, row, target, high_result or None)


def _has_halves(row: LaneOp) -> bool:
    return any(letter in "hsw" for letter in row.result + row.sources)


def source(operands: Operands, letter: str, text: str, high: int = 0) -> Get:
    """A source by its letter; `high` picks the upper half where it has 16 bits."""
    simple: dict[str, Callable[[str], Get]] = {
        "u": operands.u32,
        "i": operands.i32,
        "f": operands.f32,
        "q": operands.u64,
        "e": operands.f64,
        "b": operands.mask,
        "p": partial(_two_halves, operands),
    }
    if letter in simple:
        return simple[letter](text)
    if letter == "h":
        return operands.half(text, high)
    if letter == "t":
        register = operands.register(text)
        if register is None or register.half is None:
            return operands.u32(text)
        part = operands.half_bits(text)
        return lambda wave: part(wave).astype(np.uint32)
    if letter == "l":
        quad = operands.u64(text)
        return lambda wave: quad(wave).view(np.int64)
    bits = operands.half_bits(text, high)
    return bits if letter == "w" else lambda wave: bits(wave).view(np.int16)


def _two_halves(operands: Operands, text: str) -> Get:
    """Two halves in 32 bits. A constant such as 1.0 is the lower half; the other is 0."""
    if operands.register(text) is not None or text.startswith("0x"):
        return operands.u32(text)
    if text != "0" and "." not in text:
        raise operands.instruction.unknown(f"the constant {text} as two halves")
    value = np.asarray(np.uint32(operands.constant(text, 16)))
    return lambda _: value


def destination(operands: Operands, row: LaneOp, text: str, high: int | None = None) -> Put:
    """The writer of a row's result."""
    letter = row.result
    simple = {"u": operands.put_u32, "i": operands.put_i32, "b": operands.put_mask}
    if letter in simple:
        return simple[letter](text)
    if letter == "f":
        return operands.put_f32(text, clamp=operands.instruction.modifiers.flag("clamp"))
    if letter in "hsw":
        clamp = letter == "h" and operands.instruction.modifiers.flag("clamp")
        zero = operands.target.generation == 9 and not row.keeps_high
        bits = operands.put_half_bits(text, high, zero=zero)

        def put(wave: Wave, value: Array) -> None:
            if clamp:
                value = np.clip(np.nan_to_num(value, nan=0.0), np.float16(0), np.float16(1))
            if letter == "h" and wave.clamps_overflow:
                refuse_overflow(wave, operands.instruction, value)
            bits(wave, np.asarray(value).view(np.uint16))

        return put
    quad, clamps = operands.put_u64(text), letter == "e" and operands.instruction.modifiers.flag("clamp")

    def put_quad(wave: Wave, value: Array) -> None:
        if clamps:
            value = np.clip(np.nan_to_num(value, nan=0.0), 0.0, 1.0)
        quad(wave, np.asarray(value).view(np.uint64))

    return put_quad


def refuse_overflow(wave: Wave, instruction: Instruction, value: Array) -> None:
    """Refuse an infinite half where the mode FP16_OVFL gives the largest number instead, unless a source is infinite.

    Raises:
        NotEmulatedError: an active lane has one.
    """
    if wave.clamps_overflow and np.count_nonzero(np.isinf(value) & wave.mask):
        raise instruction.unknown("an infinite result in the mode FP16_OVFL")


def _joined(compute: Compute, gets: list[Get]) -> Get:
    """The function of a wave that computes from its sources."""
    if len(gets) == 1:
        (get,) = gets
        return lambda wave: compute(get(wave))
    if len(gets) == 2:
        left, right = gets
        return lambda wave: compute(left(wave), right(wave))
    if len(gets) == 3:
        left, right, third = gets
        return lambda wave: compute(left(wave), right(wave), third(wave))
    return lambda wave: compute(*(get(wave) for get in gets))
