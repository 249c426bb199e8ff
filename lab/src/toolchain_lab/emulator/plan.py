"""How the instructions of a block run for all waves of a batch.

An instruction runs once if the scalar registers that it reads are the same for all waves, and for each wave if not. So
which registers differ at the beginning of a block decides how all of it runs, and each block is planned once for each
such set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolchain_lab.emulator.accesses import ApartError
from toolchain_lab.emulator.batch import EXECS, Batch, Registers
from toolchain_lab.emulator.decode import LANES, ORDERED, SCALAR, Operation
from toolchain_lab.emulator.operands import SCC, VECTOR, Run
from toolchain_lab.emulator.rows import LANE_MOVES, RunBatch, rows_of
from toolchain_lab.emulator.wave import Target


@dataclass(frozen=True, slots=True)
class Plan:
    """A part of a block.

    Args:
        stop: the place of the first instruction behind it.
        after: the registers that may differ behind it.
        unsettled: those of them that may be found to be the same.
    """

    steps: tuple[RunBatch, ...]
    stop: int
    after: Registers
    unsettled: Registers


def plan(operations: Sequence[Operation], start: int, varying: Registers, target: Target) -> Plan:
    """Plan instructions from one on, up to the end or to one whose result may be the same for all waves.

    Raises:
        ApartError: there is an instruction for which the order of the waves matters.
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
        # Registers that are the same for all waves and whose value each wave has.
        self._pushed: set[int] = set()

    def add(self, operation: Operation, run: Run) -> Registers:
        """Add an instruction; the scalar registers that it wrote and that may be the same for all waves."""
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
        rows = rows_of(operation.instruction, self.target)
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
        """Give registers that are the same for all waves to each wave."""
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
