"""Decoding of instructions that compute each lane independently; a `LaneOp` describes each instruction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolchain_lab.emulator.bits import Array, clamped
from toolchain_lab.emulator.operands import Get, Operands, Put, Run
from toolchain_lab.emulator.syntax import Instruction
from toolchain_lab.emulator.wave import Wave

Compute = Callable[..., Array]
# This maps the letters of a `LaneOp` for the destination's old value to the letters of its type.
_OLD = {"d": "f", "a": "e", "o": "h"}
Handler = Callable[[Operands], Run]


@dataclass(frozen=True, slots=True)
class LaneOp:
    """The operand types and the numpy function of an instruction that computes each lane independently.

    The fields `result` and `sources` contain a letter for the type of the destination and of each source.

    The letters of 32-bit types are `u` for uint32, `t` for uint32 or one half of a register, `p` for both halves of a
    register, `i` for int32, `f` for float32, and `d` for the destination's old value as float32. The letters of 16-bit
    types are `h` for float16, `s` for int16, `w` for uint16, and `o` for the destination's old value as float16. The
    letters of 64-bit types are `q` for uint64, `l` for int64, `e` for float64, and `a` for the destination's old value
    as float64. The letter `b` is for a lane mask, which is VCC if the instruction's text omits it.

    Args:
        keeps_high: whether a 16-bit result preserves the upper half of its register on gfx9, where other 16-bit
            instructions set that half to 0. Later GPUs always preserve it.
    """

    result: str
    sources: str
    compute: Compute
    keeps_high: bool = False


def handler(row: LaneOp) -> Handler:
    """Return the decoder for the instruction that `row` describes."""

    def build(operands: Operands) -> Run:
        gets, put = sources_and_put(operands, row)
        if isinstance(row.compute, np.ufunc) and len(gets) == 2 and row.result in "uif":
            return _in_place(operands, row, gets, put)
        compute = _joined(row.compute, gets)
        return lambda wave: put(wave, compute(wave))

    return build


def _in_place(operands: Operands, row: LaneOp, gets: list[Get], put: Put) -> Run:
    """Return the function that applies a ufunc to two sources and writes the result.

    If all lanes are active and no clamp is needed, the ufunc writes directly to the register, which avoids a copy.
    """
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
    """Return the function that computes an instruction's result, and the function that writes it."""
    gets, put = sources_and_put(operands, row)
    return _joined(row.compute, gets), put


def sources_and_put(operands: Operands, row: LaneOp) -> tuple[list[Get], Put]:
    """Return the functions that read an instruction's sources, and the function that writes its result."""
    instruction = operands.instruction
    texts = list(instruction.operands)
    # On gfx11 and later, V_CMPX names no destination, because it writes only EXEC. VCC stands for the destination
    # here, and the module `compare` does not write it.
    first = 1 if row.result != "b" or len(texts) > len(row.sources) else 0
    selected = instruction.modifiers.vector("op_sel", [0] * (len(row.sources) + 1)) if _has_halves(row) else []
    gets: list[Get] = []
    position = first
    for number, letter in enumerate(row.sources):
        high = selected[number] if number < len(selected) else 0
        if letter in _OLD:
            gets.append(source(operands, _OLD[letter], texts[0], high))
            continue
        if letter == "b" and position >= len(texts):
            gets.append(operands.mask(operands.vcc))
            continue
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
    """Return the function that reads one source of the type `letter` (see `LaneOp`).

    Args:
        high: for a 16-bit type, 1 for the upper half of a register, 0 for the lower; ignored if `text` names a half.
    """
    if letter in _SOURCES:
        return _SOURCES[letter](operands, text)
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
    """Return the function that reads two halves as 32 bits. The upper half of a constant such as 1.0 is 0 on gfx9.

    On later GPUs, such a constant is refused: AMD's manuals say that both halves are 1.0, but LLVM assumes 0.
    """
    if operands.register(text) is not None or text.startswith("0x"):
        return operands.u32(text)
    if text != "0" and ("." not in text or operands.target.generation > 9):
        raise operands.instruction.unknown(f"the constant {text} as two halves")
    value = np.asarray(np.uint32(operands.constant(text, 16)))
    return lambda _: value


_SOURCES: dict[str, Callable[[Operands, str], Get]] = {
    "u": Operands.u32,
    "i": Operands.i32,
    "f": Operands.f32,
    "q": Operands.u64,
    "e": Operands.f64,
    "b": Operands.mask,
    "p": _two_halves,
}
_DESTINATIONS: dict[str, Callable[[Operands, str], Put]] = {
    "u": Operands.put_u32,
    "i": Operands.put_i32,
    "b": Operands.put_mask,
}


def destination(operands: Operands, row: LaneOp, text: str, high: int | None = None) -> Put:
    """Return the function that writes a result; for a 16-bit type, `high` is as in `Operands.put_half_bits`."""
    letter = row.result
    if letter in _DESTINATIONS:
        return _DESTINATIONS[letter](operands, text)
    if letter == "f":
        return operands.put_f32(text, clamp=operands.instruction.modifiers.flag("clamp"))
    if letter in "hsw":
        clamp = letter == "h" and operands.instruction.modifiers.flag("clamp")
        zero = operands.target.generation == 9 and not row.keeps_high
        bits = operands.put_half_bits(text, high, zero=zero)

        def put(wave: Wave, value: Array) -> None:
            if clamp:
                value = clamped(value)
            if letter == "h" and wave.clamps_overflow:
                refuse_overflow(wave, operands.instruction, value)
            bits(wave, np.asarray(value).view(np.uint16))

        return put
    quad, clamps = operands.put_u64(text), letter == "e" and operands.instruction.modifiers.flag("clamp")

    def put_quad(wave: Wave, value: Array) -> None:
        if clamps:
            value = clamped(value)
        quad(wave, np.asarray(value).view(np.uint64))

    return put_quad


def refuse_overflow(wave: Wave, instruction: Instruction, value: Array) -> None:
    """Raise NotEmulatedError if the value in an active lane is infinite while the mode FP16_OVFL is set.

    In that mode, the hardware replaces an overflow by the largest finite number, but keeps an infinity that comes from
    a source. The value alone does not distinguish the two cases.
    """
    if wave.clamps_overflow and np.count_nonzero(np.isinf(value) & wave.mask):
        raise instruction.unknown("an infinite result in the mode FP16_OVFL")


def refuse_matrix_overflow(wave: Wave, instruction: Instruction, overflows: Array) -> None:
    """Raise NotEmulatedError if an MFMA instruction overflows in any lane while the mode FP16_OVFL is set.

    In that mode, CDNA replaces an overflow by the largest number of the type. WMMA instructions ignore the mode.

    Args:
        overflows: whether each result is infinite, or outside of the range of an integer type.
    """
    if wave.clamps_overflow and wave.target.generation == 9 and np.count_nonzero(overflows):
        raise instruction.unknown("an overflow in the mode FP16_OVFL")


def of_three(
    maximum: Compute, minimum: Compute, median: Compute, types: Mapping[str, Sequence[str]]
) -> dict[str, LaneOp]:
    """Return the rows, by mnemonic, of the instructions that select one of three numbers.

    Args:
        maximum, minimum: functions of two numbers.
        types: the suffixes of the mnemonics for each letter of a type.
    """
    functions: dict[str, Compute] = {
        "max3": lambda a, b, c: maximum(maximum(a, b), c),
        "min3": lambda a, b, c: minimum(minimum(a, b), c),
        "med3": median,
        "maxmin": lambda a, b, c: minimum(maximum(a, b), c),
        "minmax": lambda a, b, c: maximum(minimum(a, b), c),
    }
    return {
        f"v_{name}_{kind}": LaneOp(letter, letter * 3, compute)
        for name, compute in functions.items()
        for letter, kinds in types.items()
        for kind in kinds
    }


def _joined(compute: Compute, gets: list[Get]) -> Get:
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
