"""Checks that a kernel waits for its memory accesses and keeps the required distances between instructions.

Both checks depend only on the path that a wave takes, and not on values. Each block is therefore checked only once for
each state in which a wave enters it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from toolchain_lab.emulator.control import wait
from toolchain_lab.emulator.decode import Operation
from toolchain_lab.emulator.errors import FaultyKernelError
from toolchain_lab.emulator.hazards import MEMORY, Facts, too_close
from toolchain_lab.emulator.registers import VECTOR
from toolchain_lab.emulator.wave import TTMP, VCC, Target

if TYPE_CHECKING:
    from toolchain_lab.emulator.program import Block

_MOST = 64  # the maximum number of outstanding accesses that a state keeps
_CACHES = re.compile(r"(?:buffer|global)_(?:gl[01]_)?(inv|wb|wbl2|wbinv)\w*$")
LDS_STORE = re.compile(r"ds_(write|store)")
BARRIERS = {"s_barrier", "s_barrier_signal"}
_COUNTED = ("s_load_", "s_buffer_load_", "ds_", *MEMORY)
_NONE: frozenset[int] = frozenset()
# This is an outstanding access: its counter, its instruction, the registers that it will write, and its
# `Effects.ordered`.
Access = tuple[str, Operation, frozenset[int], bool]
# This is a recent instruction from which later ones must keep a distance. The three numbers are the wait states, the
# vector instructions and the transcendental instructions from the beginning of the block to the end of this
# instruction. They are negative or 0 if the instruction is in an earlier block.
Recent = tuple["Effects", Operation, int, int, int]


class Effects(Facts):
    """The properties of an instruction, the accesses that it waits for, and the access that it starts.

    Attributes:
        waits: the number of accesses that may stay outstanding, by counter; None if the instruction is not a wait.
        counters: the counters that the instruction increments.
        loaded: the registers that the instruction's access will write.
        ordered: whether accesses of this kind complete in order; scalar and flat accesses may not.
    """

    def __init__(self, operation: Operation, target: Target) -> None:
        super().__init__(operation, target)
        name = operation.names[0]
        self.waits = wait(operation.instruction) if name.startswith("s_wait") else None
        self.barrier = name in BARRIERS
        self.counters: tuple[str, ...] = ()
        if name.startswith(_COUNTED):
            self.counters = _counters(name, target.generation, load=bool(self.part("vector writes")))
        self.loaded = operation.writes if not _CACHES.match(name) else _NONE
        self.ordered = not name.startswith(("s_", "flat_"))


@dataclass(frozen=True, eq=False, slots=True)
class State:
    """The outstanding accesses, oldest first, and the recent instructions from which a distance must be kept.

    Args:
        following: the state after each block that has already been checked from this state, by the block's address.
    """

    accesses: tuple[Access, ...] = ()
    recent: tuple[Recent, ...] = ()
    following: dict[int, State] = field(default_factory=dict)


class Scoreboard:
    """The states that the waves of a program reach, which are shared between waves."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.cdna = target.generation == 9
        self.start = State()
        self._states: dict[tuple[object, ...], State] = {((), ()): self.start}

    def behind(self, state: State, block: Block) -> State:
        """Return the state after a block; raise FaultyKernelError if a wait is missing, or a distance is too small."""
        return state.following.get(block.address) or self.after(state, block.address, block.operations)

    def after(self, state: State, address: int, operations: tuple[Operation, ...]) -> State:
        """Compute the state after a block with the given address and instructions; raise errors as `behind` does."""
        accesses, recent = list(state.accesses), list(state.recent)
        states = valus = slow = 0
        for operation in operations:
            effects = operation.effects
            if not isinstance(effects, Effects):
                effects = operation.effects = Effects(operation, self.target)
            if effects.waits is not None:
                _wait(effects.waits, accesses)
            elif accesses:
                _check(operation, effects, accesses)
            if recent:
                _keep_distance(operation, effects, recent, (states, valus, slow))
            states += effects.states
            valus += effects.valu
            slow += effects.transcendental
            if self.cdna:
                recent = [each for each in recent if states - each[2] < each[0].reach]
            else:
                recent = [each for each in recent if valus - each[3] < each[0].reach and not effects.settles]
            if effects.reach:
                recent.append((effects, operation, states, valus, slow))
            for counter in effects.counters:
                accesses.append((counter, operation, effects.loaded, effects.ordered))
        left = tuple((facts, one, at - states, vat - valus, sat - slow) for facts, one, at, vat, sat in recent)
        key = (tuple(accesses[-_MOST:]), left)
        state_after = self._states.get(key)
        if state_after is None:
            state_after = self._states[key] = State(*key)
        state.following[address] = state_after
        return state_after


def _wait(waits: Mapping[str, int], accesses: list[Access]) -> None:
    """Remove the accesses that are complete after an instruction that waits."""
    for counter, most in waits.items():
        places = [place for place, access in enumerate(accesses) if access[0] == counter]
        if most == 0 or all(accesses[place][3] for place in places):
            for place in reversed(places[: max(len(places) - most, 0)]):
                del accesses[place]


def _check(operation: Operation, effects: Effects, accesses: list[Access]) -> None:
    """Raise FaultyKernelError if an instruction should have waited for one of the outstanding accesses."""
    if effects.barrier:
        for _, earlier, _, _ in accesses:
            # A load may be outstanding at a barrier. A store to LDS may not, because LLVM always waits for it.
            if LDS_STORE.match(earlier.names[0]):
                raise _fault(operation, earlier, "a barrier does not wait for")
    reads, writes = operation.reads, operation.writes
    for counter, earlier, registers, ordered in accesses:
        if registers.isdisjoint(reads) and registers.isdisjoint(writes):
            continue
        used = reads & registers
        # Two ordered loads with the same counter may write the same register, because the later one wins.
        if not (ordered and counter in effects.counters):
            used |= writes & registers
        if used and earlier.kept and operation.spared:
            used = frozenset(register for register in used if not _apart(register, earlier, operation))
        if used:
            raise _fault(operation, earlier, f"{_text(min(used))} is used before the load that writes it:")


def _apart(register: int, load: Operation, other: Operation) -> bool:
    """Return whether a load writes only one half of a register, and `other` accesses only the other half."""
    low, high = 2 * register, 2 * register + 1
    return (low in load.kept and high in other.spared) or (high in load.kept and low in other.spared)


@cache
def _counters(name: str, generation: int, *, load: bool) -> tuple[str, ...]:
    """Return the counters that an access increments.

    Args:
        load: whether the access writes vector registers.
    """
    new = generation == 12
    if name.startswith("s_"):
        return ("km",) if new else ("lgkm",)
    if name.startswith("ds_"):
        return ("ds",) if new else ("lgkm",)
    if match := _CACHES.match(name):
        # In LLVM's model, instructions that control caches increment a counter only on gfx12.
        return () if not new else ("load",) if match[1] == "inv" else ("store",)
    counter = ("load" if load else "store") if new else "vm" if load or generation == 9 else "vs"
    if name.startswith("flat_"):
        return (counter, "ds" if new else "lgkm")
    return (counter,)


def _keep_distance(operation: Operation, facts: Facts, recent: list[Recent], now: tuple[int, int, int]) -> None:
    newer = _NONE
    for earlier, first, at, valus_at, slow_at in reversed(recent):
        states, valus = now[0] - at, now[1] - valus_at
        lacking = too_close(earlier, facts, states, valus, now[2] - slow_at, newer=newer)
        if earlier.kind.passes:
            newer |= earlier.part("vector writes")
        if lacking is not None:
            need, registers = lacking
            kind = "wait states" if facts.target.generation == 9 else "vector instructions"
            count = states if facts.target.generation == 9 else valus
            raise _fault(operation, first, f"{_text(min(registers))}: {count} of {need} {kind} after")


def _fault(operation: Operation, earlier: Operation, what: str) -> FaultyKernelError:
    line, before = operation.instruction.line, earlier.instruction.line
    return FaultyKernelError(
        "wait-missing",
        f"the instruction at {line.address:#x} is executed too early",
        why=f"{line.text}: {what} {before.text} at {before.address:#x}",
    )


def _text(register: int) -> str:
    if register >= VECTOR:
        index = register - VECTOR
        return f"a{index - 256}" if index > 255 else f"v{index}"
    return {VCC: "vcc"}.get(register, f"ttmp{register - TTMP}" if register >= TTMP else f"s{register}")
