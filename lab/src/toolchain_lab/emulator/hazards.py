"""Hazards: the distances between instructions that hardware does not enforce, as in LLVM's GCNHazardRecognizer.

A distance is a number of wait states: each instruction is one wait state, and S_NOP N is N + 1. On gfx11 and gfx12 a
distance is a number of vector instructions. The hazards of wave64 on gfx11, those of scalar registers on gfx12, and
those of DOT and float64 matrix instructions are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from toolchain_lab.emulator.decode import Operation
from toolchain_lab.emulator.operands import SCC, VECTOR, Operands
from toolchain_lab.emulator.wave import EXEC, VCC, Target

Registers = frozenset[int]
_NONE: Registers = frozenset()
_EXECS = frozenset({EXEC, EXEC + 1})
_FIXED = {"exec": _EXECS, "vcc": frozenset({VCC, VCC + 1})}
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


@dataclass(slots=True, eq=False)
class Kind:
    """The facts that instructions with the same name share.

    Attributes:
        passes: the passes of an MFMA; 0 for other instructions.
        fast: whether an MFMA is one of those that LLVM calls XDL.
        groups: the group of registers, see `Facts.part`, for each set that the rules name.
        rows: for each rule of which the instruction can be the first, its group, the name of the second set, and the
            distance.
        followers: the result of `before` by the later kind.
    """

    valu: bool
    memory: bool
    lds: bool
    transcendental: bool
    passes: int
    fast: bool
    groups: Mapping[str, str]
    rows: tuple[tuple[str, str, int], ...]
    followers: dict[Kind, tuple[tuple[str, str, int], ...]] = field(default_factory=dict)

    def before(self, later: Kind) -> tuple[tuple[str, str, int], ...]:
        """Return the rules between this kind and a later one: both groups of registers, and the distance."""
        known = self.followers.get(later)
        if known is None:
            pairs = tuple((left, later.groups[taken], need) for left, taken, need in self.rows if taken in later.groups)
            known = self.followers[later] = pairs
        return known


@cache
def _kind(names: tuple[str, ...], suffix: str, gpu: str, stored: str, *, shifts: bool) -> Kind:
    """Return the facts that do not depend on the registers.

    Args:
        stored: the set that the stored registers belong to; empty if the rules name none.
        shifts: whether the instruction writes its result to the upper bits of a register.
    """
    name, cdna, generation = names[0], gpu.startswith("gfx9"), int(gpu[3:-2])
    matrix = _MATRIX.match(name)
    mfma = bool(matrix and matrix[1] == "mfma")
    single = matrix is not None and matrix[4] is not None and not matrix[3]
    passes = (16 if matrix[2] == "32" else 8) if matrix and mfma else 0
    transcendental = any(_TRANSCENDENTAL.match(each) for each in names)
    memory = name.startswith(MEMORY)
    groups = {"vector": "vector writes"}
    if memory:
        groups["memory scalar"] = "scalar reads"
        if stored:
            groups[stored] = stored
    if name.startswith("v_"):
        groups |= {
            "valu scalar": "scalar writes",
            "valu exec": "exec writes",
            "valu source": "vector reads",
            "valu result": "vector writes",
            "valu scalar source": "scalar reads",
            **({} if mfma else {"valu vector": "vector writes"}),
            **({"transcendental": "vector writes"} if transcendental else {"plain source": "vector reads"}),
            **({"dpp vector": "vector reads", "dpp exec": "exec"} if "dpp" in suffix else {}),
            **({"shifted": "vector writes"} if shifts else {}),
            **({"div_fmas vcc": "vcc"} if name.startswith("v_div_fmas") else {}),
            **({"lane exec": "exec", "lane number": "lane number"} if _LANE.match(name) else {}),
            **({"lane vector": "vector reads"} if _LANE.match(name) and "read" in name else {}),
            **({"permlane vector": "vector reads", "permlane exec": "exec"} if name.startswith("v_permlane") else {}),
            **({"matrix source": "matrix source", "matrix exec": "exec"} if mfma else {}),
            **({"wmma result": "vector writes", "wmma factor": "factors"} if matrix and not mfma else {}),
        }
    # gfx115x and gfx12 have no hazard after transcendental instructions.
    rdna = _RDNA if generation == 11 and not gpu.startswith("gfx115") else _RDNA[1:]
    return Kind(
        valu=name.startswith("v_"),
        memory=memory,
        lds=name.startswith("ds_"),
        transcendental=transcendental,
        passes=passes if single or gpu == "gfx90a" else passes // 2,
        fast=not single,
        groups=groups,
        rows=tuple(
            (groups[left], taken, need)
            for left, taken, need in (_ROWS.get(gpu, _CDNA3) if cdna else rdna)
            if left in groups
        ),
    )


class Facts:
    """The properties of an instruction that the rules use.

    Attributes:
        kind: the facts that do not depend on the registers.
        states: the wait states of the instruction.
        settles: whether all earlier vector results are available after the instruction.
        reach: the largest distance that a later instruction must keep; 0 if there is none.
    """

    def __init__(self, operation: Operation, target: Target) -> None:
        self._operation = operation
        self.target = target
        instruction, name = operation.instruction, operation.names[0]
        stored = ""
        if _STORE.match(name):
            at_scalar = name.startswith("buffer") and instruction.operands[3].startswith("s")
            stored = "stored at a scalar" if at_scalar else "stored"
        self.kind = _kind(operation.names, instruction.suffix, target.gpu, stored, shifts=_shifts(operation))
        self.valu, self.transcendental = self.kind.valu, self.kind.transcendental
        self.states = int(instruction.operands[0], 0) + 1 if name == "s_nop" else 1
        depctr = name in {"s_waitcnt_depctr", "s_wait_alu"} and not instruction.line.words[0] >> 12 & 15
        self.settles = self.kind.memory or self.kind.lds or depctr
        self._parts: dict[str, Registers] = {}
        self.reach = self.kind.passes + 4 if self.kind.passes else 0
        for group, _, need in self.kind.rows:
            if need > self.reach and self.part(group):
                self.reach = need

    def part(self, group: str) -> Registers:
        """Return the registers of a group."""
        known = self._parts.get(group)
        if known is None:
            known = self._parts[group] = frozenset(self._find(group))
        return known

    def _find(self, group: str) -> Iterable[int]:
        reads, writes = self._operation.reads, self._operation.writes
        kind, _, what = group.partition(" ")
        if kind in {"vector", "scalar"}:
            chosen = writes if what == "writes" else reads
            if kind == "vector":
                return [register for register in chosen if register >= VECTOR]
            return [register for register in chosen if register < SCC and register not in _EXECS]
        if group in _FIXED:
            return _FIXED[group]
        if group == "exec writes":
            return writes & _EXECS
        return self._of_operands(group)

    def _of_operands(self, group: str) -> Registers:
        if group.startswith("stored"):
            return self._names(0 if self._operation.names[0].startswith("buffer") else 1)
        if group == "lane number":
            return self._names(2) & self.part("scalar reads")
        if group == "matrix source":
            return self.part("factors") | self.part("addend")
        return self._names(3) if group == "addend" else self._names(1) | self._names(2)

    def _names(self, place: int) -> Registers:
        """Return the registers of an operand."""
        texts = self._operation.instruction.operands
        if place >= len(texts):
            return _NONE
        register = Operands(self.target, self._operation.instruction).register(texts[place])
        return _NONE if register is None else frozenset(register.names)


def _shifts(operation: Operation) -> bool:
    """Return whether an instruction writes its result to the upper bits of a register, by SDWA or op_sel."""
    modifiers = operation.instruction.modifiers
    if not modifiers:
        return False
    if operation.instruction.suffix == "sdwa":
        return modifiers.text("dst_sel", "DWORD") != "DWORD"
    selected = modifiers.vector("op_sel", [])
    return bool(selected) and len(selected) == len(operation.instruction.operands) and bool(selected[-1])


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
    for left, taken, need in first.kind.before(second.kind):
        if (states if cdna else valus) < need and (cdna or transcendental < 2):
            shared = first.part(left) & second.part(taken)
            if shared:
                return need, shared
    if first.kind.passes:
        for need, shared in _after_matrix(first, second, newer):
            if shared and states < need:
                return need, shared
    return None


def _after_matrix(first: Facts, second: Facts, newer: Registers) -> Iterable[tuple[int, Registers]]:
    """Return the distances that an instruction must keep from an MFMA, each with the registers that require it."""
    one, other = first.kind, second.kind
    passes, result, old = one.passes, first.part("vector writes"), first.target.gpu == "gfx90a"
    more = int(first.target.gpu == "gfx950" and one.fast)
    use = passes + (3 if old or one.fast else 2) + more
    if other.passes:
        yield use, (result & second.part("factors")) - newer
        if second.part("addend") != result and (old or one.fast or not other.fast):
            yield (passes if old or not one.fast else passes + 1 + more), (result & second.part("addend")) - newer
    elif other.valu or other.memory or other.lds:
        yield use, (result & (second.part("vector reads") | second.part("vector writes"))) - newer
        if old or one.fast:
            yield passes - 1, first.part("addend") & second.part("vector writes")
