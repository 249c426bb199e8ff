"""Decoding of instructions into functions that execute them, with the registers that they read and write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from toolchain_lab.emulator import (
    atomics,
    buffers,
    calls,
    compare,
    conversions,
    double,
    lanes,
    lanewise,
    loads,
    local,
    matrix,
    matrix_types,
    packed,
    scalar,
    scalar_float,
    vector_float,
    vector_integer,
)
from toolchain_lab.emulator.control import ends_block, has_no_effect
from toolchain_lab.emulator.disassembly import Line
from toolchain_lab.emulator.lanewise import Handler, LaneOp
from toolchain_lab.emulator.operands import Get, Operands, Put, Run
from toolchain_lab.emulator.syntax import Instruction, parse
from toolchain_lab.emulator.wave import EXEC, Target, Wave

if TYPE_CHECKING:
    from toolchain_lab.emulator.batch import Batch

_LANE_OPS: dict[str, LaneOp] = {
    **vector_integer.LANE_OPS,
    **vector_float.LANE_OPS,
    **double.LANE_OPS,
    **compare.LANE_OPS,
}
_HANDLERS: dict[str, Handler] = {
    **{name: lanewise.handler(row) for name, row in _LANE_OPS.items()},
    **vector_integer.HANDLERS,
    **vector_float.HANDLERS,
    **double.HANDLERS,
    **compare.HANDLERS,
    **packed.HANDLERS,
    **lanes.HANDLERS,
    **scalar.HANDLERS,
    **scalar_float.HANDLERS,
    **loads.HANDLERS,
    **calls.HANDLERS,
}
_FINDERS: tuple[Callable[[str], Handler | None], ...] = (
    matrix.handler_of,
    matrix_types.handler_of,
    conversions.handler_of,
    atomics.handler_of,
    loads.handler_of,
    buffers.handler_of,
    local.handler_of,
)
# V_CNDMASK_B32 reads its sources as floats if one of them has the modifier `neg` or `abs`.
_CHOICE = "v_cndmask_b32"
_DPP = frozenset({"dpp", "e64_dpp", "dpp8"})
_MATRIX = ("v_mfma_", "v_wmma_")
_NONE: frozenset[int] = frozenset()
_EXECS = {lanes_: frozenset(range(EXEC, EXEC + lanes_ // 32)) for lanes_ in (32, 64)}
_FLOAT_CHOICE = LaneOp("f", "ffb", vector_integer.choose)


# These constants describe how an instruction can run for all waves of a workgroup; see `plan`. A SCALAR instruction has
# one result for a wave, and a LANES instruction has one for each lane. Both can run once for all waves if the scalar
# registers that they read, except for lane masks, are the same in all waves, but a SCALAR instruction that writes EXEC
# cannot. A WAVE instruction runs once for each wave, unless the module `rows` supports it. An ORDERED instruction
# requires that the waves run one after the other.
SCALAR, LANES, WAVE, ORDERED = "scalar", "lanes", "wave", "ordered"


@dataclass(slots=True, eq=False)
class Operation:
    """A decoded instruction.

    Args:
        run: the function that executes the instruction for a wave; None if the instruction changes neither registers
            nor memory, such as a wait, a branch or a barrier.
        reads, writes: the registers that are read and written, numbered as in the module `registers`.
        names: the mnemonic; for a dual-issue instruction, both mnemonics.
        spared: the halves of `reads` and `writes` that are not accessed, numbered as in `Operands.half_reads`.
        kept: the halves of `writes` that are not written.
        how: how the instruction can run for several waves: `SCALAR`, `LANES`, `WAVE` or `ORDERED`.
        masks: the scalar registers that are read as lane masks.
        numbers: the scalar registers, including SCC, that are read as numbers.
        effects: the `scoreboard.Effects` of the instruction; None until the scoreboard computes them.
        rows: a sequence with the function that runs the instruction for all waves of a batch, or with None if there is
            no such function; empty until a plan looks for it.
    """

    instruction: Instruction
    run: Run | None
    reads: frozenset[int]
    writes: frozenset[int]
    names: tuple[str, ...]
    spared: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    how: str = LANES
    masks: frozenset[int] = frozenset()
    numbers: frozenset[int] = frozenset()
    effects: object = None
    rows: Sequence[Callable[[Batch], None] | None] = ()

    @property
    def scalar_reads(self) -> frozenset[int]:
        return self.masks | self.numbers


def decode(line: Line, target: Target) -> Operation:
    """Decode an instruction; raise NotEmulatedError if it, an operand or a modifier is not supported."""
    if "::" in line.text:
        return _dual(line, target)
    instruction = parse(line)
    if has_no_effect(instruction) or (ends_block(instruction) and not calls.jumps(instruction)):
        return Operation(instruction, None, _NONE, _NONE, (instruction.name,))
    operands = Operands(target, instruction)
    try:
        run = _build(operands)
    except (ValueError, IndexError, KeyError) as error:
        raise instruction.unknown("operands of an unexpected form") from error
    if left := instruction.modifiers.left():
        raise instruction.unknown(f"the modifier {', '.join(left)}")
    reads, writes, spared, kept = operands.accesses()
    return Operation(
        instruction,
        run,
        reads | _EXECS[target.lanes] if _reads_exec(instruction.name) else reads,
        writes,
        (instruction.name,),
        spared,
        kept,
        _how(instruction.name, instruction.suffix),
        frozenset(operands.masks) if operands.masks else _NONE,
        operands.numbers,
    )


@cache
def _reads_exec(name: str) -> bool:
    return name.startswith("v_") and not name.startswith(("v_readlane", "v_writelane"))


@cache
def _how(name: str, suffix: str) -> str:
    if name.startswith(("s_setreg", "s_setpc", "s_swappc")):
        return ORDERED
    if name.startswith(("s_", "v_s_")):
        return SCALAR
    crosses = name in lanes.HANDLERS or name in local.HANDLERS or suffix in _DPP
    # The matrix instructions in the module `matrix` can process several waves at once; those in `matrix_types` cannot.
    crosses = crosses or (name.startswith(_MATRIX) and matrix.handler_of(name) is None)
    return WAVE if crosses else LANES


def _row(instruction: Instruction) -> LaneOp | None:
    if instruction.name == _CHOICE and any(
        text[0] in "-|" and not text[1:2].isdigit() for text in instruction.operands
    ):
        return _FLOAT_CHOICE
    if instruction.name in vector_integer.SATURATING and instruction.modifiers.flag("clamp"):
        return vector_integer.SATURATING[instruction.name]
    return _LANE_OPS.get(instruction.name)


def _handler(instruction: Instruction) -> Handler:
    row = _row(instruction)
    if row is not None and row is not _LANE_OPS.get(instruction.name):
        return lanewise.handler(row)
    handler = _HANDLERS.get(instruction.name) or _found(instruction.name)
    if handler is None:
        raise instruction.unknown()
    return handler


@cache
def _found(name: str) -> Handler | None:
    return next((handler for finder in _FINDERS if (handler := finder(name)) is not None), None)


def _build(operands: Operands) -> Run:
    instruction = operands.instruction
    handler = _handler(instruction)
    if instruction.suffix == "sdwa" and (row := _row(instruction)) is not None:
        return lanes.sdwa(operands, row)
    if instruction.suffix == "sdwa" and instruction.name in lanes.CARRIES:
        return lanes.sdwa_with_carry(operands, handler)
    if instruction.suffix in _DPP:
        return lanes.dpp(operands, handler)
    return handler(operands)


def _dual(line: Line, target: Target) -> Operation:
    """Decode a dual-issue instruction (VOPD): both parts read their sources before either writes its result."""
    parts: list[tuple[Get, Put]] = []
    reads: set[int] = set(range(EXEC, EXEC + target.lanes // 32))
    masks: set[int] = set()
    numbers: set[int] = set()
    writes: set[int] = set()
    names = []
    first: Instruction | None = None
    for text in line.text.split("::"):
        instruction = parse(line, text)
        instruction = replace(instruction, name="v_" + instruction.name.removeprefix("v_dual_"))
        row = _row(instruction)
        if row is None:
            raise instruction.unknown("a dual-issue form")
        operands = Operands(target, instruction)
        parts.append(lanewise.parts(operands, row))
        if left := instruction.modifiers.left():
            raise instruction.unknown(f"the modifier {', '.join(left)}")
        read, written, *_ = operands.accesses()
        reads |= read
        masks |= operands.masks
        numbers |= operands.numbers
        writes |= written
        names.append(instruction.name)
        first = first or instruction
    if first is None or len(parts) != 2:
        raise parse(line).unknown("a dual-issue instruction without two parts")
    (compute_x, put_x), (compute_y, put_y) = parts

    def run(wave: Wave) -> None:
        x, y = compute_x(wave), np.array(compute_y(wave))
        put_x(wave, x)
        put_y(wave, y)

    return Operation(
        first,
        run,
        frozenset(reads),
        frozenset(writes),
        tuple(names),
        masks=frozenset(masks),
        numbers=frozenset(numbers),
    )
