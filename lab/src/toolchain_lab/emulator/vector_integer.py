"""Vector instructions on integers and bits."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from toolchain_lab.emulator.bits import Array
from toolchain_lab.emulator.lanewise import Compute, Handler, LaneOp
from toolchain_lab.emulator.operands import Operands, Run
from toolchain_lab.emulator.wave import Wave

_U16, _LOW, _HIGH = np.uint32(16), np.uint32(0xFFFF), np.uint32(0xFFFF0000)

_U31, _U24, _ONE, _ALL = np.uint32(31), np.uint32(0xFFFFFF), np.uint32(1), np.uint32(0xFFFFFFFF)
_U32, _U63 = np.uint64(32), np.uint64(63)


def _amount(value: Array) -> Array:
    """Return the amount by which a 32-bit value is shifted: the five lowest bits of the operand."""
    return value & _U31


def _amount64(value: Array) -> Array:
    return np.asarray(value).astype(np.uint64) & _U63


def _amount16(value: Array) -> Array:
    return value & np.uint16(15)


def _i24(value: Array) -> Array:
    """Return the low 24 bits of values, sign-extended."""
    return (value << np.int32(8)) >> np.int32(8)


def _ones(width: Array) -> Array:
    """Return a mask whose lowest `width` bits are set. Only the five lowest bits of the width are used."""
    return (_ONE << _amount(width)) - _ONE


def bit_field(value: Array, offset: Array, width: Array) -> Array:
    """Compute V_BFE_U32, which extracts an unsigned field of bits."""
    field: Array = (value >> _amount(offset)) & _ones(width)
    return field


def signed_bit_field(value: Array, offset: Array, width: Array) -> Array:
    """Compute V_BFE_I32, which extracts a signed field of bits; a field of width 0 gives 0."""
    field = bit_field(value, offset, width)
    sign = (_ONE << _amount(width)) >> _ONE
    extended: Array = (field ^ sign) - sign
    return extended


def _align(high: Array, low: Array, amount: Array) -> Array:
    wide = (np.asarray(high).astype(np.uint64) << _U32) | low
    return (wide >> np.asarray(amount).astype(np.uint64)).astype(np.uint32)


def align_bit(high: Array, low: Array, amount: Array) -> Array:
    """Compute V_ALIGNBIT_B32: the 32 bits of the 64-bit number `high:low` that start at bit `amount`."""
    return _align(high, low, amount & _U31)


def align_byte(high: Array, low: Array, amount: Array) -> Array:
    """Compute V_ALIGNBYTE_B32: the 32 bits of the 64-bit number `high:low` that start at byte `amount`."""
    return _align(high, low, (amount & np.uint32(3)) * np.uint32(8))


def permute_bytes(high: Array, low: Array, selector: Array) -> Array:
    """Compute V_PERM_B32, in which a byte of the selector determines each byte of the result.

    The values 0-3 pick a byte of `low`, and 4-7 pick a byte of `high`. The values 8-11 repeat the sign of one of the
    four 16-bit halves, 12 gives 0, and higher values give 0xFF.
    """
    if selector.ndim and not np.count_nonzero(selector != selector[0]):
        return _permute_by_constant(high, low, int(selector[0]))
    high, low, selector = (np.ascontiguousarray(part) for part in np.broadcast_arrays(high, low, selector))
    choices = selector.view(np.uint8).reshape(-1, 4)
    if not np.count_nonzero(choices & np.uint8(0xF8)):
        table: Array = np.empty((len(choices), 8), np.uint8)
        table[:, :4], table[:, 4:] = low.view(np.uint8).reshape(-1, 4), high.view(np.uint8).reshape(-1, 4)
        picked: Array = table.ravel().take(choices + np.arange(0, 8 * len(choices), 8)[:, None]).view(np.uint32)
        return picked.ravel()
    wide = low.astype(np.uint64) | (high.astype(np.uint64) << _U32)
    result = np.zeros(high.shape, np.uint32)
    for byte in range(4):
        choice = (selector >> np.uint32(8 * byte)) & np.uint32(255)
        value = ((wide >> (np.minimum(choice, 7).astype(np.uint64) * np.uint64(8))) & np.uint64(255)).astype(np.uint32)
        if (choice > 7).any():
            place = (np.clip(choice, 8, 11) - 8).astype(np.uint64) * np.uint64(16) + np.uint64(15)
            sign = ((wide >> place) & np.uint64(1)).astype(np.uint32) * np.uint32(255)
            fixed = np.where(choice == 12, np.uint32(0), np.uint32(255))
            value = np.where(choice > 7, np.where(choice < 12, sign, fixed), value)
        result |= value << np.uint32(8 * byte)
    return result


@lru_cache(maxsize=256)
def _choices(selector: int) -> tuple[list[int], bool]:
    """Return the numbers of the four bytes that a selector picks, and whether they form two halves of registers."""
    choices = [(selector >> 8 * byte) & 7 for byte in range(4)]
    return choices, all(choices[k] % 2 == 0 and choices[k + 1] == choices[k] + 1 for k in (0, 2))


def _pick_bytes(high: Array, low: Array, selector: int) -> Array:
    """Compute V_PERM_B32 for a selector that is the same in all lanes and picks only bytes of the sources."""
    choices, are_halves = _choices(selector)
    if are_halves:  # this is the most frequent case
        below, above = (high if choices[k] > 3 else low for k in (0, 2))
        below = below >> _U16 if choices[0] & 2 else below & _LOW
        packed: Array = below | (above & _HIGH if choices[2] & 2 else above << _U16)
        return packed
    result: Array = np.empty(len(low), np.uint32)
    parts = result.view(np.uint8)
    for byte, choice in enumerate(choices):
        parts[byte::4] = (high if choice > 3 else low).view(np.uint8)[choice % 4 :: 4]
    return result


def _permute_by_constant(high: Array, low: Array, selector: int) -> Array:
    """Compute V_PERM_B32 for a selector that is the same in all lanes."""
    if not selector & 0xF8F8F8F8 and high.ndim and low.ndim:
        return _pick_bytes(high, low, selector)
    result: Array = np.uint32(0)  # type: ignore[assignment]
    for byte in range(4):
        choice = (selector >> 8 * byte) & 255
        word = high if 4 <= choice < 8 or choice in {10, 11} else low
        if choice < 8:
            value = (word >> np.uint32(8 * (choice & 3))) & np.uint32(255)
        elif choice < 12:
            value = ((word >> np.uint32(31 if choice & 1 else 15)) & _ONE) * np.uint32(255)
        else:
            value = np.asarray(np.uint32(0 if choice == 12 else 255))
        result = result | (value << np.uint32(8 * byte))
    return result


def perm(operands: Operands) -> Run:
    """Decode V_PERM_B32. Its selector is usually a scalar, for which a faster function is used."""
    result, high, low, selector = operands.instruction.operands
    left, right, put = operands.u32(high), operands.u32(low), operands.put_u32(result)
    register = operands.register(selector)
    if register is not None and register.vector:
        choose = operands.u32(selector)
        return lambda wave: put(wave, permute_bytes(left(wave), right(wave), choose(wave)))
    number = operands.number(selector)
    return lambda wave: put(wave, _permute_by_constant(left(wave), right(wave), number(wave)))


def reverse_bits(value: Array) -> Array:
    """Compute V_BFREV_B32, which reverses the order of the bits."""
    value = np.asarray(value, np.uint32)
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        value = ((value >> np.uint32(shift)) & np.uint32(mask)) | ((value & np.uint32(mask)) << np.uint32(shift))
    return (value >> np.uint32(16)) | (value << np.uint32(16))


def count_bits(value: Array, add: Array) -> Array:
    """Compute V_BCNT_U32_B32: the number of set bits plus the second operand."""
    return np.bitwise_count(value).astype(np.uint32) + add


def leading_zeros(value: Array) -> Array:
    """Compute V_FFBH_U32 and V_CLZ_I32_U32: the number of leading zeros, or all ones if no bit is set."""
    bits = np.floor(np.log2(np.maximum(np.asarray(value).astype(np.float64), 0.5)))
    return np.where(value == 0, np.uint32(0xFFFFFFFF), (31 - bits).astype(np.uint32))


def trailing_zeros(value: Array) -> Array:
    """Compute V_FFBL_B32 and V_CTZ_I32_B32: the number of trailing zeros, or all ones if no bit is set."""
    lowest = value & (~np.asarray(value) + _ONE)
    bits = np.log2(np.maximum(lowest.astype(np.float64), 1.0)).astype(np.uint32)
    return np.where(value == 0, np.uint32(0xFFFFFFFF), bits)


def choose(unset: Array, given: Array, mask: Array) -> Array:
    """Compute V_CNDMASK: `given` in the lanes that the mask contains, and `unset` in all other lanes."""
    return np.where(mask, given, unset)


def _high_product(left: Array, right: Array) -> Array:
    return ((np.asarray(left).astype(np.uint64) * right) >> _U32).astype(np.uint32)


def _high_product_signed(left: Array, right: Array) -> Array:
    return ((np.asarray(left).astype(np.int64) * right) >> 32).astype(np.int32)


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


def _carry(operands: Operands, *, subtract: bool, reverse: bool, chained: bool) -> Run:
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


def _carry_handlers() -> dict[str, Handler]:
    rows = {
        "v_add_co_u32": (False, False, False),
        "v_sub_co_u32": (True, False, False),
        "v_subrev_co_u32": (True, True, False),
        "v_addc_co_u32": (False, False, True),
        "v_add_co_ci_u32": (False, False, True),
        "v_subb_co_u32": (True, False, True),
        "v_sub_co_ci_u32": (True, False, True),
        "v_subbrev_co_u32": (True, True, True),
        "v_subrev_co_ci_u32": (True, True, True),
    }

    def made(subtract: bool, reverse: bool, chained: bool) -> Handler:
        return lambda operands: _carry(operands, subtract=subtract, reverse=reverse, chained=chained)

    return {name: made(*row) for name, row in rows.items()}


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
    """Decode V_MAD_I64_I32, which adds a signed product to a 64-bit number, and writes signed overflow as the carry."""
    result, carry, first, second, third = operands.instruction.operands
    left, right, add = operands.i32(first), operands.i32(second), operands.u64(third)
    put, put_carry = operands.put_u64(result), operands.put_mask(carry)

    def run(wave: Wave) -> None:
        product = np.asarray(left(wave)).astype(np.int64) * right(wave)
        addend = np.asarray(add(wave)).view(np.int64)
        total = product + addend
        overflow = ((product ^ total) & (addend ^ total)) < 0
        put(wave, np.broadcast_to(total.view(np.uint64), (wave.lanes,)))
        put_carry(wave, overflow)

    return run


def leading_signs(value: Array) -> Array:
    """Compute V_FFBH_I32 and V_CLS_I32: the number of leading bits that equal the sign bit, or 0xFFFFFFFF if all do."""
    signless = np.where(value < 0, ~np.asarray(value), value).view(np.uint32)
    return leading_zeros(signless)


def _bounded(kind: type[np.generic], *, subtract: bool, reverse: bool = False) -> Compute:
    """Return a function that adds or subtracts two values, and clamps the result to the range of its type."""
    limits = np.iinfo(kind)  # type: ignore[type-var]

    def compute(a: Array, b: Array) -> Array:
        left, right = (np.asarray(each).astype(np.int64) for each in ((b, a) if reverse else (a, b)))
        total = left - right if subtract else left + right
        bounded: Array = np.clip(total, limits.min, limits.max).astype(kind)
        return bounded

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
            rows[name] = LaneOp(letter, letter * 2, _bounded(kind, subtract=False))
        for name in (f"v_sub_{end}", f"v_sub_nc_{end}"):
            rows[name] = LaneOp(letter, letter * 2, _bounded(kind, subtract=True))
        for name in (f"v_subrev_{end}", f"v_subrev_nc_{end}"):
            rows[name] = LaneOp(letter, letter * 2, _bounded(kind, subtract=True, reverse=True))
    return rows


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
    "v_lshlrev_b32": LaneOp("u", "uu", lambda a, b: b << _amount(a)),
    "v_lshrrev_b32": LaneOp("u", "uu", lambda a, b: b >> _amount(a)),
    "v_ashrrev_i32": LaneOp("i", "ui", lambda a, b: b >> np.asarray(_amount(a)).astype(np.int32)),
    "v_lshlrev_b64": LaneOp("q", "uq", lambda a, b: b << _amount64(a)),
    "v_lshrrev_b64": LaneOp("q", "uq", lambda a, b: b >> _amount64(a)),
    "v_ashrrev_i64": LaneOp("l", "ul", lambda a, b: b >> _amount64(a).astype(np.int64)),
    "v_lshlrev_b16": LaneOp("w", "ww", lambda a, b: b << _amount16(a)),
    "v_lshrrev_b16": LaneOp("w", "ww", lambda a, b: b >> _amount16(a)),
    "v_ashrrev_i16": LaneOp("s", "ws", lambda a, b: b >> _amount16(a).astype(np.int16)),
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
    "v_mul_hi_u32": LaneOp("u", "uu", _high_product),
    "v_mul_hi_i32": LaneOp("i", "ii", _high_product_signed),
    "v_mul_u32_u24": LaneOp("u", "uu", lambda a, b: (a & _U24) * (b & _U24)),
    "v_mul_i32_i24": LaneOp("i", "ii", lambda a, b: _i24(a) * _i24(b)),
    "v_max_u32": LaneOp("u", "uu", np.maximum),
    "v_min_u32": LaneOp("u", "uu", np.minimum),
    "v_max_i32": LaneOp("i", "ii", np.maximum),
    "v_min_i32": LaneOp("i", "ii", np.minimum),
    "v_bfm_b32": LaneOp("u", "uu", lambda a, b: _ones(a) << _amount(b)),
    "v_bcnt_u32_b32": LaneOp("u", "uu", count_bits),
    "v_add3_u32": LaneOp("u", "uuu", lambda a, b, c: a + b + c),
    "v_lshl_add_u32": LaneOp("u", "uuu", lambda a, b, c: (a << _amount(b)) + c),
    "v_add_lshl_u32": LaneOp("u", "uuu", lambda a, b, c: (a + b) << _amount(c)),
    "v_lshl_or_b32": LaneOp("u", "uuu", lambda a, b, c: (a << _amount(b)) | c),
    "v_and_or_b32": LaneOp("u", "uuu", lambda a, b, c: (a & b) | c),
    "v_or3_b32": LaneOp("u", "uuu", lambda a, b, c: a | b | c),
    "v_xor3_b32": LaneOp("u", "uuu", lambda a, b, c: a ^ b ^ c),
    "v_xad_u32": LaneOp("u", "uuu", lambda a, b, c: (a ^ b) + c),
    "v_bfi_b32": LaneOp("u", "uuu", lambda a, b, c: (a & b) | (~np.asarray(a) & c)),
    "v_bfe_u32": LaneOp("u", "uuu", bit_field),
    "v_bfe_i32": LaneOp("u", "uuu", signed_bit_field),
    "v_mad_u32_u24": LaneOp("u", "uuu", lambda a, b, c: (a & _U24) * (b & _U24) + c),
    "v_mad_i32_i24": LaneOp("i", "iii", lambda a, b, c: _i24(a) * _i24(b) + c),
    "v_max3_u32": LaneOp("u", "uuu", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "v_min3_u32": LaneOp("u", "uuu", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_max3_i32": LaneOp("i", "iii", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "v_min3_i32": LaneOp("i", "iii", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_med3_i32": LaneOp("i", "iii", lambda a, b, c: np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))),
    "v_med3_u32": LaneOp("u", "uuu", lambda a, b, c: np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))),
    "v_alignbit_b32": LaneOp("u", "uut", align_bit),
    "v_alignbyte_b32": LaneOp("u", "uut", align_byte),
    **dict.fromkeys(("v_ffbh_i32", "v_cls_i32"), LaneOp("u", "i", leading_signs)),
    **dict.fromkeys(("v_mad_u16", "v_mad_legacy_u16"), LaneOp("w", "www", lambda a, b, c: a * b + c)),
    **dict.fromkeys(("v_mad_i16", "v_mad_legacy_i16"), LaneOp("s", "sss", lambda a, b, c: a * b + c)),
    "v_lshl_add_u64": LaneOp("q", "quq", lambda a, b, c: (a << (np.asarray(b).astype(np.uint64) & np.uint64(7))) + c),
    "v_add_nc_u64": LaneOp("q", "qq", np.add),
}

HANDLERS: dict[str, Handler] = {
    "v_perm_b32": perm,
    "v_bitop3_b32": bit_operation,
    "v_bitop3_b16": bit_operation_of_halves,
    **dict.fromkeys(("v_mad_u64_u32", "v_mad_co_u64_u32"), multiply_add_64),
    **dict.fromkeys(("v_mad_i64_i32", "v_mad_co_i64_i32"), multiply_add_signed_64),
    **_carry_handlers(),
}
