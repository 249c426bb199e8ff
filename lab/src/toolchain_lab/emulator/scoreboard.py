"""Checks that a kernel waits for its memory accesses, and keeps the distances between instructions.

Both depend on the path of a wave and not on values. Each block is therefore checked only once for each state in which
a wave enters it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toolchain_lab.emulator.control import wait
from toolchain_lab.emulator.decode import Operation
from toolchain_lab.emulator.errors import FaultyKernelError
from toolchain_lab.emulator.hazards import MEMORY, Facts, too_close
from toolchain_lab.emulator.operands import VECTOR
from toolchain_lab.emulator.wave import TTMP, VCC, Target

if TYPE_CHECKING:
    from toolchain_lab.emulator.program import Block

_MOST = 64  # hardware stalls a wave before a counter exceeds its range, so more accesses are never outstanding
_CACHES = re.compile(r"(?:buffer|global)_(?:gl[01]_)?(inv|wb|wbl2|wbinv)\w*$")
LDS_STORE = re.compile(r"ds_(write|store)")
BARRIERS = {"s_barrier", "s_barrier_signal"}
# An outstanding access has a counter, an instruction, the registers that it will write, and whether accesses with the
# same counter complete in order.
Access = tuple[str, Operation, frozenset[int], bool]
# Later instructions must keep a distance from a recent one. The numbers count the wait states, the vector instructions
# and the transcendental instructions since then.
Recent = tuple[Facts, int, int, int]


@dataclass(frozen=True, eq=False, slots=True)
class State:
    """The outstanding accesses, oldest first, and the recent instructions from which a distance must be kept.

    Args:
        following: the state after each block that was already checked, by the address of the block.
    """

    accesses: tuple[Access, ...] = ()
    recent: tuple[Recent, ...] = ()
    following: dict[int, State] = field(default_factory=dict)


class Scoreboard:
    """The states that the waves of a program reach."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.cdna = target.generation == 9
        self.start = State()
        self._states: dict[tuple[object, ...], State] = {((), ()): self.start}
        self._facts: dict[int, Facts] = {}

    def behind(self, state: State, block: Block) -> State:
        """Return the state after a block, which is computed only once for each state before the block.

        Raises:
            FaultyKernelError: a wait or a distance is missing.
        """
        return state.following.get(block.address) or self.after(state, block.address, block.operations)

    def after(self, state: State, address: int, operations: tuple[Operation, ...]) -> State:
        """Compute the state after a block with the given address and instructions.

        Raises:
            FaultyKernelError: a wait or a distance is missing.
        """
        accesses, recent = list(state.accesses), list(state.recent)
        for operation in operations:
            facts = self._facts.get(operation.instruction.address)
            if facts is None or facts.operation is not operation:
                facts = self._facts[operation.instruction.address] = Facts(operation, self.target)
            self._wait(operation, accesses)
            if recent:
                _keep_distance(facts, recent)
            recent = [
                (earlier, states + facts.states, valus + facts.valu, slow + facts.transcendental)
                for earlier, states, valus, slow in recent
                if (
                    states + facts.states < earlier.reach
                    if self.cdna
                    else valus + facts.valu < earlier.reach and not facts.settles
                )
            ]
            if facts.reach:
                recent.append((facts, 0, 0, 0))
            self._start(operation, accesses)
        key = (tuple(accesses[-_MOST:]), tuple(recent))
        state_after = self._states.setdefault(key, State(*key))
        state.following[address] = state_after
        return state_after

    def _wait(self, operation: Operation, accesses: list[Access]) -> None:
        """Remove the accesses that an instruction waits for.

        Raises:
            FaultyKernelError: the instruction uses a register of an access that is still outstanding.
        """
        name = operation.names[0]
        if name.startswith("s_wait"):
            for counter, most in wait(operation.instruction).items():
                places = [place for place, access in enumerate(accesses) if access[0] == counter]
                if most == 0 or all(accesses[place][3] for place in places):
                    for place in reversed(places[: max(len(places) - most, 0)]):
                        del accesses[place]
            return
        if not accesses:
            return
        if name in BARRIERS:
            for _, earlier, _, _ in accesses:
                # A load may be outstanding, because LDS processes accesses in order. LLVM always waits for stores.
                if LDS_STORE.match(earlier.names[0]):
                    raise _fault(operation, earlier, "a barrier does not wait for")
        mine_counters = _counters(operation, self.target)
        for counter, earlier, registers, ordered in accesses:
            used = operation.reads & registers
            # Two ordered loads with the same counter may write the same register, because the later one wins.
            if not (ordered and counter in mine_counters):
                used |= operation.writes & registers
            if used and earlier.kept and operation.spared:
                used = frozenset(register for register in used if not _apart(register, earlier, operation))
            if used:
                raise _fault(operation, earlier, f"{_text(min(used))} is used before the load that writes it:")

    def _start(self, operation: Operation, accesses: list[Access]) -> None:
        name = operation.names[0]
        ordered = not name.startswith(("s_", "flat_"))
        for counter in _counters(operation, self.target):
            loaded = operation.writes if not _CACHES.match(name) else frozenset()
            accesses.append((counter, operation, frozenset(loaded), ordered))


def _apart(register: int, load: Operation, other: Operation) -> bool:
    """Return whether a load writes one half of a register, and another instruction accesses only the other half."""
    low, high = 2 * register, 2 * register + 1
    return (low in load.kept and high in other.spared) or (high in load.kept and low in other.spared)


def _counters(operation: Operation, target: Target) -> tuple[str, ...]:
    """Return the counters that an instruction increments."""
    name, new = operation.names[0], target.generation == 12
    if name.startswith(("s_load_", "s_buffer_load_")):
        return ("km",) if new else ("lgkm",)
    if name.startswith("ds_"):
        return ("ds",) if new else ("lgkm",)
    if not name.startswith(MEMORY):
        return ()
    if match := _CACHES.match(name):
        # In LLVM's model, cache instructions increment a counter only on gfx12.
        return () if not new else ("load",) if match[1] == "inv" else ("store",)
    load = any(register >= VECTOR for register in operation.writes)
    counter = ("load" if load else "store") if new else "vm" if load or target.generation == 9 else "vs"
    if name.startswith("flat_"):
        return (counter, "ds" if new else "lgkm")
    return (counter,)


def _keep_distance(facts: Facts, recent: list[Recent]) -> None:
    newer: frozenset[int] = frozenset()
    for earlier, states, valus, slow in reversed(recent):
        lacking = too_close(earlier, facts, states, valus, slow, newer=newer)
        newer |= earlier.vector_writes if earlier.passes else frozenset()
        if lacking is not None:
            need, registers = lacking
            kind = "wait states" if facts.target.generation == 9 else "vector instructions"
            count = states if facts.target.generation == 9 else valus
            raise _fault(facts.operation, earlier.operation, f"{_text(min(registers))}: {count} of {need} {kind} after")


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
