"""Faults planted into compiled kernels, one instruction at a time."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolchain_lab.emulator.control import ends_block, has_no_effect
from toolchain_lab.emulator.disassembly import Line
from toolchain_lab.emulator.program import Program
from toolchain_lab.emulator.syntax import parse

# Each instruction of a pair may replace the other.
_PAIRS = (
    "v_add_f32 v_sub_f32", "v_max_f32 v_min_f32", "v_max3_f32 v_min3_f32", "v_max_num_f32 v_min_num_f32",
    "v_max3_num_f32 v_min3_num_f32", "v_and_b32 v_or_b32", "v_lshlrev_b32 v_lshrrev_b32", "v_cmp_gt_i32 v_cmp_ge_i32",
    "v_cmp_le_i32 v_cmp_lt_i32", "v_add_u32 v_sub_u32", "v_add_nc_u32 v_sub_nc_u32", "v_exp_f32 v_log_f32",
    "s_lshl_b32 s_lshr_b32", "s_add_u32 s_sub_u32", "s_add_i32 s_sub_i32", "s_cbranch_scc0 s_cbranch_scc1",
    "v_add_f64 v_mul_f64", "v_max_f64 v_min_f64", "v_cmp_eq_u32 v_cmp_ne_u32", "v_cmp_lt_u32 v_cmp_le_u32",
    "v_cmp_lt_f32 v_cmp_gt_f32", "v_max_i32 v_min_i32", "v_max_u32 v_min_u32", "v_mul_lo_u32 v_mul_hi_u32",
    "v_add_f16 v_mul_f16", "v_lshl_add_u32 v_add_lshl_u32", "v_and_or_b32 v_or3_b32", "v_bfe_u32 v_bfe_i32",
    "v_cvt_f32_i32 v_cvt_f32_u32", "v_pk_add_f16 v_pk_mul_f16", "v_pk_add_f32 v_pk_mul_f32", "s_and_b32 s_or_b32",
    "s_mul_i32 s_mul_hi_u32", "s_cmp_eq_u32 s_cmp_lg_u32", "s_cmp_lt_i32 s_cmp_gt_i32",
)  # fmt: skip
OTHERS = {
    "v_mul_f32": "v_add_f32", "v_cmp_gt_u32": "v_cmp_ge_u32", "v_fma_f32": "v_max3_f32", "v_rcp_f32": "v_sqrt_f32",
    "v_xor_b32": "v_and_b32", **dict(pair.split() for pair in _PAIRS), **dict(pair.split()[::-1] for pair in _PAIRS),
}  # fmt: skip
_SAME_TWICE = re.compile(r"^v_m(?:ax|in)_\S+ v\d+, (v\d+), \1$")
_REGISTER, _OFFSET = re.compile(r"\bv(\d+)\b"), re.compile(r"offset\d?:(\d+)")


@dataclass(frozen=True)
class Mutant:
    """A change of the instruction at a place in a program's lines."""

    kind: str
    place: int
    before: str
    after: str


def executed(program: Program) -> list[int]:
    """Return the places of the instructions that ran."""
    places = {line.address: place for place, line in enumerate(program.lines)}
    return sorted(places[operation.instruction.address] for block in program.blocks() for operation in block.operations)


def with_line(program: Program, mutant: Mutant) -> Program:
    """Return the program with a fault planted into it."""
    lines = list(program.lines)
    lines[mutant.place] = replace(lines[mutant.place], text=mutant.after)
    return Program(program.code, lines)


def draw_mutant(program: Program, places: Sequence[int], draw: random.Random) -> Mutant | None:
    """Return a random change of one instruction; None if the drawn instruction cannot be changed."""
    place = draw.choice(places)
    line = program.lines[place]
    instruction = parse(line)
    if has_no_effect(instruction) or (ends_block(instruction) and instruction.name not in OTHERS):
        return None
    for kind in draw.sample(("left out", "register", "operation", "offset"), 4):
        after = _changed(kind, line, instruction.name, draw)
        if after is not None:
            return Mutant(kind, place, line.text, after)
    return None


def _changed(kind: str, line: Line, name: str, draw: random.Random) -> str | None:
    text = line.text
    if kind == "left out":
        return "s_nop 0" if not name.startswith("s_cbranch") else None
    if kind == "operation":
        if _SAME_TWICE.search(text):
            return None  # the maximum of a number and itself is also their minimum
        return text.replace(name, OTHERS[name], 1) if name in OTHERS and "::" not in text else None
    # The first register is the result, which does not change.
    found = list(_REGISTER.finditer(text))[1:] if kind == "register" else list(_OFFSET.finditer(text))
    if not found:
        return None
    match, more = draw.choice(found), 2 if "16" in name else 16
    if kind == "register":
        return f"{text[: match.start()]}v{int(match[1]) ^ 1}{text[match.end() :]}"
    return f"{text[: match.start(1)]}{int(match[1]) + more}{text[match.end(1) :]}"
