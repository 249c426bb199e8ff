"""Execution of a workgroup, whose waves run all at once if possible, and otherwise one after the other."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence

import numpy as np

from toolchain_lab.emulator.accesses import GroupAccesses
from toolchain_lab.emulator.bits import WORD, Array
from toolchain_lab.emulator.codeobject import CodeObject
from toolchain_lab.emulator.errors import FaultyKernelError
from toolchain_lab.emulator.memory import Lds, Memory
from toolchain_lab.emulator.program import Program
from toolchain_lab.emulator.together import run_together
from toolchain_lab.emulator.wave import SCALARS, TTMP, VECTORS, Wave

# This is the float mode of Triton's kernels: round to nearest, and preserve denormals.
_FLOAT_MODE = 0xF0
_PRIVATE_BUFFER, _KERNARG = 1 << 0, 1 << 3
_UNKNOWN_SGPRS = {
    1 << 1: "the dispatch packet",
    1 << 2: "the queue",
    1 << 4: "the dispatch id",
    1 << 5: "the scratch memory's address",
    1 << 6: "the size of scratch memory",
}
# These are the address of scratch memory, its size in bytes for each wave, and the bits of its buffer descriptor for a
# swizzled buffer with a stride of 4 bytes.
_SCRATCH, _SCRATCH_OF_WAVE = 0x6F0000000000, 1 << 16
_SWIZZLED = 1 << 31 | 4 << 16
MOST_INSTRUCTIONS = 20_000_000  # by all waves of a workgroup together
Place = tuple[int, int, int]


class Workgroup:
    """A workgroup of a launch.

    Args:
        arguments: the bytes of the argument block, which memory holds at `argument_address`.
        lds: the size of the workgroup's LDS in bytes.
        place: the workgroup's ids x, y and z.
        random: the generator for the initial contents of registers, LDS and scratch memory.
        watch: whether to detect data races in LDS when the waves run one after the other.
        code_address: the address of the code object.
        cleared: whether scalar registers are initially 0 instead of random.
    """

    def __init__(
        self,
        program: Program,
        memory: Memory,
        *,
        arguments: bytes,
        argument_address: int,
        waves: int,
        lds: int,
        place: Place,
        random: np.random.Generator,
        watch: bool = True,
        code_address: int = 0,
        cleared: bool = False,
    ) -> None:
        self.program = program
        self.code: CodeObject = program.code
        self.memory = memory
        self.code_address = code_address
        self.lds_size = lds
        self.lds = Lds(random.integers(0, 256, (lds + 15) // 16 * 16, dtype=np.uint8), watch=watch, limit=lds)
        refuse(self.code)
        self.executions: Counter[int] = Counter()
        self.magnitudes: dict[str, float] = {}
        # The accesses of waves that run together; None while the waves run one after the other.
        self.accesses: GroupAccesses | None = None
        # Registers and scratch memory start with random contents, so that a kernel that uses an uninitialized value
        # usually gives wrong results. All waves share these arrays: a wave has a row of `scalars`, and columns
        # of the other two.
        lanes = program.target.lanes
        self.vectors: Array = np.empty((VECTORS, waves * lanes), np.uint32)
        self.scalars: Array = np.empty((waves, SCALARS), np.uint32)
        self.scratch: Array = np.empty((self.code.descriptor.scratch // 4 + 4, waves * lanes), np.uint32)
        self.waves = []
        for number in range(waves):
            columns = slice(number * lanes, (number + 1) * lanes)
            parts = self.vectors[:, columns], self.scalars[number], self.scratch[:, columns]
            for part in parts:
                part[...] = random.integers(0, 1 << 32, part.shape, dtype=np.uint32)
            if cleared:
                parts[1][...] = 0
            wave = Wave(self, program.target, number, vectors=parts[0], scalars=parts[1], scratch=parts[2])
            wave.set_exec((1 << lanes) - 1)
            wave.state = program.scoreboard.start
            _begin(wave, arguments, argument_address, place)
            self.waves.append(wave)

    def note(self, name: str, magnitude: float) -> None:
        """Record a bound on the sum of magnitudes that the instruction `name` added, unless a larger bound is known."""
        self.magnitudes[name] = max(magnitude, self.magnitudes.get(name, 0.0))

    def run(self, *, reverse: bool, limit: int = MOST_INSTRUCTIONS) -> int:
        """Run all waves to their end, and return the number of executed instructions, which `limit` limits."""
        with np.errstate(all="ignore"):
            try:
                if len(self.waves) > 1 and self.program.together:
                    self.program.together = run_together(self, limit)
                if not all(wave.done for wave in self.waves):
                    self._run_waves(self.waves[::-1] if reverse else self.waves, limit)
            finally:
                self.program.note(self.executions, self.magnitudes)
        return sum(wave.count for wave in self.waves)

    def _run_waves(self, order: Sequence[Wave], limit: int) -> None:
        """Run the waves one after the other, each up to its next barrier, until all waves have ended."""
        while not all(wave.done for wave in self.waves):
            for wave in order:
                if not wave.done:
                    self.lds.turn(wave.number)
                    self._to_barrier(wave, limit)
            self.lds.barrier()
            if sum(wave.count for wave in self.waves) > limit:
                raise FaultyKernelError(
                    "kernel-endless",
                    f"{self.code.kernel} does not end",
                    why=f"a workgroup executed more than {limit} instructions",
                )

    def _to_barrier(self, wave: Wave, limit: int) -> None:
        address = wave.pc
        while not self.step(wave):
            if wave.count > limit:
                raise FaultyKernelError(
                    "kernel-endless",
                    f"{self.code.kernel} does not end",
                    why=f"a wave executed more than {limit} instructions, the last at {address:#x}",
                )
            address = wave.pc

    def step(self, wave: Wave) -> bool:
        """Run one block of a wave, and return whether the wave has reached a barrier or its end."""
        block = self.program.block(wave.pc)
        wave.state = self.program.scoreboard.behind(wave.state, block)
        self.executions[block.address] += 1
        wave.count += len(block.operations)
        for step in block.steps:
            step(wave)
        if block.branch is not None:
            wave.pc = block.branch.target if block.branch.condition(wave) else block.branch.following
        elif not block.jumps:
            wave.pc, wave.done = block.following, not block.barrier
            return True
        return False


def refuse(code: CodeObject) -> None:
    """Raise NotEmulatedError if the kernel descriptor requires a feature that is not emulated."""
    descriptor = code.descriptor
    why = ""
    if descriptor.float_mode != _FLOAT_MODE:
        why = f"its float mode is {descriptor.float_mode:#x}, and only {_FLOAT_MODE:#x} is emulated"
    for bit, name in _UNKNOWN_SGPRS.items():
        if descriptor.properties & bit:
            why = f"it needs {name} in its user SGPRs"
    if descriptor.dynamic_stack:
        why = "it needs a dynamic stack"
    if descriptor.rsrc2 >> 10 & 1:
        why = "it needs the workgroup info in an SGPR"
    if why:
        raise code.not_emulated(why)


def _begin(wave: Wave, arguments: bytes, address: int, place: Place) -> None:
    """Write the registers that the hardware initializes before a wave's first instruction."""
    code, generation = wave.group.code, wave.target.generation
    descriptor = code.descriptor
    wave.pc = code.entry
    words: list[int] = []
    if descriptor.properties & _PRIVATE_BUFFER:
        words += [_SCRATCH & WORD, _SCRATCH >> 32 | _SWIZZLED, WORD, int(wave.s[3])]
    if descriptor.properties & _KERNARG:
        words += [address & WORD, address >> 32]
    if descriptor.preload_length:
        words += struct.unpack_from(f"<{descriptor.preload_length}I", arguments, 4 * descriptor.preload_offset)
        # The hardware skips the first 256 bytes, which load the arguments for firmware that cannot preload them.
        wave.pc += 256
    wave.s[: len(words)] = words
    if generation == 12:
        wave.s[TTMP + 9], wave.s[TTMP + 7] = place[0], place[1] & 0xFFFF | place[2] << 16
        wave.s[TTMP + 8] = wave.number << 25
    else:
        ids = [number for number, wanted in zip(place, descriptor.workgroup_ids, strict=True) if wanted]
        first = descriptor.user_sgprs
        wave.s[first : first + len(ids)] = ids
        if descriptor.properties & _PRIVATE_BUFFER and descriptor.rsrc2 & 1:
            # The kernel adds this value, the offset of the wave's scratch memory, to the base in the buffer descriptor.
            wave.s[first + len(ids)] = place_of_wave = _SCRATCH_OF_WAVE * (wave.number + 1)
            wave.scratch_address = _SCRATCH + place_of_wave
    # v0 contains the work-item ids of each lane: x in the low bits, and above it y and z, which are always 0.
    wave.u[0][:] = np.arange(wave.number * wave.lanes, (wave.number + 1) * wave.lanes)
