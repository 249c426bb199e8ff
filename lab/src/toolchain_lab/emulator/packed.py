"""Packed vector instructions, which compute two results in each lane, and instructions for dot products of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from toolchain_lab.emulator import float_math
from toolchain_lab.emulator.bits import Array
from toolchain_lab.emulator.integer_math import amount16
from toolchain_lab.emulator.lanewise import Compute, Handler, refuse_overflow
from toolchain_lab.emulator.operands import Get, Operands, Run
from toolchain_lab.emulator.registers import signs_of
from toolchain_lab.emulator.vector_integer import bounded
from toolchain_lab.emulator.wave import Wave


def _selection(operands: Operands, count: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return the values of the modifiers op_sel, op_sel_hi, neg_lo and neg_hi, each with an element for each source.

    For the low result, op_sel selects the half of each source that is used, and neg_lo negates it; op_sel_hi and neg_hi
    do the same for the high result.
    """
    modifiers = operands.instruction.modifiers
    return (
        modifiers.vector("op_sel", [0] * count),
        modifiers.vector("op_sel_hi", [1] * count),
        modifiers.vector("neg_lo", [0] * count),
        modifiers.vector("neg_hi", [0] * count),
    )


def _negated(get: Get) -> Get:
    return lambda wave: -get(wave)


def _float_pair(operands: Operands, text: str, part: int) -> Get:
    """Return the function that reads one of the two float32 numbers in a source; a 32-bit source stands for both."""
    register = operands.register(text)
    if register is None or register.count == 1:
        return operands.f32(text)
    return operands.f32(text, part)


def _packed_f32(compute: Compute, count: int) -> Handler:
    def build(operands: Operands) -> Run:
        low, high, negate_low, negate_high = _selection(operands, count)
        texts = operands.instruction.operands
        if len(texts) != count + 1:
            raise operands.instruction.unknown(f"{len(texts)} operands")

        def sources(selected: Sequence[int], negated: Sequence[int]) -> list[Get]:
            gets = [_float_pair(operands, texts[1 + k], selected[k]) for k in range(count)]
            return [_negated(get) if negated[k] else get for k, get in enumerate(gets)]

        first, second = sources(low, negate_low), sources(high, negate_high)
        put_first, put_second = operands.put_f32(texts[0]), operands.put_f32(texts[0], 1)

        def run(wave: Wave) -> None:
            below = compute(*(get(wave) for get in first))
            above = compute(*(get(wave) for get in second))
            put_first(wave, below)
            put_second(wave, above)

        return run

    return build


def _packed_half(compute: Compute, count: int, kind: type[np.generic]) -> Handler:
    def build(operands: Operands) -> Run:
        low, high, negate_low, negate_high = _selection(operands, count)
        texts = operands.instruction.operands
        if len(texts) != count + 1:
            raise operands.instruction.unknown(f"{len(texts)} operands")
        is_float = issubclass(kind, np.floating)
        if not is_float and any(negate_low + negate_high):
            raise operands.instruction.unknown("neg_lo or neg_hi on integers")

        def sources(selected: Sequence[int], negated: Sequence[int]) -> list[Get]:
            gets: list[Get] = []
            for k in range(count):
                if is_float:
                    get = operands.half(texts[1 + k], selected[k], packed=True)
                else:
                    get = _typed(operands.half_bits(texts[1 + k], selected[k], packed=True), kind)
                gets.append(_negated(get) if negated[k] else get)
            return gets

        first, second = sources(low, negate_low), sources(high, negate_high)
        put_first, put_second = operands.put_half_bits(texts[0], 0), operands.put_half_bits(texts[0], 1)
        register = operands.vector(texts[0])
        operands.reads.difference_update(register.names)
        for text in texts[1:]:
            if (source := operands.register(signs_of(text).text)) is not None:
                operands.read(source, 1)

        def run(wave: Wave) -> None:
            below = np.asarray(compute(*(get(wave) for get in first)))
            above = np.asarray(compute(*(get(wave) for get in second)))
            if is_float and wave.clamps_overflow:
                refuse_overflow(wave, operands.instruction, below)
                refuse_overflow(wave, operands.instruction, above)
            put_first(wave, below.view(np.uint16))
            put_second(wave, above.view(np.uint16))

        return run

    return build


def _typed(bits: Get, kind: type[np.generic]) -> Get:
    return lambda wave: bits(wave).view(kind)


def move_pair(operands: Operands) -> Run:
    """Decode V_PK_MOV_B32, which moves one register of each source; op_sel selects the registers."""
    result, first, second = operands.instruction.operands
    modifiers = operands.instruction.modifiers
    selected = modifiers.vector("op_sel", [0, 0])
    modifiers.vector("op_sel_hi", [1, 1])  # the hardware ignores it
    get_first, get_second = _word(operands, first, selected[0]), _word(operands, second, selected[1])
    put_first, put_second = operands.put_u32(result), operands.put_u32(result, 1)

    def run(wave: Wave) -> None:
        below, above = np.array(get_first(wave)), np.array(get_second(wave))
        put_first(wave, below)
        put_second(wave, above)

    return run


def _word(operands: Operands, text: str, part: int) -> Get:
    register = operands.register(text)
    if register is None and part and text != "0":
        raise operands.instruction.unknown(f"the upper half of the constant {text}")
    return operands.u32(text, part if register is not None and register.count > 1 else 0)


def pack_halves(operands: Operands) -> Run:
    """Decode V_PACK_B32_F16, which packs two float16 sources into one register."""
    result, first, second = operands.instruction.operands
    selected = operands.instruction.modifiers.vector("op_sel", [0, 0, 0])
    low, high = operands.half(first, selected[0]), operands.half(second, selected[1])
    put = operands.put_u32(result)

    def run(wave: Wave) -> None:
        below, above = low(wave).view(np.uint16), high(wave).view(np.uint16)
        put(wave, below.astype(np.uint32) | above.astype(np.uint32) << np.uint32(16))

    return run


def _sum(kind: type[np.generic], *, subtract: bool) -> Handler:
    """Return the decoder for a packed addition or subtraction of 16-bit integers, which wraps unless `clamp` is set."""
    wrapping = np.subtract if subtract else np.add

    def build(operands: Operands) -> Run:
        clamp = operands.instruction.modifiers.flag("clamp")
        return _packed_half(bounded(kind, subtract=subtract) if clamp else wrapping, 2, kind)(operands)

    return build


def _bytes(get: Get, *, signed: bool) -> Callable[[Wave], Array]:
    """Return the function that reads the four bytes of a source as `int32[lanes, 4]`."""
    kind = np.int8 if signed else np.uint8

    def read(wave: Wave) -> Array:
        words = np.ascontiguousarray(np.broadcast_to(get(wave), (wave.lanes,)))
        return words.view(kind).reshape(-1, 4).astype(np.int32)

    return read


def _dot4(first: bool, second: bool, *, chosen: bool = False) -> Handler:
    """Return the decoder for an instruction that adds four products of bytes to a third source or to its destination.

    Args:
        first, second: whether the bytes of the first and of the second source are signed.
        chosen: whether the modifier neg_lo determines which sources are signed, instead of `first` and `second`.
    """

    def build(operands: Operands) -> Run:
        texts, modifiers = operands.instruction.operands, operands.instruction.modifiers
        if modifiers.flag("clamp"):
            raise operands.instruction.unknown("the modifier clamp")
        signs = modifiers.vector("neg_lo", [0, 0, 0]) if chosen else [first, second]
        left, right = (_bytes(operands.u32(texts[1 + k]), signed=bool(signs[k])) for k in (0, 1))
        add, put = operands.i32(texts[3] if len(texts) > 3 else texts[0]), operands.put_i32(texts[0])
        return lambda wave: put(wave, (left(wave) * right(wave)).sum(1, dtype=np.int32) + add(wave))

    return build


HANDLERS: dict[str, Handler] = {
    "v_pk_add_f32": _packed_f32(np.add, 2),
    "v_pk_mul_f32": _packed_f32(np.multiply, 2),
    "v_pk_fma_f32": _packed_f32(float_math.fma, 3),
    "v_pk_add_f16": _packed_half(np.add, 2, np.float16),
    "v_pk_mul_f16": _packed_half(np.multiply, 2, np.float16),
    "v_pk_fma_f16": _packed_half(float_math.fma_half, 3, np.float16),
    **dict.fromkeys(("v_pk_max_f16", "v_pk_max_num_f16"), _packed_half(float_math.maximum, 2, np.float16)),
    **dict.fromkeys(("v_pk_min_f16", "v_pk_min_num_f16"), _packed_half(float_math.minimum, 2, np.float16)),
    "v_pk_add_u16": _sum(np.uint16, subtract=False),
    "v_pk_sub_u16": _sum(np.uint16, subtract=True),
    "v_pk_mul_lo_u16": _packed_half(lambda a, b: a * b, 2, np.uint16),
    "v_pk_max_u16": _packed_half(np.maximum, 2, np.uint16),
    "v_pk_min_u16": _packed_half(np.minimum, 2, np.uint16),
    "v_pk_add_i16": _sum(np.int16, subtract=False),
    "v_pk_sub_i16": _sum(np.int16, subtract=True),
    "v_pk_mad_u16": _packed_half(lambda a, b, c: a * b + c, 3, np.uint16),
    "v_pk_mad_i16": _packed_half(lambda a, b, c: a * b + c, 3, np.int16),
    "v_pk_ashrrev_i16": _packed_half(lambda a, b: b >> (a & np.int16(15)), 2, np.int16),
    "v_pk_maximum3_f16": _packed_half(float_math.maximum_or_nan, 3, np.float16),
    "v_pk_minimum3_f16": _packed_half(float_math.minimum_or_nan, 3, np.float16),
    "v_pk_max_i16": _packed_half(np.maximum, 2, np.int16),
    "v_pk_min_i16": _packed_half(np.minimum, 2, np.int16),
    "v_pk_lshlrev_b16": _packed_half(lambda a, b: b << amount16(a), 2, np.uint16),
    "v_pk_lshrrev_b16": _packed_half(lambda a, b: b >> amount16(a), 2, np.uint16),
    "v_pk_mov_b32": move_pair,
    **dict.fromkeys(("v_dot4_i32_i8", "v_dot4c_i32_i8"), _dot4(True, True)),
    "v_dot4_u32_u8": _dot4(False, False),
    "v_dot4_i32_iu8": _dot4(False, False, chosen=True),
    "v_pack_b32_f16": pack_halves,
}
