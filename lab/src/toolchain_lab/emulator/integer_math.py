"""The functions on integers and bits that vector instructions compute.

Each array contains an element for each lane, or one number for all lanes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from toolchain_lab.emulator.bits import Array

_U16, _LOW, _HIGH = np.uint32(16), np.uint32(0xFFFF), np.uint32(0xFFFF0000)
_U31, _ONE = np.uint32(31), np.uint32(1)
_U32, _U63 = np.uint64(32), np.uint64(63)


def amount(value: Array) -> Array:
    """Return the amount by which a 32-bit value is shifted: the five lowest bits of the operand."""
    return value & _U31


def amount64(value: Array) -> Array:
    return np.asarray(value).astype(np.uint64) & _U63


def amount16(value: Array) -> Array:
    return value & np.uint16(15)


def i24(value: Array) -> Array:
    """Return the low 24 bits of values, sign-extended."""
    return (value << np.int32(8)) >> np.int32(8)


def ones(width: Array) -> Array:
    """Return a mask whose lowest `width` bits are set. Only the five lowest bits of the width are used."""
    return (_ONE << amount(width)) - _ONE


def bit_field(value: Array, offset: Array, width: Array) -> Array:
    """Compute V_BFE_U32, which extracts an unsigned field of bits."""
    field: Array = (value >> amount(offset)) & ones(width)
    return field


def short_amount(count: Array) -> Array:
    """Return the amount by which V_LSHL_ADD_U64 shifts: the lowest three bits, or 0 if they exceed 4."""
    low = np.asarray(count).astype(np.uint64) & np.uint64(7)
    return np.where(low <= 4, low, np.uint64(0))


def signed_bit_field(value: Array, offset: Array, width: Array) -> Array:
    """Compute V_BFE_I32, which extracts a signed field of bits; a field of width 0 gives 0.

    Bits of the field beyond bit 31 are copies of bit 31, because the value is shifted arithmetically.
    """
    shifted = np.asarray(value).astype(np.int32) >> np.asarray(amount(offset)).astype(np.int32)
    field = shifted.astype(np.uint32) & ones(width)
    sign = (_ONE << amount(width)) >> _ONE
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
        return permute_by_constant(high, low, int(selector[0]))
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
    """Return the numbers of the four bytes that a selector picks, and whether they form two halves of the sources."""
    choices = [(selector >> 8 * byte) & 7 for byte in range(4)]
    return choices, all(choices[k] % 2 == 0 and choices[k + 1] == choices[k] + 1 for k in (0, 2))


def _pick_bytes(high: Array, low: Array, selector: int) -> Array:
    """Compute V_PERM_B32 for a selector that is the same in all lanes and picks only bytes of the sources."""
    choices, are_halves = _choices(selector)
    if are_halves:
        below, above = (high if choices[k] > 3 else low for k in (0, 2))
        below = below >> _U16 if choices[0] & 2 else below & _LOW
        packed: Array = below | (above & _HIGH if choices[2] & 2 else above << _U16)
        return packed
    result: Array = np.empty(len(low), np.uint32)
    parts = result.view(np.uint8)
    for byte, choice in enumerate(choices):
        parts[byte::4] = (high if choice > 3 else low).view(np.uint8)[choice % 4 :: 4]
    return result


def permute_by_constant(high: Array, low: Array, selector: int) -> Array:
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


def high_product(left: Array, right: Array) -> Array:
    return ((np.asarray(left).astype(np.uint64) * right) >> _U32).astype(np.uint32)


def high_product_signed(left: Array, right: Array) -> Array:
    return ((np.asarray(left).astype(np.int64) * right) >> 32).astype(np.int32)


def leading_signs(value: Array) -> Array:
    """Compute V_FFBH_I32 and V_CLS_I32: the number of leading bits that equal the sign bit, or 0xFFFFFFFF if all do."""
    signless = np.where(value < 0, ~np.asarray(value), value).view(np.uint32)
    return leading_zeros(signless)
