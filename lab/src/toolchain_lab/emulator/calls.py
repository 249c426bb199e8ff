"""Instructions for function calls, traps and writes to the MODE register."""

from __future__ import annotations

import re

from toolchain_lab.emulator.errors import FaultyKernelError
from toolchain_lab.emulator.lanewise import Handler
from toolchain_lab.emulator.operands import Operands, Run
from toolchain_lab.emulator.syntax import Instruction
from toolchain_lab.emulator.wave import Wave

# These instructions set the program counter from a register, so they end a block without a `Branch`.
_JUMPS = frozenset({"s_setpc_b64", "s_swappc_b64"})
_OVERFLOW = re.compile(r"hwreg\(HW_REG_(WAVE_)?MODE, 23, 1\)$")
_ROUNDING = re.compile(r"hwreg\(HW_REG_(WAVE_)?MODE, 2, 2\)$")


def jumps(instruction: Instruction) -> bool:
    """Return whether an instruction jumps to an address in a register."""
    return instruction.name in _JUMPS


def program_counter(operands: Operands) -> Run:
    """Decode S_GETPC_B64, which writes the address of the next instruction to scalar registers."""
    put = operands.put_number(operands.instruction.operands[0], 2)
    following = operands.instruction.address + 4 * len(operands.instruction.line.words)
    return lambda wave: put(wave, wave.group.code_address + following)


def jump(operands: Operands) -> Run:
    """Decode S_SETPC_B64, which jumps to the address in scalar registers."""
    target = operands.quad(operands.instruction.operands[0])

    def run(wave: Wave) -> None:
        wave.pc = target(wave) - wave.group.code_address

    return run


def call(operands: Operands) -> Run:
    """Decode S_SWAPPC_B64, which jumps like S_SETPC_B64, and saves the address of the next instruction in registers."""
    result, text = operands.instruction.operands
    target, put = operands.quad(text), operands.put_number(result, 2)
    following = operands.instruction.address + 4 * len(operands.instruction.line.words)

    def run(wave: Wave) -> None:
        wave.pc = target(wave) - wave.group.code_address
        put(wave, wave.group.code_address + following)

    return run


def set_mode(operands: Operands) -> Run:
    """Decode S_SETREG_IMM32_B32, which sets a field of a hardware register.

    Only two fields of the MODE register are supported: FP16_OVFL, and the rounding mode for float16 and float64. With
    FP16_OVFL set, a conversion to fp8 or bf8 that overflows gives the largest finite number instead of infinity or NaN.
    The rounding mode may only be set to its initial value, round to nearest.
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


def trap(operands: Operands) -> Run:
    """Decode S_TRAP, which kernels execute when an assertion fails."""
    address = operands.instruction.address

    def run(_: Wave) -> None:
        raise FaultyKernelError(
            "kernel-traps", f"the kernel executes s_trap at {address:#x}", why="kernels do so when an assertion fails"
        )

    return run


HANDLERS: dict[str, Handler] = {
    "s_getpc_b64": program_counter,
    "s_setpc_b64": jump,
    "s_swappc_b64": call,
    "s_trap": trap,
    "s_setreg_imm32_b32": set_mode,
}
