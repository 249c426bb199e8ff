"""Execution of all waves of a workgroup at once, as long as they have the same program counter.

The results are the same as if the waves ran one after the other, unless they depend on the order in which the waves
access memory between two barriers. If they may depend on it, the workgroup is reset to its initial state, so that its
waves can run one after the other. It is also reset after an error, if a limit is exceeded, and if an instruction
requires that the waves run one after the other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from toolchain_lab.emulator.accesses import ApartError, GroupAccesses
from toolchain_lab.emulator.batch import Batch
from toolchain_lab.emulator.errors import EmulatorError
from toolchain_lab.emulator.plan import Plan, plan
from toolchain_lab.emulator.wave import Wave

if TYPE_CHECKING:
    from toolchain_lab.emulator.program import Block
    from toolchain_lab.emulator.workgroup import Workgroup


def run_together(group: Workgroup, limit: int) -> bool:
    """Run all waves of a workgroup together to their end, and return whether this was possible.

    If it was not, the workgroup has its initial state again, and its waves must run one after the other.
    """
    arrays = [group.vectors, group.scalars, group.scratch, group.lds.bytes]
    kept = [array.copy() for array in arrays]
    waves = [dict(wave.__dict__) for wave in group.waves]
    accesses = group.accesses = GroupAccesses(group.memory.views, group.lds)
    try:
        _Together(group, accesses, limit).run()
    except (ApartError, EmulatorError):
        accesses.memory.restore()
        for array, old in zip(arrays, kept, strict=True):
            array[...] = old
        for wave, attributes in zip(group.waves, waves, strict=True):
            wave.__dict__.update(attributes)
            wave.forget_masks()
        group.executions = Counter()
        group.magnitudes.clear()
        return False
    finally:
        group.accesses = None
    return True


class _Together:
    def __init__(self, group: Workgroup, accesses: GroupAccesses, limit: int) -> None:
        self.group = group
        self.program = group.program
        self.waves = group.waves
        self.accesses = accesses
        self.limit = limit
        self.batch = Batch(group)

    def run(self) -> None:
        while not all(wave.done for wave in self.waves):
            self._to_barrier()
            self._barrier(sum(wave.count for wave in self.waves))

    def _barrier(self, count: int) -> None:
        """Raise ApartError if accesses conflict or `count`, the number of executed instructions, exceeds the limit."""
        if self.accesses.memory.meet() or self.accesses.lds.meet() or count > self.limit:
            raise ApartError

    def _to_barrier(self) -> None:
        """Run all waves until each has ended or, unless they form a batch, has reached a barrier.

        While all waves run with the same program counter and mode, they form a batch, which continues past barriers.
        Otherwise, the next block is that of the running wave with the lowest program counter, so that the waves can
        reach the same program counter again.
        """
        running = [wave for wave in self.waves if not wave.done]
        while running:
            if len(running) == len(self.waves) and self._agree():
                if self._run_batch():
                    return
                continue
            wave = min(running, key=attrgetter("pc"))
            if self.group.step(wave):
                running.remove(wave)
            self._check(wave)

    def _check(self, wave: Wave) -> None:
        if wave.count > self.limit or self.accesses.memory.too_many or self.accesses.lds.too_many:
            raise ApartError

    def _agree(self) -> bool:
        first = self.waves[0]
        return all(wave.pc == first.pc and wave.clamps_overflow == first.clamps_overflow for wave in self.waves)

    def _run_batch(self) -> bool:
        """Run all waves together until they diverge or reach their end; return whether they have reached their end."""
        batch, find = self.batch, self.program.block
        batch.join()
        while True:
            block = find(batch.pc)
            batch.states = [self.program.scoreboard.behind(state, block) for state in batch.states]
            self.group.executions[block.address] += len(self.waves)
            batch.count += len(block.operations)
            self._steps(block)
            self._check(batch)
            if block.branch is None:
                if block.jumps:
                    continue
                batch.pc = block.following
                if block.barrier:
                    self._barrier(sum(wave.count + batch.count for wave in self.waves))
                    continue
                batch.part()
                for wave in self.waves:
                    wave.done = True
                return True
            if not self._branch(block):
                return False

    def _steps(self, block: Block) -> None:
        batch, start = self.batch, 0
        while start < len(block.operations):
            key = (start, batch.varying)
            planned = block.plans.get(key)
            if planned is None:
                planned = block.plans[key] = self._plan(block, start)
            for step in planned.steps:
                step(batch)
            batch.varying, start = planned.after, planned.stop
            if planned.unsettled:
                batch.settle(planned.unsettled)

    def _plan(self, block: Block, start: int) -> Plan:
        """Return the plan for a block from the instruction with the index `start`.

        A plan is made only once for each `start` and each set of differing registers that the block accesses.
        """
        relevant = self.batch.varying & block.touched
        planned = block.plans.get((start, relevant))
        if planned is None:
            planned = block.plans[start, relevant] = plan(block.operations, start, relevant, self.batch.target)
        return replace(planned, after=planned.after | (self.batch.varying - block.touched))

    def _branch(self, block: Block) -> bool:
        """Set the program counters after a block, and return whether all waves continue at the same address."""
        batch, branch = self.batch, block.branch
        if branch is None:
            raise AssertionError(block.address)
        if not branch.reads & batch.varying:
            batch.pc = branch.target if branch.condition(batch) else branch.following
            return True
        batch.push(branch.reads)
        places = [branch.target if branch.condition(wave) else branch.following for wave in self.waves]
        batch.pc = places[0]
        if len(set(places)) == 1:
            return True
        batch.part()
        for wave, place in zip(self.waves, places, strict=True):
            wave.pc = place
        return False
