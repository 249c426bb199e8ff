"""Hazards: the distances between instructions that hardware does not enforce, as in LLVM's GCNHazardRecognizer.

A distance is a number of wait states: each instruction is one wait state, and S_NOP N is N + 1. On gfx11 and gfx12 a
distance is a number of vector instructions. The hazards of wave64 on gfx11, those of scalar registers on gfx12, and
those of DOT and float64 matrix instructions are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from toolchain_lab.emulator.decode import Operation
from toolchain_lab.emulator.operands import SCC, VECTOR, Operands, Register
from toolchain_lab.emulator.wave import EXEC, VCC, Target

Registers = frozenset[int]
_NONE: Registers = frozenset()
_EXECS = frozenset({EXEC, EXEC + 1})
_VCCS = frozenset({VCC, VCC + 1})
_TRANSCENDENTAL = re.compile(r"v_(exp|log|rcp|rcp_iflag|rsq|sqrt|sin|cos)_f\d+$")
_MATRIX = re.compile(r"v_(mfma|wmma)_(?:scale_)?[fi]32_(32|16)x\d+x\d+_?(x?)(f32)?")
_LANE = re.compile(r"v_(readlane|readfirstlane|writelane)_b32$")
_STORE = re.compile(r"(global|flat|buffer)_store_(dwordx[34]|b96|b128)$")
MEMORY = ("global_", "flat_", "buffer_", "scratch_")

# Each row has the registers that the first instruction writes, those that the second one uses, and the wait states that
# must be between the two. `Facts.sets` has the sets of registers by these names.
_CDNA = (
    ("valu scalar", "memory scalar", 5),
    ("vector", "dpp vector", 2),
    ("valu exec", "dpp exec", 5),
    ("valu scalar", "div_fmas vcc", 4),
    ("valu scalar", "lane number", 4),
    ("valu vector", "matrix source", 2),
    ("valu exec", "matrix exec", 4),
)
_CDNA2 = (*_CDNA, ("stored", "valu result", 1))
_CDNA3 = (
    *_CDNA,
    ("stored", "valu result", 2),
    ("stored at a scalar", "valu result", 1),  # since LLVM 23, by llvm#197267
    ("transcendental", "plain source", 1),
    ("shifted", "valu source", 1),
    ("shifted", "valu result", 1),
    ("valu scalar", "valu scalar source", 2),
    ("valu exec", "lane exec", 4),
    ("valu vector", "lane vector", 1),
)
_CDNA4 = (*_CDNA3, ("valu vector", "permlane vector", 2), ("valu exec", "permlane exec", 4))
# Here the distances are numbers of vector instructions.
_RDNA = (("transcendental", "valu source", 6), ("wmma result", "wmma factor", 1))
_ROWS = {"gfx90a": _CDNA2, "gfx942": _CDNA3, "gfx950": _CDNA4}


class Facts:
    """The properties of an instruction that the rules use.

    Attributes:
        sets: the sets of registers that the rules name, without empty sets.
        states: the wait states of the instruction.
        passes: the passes of an MFMA; 0 for other instructions.
        fast: whether an MFMA is one of those that LLVM calls XDL.
        settles: whether all earlier vector results are available after the instruction.
        leaves: for each rule of which the instruction can be the first, its set of registers, the name of the second
            set, and the distance.
        reach: the largest distance that a later instruction must keep; 0 if there is none.
    """

    def __init__(self, operation: Operation, target: Target) -> None:
        self.operation = operation
        self.target = target
        instruction, names = operation.instruction, operation.names
        name = names[0]
        self.valu = name.startswith("v_")
        self.memory = name.startswith(MEMORY)
        self.lds = name.startswith("ds_")
        self.transcendental = any(_TRANSCENDENTAL.match(each) for each in names)
        self.states = int(instruction.operands[0], 0) + 1 if name == "s_nop" else 1
        depctr = name in {"s_waitcnt_depctr", "s_wait_alu"} and not instruction.line.words[0] >> 12 & 15
        self.settles = self.memory or self.lds or depctr
        matrix = _MATRIX.match(name)
        single = matrix is not None and matrix[4] is not None and not matrix[3]
        self.passes = self._passes(int(matrix[2]), single=single) if matrix and matrix[1] == "mfma" else 0
        self.fast = not single
        reads = frozenset(r for r in operation.reads if r != SCC)
        self.vector_reads, self.vector_writes = _vector(reads), _vector(operation.writes)
        self.factors = self.addend = _NONE
        if matrix:
            first, second, third = (_register(operation, target, k) for k in range(1, 4))
            self.factors, self.addend = _names(first, second), _names(third)
        self.sets = {key: value for key, value in self._sets(name, reads, matrix) if value}
        # gfx115x and gfx12 have no hazard after transcendental instructions.
        rows = _RDNA if target.generation == 11 and not target.gpu.startswith("gfx115") else _RDNA[1:]
        self.leaves = [
            (self.sets[left], taken, states)
            for left, taken, states in (_ROWS.get(target.gpu, _CDNA3) if target.generation == 9 else rows)
            if left in self.sets
        ]
        self.reach = max([self.passes + 4 if self.passes else 0, *(need for _, _, need in self.leaves)])

    def _passes(self, size: int, *, single: bool) -> int:
        passes = 16 if size == 32 else 8
        return passes if single or self.target.gpu == "gfx90a" else passes // 2

    def _sets(self, name: str, reads: Registers, matrix: re.Match[str] | None) -> Iterable[tuple[str, Registers]]:
        operation, instruction = self.operation, self.operation.instruction
        scalar_reads = frozenset(r for r in reads if r < VECTOR) - _EXECS
        yield "vector", self.vector_writes
        if self.memory:
            yield "memory scalar", scalar_reads
            if _STORE.match(name):
                buffer = name.startswith("buffer")
                kind = "stored at a scalar" if buffer and instruction.operands[3].startswith("s") else "stored"
                yield kind, _names(_register(operation, self.target, 0 if buffer else 1))
        if self.valu:
            yield from self._vector_sets(name, scalar_reads, matrix)

    def _vector_sets(
        self, name: str, scalar_reads: Registers, matrix: re.Match[str] | None
    ) -> Iterable[tuple[str, Registers]]:
        instruction, writes = self.operation.instruction, self.operation.writes
        mfma = bool(matrix and matrix[1] == "mfma")
        yield "valu scalar", frozenset(r for r in writes if r < VECTOR and r != SCC) - _EXECS
        yield "valu exec", writes & _EXECS
        yield "valu source", self.vector_reads
        yield "valu result", self.vector_writes
        yield "valu scalar source", scalar_reads
        if not mfma:
            yield "valu vector", self.vector_writes
        if self.transcendental:
            yield "transcendental", self.vector_writes
        else:
            yield "plain source", self.vector_reads
        if "dpp" in instruction.suffix:
            yield "dpp vector", self.vector_reads
            yield "dpp exec", _EXECS
        if _shifts(self.operation):
            yield "shifted", self.vector_writes
        if name.startswith("v_div_fmas"):
            yield "div_fmas vcc", _VCCS
        if _LANE.match(name):
            yield "lane exec", _EXECS
            yield "lane vector", self.vector_reads if "read" in name else _NONE
            yield "lane number", _names(_register(self.operation, self.target, 2)) & scalar_reads
        if name.startswith("v_permlane"):
            yield "permlane vector", self.vector_reads
            yield "permlane exec", _EXECS
        if mfma:
            yield "matrix source", self.factors | self.addend
            yield "matrix exec", _EXECS
        elif matrix:
            yield "wmma result", self.vector_writes
            yield "wmma factor", self.factors


def _shifts(operation: Operation) -> bool:
    """Return whether an instruction writes its result to the upper bits of a register, by SDWA or op_sel."""
    modifiers = operation.instruction.modifiers
    if operation.instruction.suffix == "sdwa":
        return modifiers.text("dst_sel", "DWORD") != "DWORD"
    selected = modifiers.vector("op_sel", [])
    return bool(selected) and len(selected) == len(operation.instruction.operands) and bool(selected[-1])


def _vector(registers: Iterable[int]) -> Registers:
    return frozenset(r for r in registers if r >= VECTOR)


def _register(operation: Operation, target: Target, place: int) -> Register | None:
    texts = operation.instruction.operands
    return Operands(target, operation.instruction).register(texts[place]) if place < len(texts) else None


def _names(*registers: Register | None) -> Registers:
    return frozenset(name for register in registers if register is not None for name in register.names)


def too_close(
    first: Facts, second: Facts, states: int, valus: int, transcendental: int, *, newer: Registers = _NONE
) -> tuple[int, Registers] | None:
    """Check the distance between two instructions.

    Args:
        states: the wait states between them.
        valus: the vector instructions between them.
        transcendental: how many of these are transcendental, such as V_EXP_F32.
        newer: the registers that matrix instructions between them wrote, for which the first one no longer matters.

    Returns:
        The required distance, and the registers for which it is required; None if the distance is sufficient.
    """
    cdna = first.target.generation == 9
    for left, taken, need in first.leaves:
        if (states if cdna else valus) < need and (cdna or transcendental < 2):
            shared = left & second.sets.get(taken, _NONE)
            if shared:
                return need, shared
    if first.passes:
        for need, shared in _after_matrix(first, second, newer):
            if shared and states < need:
                return need, shared
    return None


def _after_matrix(first: Facts, second: Facts, newer: Registers) -> Iterable[tuple[int, Registers]]:
    """Return the distances that an instruction must keep from an MFMA, each with the registers that require it."""
    passes, result, old = first.passes, first.vector_writes, first.target.gpu == "gfx90a"
    more = int(first.target.gpu == "gfx950" and first.fast)
    use = passes + (3 if old or first.fast else 2) + more
    if second.passes:
        yield use, (result & second.factors) - newer
        if second.addend != result and (old or first.fast or not second.fast):
            yield (passes if old or not first.fast else passes + 1 + more), (result & second.addend) - newer
    elif second.valu or second.memory or second.lds:
        yield use, (result & (second.vector_reads | second.vector_writes)) - newer
        if old or first.fast:
            yield passes - 1, first.addend & second.vector_writes
