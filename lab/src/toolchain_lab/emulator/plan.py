"""Plans for running the instructions of a block for all waves of a batch.

Most instructions run once if the scalar registers that they read, except for lane masks, have the same values in all
waves. Otherwise, an instruction runs once for each wave, unless the module `rows` supports it. The plan for a part of a
block therefore depends only on where the part begins and on which registers differ there, and is made once for each
such combination.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain_lab.emulator.accesses import ApartError
from toolchain_lab.emulator.batch import Batch
from toolchain_lab.emulator.decode import LANES, ORDERED, SCALAR, Operation
from toolchain_lab.emulator.operands import Run
from toolchain_lab.emulator.registers import EXECS, SCC, VECTOR, Registers
from toolchain_lab.emulator.rows import LANE_MOVES, RunBatch, rows_of
from toolchain_lab.emulator.wave import Target


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for a part of a block.

    Args:
        stop: the index of the first instruction after the part.
        after: the registers that may differ between the waves after the part.
        unsettled: the registers in `after` whose values should be compared, because they are often the same in all
            waves.
    """

    steps: tuple[RunBatch, ...]
    stop: int
    after: Registers
    unsettled: Registers


def plan(operations: Sequence[Operation], start: int, varying: Registers, target: Target) -> Plan:
    """Return a plan that ends with the block, or with an instruction whose result must be compared between the waves.

    ApartError is raised if one of the instructions requires that the waves run one after the other.

    Args:
        start: the index of the first instruction to plan.
        varying: the scalar registers that may differ between the waves.
    """
    maker = _Maker(varying, target)
    for place in range(start, len(operations)):
        operation = operations[place]
        if operation.run is None:
            continue
        if unsettled := maker.add(operation, operation.run):
            return Plan(tuple(maker.steps), place + 1, frozenset(maker.varying), unsettled)
    return Plan(tuple(maker.steps), len(operations), frozenset(maker.varying), frozenset())


class _Maker:
    def __init__(self, varying: Registers, target: Target) -> None:
        self.varying = set(varying)
        self.target = target
        self.steps: list[RunBatch] = []
        # These registers are the same in all waves, and have already been copied to each wave.
        self._pushed: set[int] = set()

    def add(self, operation: Operation, run: Run) -> Registers:
        """Add the steps for an instruction, and return the scalar registers to compare between the waves afterwards."""
        if operation.how == ORDERED:
            raise ApartError
        name, reads = operation.instruction.name, operation.scalar_reads
        written = {register for register in operation.writes if register < VECTOR}
        differing = operation.numbers & self.varying
        once = operation.how in {SCALAR, LANES} and not differing
        if once and not (operation.how == SCALAR and written & EXECS):
            self._push(operation.masks)
            self.steps.append(run)
            self._wrote(written, same=operation.how == SCALAR)
            return frozenset()
        operation.rows = operation.rows or (rows_of(operation.instruction, self.target),)
        (rows,) = operation.rows
        self._push(reads)
        self.steps.append(_for_each(run) if rows is None else rows)
        self._wrote(written, same=False)
        if rows is None and written & EXECS:
            self.steps.append(Batch.exec_changed)
        return frozenset(written) if name in LANE_MOVES else frozenset()

    def _wrote(self, written: set[int], *, same: bool) -> None:
        self._pushed -= written
        if same:
            self.varying -= written
        else:
            self.varying |= written

    def _push(self, registers: Registers) -> None:
        """Add steps that copy to each wave those of the given registers that are the same in all waves."""
        missing = sorted(registers - self.varying - self._pushed)
        if not missing:
            return
        self._pushed.update(missing)
        if SCC in missing:
            missing.remove(SCC)
            self.steps.append(Batch.push_scc)
        if not missing:
            return
        if missing[-1] - missing[0] == len(missing) - 1:
            self.steps.append(_push_range(missing[0], missing[-1] + 1))
        else:
            self.steps.append(_push_list(missing))


def _for_each(run: Run) -> RunBatch:
    def step(batch: Batch) -> None:
        batch.lend()
        for wave in batch.waves:
            run(wave)

    return step


def _push_range(start: int, end: int) -> RunBatch:
    def step(batch: Batch) -> None:
        batch.rows[:, start:end] = batch.s[start:end]

    return step


def _push_list(registers: list[int]) -> RunBatch:
    def step(batch: Batch) -> None:
        batch.rows[:, registers] = batch.s[registers]

    return step
