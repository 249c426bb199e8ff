"""The encodings DPP and SDWA, and instructions that move values between lanes or count lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from toolchain_lab.emulator.bits import Array, clamped
from toolchain_lab.emulator.lanewise import Handler, LaneOp, parts, refuse_overflow, source
from toolchain_lab.emulator.operands import Get, Operands, Run
from toolchain_lab.emulator.registers import signs_of
from toolchain_lab.emulator.syntax import Instruction
from toolchain_lab.emulator.wave import Wave

# These strings replace the sources that DPP or SDWA modifies; `Operands.raw` maps them to functions.
_CHANGED = ("@0", "@1")
# The second operand of these instructions is the carry that they write.
CARRIES = frozenset(
    f"v_{name}_u32"
    for name in (
        "add_co",
        "sub_co",
        "subrev_co",
        "addc_co",
        "subb_co",
        "subbrev_co",
        "add_co_ci",
        "sub_co_ci",
        "subrev_co_ci",
    )
)
_WITH_NUMBER = (
    "row_shl", "row_shr", "row_ror", "row_bcast", "row_newbcast", "row_share", "row_xmask",
    "wave_shl", "wave_shr", "wave_ror", "wave_rol",
)  # fmt: skip


@lru_cache(maxsize=256)
def source_lanes(control: str, value: int, lanes: int) -> Array:
    """Return the lane that each lane reads with a DPP control such as `row_shl:1`; -1 if there is no such lane."""
    lane = np.arange(lanes)
    row, place = lane & ~15, lane & 15
    tables: dict[str, Callable[[], Array]] = {
        "row_shl": lambda: np.where(place + value < 16, lane + value, -1),
        "row_shr": lambda: np.where(place - value >= 0, lane - value, -1),
        "row_ror": lambda: row + ((place - value) & 15),
        "row_mirror": lambda: row + 15 - place,
        "row_half_mirror": lambda: (lane & ~7) + 7 - (lane & 7),
        "row_newbcast": lambda: row + value,
        "row_share": lambda: row + value,
        "row_xmask": lambda: row + (place ^ value),
        "wave_shl": lambda: np.where(lane + 1 < lanes, lane + 1, -1),
        "wave_shr": lambda: lane - 1,
        "wave_ror": lambda: (lane - 1) % lanes,
        "wave_rol": lambda: (lane + 1) % lanes,
    }
    if control == "row_bcast":
        return np.where(lane >= 16, row - 1, -1) if value == 15 else np.where(lane >= 32, 31, -1)
    return tables[control]()


def _control(instruction: Instruction, lanes: int) -> Array:
    modifiers = instruction.modifiers
    for name, width in (("quad_perm", 4), ("dpp8", 8)):
        if name in modifiers.names():
            order, lane = np.array(modifiers.vector(name, [])), np.arange(lanes)
            chosen: Array = lane - lane % width + order[lane % width]
            return chosen
    for name in ("row_mirror", "row_half_mirror"):
        if modifiers.flag(name):
            return source_lanes(name, 0, lanes)
    for name in _WITH_NUMBER:
        if name in modifiers.names():
            return source_lanes(name, modifiers.number(name), lanes)
    raise instruction.unknown("an unknown DPP control")


def dpp(operands: Operands, build: Callable[[Operands], Run]) -> Run:
    """Decode an instruction with DPP, in which lanes read the first source from other lanes."""
    instruction, lanes = operands.instruction, operands.target.lanes
    modifiers = instruction.modifiers
    eight = "dpp8" in modifiers.names()
    origin = _control(instruction, lanes)
    inside, origin = origin >= 0, np.maximum(origin, 0)
    rows, banks = modifiers.number("row_mask", 15), modifiers.number("bank_mask", 15)
    lane = np.arange(lanes)
    enabled = ((rows >> (lane >> 4 & 3)) & 1).astype(bool) & ((banks >> (lane >> 2 & 3)) & 1).astype(bool)
    # DPP8 has no bound_ctrl: a lane that reads an invalid lane always gets 0.
    zero = eight or modifiers.text("bound_ctrl") in {"0", "1"}
    fetch_inactive = modifiers.number("fi") == 1
    if fetch_inactive and not inside.all():
        # AMD's manuals contradict themselves: the text says that bound_ctrl decides, and a table says otherwise.
        raise instruction.unknown("fi with lanes outside of the row")
    place = 2 if instruction.name in CARRIES else 1
    texts = list(instruction.operands)
    writes_exec = instruction.name.startswith("v_cmpx")
    if writes_exec and operands.target.generation > 9:
        place = 0
    if writes_exec and not (enabled & (inside | zero)).all():
        raise instruction.unknown("lanes without a source or outside of row_mask and bank_mask")
    signs = signs_of(texts[place])
    fetch, register = source(operands, "t", signs.text), operands.register(signs.text)
    # The product with 0x10001 contains a half twice. Both are needed, because op_sel selects one of them again.
    is_half = register is not None and register.half is not None
    copies = np.uint32(0x10001 if is_half else 1)
    texts[place] = texts[place].replace(signs.text, _CHANGED[0])
    changed: list[Array] = [np.zeros(lanes, np.uint32)]
    operands.instruction = replace(instruction, operands=tuple(texts))
    operands.raw[_CHANGED[0]] = lambda _: changed[0]
    run_plain = build(operands)

    def run(wave: Wave) -> None:
        valid = inside if fetch_inactive else inside & wave.mask[origin]
        values = np.broadcast_to(fetch(wave), (lanes,))[origin]
        changed[0] = np.where(valid, values * copies, np.uint32(0))
        kept = wave.mask, wave.all_lanes
        mask = kept[0] & enabled if zero else kept[0] & enabled & valid
        wave.mask, wave.all_lanes = mask, bool(mask.all())
        run_plain(wave)
        if not writes_exec:
            wave.mask, wave.all_lanes = kept

    return run


def _selected(get: Get, choice: str, *, sign: bool) -> Get:
    """Return the function that reads a byte or a half of a source, extended to 32 bits, or the whole source."""
    if choice == "DWORD":
        return get
    width = 16 if choice.startswith("WORD") else 8
    place, rest = np.uint32(width * int(choice[-1])), np.int32(32 - width)
    if sign:
        return lambda wave: (((get(wave) >> place).view(np.int32) << rest) >> rest).view(np.uint32)
    mask = np.uint32((1 << width) - 1)
    return lambda wave: (get(wave) >> place) & mask


def _select_sources(operands: Operands, first: int, count: int) -> None:
    """Replace `count` sources, from operand number `first` on, by the parts of them that SDWA selects."""
    texts = list(operands.instruction.operands)
    for number, token in enumerate(_CHANGED[:count]):
        choice = operands.instruction.modifiers.text(f"src{number}_sel", "DWORD")
        operand = signs_of(texts[first + number])
        sign = operand.text.startswith("sext(")
        name = operand.text[5:-1] if sign else operand.text
        operands.raw[token] = _selected(operands.u32(name), choice, sign=sign)
        texts[first + number] = texts[first + number].replace(operand.text, token)
    operands.instruction = replace(operands.instruction, operands=tuple(texts))


def sdwa_with_carry(operands: Operands, build: Handler) -> Run:
    """Decode an addition or a subtraction with SDWA that writes a carry."""
    _select_sources(operands, 2, 2)
    modifiers = operands.instruction.modifiers
    if (selection := modifiers.text("dst_sel", "DWORD")) != "DWORD":
        raise operands.instruction.unknown(f"dst_sel:{selection}")
    modifiers.text("dst_unused")  # it has no effect, because the whole register is written
    return build(operands)


def sdwa(operands: Operands, row: LaneOp) -> Run:
    """Decode an instruction with SDWA, which can use bytes or halves of its operands."""
    _select_sources(operands, 1, len(row.sources.replace("d", "").replace("b", "")))
    instruction = operands.instruction
    modifiers, texts = instruction.modifiers, instruction.operands
    selection = modifiers.text("dst_sel", "DWORD")
    unused = modifiers.text("dst_unused", "UNUSED_PAD")
    compute, put = parts(operands, row)
    if row.result == "b" or selection == "DWORD":
        return lambda wave: put(wave, compute(wave))
    if unused == "UNUSED_SEXT":
        raise instruction.unknown(unused)
    width = 16 if selection.startswith("WORD") else 8
    shift, keep = np.uint32(width * int(selection[-1])), unused == "UNUSED_PRESERVE"
    mask = np.uint32((1 << width) - 1 << width * int(selection[-1]))
    old, put_word = operands.u32(texts[0]), operands.put_u32(texts[0])
    clamps = row.result in "fh" and modifiers.flag("clamp")

    def run(wave: Wave) -> None:
        value = np.asarray(compute(wave))
        if clamps:
            value = clamped(value)
        if row.result == "h":
            refuse_overflow(wave, instruction, value)
        bits = value.view(np.uint16 if value.itemsize == 2 else np.uint32).astype(np.uint32)
        placed = (bits << shift) & mask
        put_word(wave, (old(wave) & ~mask) | placed if keep else placed)

    return run


def read_first_lane(operands: Operands) -> Run:
    """Decode V_READFIRSTLANE_B32, which reads the lowest active lane, or lane 0 if EXEC is 0."""
    result, source = operands.instruction.operands
    get, put = operands.u32(source), operands.put_number(result)
    return lambda wave: put(wave, int(np.broadcast_to(get(wave), (wave.lanes,))[wave.first_lane()]))


def read_lane(operands: Operands) -> Run:
    """Decode V_READLANE_B32, which reads one lane and ignores EXEC."""
    result, source, lane = operands.instruction.operands
    get, which, put = operands.u32(source), operands.number(lane), operands.put_number(result)
    return lambda wave: put(wave, int(np.broadcast_to(get(wave), (wave.lanes,))[which(wave) % wave.lanes]))


def write_lane(operands: Operands) -> Run:
    """Decode V_WRITELANE_B32, which writes one lane and ignores EXEC."""
    result, value, lane = operands.instruction.operands
    register = operands.vector(result)
    operands.read(operands.write(register))
    get, which, index = operands.number(value), operands.number(lane), register.index

    def run(wave: Wave) -> None:
        wave.u[index][which(wave) % wave.lanes] = get(wave)

    return run


@lru_cache(maxsize=256)
def _row_order(choices: int, lanes: int, *, other_row: bool) -> Array:
    """Return the lane that each lane reads, `int64[lanes]`.

    Args:
        choices: for each lane of a row, four bits that select a lane of a row.
        other_row: whether the selected lane is in the neighbouring row instead of the same row.
    """
    lane = np.arange(lanes)
    chosen = np.array([choices >> 4 * k & 15 for k in range(16)])
    order: Array = ((lane & ~15) ^ (16 if other_row else 0)) + chosen[lane & 15]
    return order


def _permute_rows(*, other_row: bool) -> Handler:
    """Return the decoder for V_PERMLANE16_B32, or for V_PERMLANEX16_B32, which reads the neighbouring row."""

    def build(operands: Operands) -> Run:
        result, source, low, high = operands.instruction.operands
        selected = operands.instruction.modifiers.vector("op_sel", [0, 0, 0])
        fetch_inactive, zero = bool(selected[0]), bool(selected[1])
        get, choose_low, choose_high = operands.u32(source), operands.number(low), operands.number(high)
        old, put = operands.u32(result), operands.put_u32(result)
        lanes = operands.target.lanes

        def run(wave: Wave) -> None:
            order = _row_order(choose_low(wave) | choose_high(wave) << 32, lanes, other_row=other_row)
            values = np.broadcast_to(get(wave), (lanes,))[order]
            if not fetch_inactive and not wave.all_lanes:
                values = np.where(wave.mask[order], values, np.uint32(0) if zero else old(wave))
            put(wave, values)

        return run

    return build


def _swap_rows(width: int) -> Handler:
    """Return the decoder for V_PERMLANE16_SWAP_B32 or V_PERMLANE32_SWAP_B32, whose rows have `width` lanes.

    The odd rows of the first register are exchanged with the even rows of the second one.
    """

    def build(operands: Operands) -> Run:
        first, second = (operands.vector(text) for text in operands.instruction.operands)
        for register in (first, second):
            operands.read(operands.write(register))
        if operands.instruction.modifiers.number("bound_ctrl") or operands.instruction.modifiers.number("fi"):
            raise operands.instruction.unknown("bound_ctrl or fi")
        odd = np.flatnonzero(np.arange(operands.target.lanes) // width & 1)

        def run(wave: Wave) -> None:
            if not wave.all_lanes:
                raise operands.instruction.unknown("inactive lanes")
            upper = wave.u[first.index][odd].copy()
            wave.u[first.index][odd] = wave.u[second.index][odd - width]
            wave.u[second.index][odd - width] = upper

        return run

    return build


def permute_64(operands: Operands) -> Run:
    """Decode V_PERMLANE64_B32, which copies a register with lanes 0-31 and 32-63 exchanged. It is a no-op in wave32."""
    result, source = operands.instruction.operands
    if operands.target.lanes == 32:
        return lambda _: None
    get, put = operands.u32(source), operands.put_u32(result)
    order = np.arange(64) ^ 32
    return lambda wave: put(wave, np.broadcast_to(get(wave), order.shape)[order])


def _count_below(*, upper: bool) -> Handler:
    """Return the decoder for V_MBCNT_LO_U32_B32 or V_MBCNT_HI_U32_B32, which count the mask bits of lower lanes.

    Args:
        upper: whether the mask is for lanes 32 to 63 instead of lanes 0 to 31.
    """

    def build(operands: Operands) -> Run:
        result, mask, add = operands.instruction.operands
        get_mask, get_add, put = operands.u32(mask), operands.u32(add), operands.put_u32(result)
        below = np.clip(np.arange(operands.target.lanes) - (32 if upper else 0), 0, 32).astype(np.uint64)
        field = ((np.uint64(1) << below) - np.uint64(1)).astype(np.uint32)

        def run(wave: Wave) -> None:
            put(wave, np.bitwise_count(get_mask(wave) & field).astype(np.uint32) + get_add(wave))

        return run

    return build


HANDLERS: dict[str, Handler] = {
    "v_readfirstlane_b32": read_first_lane,
    "v_readlane_b32": read_lane,
    "v_writelane_b32": write_lane,
    "v_permlane16_b32": _permute_rows(other_row=False),
    "v_permlanex16_b32": _permute_rows(other_row=True),
    "v_permlane16_swap_b32": _swap_rows(16),
    "v_permlane32_swap_b32": _swap_rows(32),
    "v_permlane64_b32": permute_64,
    "v_mbcnt_lo_u32_b32": _count_below(upper=False),
    "v_mbcnt_hi_u32_b32": _count_below(upper=True),
}
