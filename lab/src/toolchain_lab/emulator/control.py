"""Branches, barriers, waits and other instructions that change neither registers nor memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from toolchain_lab.emulator.bits import signed
from toolchain_lab.emulator.calls import jumps
from toolchain_lab.emulator.registers import EXECS, SCC
from toolchain_lab.emulator.syntax import Instruction
from toolchain_lab.emulator.wave import VCC, Wave

# These instructions change neither registers nor memory. The module `scoreboard` checks those that are waits.
_WITHOUT_EFFECT = re.compile(
    r"s_(nop|clause|delay_alu|code_end|setprio|sleep|inst_prefetch|set_inst_prefetch_distance|icache_inv"
    r"|dcache_(?:inv|wb)\w*|ttracedata\w*|wait_alu|waitcnt\w*|wait_\w+)$"
    r"|buffer_(gl0_inv|gl1_inv|inv|invl2|wbl2|wbinvl1\w*)$|global_(inv|wb|wbinv)$|v_nop$"
)
_DEALLOCATE = "sendmsg(MSG_DEALLOC_VGPRS)"
# These operands name the barrier of the workgroup; llvm-objdump prints the second one for S_BARRIER_WAIT.
_WORKGROUP = {("-1",), ("0xffff",)}
_CONDITIONS: dict[str, Callable[[Wave], bool]] = {
    "s_branch": lambda _: True,
    "s_cbranch_scc0": lambda wave: not wave.scc,
    "s_cbranch_scc1": lambda wave: bool(wave.scc),
    "s_cbranch_execz": lambda wave: not wave.exec_bits,
    "s_cbranch_execnz": lambda wave: bool(wave.exec_bits),
    "s_cbranch_vccz": lambda wave: not wave.lane_bits(VCC),
    "s_cbranch_vccnz": lambda wave: bool(wave.lane_bits(VCC)),
}
_READS = {"scc": frozenset({SCC}), "exe": EXECS, "vcc": frozenset({VCC, VCC + 1})}
COUNTERS = ("vm", "lgkm", "exp", "vs", "load", "store", "ds", "km", "sample", "bvh", "x")
_COUNT = re.compile(r"(vm|lgkm|exp)cnt\((\d+)\)")
# On gfx11, a wait for a single counter adds the value of its first operand to its number. It is `null` for a constant.
_NUMBER = re.compile(r"(?:null )?(0x[0-9a-f]+|\d+)")


@dataclass(frozen=True)
class Branch:
    """The branch at the end of a block.

    Args:
        target, following: the addresses at which a wave continues if it takes the branch, and if it does not.
        reads: the registers on which the condition depends.
    """

    condition: Callable[[Wave], bool]
    target: int
    following: int
    reads: frozenset[int]


def has_no_effect(instruction: Instruction) -> bool:
    """Return whether an instruction needs no execution, such as a wait, a hint or the invalidation of a cache."""
    if instruction.name == "s_sendmsg":
        return instruction.operands == (_DEALLOCATE,)
    if instruction.name == "s_barrier_signal":
        return instruction.operands in _WORKGROUP
    return _without_effect(instruction.name)


@cache
def _without_effect(name: str) -> bool:
    return _WITHOUT_EFFECT.match(name) is not None


def is_barrier(instruction: Instruction) -> bool:
    """Return whether an instruction is a barrier, where a wave waits for all other waves of its workgroup."""
    name = instruction.name
    return name == "s_barrier" or (name == "s_barrier_wait" and instruction.operands in _WORKGROUP)


def ends_block(instruction: Instruction) -> bool:
    return (
        instruction.name in _CONDITIONS
        or instruction.name == "s_endpgm"
        or is_barrier(instruction)
        or jumps(instruction)
    )


def branch(instruction: Instruction) -> Branch | None:
    """Return the branch of an instruction; None if it is not a branch. Raise NotEmulatedError for an unknown branch."""
    if instruction.name in _CONDITIONS:
        words = signed(instruction.line.words[0], 16)
        following = instruction.address + 4
        reads = _READS.get(instruction.name.removeprefix("s_cbranch_")[:3], frozenset())
        return Branch(_CONDITIONS[instruction.name], following + 4 * words, following, reads)
    if instruction.name.startswith(("s_branch", "s_cbranch")):
        raise instruction.unknown()
    return None


def wait(instruction: Instruction) -> Mapping[str, int]:
    """Return the counters that an instruction waits for, each with the number of accesses that may stay outstanding.

    The result is empty if the instruction does not wait for a counter. NotEmulatedError is raised for a wait of an
    unknown form.
    """
    name, text = instruction.name, " ".join(instruction.operands)
    counts: dict[str, int] | None = {}
    if name == "s_waitcnt":
        counts = {match[1]: int(match[2]) for match in _COUNT.finditer(text)} or None
    elif name == "s_wait_idle":
        counts = dict.fromkeys(COUNTERS, 0)
    elif name in {"s_waitcnt_depctr", "s_wait_alu", "s_wait_event"}:
        pass
    elif name.startswith(("s_waitcnt_", "s_wait_")):
        counts = _counters(name, text)
    if counts is None:
        raise instruction.unknown(f"the wait {text}")
    return counts


def _counters(name: str, text: str) -> dict[str, int] | None:
    """Return the counters in the name of a wait, each with its number from `text`; None if the form is unknown."""
    number = _NUMBER.fullmatch(text)
    names = [part.strip("_") for part in name.removeprefix("s_waitcnt_").removeprefix("s_wait_").split("cnt")]
    names, rest = names[:-1], names[-1]
    if rest or number is None or not set(names) <= set(COUNTERS):
        return None
    value = int(number[1], 0)
    # A wait for two counters encodes the number for the DS counter in the lower byte, and the number for the other
    # counter above it.
    return {names[0]: value} if len(names) == 1 else {names[0]: value >> 8, names[1]: value & 0xFF}
