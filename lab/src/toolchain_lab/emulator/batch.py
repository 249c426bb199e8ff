"""All waves of a workgroup as one wave, which has the lanes of all the waves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from toolchain_lab.emulator.bits import Array
from toolchain_lab.emulator.registers import EXECS, SCC, Registers
from toolchain_lab.emulator.wave import EXEC, SCALARS, Wave

if TYPE_CHECKING:
    from toolchain_lab.emulator.scoreboard import State
    from toolchain_lab.emulator.workgroup import Workgroup


class Batch(Wave):
    """All waves of a workgroup as one wave.

    `join` takes over the state of the waves, and `part` gives it back to them. The array `s` holds the scalar registers
    that are not in `varying`; `rows` holds the others, with a row for each wave.
    """

    def __init__(self, group: Workgroup) -> None:
        scalars = group.scalars[0].copy()
        super().__init__(group, group.program.target, 0, vectors=group.vectors, scalars=scalars, scratch=group.scratch)
        self.waves = group.waves
        self.rows = group.scalars
        self.width = self.target.lanes
        self.words = self.width // 32
        # These scalar registers, possibly including SCC, may differ between the waves.
        self.varying: Registers = EXECS
        self.states: list[State] = []
        self.members = np.arange(len(self.waves), dtype=np.uint8)
        self._owners = np.repeat(self.members, self.width)
        self._every = b"\xff" * (self.lanes // 8)
        self._lent = False

    def join(self) -> None:
        """Take over the state of the waves, which must have the same program counter and the same mode FP16_OVFL."""
        first = self.waves[0]
        self.s[:] = self.rows[0]
        differing = np.flatnonzero((self.rows != self.rows[0]).any(axis=0)).tolist()
        flags = {wave.scc for wave in self.waves}
        self.varying = EXECS.union(differing, {SCC} if len(flags) > 1 else ())
        self.scc, self.pc, self.clamps_overflow = first.scc, first.pc, first.clamps_overflow
        self.states = [wave.state for wave in self.waves]
        self.exec_changed()

    def part(self) -> None:
        same = [register for register in range(SCALARS) if register not in self.varying]
        self.rows[:, same] = self.s[same]
        if SCC not in self.varying:
            self.push_scc()
        self.lend()
        for wave, state in zip(self.waves, self.states, strict=True):
            wave.pc, wave.state = self.pc, state
            wave.count += self.count
        self.count = 0

    def push(self, registers: Registers) -> None:
        """Copy to each wave those of the given scalar registers that are not in `varying`; SCC is ignored."""
        same = [register for register in registers if register not in self.varying and register != SCC]
        self.rows[:, same] = self.s[same]

    def push_scc(self) -> None:
        """Copy SCC, which must be the same in all waves, to each wave."""
        for wave in self.waves:
            wave.scc = self.scc

    def set_flags(self, values: Array) -> None:
        """Set SCC of each wave to 1 if its row of `values` contains a number other than 0, and otherwise to 0."""
        for wave, row in zip(self.waves, values.tolist(), strict=True):
            wave.scc = int(any(row))

    def lend(self) -> None:
        """Give each wave its part of the mask of active lanes, so that it can execute instructions on its own."""
        if self._lent:
            return
        masks = self.mask.reshape(-1, self.width)
        for wave, mask in zip(self.waves, masks, strict=True):
            wave.mask, wave.all_lanes = mask, self.all_lanes or bool(mask.all())
        self._lent = True

    def settle(self, registers: Registers) -> None:
        """Remove from `varying` those of the given registers that are the same in all waves, and copy them to `s`."""
        for register in registers:
            column = self.rows[:, register]
            if (column == column[0]).all():
                self.s[register] = column[0]
                self.varying -= {register}

    def owners(self, lanes: Array | None = None) -> Array:
        """Return the number of the wave for each lane in the mask `lanes`; by default, for each active lane."""
        if lanes is None:
            return self._owners if self.all_lanes else self._owners[self.mask]
        return self._owners[lanes]

    def by_wave(self, values: Array) -> Array:
        """Return the values of all lanes as an array with a row for each wave, `[waves, lanes of a wave]`."""
        return (values if values.ndim else np.broadcast_to(values, (self.lanes,))).reshape(-1, self.width)

    def lane_mask(self, index: int) -> Array:
        """Return the lane mask in the scalar registers from `index` on, for all waves, as `bool[lanes]`."""
        bits = self.rows[:, index : index + self.words].tobytes()
        known = self._masks.get(index)
        if known is not None and known[0] == bits:
            return known[1]
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little").view(np.bool_)
        self._masks[index] = (bits, mask)
        return mask

    def set_lane_mask(self, index: int, mask: Array) -> None:
        """Write a lane mask, `bool[lanes]`, to each wave's registers from `index` on, with 0 for inactive lanes."""
        if not self.all_lanes:
            mask = mask & self.mask
        bits = np.packbits(mask, bitorder="little")
        self._masks[index] = (bits.tobytes(), mask)
        self.rows[:, index : index + self.words] = bits.view(np.uint32).reshape(-1, self.words)
        if index == EXEC:
            self.exec_changed()

    def exec_changed(self) -> None:
        """Update `mask` and `all_lanes` after a write to the registers of EXEC in `rows`."""
        self.all_lanes = self.rows[:, EXEC : EXEC + self.words].tobytes() == self._every
        self.mask = self.lane_mask(EXEC)
        self._lent = False
