"""Calls of functions that were not inlined, and the bits of the mode that kernels change."""

from __future__ import annotations

import re

from toolchain_lab.emulator.lanewise import Handler
from toolchain_lab.emulator.operands import Operands, Run
from toolchain_lab.emulator.syntax import Instruction
from toolchain_lab.emulator.wave import Wave

# These say themselves where a wave continues.
_JUMPS = frozenset({"s_setpc_b64", "s_swappc_b64"})
_OVERFLOW = re.compile(r"hwreg\(HW_REG_(WAVE_)?MODE, 23, 1\)$")
_ROUNDING = re.compile(r"hwreg\(HW_REG_(WAVE_)?MODE, 2, 2\)$")


def jumps(instruction: Instruction) -> bool:
    """Whether an instruction continues at an address in a register."""
    return instruction.name in _JUMPS


def program_counter(operands: Operands) -> Run:
    """S_GETPC_B64: the address of the next instruction."""
    put = operands.put_number(operands.instruction.operands[0], 2)
    following = operands.instruction.address + 4 * len(operands.instruction.line.words)
    return lambda wave: put(wave, following)


def jump(operands: Operands) -> Run:
    """S_SETPC_B64."""
    target = operands.quad(operands.instruction.operands[0])

    def run(wave: Wave) -> None:
        wave.pc = target(wave)

    return run


def call(operands: Operands) -> Run:
    """S_SWAPPC_B64: a jump that keeps the address behind it."""
    result, text = operands.instruction.operands
    target, put = operands.quad(text), operands.put_number(result, 2)
    following = operands.instruction.address + 4 * len(operands.instruction.line.words)

    def run(wave: Wave) -> None:
        wave.pc = target(wave)
        put(wave, following)

    return run


def set_mode(operands: Operands) -> Run:
    """S_SETREG_IMM32_B32 of FP16_OVFL: conversions to fewer bits give the largest number instead of infinity.

    The rounding of halves and float64 may be set to that of the start, to the nearest.
    """
    register, value = operands.instruction.operands
    if _ROUNDING.match(register) and not operands.constant(value):
        return lambda _: None
    if _OVERFLOW.match(register) is None:
        raise operands.instruction.unknown(f"the register {register}")
    clamps = bool(operands.constant(value) & 1)

    def run(wave: Wave) -> None:
        wave.clamps_overflow = clamps

    return run


HANDLERS: dict[str, Handler] = {
    "s_getpc_b64": program_counter,
    "s_setpc_b64": jump,
    "s_swappc_b64": call,
    "s_setreg_imm32_b32": set_mode,
}
