"""Execution of instructions for all waves at once, even if scalar registers that they read differ between waves.

The supported instructions copy or combine lane masks, or move the value of a lane to or from a scalar register.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from toolchain_lab.emulator.batch import Batch
from toolchain_lab.emulator.bits import WORD, Array
from toolchain_lab.emulator.operands import Operands
from toolchain_lab.emulator.scalar import LOGIC, SAVE_EXEC
from toolchain_lab.emulator.syntax import Instruction
from toolchain_lab.emulator.wave import EXEC, Target

RunBatch: TypeAlias = Callable[[Batch], None]
_Source = Callable[[Batch], Array]
_LOGIC = re.compile(r"s_(?P<name>[a-z]+\d?|and_not[01]|or_not1)(?P<saves>_saveexec)?_b(?P<width>32|64)$")
_COMPUTE = {**LOGIC, **SAVE_EXEC}
LANE_MOVES = frozenset({"v_readfirstlane_b32", "v_readlane_b32", "v_writelane_b32"})


def rows_of(instruction: Instruction, target: Target) -> RunBatch | None:
    """Return the function that executes an instruction for all waves; None if the instruction is not supported."""
    operands = Operands(target, instruction)
    if instruction.name in LANE_MOVES:
        return _lane_move(operands)
    match = _LOGIC.match(instruction.name)
    if match is None or int(match["width"]) != target.lanes:
        return None
    place, name, words = _place(operands, instruction.operands[0]), match["name"], target.lanes // 32
    sources = [source for text in instruction.operands[1:] if (source := _source(operands, text)) is not None]
    if place is None or len(sources) + 1 != len(instruction.operands):
        return None
    if name in {"mov", "not"} and not match["saves"]:
        return _move(place, sources[0], words) if name == "mov" else _logic(place, [*sources, _ones], "xor", words)
    if name not in _COMPUTE:
        return None
    return _save_exec(place, sources[0], name, words) if match["saves"] else _logic(place, sources, name, words)


def _ones(_: Batch) -> Array:
    return np.array([WORD], np.uint32)


def _place(operands: Operands, text: str) -> int | None:
    register = operands.register(text)
    return None if register is None or register.vector or text == "null" else register.index


def _source(operands: Operands, text: str) -> _Source | None:
    """Return the function that reads a lane mask for all waves; None if this module does not support the operand."""
    words = operands.target.lanes // 32
    register = operands.register(text)
    if register is None:
        if not text.lstrip("-").isdigit():
            return None
        bits = operands.constant(text, 32 * words)
        value = np.array([bits >> 32 * word & WORD for word in range(words)], np.uint32)
        return lambda _: value
    if register.vector or text == "null":
        return None
    index = register.index
    return lambda batch: batch.rows[:, index : index + words]


def _put(batch: Batch, place: int, words: int, value: Array) -> None:
    batch.rows[:, place : place + words] = value
    if place == EXEC:
        batch.exec_changed()


def _move(place: int, source: _Source, words: int) -> RunBatch:
    return lambda batch: _put(batch, place, words, source(batch))


def _logic(place: int, sources: list[_Source], name: str, words: int) -> RunBatch:
    compute, (left, right) = _COMPUTE[name], sources

    def run(batch: Batch) -> None:
        value = compute(left(batch), right(batch))
        if value.ndim < 2:
            value = np.broadcast_to(value, (len(batch.waves), words))
        _put(batch, place, words, value)
        batch.set_flags(value)

    return run


def _save_exec(place: int, source: _Source, name: str, words: int) -> RunBatch:
    compute = _COMPUTE[name]

    def run(batch: Batch) -> None:
        old = batch.rows[:, EXEC : EXEC + words].copy()
        value = compute(source(batch), old)
        _put(batch, place, words, old)
        _put(batch, EXEC, words, value)
        batch.set_flags(value)

    return run


def _lane_move(operands: Operands) -> RunBatch | None:
    result, source, *rest = operands.instruction.operands
    to_lane = operands.instruction.name == "v_writelane_b32"
    place, vector = (source, result) if to_lane else (result, source)
    index, register = _place(operands, place), operands.register(vector)
    if index is None or register is None or not register.vector or register.half is not None:
        return None
    if index >= EXEC and not to_lane:
        return None
    number = register.index
    if not rest:
        return lambda batch: _first_lane(batch, index, number)
    if not rest[0].isdigit():
        return None
    lane = int(rest[0]) % operands.target.lanes

    def write(batch: Batch) -> None:
        batch.u[number][lane :: batch.width] = batch.rows[:, index]

    def read(batch: Batch) -> None:
        batch.rows[:, index] = batch.u[number][lane :: batch.width]

    return write if to_lane else read


def _first_lane(batch: Batch, index: int, number: int) -> None:
    values = batch.by_wave(batch.u[number])
    if batch.all_lanes:
        batch.rows[:, index] = values[:, 0]
    else:
        first = batch.by_wave(batch.mask).argmax(axis=1)
        batch.rows[:, index] = values[batch.members, first]
