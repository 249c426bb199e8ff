"""A kernel as blocks of decoded instructions."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from toolchain_lab.emulator.calls import jumps
from toolchain_lab.emulator.codeobject import CodeObject
from toolchain_lab.emulator.control import Branch, branch, ends_block, is_barrier
from toolchain_lab.emulator.decode import Operation, decode
from toolchain_lab.emulator.disassembly import Disassembler, Line, disassemble
from toolchain_lab.emulator.errors import FaultyKernelError, NotEmulatedError
from toolchain_lab.emulator.exactness import bound
from toolchain_lab.emulator.operands import Run
from toolchain_lab.emulator.plan import Plan
from toolchain_lab.emulator.registers import EXECS, VECTOR
from toolchain_lab.emulator.scoreboard import Scoreboard
from toolchain_lab.emulator.syntax import parse
from toolchain_lab.emulator.wave import Target


@dataclass
class Block:
    """The instructions up to a branch, a jump, a barrier or the end of the program.

    Args:
        steps: the functions that execute the instructions, except for instructions that change nothing.
        branch: the branch at the end; None if the last instruction is not a branch, or jumps to an address in a
            register.
        jumps: whether the last instruction jumps to an address in a register.
        following: the address after the last instruction.
        executions: the number of times that waves executed the block.
        plans: the plans for running all waves at once, by the index of the first instruction and the registers that
            differ.
    """

    address: int
    steps: tuple[Run, ...]
    operations: tuple[Operation, ...]
    branch: Branch | None
    barrier: bool
    jumps: bool
    following: int
    executions: int = field(default=0)
    plans: dict[tuple[int, frozenset[int]], Plan] = field(default_factory=dict)

    @cached_property
    def touched(self) -> frozenset[int]:
        """The scalar registers that the instructions access, and always EXEC."""
        scalars = {register for each in self.operations for register in each.writes if register < VECTOR}
        return EXECS.union(scalars, *(each.scalar_reads for each in self.operations))


def names(line: Line) -> tuple[str, ...]:
    """Return the mnemonics in a line of the disassembly: two for a dual-issue instruction, and one otherwise."""
    return tuple(
        "v_" + name.removeprefix("v_dual_") if "::" in line.text else name
        for name in (parse(line, text).name for text in line.text.split("::"))
    )


class Program:
    """A disassembled kernel, whose instructions are decoded when they are first needed."""

    def __init__(self, code: CodeObject, lines: Sequence[Line], *, exact: bool = True) -> None:
        self.code = code
        self.target = Target(code.gpu, 32 if code.descriptor.wave32 else 64, exact)
        if self.target.generation not in {9, 11, 12}:
            raise NotEmulatedError(
                "gpu-not-emulated",
                f"{code.gpu} is not emulated",
                why="the emulator supports gfx9, gfx11 and gfx12",
                fix="compile the kernel for another GPU",
            )
        self.lines = tuple(lines)
        self._places = {line.address: place for place, line in enumerate(self.lines)}
        self._operations: dict[int, Operation] = {}
        self._blocks: dict[int, Block] = {}
        self.scoreboard = Scoreboard(self.target)
        self.magnitudes: dict[str, float] = {}
        # This becomes false when the waves of a workgroup had to run one after the other, so that later workgroups do
        # not try to run their waves together.
        self.together = True

    @classmethod
    def of(cls, code: CodeObject, disassembler: Disassembler, *, exact: bool = True) -> Program:
        """Disassemble a code object, and return its kernel as a program.

        Args:
            exact: whether matrix instructions follow the published rounding rules for the GPU, if there are any.
        """
        return cls(code, disassemble(code.path, code.gpu, disassembler), exact=exact)

    @classmethod
    def of_all(cls, code: CodeObject, disassembler: Disassembler) -> list[Program]:
        """Disassemble all kernels in the file of a code object, and return a program for each size of their waves.

        Raises:
            NotEmulatedError: the GPU is not emulated, or the disassembler cannot decode the object.
        """
        entries = sorted(code.descriptors)
        of_size: dict[bool, CodeObject] = {}
        lines: dict[bool, list[Line]] = {}
        for line in disassemble(code.path, code.gpu, disassembler):
            # A function that is not a kernel is taken to belong to the kernel before it.
            place = max(bisect_right(entries, line.address) - 1, 0)
            descriptor = code.descriptors[entries[place]] if entries else code.descriptor
            of_size.setdefault(descriptor.wave32, replace(code, descriptor=descriptor))
            lines.setdefault(descriptor.wave32, []).append(line)
        return [cls(code, lines[size]) for size, code in of_size.items()] or [cls(code, ())]

    def operation(self, place: int) -> Operation:
        """Return the decoded instruction of the line at the index `place`."""
        if place not in self._operations:
            self._operations[place] = decode(self.lines[place], self.target)
        return self._operations[place]

    def block(self, address: int) -> Block:
        known = self._blocks.get(address)
        if known is None:
            known = self._blocks[address] = self._decode(address)
        return known

    def _decode(self, address: int) -> Block:
        if address not in self._places:
            raise FaultyKernelError(
                "jump-outside-code", f"{self.code.kernel} continues at {address:#x}, where no instruction begins"
            )
        operations = []
        for place in range(self._places[address], len(self.lines)):
            operation = self.operation(place)
            operations.append(operation)
            if ends_block(operation.instruction) or operation.instruction.name.startswith("s_cbranch"):
                break
        else:
            raise FaultyKernelError(
                "jump-outside-code", f"{self.code.kernel} runs past its last instruction from {address:#x}"
            )
        last = operations[-1].instruction
        return Block(
            address=address,
            steps=tuple(operation.run for operation in operations if operation.run is not None),
            operations=tuple(operations),
            branch=branch(last),
            barrier=is_barrier(last),
            jumps=jumps(last),
            following=last.address + 4 * len(last.line.words),
        )

    def unknown(self) -> list[NotEmulatedError]:
        """Return an error for each unsupported instruction in the code, whether or not it was executed."""
        refused = []
        for place in range(len(self.lines)):
            try:
                operation = self.operation(place)
                branch(operation.instruction)
            except NotEmulatedError as error:
                refused.append(error)
            else:
                if operation.instruction.name == "s_endpgm" and self._is_padding(place + 1):
                    break
        return refused

    def _is_padding(self, place: int) -> bool:
        return all(line.text.startswith(("s_code_end", "s_nop")) for line in self.lines[place:])

    def executed(self) -> Counter[str]:
        """Return how often each instruction was executed, by mnemonic."""
        counts: Counter[str] = Counter()
        for block in self._blocks.values():
            for operation in block.operations:
                for name in operation.names:
                    counts[name] += block.executions
        return +counts

    def note(self, executions: Mapping[int, int], magnitudes: Mapping[str, float]) -> None:
        """Add the statistics of a workgroup to those of the program.

        Args:
            executions: the number of executions of each block, by address.
            magnitudes: the largest magnitude that `Workgroup.note` recorded for each instruction, by mnemonic.
        """
        for address, count in executions.items():
            self._blocks[address].executions += count
        for name, magnitude in magnitudes.items():
            self.magnitudes[name] = max(magnitude, self.magnitudes.get(name, 0.0))

    def approximate(self) -> dict[str, str]:
        """Return the bounds on the errors of the executed instructions that are not exact, by mnemonic."""
        return {
            name: text
            for name in sorted(self.executed())
            if (text := bound(name, self.target, self.magnitudes.get(name)))
        }

    def blocks(self) -> list[Block]:
        """Return the executed blocks."""
        return [block for block in self._blocks.values() if block.executions]
