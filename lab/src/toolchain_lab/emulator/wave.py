"""The registers of one wave."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from toolchain_lab.emulator.bits import WORD, Array, pack_lanes, unpack_lanes

if TYPE_CHECKING:
    from toolchain_lab.emulator.scoreboard import State
    from toolchain_lab.emulator.workgroup import Workgroup

VCC, NULL, EXEC = 106, 124, 126
TTMP = 108
# 256 vector registers and 256 accumulation registers.
VECTORS = 512
SCALARS = 128


@dataclass(frozen=True)
class Target:
    """The target of a program.

    Args:
        gpu: LLVM's name.
        lanes: 32 or 64.
        exact: whether matrix instructions round as hardware does where that is published.
    """

    gpu: str
    lanes: int
    exact: bool = True

    @cached_property
    def generation(self) -> int:
        """9 for CDNA, 11 and 12 for RDNA."""
        return int(self.gpu[3:-2])

    @property
    def m0(self) -> int:
        """The scalar register that M0 is."""
        return 124 if self.generation == 9 else 125


class Wave:
    """Registers and state of one wave.

    Each vector register is a row of `uint32[lanes]`; the lists below are views of these rows by type. The scalar
    registers are `uint32[128]`, numbered as instructions encode them.

    Args:
        number: the number of the wave in its workgroup.
        vectors: its vector registers, `uint32[512, lanes]`.
        scalars: its scalar registers.
        scratch: its scratch memory, `uint32[words, lanes]`.
    """

    def __init__(
        self, group: Workgroup, target: Target, number: int, *, vectors: Array, scalars: Array, scratch: Array
    ) -> None:
        self.group = group
        self.target = target
        self.number = number
        self.vectors = vectors
        self.lanes: int = vectors.shape[1]
        self.s = scalars
        self.sh_bits: Array = scalars.view(np.uint16)
        self.scratch = scratch
        if target.generation > 9:
            self.s[NULL] = 0
        # Where it is, as a kernel of gfx90a sees it; 0 for GPUs that keep that to themselves.
        self.scratch_address = 0
        self.scc = 0
        # FP16_OVFL of the mode.
        self.clamps_overflow = False
        self.pc = 0
        self.state: State
        self.done = False
        self.count = 0
        # What was last packed to or unpacked from registers: a mask is most often read as it was written.
        self._masks: dict[int, tuple[object, Array]] = {}
        self.mask: Array = np.ones(self.lanes, np.bool_)
        self.all_lanes = True

    @cached_property
    def u(self) -> list[Array]:
        """The vector registers as `uint32`."""
        return list(self.vectors)

    @cached_property
    def i(self) -> list[Array]:
        """The same as `int32`."""
        return list(self.vectors.view(np.int32))

    @cached_property
    def f(self) -> list[Array]:
        """The same as `float32`."""
        return list(self.vectors.view(np.float32))

    @cached_property
    def half_bits(self) -> tuple[list[Array], list[Array]]:
        """Their lower and upper halves as `uint16`."""
        halves = self.vectors.view(np.uint16)
        return list(halves[:, 0::2]), list(halves[:, 1::2])

    @cached_property
    def members(self) -> Array:
        """The numbers of the waves that these registers are of, `uint8`."""
        return np.array([self.number], np.uint8)

    def owners(self, lanes: Array | None = None) -> Array:  # noqa: ARG002 - it matters where there are several waves
        """The number of the wave of each active lane, or of each of some lanes; one number if there is one wave."""
        return self.members

    def quad(self, index: int) -> int:
        """The number in a pair of scalar registers."""
        return int(self.s[index]) | int(self.s[index + 1]) << 32

    def lane_bits(self, index: int) -> int:
        """A lane mask in scalar registers, as a number: one register for 32 lanes, two for 64."""
        return int(self.s[index]) if self.target.lanes == 32 else self.quad(index)

    def lane_mask(self, index: int) -> Array:
        """The same as `bool[lanes]`."""
        value = self.lane_bits(index)
        known = self._masks.get(index)
        if known is not None and known[0] == value:
            return known[1]
        mask = unpack_lanes(value, self.lanes)
        self._masks[index] = (value, mask)
        return mask

    def set_lane_bits(self, index: int, value: int) -> None:
        """Write a lane mask to scalar registers."""
        self.s[index] = value & WORD
        if self.lanes == 64:
            self.s[index + 1] = value >> 32
        if index == EXEC:
            self.exec_changed()

    def set_lane_mask(self, index: int, mask: Array) -> None:
        """Write `bool[lanes]` to scalar registers; lanes that are not active give 0."""
        if not self.all_lanes:
            mask = mask & self.mask
        value = pack_lanes(mask)
        self._masks[index] = (value, mask)
        self.set_lane_bits(index, value)

    @property
    def exec_bits(self) -> int:
        """EXEC as a number."""
        return self.lane_bits(EXEC)

    def set_exec(self, value: int) -> None:
        """Set the active lanes."""
        self.s[EXEC], self.s[EXEC + 1] = value & WORD, value >> 32
        self.exec_changed()

    def exec_changed(self) -> None:
        """Follow EXEC after a write to its registers."""
        value = self.exec_bits
        self.all_lanes = value == (1 << self.lanes) - 1
        self.mask = self.lane_mask(EXEC)

    def forget_masks(self) -> None:
        """Unpack lane masks anew, after scalar registers were restored."""
        self._masks = {}

    def first_lane(self) -> int:
        """The lowest active lane; 0 if there is none."""
        value = self.exec_bits
        return (value & -value).bit_length() - 1 if value else 0
