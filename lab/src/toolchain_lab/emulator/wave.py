"""Waves, and the GPU for which they are emulated."""

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
# These are 256 VGPRs, followed by 256 AGPRs, which only CDNA GPUs have.
VECTORS = 512
SCALARS = 128


@dataclass(frozen=True)
class Target:
    """The GPU for which a program is emulated.

    Args:
        gpu: LLVM's name for the GPU, such as `gfx942`.
        lanes: the number of lanes in a wave, 32 or 64.
        exact: whether matrix instructions follow the published rounding rules for the GPU, if there are any.
    """

    gpu: str
    lanes: int
    exact: bool = True

    @cached_property
    def generation(self) -> int:
        """The major version of the ISA: 9 for CDNA, 11 for RDNA 3 and RDNA 3.5, 12 for RDNA 4."""
        return int(self.gpu[3:-2])

    @cached_property
    def cdna3(self) -> bool:
        """Whether the GPU has the architecture CDNA 3."""
        return self.gpu in {"gfx940", "gfx941", "gfx942"}


class Wave:
    """The registers and the state of a wave.

    Args:
        number: the wave's number in its workgroup, from 0.
        vectors: the vector registers, `uint32[512, lanes]`.
        scalars: the scalar registers, `uint32[128]`, indexed by the numbers that encode them in instructions.
        scratch: the scratch memory, `uint32[words, lanes]`.
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
        # The address of scratch memory if the kernel accesses it through a buffer, as on gfx90a; otherwise 0.
        self.scratch_address = 0
        self.scc = 0
        # The bit FP16_OVFL of the MODE register.
        self.clamps_overflow = False
        self.pc = 0
        self.state: State
        self.done = False
        self.count = 0
        # This cache holds lane masks with their bits, by the index of the first register. It saves conversions, because
        # most masks are read unchanged after they were written.
        self._masks: dict[int, tuple[object, Array]] = {}
        self.mask: Array = np.ones(self.lanes, np.bool_)
        self.all_lanes = True

    @cached_property
    def u(self) -> list[Array]:
        """The vector registers as `uint32[lanes]`, each a view of `vectors`."""
        return list(self.vectors)

    @cached_property
    def i(self) -> list[Array]:
        """The vector registers as `int32[lanes]`, each a view of `vectors`."""
        return list(self.vectors.view(np.int32))

    @cached_property
    def f(self) -> list[Array]:
        """The vector registers as `float32[lanes]`, each a view of `vectors`."""
        return list(self.vectors.view(np.float32))

    @cached_property
    def half_bits(self) -> tuple[list[Array], list[Array]]:
        """The lower and the upper halves of the vector registers as `uint16[lanes]`, each a view of `vectors`."""
        halves = self.vectors.view(np.uint16)
        return list(halves[:, 0::2]), list(halves[:, 1::2])

    @cached_property
    def members(self) -> Array:
        """The numbers of the waves that this object represents, `uint8[waves]`."""
        return np.array([self.number], np.uint8)

    def owners(self, lanes: Array | None = None) -> Array:  # noqa: ARG002 - the subclass Batch uses `lanes`
        """Return the number of this wave, to which all lanes belong, as an array with one element."""
        return self.members

    def quad(self, index: int) -> int:
        """Return the 64-bit number in the scalar registers `index` and `index + 1`."""
        number: int = self.s.item(index) | self.s.item(index + 1) << 32
        return number

    def lane_bits(self, index: int) -> int:
        """Return the lane mask in the scalar registers from number `index` on, as a number."""
        return self.s.item(index) if self.target.lanes == 32 else self.quad(index)

    def lane_mask(self, index: int) -> Array:
        """Return the lane mask in the scalar registers from number `index` on, as `bool[lanes]`."""
        value = self.lane_bits(index)
        known = self._masks.get(index)
        if known is not None and known[0] == value:
            return known[1]
        mask = unpack_lanes(value, self.lanes)
        self._masks[index] = (value, mask)
        return mask

    def set_lane_bits(self, index: int, value: int) -> None:
        """Write a lane mask, given as a number, to the scalar registers from number `index` on."""
        self.s[index] = value & WORD
        if self.lanes == 64:
            self.s[index + 1] = value >> 32
        if index == EXEC:
            self.exec_changed()

    def set_lane_mask(self, index: int, mask: Array) -> None:
        """Write a lane mask, `bool[lanes]`, to the scalar registers from `index` on, with 0 for inactive lanes."""
        if not self.all_lanes:
            mask = mask & self.mask
        value = pack_lanes(mask)
        self._masks[index] = (value, mask)
        self.set_lane_bits(index, value)

    @property
    def exec_bits(self) -> int:
        """EXEC as a number, whose bit n stands for lane n."""
        return self.lane_bits(EXEC)

    def set_exec(self, value: int) -> None:
        """Set EXEC, which determines the active lanes."""
        self.s[EXEC], self.s[EXEC + 1] = value & WORD, value >> 32
        self.exec_changed()

    def exec_changed(self) -> None:
        """Update `mask` and `all_lanes` after a write to the registers of EXEC."""
        value = self.exec_bits
        self.all_lanes = value == (1 << self.lanes) - 1
        self.mask = self.lane_mask(EXEC)

    def forget_masks(self) -> None:
        """Drop the cached lane masks."""
        self._masks = {}

    def first_lane(self) -> int:
        """Return the number of the lowest active lane; 0 if no lane is active."""
        value = self.exec_bits
        return (value & -value).bit_length() - 1 if value else 0
