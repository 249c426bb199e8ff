"""Vector instructions on integers and bits."""

from __future__ import annotations

from functools import partial

import numpy as np

from toolchain_lab.emulator.bits import Array
from toolchain_lab.emulator.integer_math import (
    align_bit,
    align_byte,
    amount,
    amount16,
    amount64,
    bit_field,
    count_bits,
    high_product,
    high_product_signed,
    i24,
    leading_signs,
    leading_zeros,
    ones,
    permute_by_constant,
    permute_bytes,
    reverse_bits,
    short_amount,
    signed_bit_field,
    trailing_zeros,
)
from toolchain_lab.emulator.lanewise import Compute, Handler, LaneOp, of_three
from toolchain_lab.emulator.operands import Operands, Run
from toolchain_lab.emulator.wave import Wave

_U24, _ALL = np.uint32(0xFFFFFF), np.uint32(0xFFFFFFFF)


def perm(operands: Operands) -> Run:
    """Decode V_PERM_B32, with a faster function for a scalar selector."""
    result, high, low, selector = operands.instruction.operands
    left, right, put = operands.u32(high), operands.u32(low), operands.put_u32(result)
    register = operands.register(selector)
    if register is not None and register.vector:
        choose = operands.u32(selector)
        return lambda wave: put(wave, permute_bytes(left(wave), right(wave), choose(wave)))
    number = operands.number(selector)
    return lambda wave: put(wave, permute_by_constant(left(wave), right(wave), number(wave)))


def choose(unset: Array, given: Array, mask: Array) -> Array:
    """Compute V_CNDMASK: `given` in the lanes that the mask contains, and `unset` in all other lanes."""
    return np.where(mask, given, unset)


def _by_table(table: int, bits: Array, a: Array, b: Array, c: Array) -> Array:
    """Apply a bitwise function, given as a truth table, to three arrays and return the result.

    Args:
        table: the truth table, whose bit 4a + 2b + c is the function's value for the bits a, b and c.
        bits: an array of zeros of the result's type, which receives the result.
    """
    for row in range(8):
        if table >> row & 1:
            bits |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return bits


def bit_operation(operands: Operands) -> Run:
    """Decode V_BITOP3_B32, which computes any bitwise function of three sources."""
    result, *sources = operands.instruction.operands
    table = operands.instruction.modifiers.number("bitop3")
    gets, put = [operands.u32(text) for text in sources], operands.put_u32(result)

    def run(wave: Wave) -> None:
        a, b, c = (np.asarray(get(wave)) for get in gets)
        put(wave, _by_table(table, np.zeros(wave.lanes, np.uint32), a, b, c))

    return run


def bit_operation_of_halves(operands: Operands) -> Run:
    """Decode V_BITOP3_B16: any bitwise function of three halves. The destination's other half is preserved."""
    result, *sources = operands.instruction.operands
    modifiers = operands.instruction.modifiers
    table, selected = modifiers.number("bitop3"), modifiers.vector("op_sel", [0, 0, 0, 0])
    gets = [operands.half_bits(text, selected[number]) for number, text in enumerate(sources)]
    put = operands.put_half_bits(result, selected[3])

    def run(wave: Wave) -> None:
        a, b, c = (np.asarray(get(wave)) for get in gets)
        put(wave, _by_table(table, np.zeros(wave.lanes, np.uint16), a, b, c))

    return run


def _carry(operands: Operands, *, subtract: bool, chained: bool, reverse: bool = False) -> Run:
    """Decode an addition or a subtraction that writes a carry (or borrow) for each lane.

    Args:
        reverse: whether the second source is the minuend.
        chained: whether the instruction also reads a carry.
    """
    texts = list(operands.instruction.operands)
    result, carry, first, second = texts[:4]
    left, right = operands.u32(first), operands.u32(second)
    if reverse:
        left, right = right, left
    into = operands.mask(texts[4] if len(texts) > 4 else operands.vcc) if chained else None
    put, put_carry = operands.put_u32(result), operands.put_mask(carry)

    def run(wave: Wave) -> None:
        a, b = left(wave), right(wave)
        total = a - b if subtract else a + b
        out = a < b if subtract else total < a
        if into is not None:
            more = into(wave)
            # At most one of the two steps carries, so the total carries if either step does.
            out = out | ((total == 0) & more if subtract else (total == _ALL) & more)
            total = total - more if subtract else total + more
        put(wave, total)
        put_carry(wave, out)

    return run


def multiply_add_64(operands: Operands) -> Run:
    """Decode V_MAD_U64_U32 and V_MAD_CO_U64_U32, which add a product to a 64-bit number, and write the carry."""
    result, carry, first, second, third = operands.instruction.operands
    left, right, add = operands.u32(first), operands.u32(second), operands.u64(third)
    put, put_carry = operands.put_u64(result), operands.put_mask(carry)

    def run(wave: Wave) -> None:
        product = np.asarray(left(wave)).astype(np.uint64) * right(wave)
        total = product + add(wave)
        carried = total < product
        put(wave, np.broadcast_to(total, (wave.lanes,)))
        put_carry(wave, carried)

    return run


def multiply_add_signed_64(operands: Operands) -> Run:
    """Decode V_MAD_I64_I32 and V_MAD_CO_I64_I32, which add a signed product, and write bit 64 as the carry."""
    result, carry, first, second, third = operands.instruction.operands
    left, right, add = operands.i32(first), operands.i32(second), operands.u64(third)
    put, put_carry = operands.put_u64(result), operands.put_mask(carry)

    def run(wave: Wave) -> None:
        product = np.asarray(left(wave)).astype(np.int64) * right(wave)
        addend = np.asarray(add(wave)).view(np.int64)
        total = product + addend
        overflow = ((product ^ total) & (addend ^ total)) < 0
        put(wave, np.broadcast_to(total.view(np.uint64), (wave.lanes,)))
        # A sum that overflows 64 bits has the wrong sign; bit 64 is the sign of the exact sum.
        put_carry(wave, (total < 0) ^ overflow)

    return run


def bounded(kind: type[np.generic], *, subtract: bool, reverse: bool = False) -> Compute:
    """Return a function that adds or subtracts two values, and clamps the result to the range of its type."""
    limits = np.iinfo(kind)  # type: ignore[type-var]

    def compute(a: Array, b: Array) -> Array:
        left, right = (np.asarray(each).astype(np.int64) for each in ((b, a) if reverse else (a, b)))
        total = left - right if subtract else left + right
        kept: Array = np.clip(total, limits.min, limits.max).astype(kind)
        return kept

    return compute


def _saturating() -> dict[str, LaneOp]:
    rows: dict[str, LaneOp] = {}
    for letter, kind, end in (
        ("u", np.uint32, "u32"),
        ("i", np.int32, "i32"),
        ("w", np.uint16, "u16"),
        ("s", np.int16, "i16"),
    ):
        for name in (f"v_add_{end}", f"v_add_nc_{end}"):
            rows[name] = LaneOp(letter, letter * 2, bounded(kind, subtract=False))
        for name in (f"v_sub_{end}", f"v_sub_nc_{end}"):
            rows[name] = LaneOp(letter, letter * 2, bounded(kind, subtract=True))
        for name in (f"v_subrev_{end}", f"v_subrev_nc_{end}"):
            rows[name] = LaneOp(letter, letter * 2, bounded(kind, subtract=True, reverse=True))
    return rows


def _median(a: Array, b: Array, c: Array) -> Array:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


# These rows are used instead of those in LANE_OPS if the instruction has the modifier `clamp`.
SATURATING = _saturating()
LANE_OPS: dict[str, LaneOp] = {
    **dict.fromkeys(
        ("v_mov_b32", "v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32"), LaneOp("u", "u", lambda a: a)
    ),
    "v_mov_b64": LaneOp("q", "q", lambda a: a),
    "v_mov_b16": LaneOp("w", "w", lambda a: a, keeps_high=True),
    "v_not_b32": LaneOp("u", "u", lambda a: ~np.asarray(a)),
    "v_bfrev_b32": LaneOp("u", "u", reverse_bits),
    **dict.fromkeys(("v_ffbh_u32", "v_clz_i32_u32"), LaneOp("u", "u", leading_zeros)),
    **dict.fromkeys(("v_ffbl_b32", "v_ctz_i32_b32"), LaneOp("u", "u", trailing_zeros)),
    "v_cndmask_b32": LaneOp("u", "uub", choose),
    "v_cndmask_b16": LaneOp("w", "wwb", choose, keeps_high=True),
    **dict.fromkeys(("v_add_u32", "v_add_nc_u32"), LaneOp("u", "uu", np.add)),
    **dict.fromkeys(("v_sub_u32", "v_sub_nc_u32"), LaneOp("u", "uu", np.subtract)),
    **dict.fromkeys(("v_subrev_u32", "v_subrev_nc_u32"), LaneOp("u", "uu", lambda a, b: b - a)),
    **dict.fromkeys(("v_add_i32", "v_add_nc_i32"), LaneOp("i", "ii", np.add)),
    **dict.fromkeys(("v_sub_i32", "v_sub_nc_i32"), LaneOp("i", "ii", np.subtract)),
    "v_and_b32": LaneOp("u", "uu", np.bitwise_and),
    "v_or_b32": LaneOp("u", "uu", np.bitwise_or),
    "v_xor_b32": LaneOp("u", "uu", np.bitwise_xor),
    "v_xnor_b32": LaneOp("u", "uu", lambda a, b: ~np.asarray(a ^ b)),
    "v_lshlrev_b32": LaneOp("u", "uu", lambda a, b: b << amount(a)),
    "v_lshrrev_b32": LaneOp("u", "uu", lambda a, b: b >> amount(a)),
    "v_ashrrev_i32": LaneOp("i", "ui", lambda a, b: b >> np.asarray(amount(a)).astype(np.int32)),
    "v_lshlrev_b64": LaneOp("q", "uq", lambda a, b: b << amount64(a)),
    "v_lshrrev_b64": LaneOp("q", "uq", lambda a, b: b >> amount64(a)),
    "v_ashrrev_i64": LaneOp("l", "ul", lambda a, b: b >> amount64(a).astype(np.int64)),
    "v_lshlrev_b16": LaneOp("w", "ww", lambda a, b: b << amount16(a)),
    "v_lshrrev_b16": LaneOp("w", "ww", lambda a, b: b >> amount16(a)),
    "v_ashrrev_i16": LaneOp("s", "ws", lambda a, b: b >> amount16(a).astype(np.int16)),
    "v_and_b16": LaneOp("w", "ww", np.bitwise_and),
    "v_or_b16": LaneOp("w", "ww", np.bitwise_or),
    "v_xor_b16": LaneOp("w", "ww", np.bitwise_xor),
    "v_not_b16": LaneOp("w", "w", lambda a: ~np.asarray(a)),
    **dict.fromkeys(("v_add_u16", "v_add_nc_u16"), LaneOp("w", "ww", np.add)),
    **dict.fromkeys(("v_sub_u16", "v_sub_nc_u16"), LaneOp("w", "ww", np.subtract)),
    "v_subrev_u16": LaneOp("w", "ww", lambda a, b: b - a),
    "v_cvt_u32_u16": LaneOp("u", "w", lambda a: np.asarray(a).astype(np.uint32)),
    "v_cvt_i32_i16": LaneOp("i", "s", lambda a: np.asarray(a).astype(np.int32)),
    "v_mul_lo_u16": LaneOp("w", "ww", np.multiply),
    "v_max_u16": LaneOp("w", "ww", np.maximum),
    "v_min_u16": LaneOp("w", "ww", np.minimum),
    "v_max_i16": LaneOp("s", "ss", np.maximum),
    "v_min_i16": LaneOp("s", "ss", np.minimum),
    "v_mul_lo_u32": LaneOp("u", "uu", np.multiply),
    "v_mul_hi_u32": LaneOp("u", "uu", high_product),
    "v_mul_hi_i32": LaneOp("i", "ii", high_product_signed),
    "v_mul_u32_u24": LaneOp("u", "uu", lambda a, b: (a & _U24) * (b & _U24)),
    "v_mul_hi_u32_u24": LaneOp("u", "uu", lambda a, b: high_product(a & _U24, b & _U24)),
    "v_mul_hi_i32_i24": LaneOp("i", "ii", lambda a, b: high_product_signed(i24(a), i24(b))),
    "v_mul_i32_i24": LaneOp("i", "ii", lambda a, b: i24(a) * i24(b)),
    "v_max_u32": LaneOp("u", "uu", np.maximum),
    "v_min_u32": LaneOp("u", "uu", np.minimum),
    "v_max_i32": LaneOp("i", "ii", np.maximum),
    "v_min_i32": LaneOp("i", "ii", np.minimum),
    "v_bfm_b32": LaneOp("u", "uu", lambda a, b: ones(a) << amount(b)),
    "v_bcnt_u32_b32": LaneOp("u", "uu", count_bits),
    "v_add3_u32": LaneOp("u", "uuu", lambda a, b, c: a + b + c),
    "v_lshl_add_u32": LaneOp("u", "uuu", lambda a, b, c: (a << amount(b)) + c),
    "v_add_lshl_u32": LaneOp("u", "uuu", lambda a, b, c: (a + b) << amount(c)),
    "v_lshl_or_b32": LaneOp("u", "uuu", lambda a, b, c: (a << amount(b)) | c),
    "v_and_or_b32": LaneOp("u", "uuu", lambda a, b, c: (a & b) | c),
    "v_or3_b32": LaneOp("u", "uuu", lambda a, b, c: a | b | c),
    "v_xor3_b32": LaneOp("u", "uuu", lambda a, b, c: a ^ b ^ c),
    "v_xad_u32": LaneOp("u", "uuu", lambda a, b, c: (a ^ b) + c),
    "v_bfi_b32": LaneOp("u", "uuu", lambda a, b, c: (a & b) | (~np.asarray(a) & c)),
    "v_bfe_u32": LaneOp("u", "uuu", bit_field),
    "v_bfe_i32": LaneOp("u", "uuu", signed_bit_field),
    "v_mad_u32_u24": LaneOp("u", "uuu", lambda a, b, c: (a & _U24) * (b & _U24) + c),
    "v_mad_i32_i24": LaneOp("i", "iii", lambda a, b, c: i24(a) * i24(b) + c),
    **of_three(np.maximum, np.minimum, _median, {"u": ("u32",), "i": ("i32",), "w": ("u16",), "s": ("i16",)}),
    "v_alignbit_b32": LaneOp("u", "uut", align_bit),
    "v_alignbyte_b32": LaneOp("u", "uut", align_byte),
    **dict.fromkeys(("v_ffbh_i32", "v_cls_i32"), LaneOp("u", "i", leading_signs)),
    "v_mad_u16": LaneOp("w", "www", lambda a, b, c: a * b + c, keeps_high=True),
    "v_mad_legacy_u16": LaneOp("w", "www", lambda a, b, c: a * b + c),
    "v_mad_i16": LaneOp("s", "sss", lambda a, b, c: a * b + c, keeps_high=True),
    "v_mad_legacy_i16": LaneOp("s", "sss", lambda a, b, c: a * b + c),
    "v_lshl_add_u64": LaneOp("q", "quq", lambda a, b, c: (a << short_amount(b)) + c),
    "v_add_nc_u64": LaneOp("q", "qq", np.add),
}

_add_carry, _subtract_carry = partial(_carry, subtract=False), partial(_carry, subtract=True)
HANDLERS: dict[str, Handler] = {
    "v_perm_b32": perm,
    "v_bitop3_b32": bit_operation,
    "v_bitop3_b16": bit_operation_of_halves,
    **dict.fromkeys(("v_mad_u64_u32", "v_mad_co_u64_u32"), multiply_add_64),
    **dict.fromkeys(("v_mad_i64_i32", "v_mad_co_i64_i32"), multiply_add_signed_64),
    "v_add_co_u32": partial(_add_carry, chained=False),
    "v_sub_co_u32": partial(_subtract_carry, chained=False),
    "v_subrev_co_u32": partial(_subtract_carry, reverse=True, chained=False),
    **dict.fromkeys(("v_addc_co_u32", "v_add_co_ci_u32"), partial(_add_carry, chained=True)),
    **dict.fromkeys(("v_subb_co_u32", "v_sub_co_ci_u32"), partial(_subtract_carry, chained=True)),
    **dict.fromkeys(("v_subbrev_co_u32", "v_subrev_co_ci_u32"), partial(_subtract_carry, reverse=True, chained=True)),
}
