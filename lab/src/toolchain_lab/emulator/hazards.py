"""Hazards: distances between instructions that the hardware does not enforce, as in LLVM's GCNHazardRecognizer.

On gfx9, a distance is a number of wait states: each instruction takes one wait state, and S_NOP N takes N + 1. On gfx11
and gfx12, a distance is a number of vector instructions. Some kinds of hazards are not checked, for example those of
scalar registers on gfx12.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from toolchain_lab.emulator.decode import Operation
from toolchain_lab.emulator.operands import Operands
from toolchain_lab.emulator.registers import EXECS, SCC, VECTOR, Registers
from toolchain_lab.emulator.wave import VCC, Target

_NONE: Registers = frozenset()
_FIXED = {"exec": EXECS, "vcc": frozenset({VCC, VCC + 1})}
_MATRIX = re.compile(r"v_(mfma|wmma)_(?:scale_)?[fi]32_(32|16)x\d+x\d+_?(x?)(f32)?")
_STORE = re.compile(r"(global|flat|buffer)_store_(dwordx[34]|b96|b128)$")
MEMORY = ("global_", "flat_", "buffer_", "scratch_")

# Each row consists of a name for the registers that the first instruction writes or stores, a name for the registers
# that the second one uses, and the required distance between the two. `_SETS` defines the names.
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
    ("stored at a scalar", "valu result", 1),  # in LLVM since version 23; see llvm#197267
    ("transcendental", "plain source", 1),
    ("shifted", "valu source", 1),
    ("shifted", "valu result", 1),
    ("valu scalar", "valu scalar source", 2),
    ("valu exec", "lane exec", 4),
    ("valu vector", "lane vector", 1),
)
_CDNA4 = (*_CDNA3, ("valu vector", "permlane vector", 2), ("valu exec", "permlane exec", 4))
_RDNA = (("transcendental", "valu source", 6), ("wmma result", "wmma factor", 1))
_ROWS = {"gfx90a": _CDNA2, "gfx942": _CDNA3, "gfx950": _CDNA4}
_SLOW = r"(exp|log|rcp|rcp_iflag|rsq|sqrt|sin|cos)_f\d+ "
_MFMA, _WMMA = (rf"v_{name}_(scale_)?[fi]32_(32|16)x\d" for name in ("mfma", "wmma"))
# Each row consists of a name in the rules, a group of registers (see `Facts.part`), and a pattern for the instructions
# to which the name applies. The pattern is matched against the mnemonic, a space and the form that `_form` returns.
_SETS = tuple(
    (name, group, re.compile(pattern))
    for name, group, pattern in (
        ("vector", "vector writes", ""),
        ("memory scalar", "scalar reads", "|".join(MEMORY)),
        ("stored", "stored", ".* stored$"),
        ("stored at a scalar", "stored", ".* stored at a scalar$"),
        ("valu scalar", "scalar writes", "v_"),
        ("valu exec", "exec writes", "v_"),
        ("valu source", "vector reads", "v_"),
        ("valu result", "vector writes", "v_"),
        ("valu scalar source", "scalar reads", "v_"),
        ("valu vector", "vector writes", f"v_(?!{_MFMA[2:]})"),
        ("transcendental", "vector writes", f"v_{_SLOW}"),
        ("plain source", "vector reads", f"v_(?!{_SLOW})"),
        ("dpp vector", "vector reads", "v_.* .*dpp"),
        ("dpp exec", "exec", "v_.* .*dpp"),
        ("shifted", "vector writes", "v_.* shifts$"),
        ("div_fmas vcc", "vcc", "v_div_fmas"),
        ("lane exec", "exec", "v_(readlane|readfirstlane|writelane)_b32 "),
        ("lane number", "lane number", "v_(readlane|readfirstlane|writelane)_b32 "),
        ("lane vector", "vector reads", "v_(readlane|readfirstlane)_b32 "),
        ("permlane vector", "vector reads", "v_permlane"),
        ("permlane exec", "exec", "v_permlane"),
        ("matrix source", "matrix source", _MFMA),
        ("matrix exec", "exec", _MFMA),
        ("wmma result", "vector writes", _WMMA),
        ("wmma factor", "factors", _WMMA),
    )
)


@dataclass(slots=True, eq=False)
class Kind:
    """The properties that instructions with the same mnemonic and form share.

    Attributes:
        passes: the number of passes that an MFMA takes; 0 for other instructions.
        fast: for an MFMA, whether LLVM calls it an XDL instruction; not used for other instructions.
        groups: for each name in the rules that applies to the instruction, the group of registers (see `Facts.part`).
        rows: for each rule in which the instruction can be the first one, its group of registers, the name of the
            second instruction's registers, and the distance.
        followers: the results of `before`, by the later kind.
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
        """Return the rules that apply if the kind `later` follows, each as two groups of registers and a distance."""
        known = self.followers.get(later)
        if known is None:
            pairs = tuple((left, later.groups[taken], need) for left, taken, need in self.rows if taken in later.groups)
            known = self.followers[later] = pairs
        return known


@cache
def _kind(name: str, form: str, gpu: str) -> Kind:
    groups = {key: group for key, group, pattern in _SETS if pattern.match(f"{name} {form}")}
    matrix, generation = _MATRIX.match(name), int(gpu[3:-2])
    single = matrix is not None and matrix[4] is not None and not matrix[3]
    passes = (16 if matrix[2] == "32" else 8) if matrix and matrix[1] == "mfma" else 0
    # There is no hazard after transcendental instructions on gfx115x and gfx12.
    rdna = _RDNA if generation == 11 and not gpu.startswith("gfx115") else _RDNA[1:]
    rows: tuple[tuple[str, str, int], ...] = _ROWS.get(gpu, _CDNA3) if generation == 9 else rdna
    return Kind(
        valu=name.startswith("v_"),
        memory=name.startswith(MEMORY),
        lds=name.startswith("ds_"),
        transcendental="transcendental" in groups,
        passes=passes if single or gpu == "gfx90a" else passes // 2,
        fast=not single,
        groups=groups,
        rows=tuple((groups[left], taken, need) for left, taken, need in rows if left in groups),
    )


class Facts:
    """The properties of an instruction that the rules use.

    Attributes:
        states: the number of wait states that the instruction takes.
        settles: whether the results of all earlier vector instructions are available after the instruction.
        reach: the largest distance that a later instruction may have to keep; 0 if there is none.
    """

    def __init__(self, operation: Operation, target: Target) -> None:
        self._operation = operation
        self.target = target
        instruction, name = operation.instruction, operation.names[0]
        self.kind = _kind(name, _form(operation), target.gpu)
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
        """Return the instruction's registers in a group such as `vector writes`; `_find` defines the groups."""
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
            return [register for register in chosen if register < SCC and register not in EXECS]
        if group in _FIXED:
            return _FIXED[group]
        if group == "exec writes":
            return writes & EXECS
        return self._of_operands(group)

    def _of_operands(self, group: str) -> Registers:
        if group == "stored":
            return self._names(0 if self._operation.names[0].startswith("buffer") else 1)
        if group == "lane number":
            return self._names(2) & self.part("scalar reads")
        if group == "matrix source":
            return self.part("factors") | self.part("addend")
        return self._names(3) if group == "addend" else self._names(1) | self._names(2)

    def _names(self, place: int) -> Registers:
        """Return the registers that the operand with the index `place` names; an empty set if there are none."""
        texts = self._operation.instruction.operands
        if place >= len(texts):
            return _NONE
        register = Operands(self.target, self._operation.instruction).register(texts[place])
        return _NONE if register is None else frozenset(register.names)


def _form(operation: Operation) -> str:
    """Return the string that `_SETS` matches after the mnemonic: the kind of a wide store, or the encoding's suffix.

    The suffix is followed by `shifts` if `_shifts` returns true.
    """
    name, instruction = operation.names[0], operation.instruction
    if _STORE.match(name):
        at_scalar = name.startswith("buffer") and instruction.operands[3].startswith("s")
        return "stored at a scalar" if at_scalar else "stored"
    return f"{instruction.suffix} shifts" if _shifts(operation) else instruction.suffix


def _shifts(operation: Operation) -> bool:
    """Return whether an instruction writes only a part of its destination by SDWA, or the upper half by op_sel."""
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
    """Check whether the distance between two instructions is sufficient.

    Args:
        states: the number of wait states between the instructions.
        valus: the number of vector instructions between them.
        transcendental: how many of the vector instructions are transcendental, such as V_EXP_F32.
        newer: the registers that matrix instructions between the two wrote, so that the first instruction no
            longer affects them.

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
    """Yield the distances that an instruction must keep from an MFMA, each with the registers that require it."""
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
