"""Scalar instructions, which compute lane masks and numbers that all lanes share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolchain_lab.emulator.bits import QUAD, WORD, signed
from toolchain_lab.emulator.lanewise import Handler
from toolchain_lab.emulator.operands import GetNumber, Operands, Run
from toolchain_lab.emulator.registers import SCC
from toolchain_lab.emulator.wave import EXEC, Wave

# This is the result of an instruction and the new value of SCC.
Pair = tuple[int, int]
_I32 = range(-(1 << 31), 1 << 31)


def _binary(
    compute: Callable[[int, int], Pair | int], width: int = 32, *, sign: bool = False, flags: bool = True
) -> Handler:
    """Return the decoder for an instruction with two sources, which writes SCC if `flags` is set.

    The function `compute` returns a `Pair` if `flags` is set, and otherwise only the result.
    """

    def build(operands: Operands) -> Run:
        result, first, second = operands.instruction.operands
        read = operands.quad if width == 64 else operands.signed_number if sign else operands.number
        left, right = read(first), read(second)
        put = operands.put_number(result, width // 32)
        if flags:
            operands.writes.add(SCC)

        def run(wave: Wave) -> None:
            value = compute(left(wave), right(wave))
            if isinstance(value, tuple):
                value, wave.scc = value
            put(wave, value)

        return run

    return build


def _applied(
    operands: Operands, put: Callable[[Wave, int], None], compute: Callable[[Wave], Pair | int], *, flags: bool = True
) -> Run:
    if flags:
        operands.writes.add(SCC)

    def run(wave: Wave) -> None:
        value = compute(wave)
        if isinstance(value, tuple):
            put(wave, value[0])
            wave.scc = value[1]
        else:
            put(wave, value)

    return run


def unary(
    compute: Callable[[int], Pair | int], words: int = 1, source: int = 32, *, sign: bool = False, flags: bool = True
) -> Handler:
    def build(operands: Operands) -> Run:
        result, text = operands.instruction.operands
        get = operands.quad(text) if source == 64 else (operands.signed_number if sign else operands.number)(text)
        return _applied(operands, operands.put_number(result, words), lambda wave: compute(get(wave)), flags=flags)

    return build


def _flagged(value: int, width: int = 32) -> Pair:
    """Return a result truncated to `width` bits, and the new SCC: 1 if the truncated result is not 0, else 0."""
    value &= QUAD if width == 64 else WORD
    return value, int(value != 0)


def _move_quad(operands: Operands) -> Run:
    """Decode S_MOV_B64, which zero-extends a 32-bit literal."""
    result, text = operands.instruction.operands
    literal = text.startswith("0x")
    value = operands.constant(text) if literal else 0
    get, put = (lambda _: value) if literal else operands.quad(text), operands.put_number(result, 2)
    return lambda wave: put(wave, get(wave))


def _logic(compute: Callable[[int, int], int], width: int) -> Handler:
    return _binary(lambda a, b: _flagged(compute(a, b), width), width)


# These functions also accept arrays, which the module `rows` passes.
LOGIC: dict[str, Callable[[Any, Any], Any]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    **dict.fromkeys(("andn2", "and_not1"), lambda a, b: a & ~b),
    **dict.fromkeys(("orn2", "or_not1"), lambda a, b: a | ~b),
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
SAVE_EXEC: dict[str, Callable[[Any, Any], Any]] = {
    **{name: LOGIC[name] for name in ("and", "or", "xor", "andn2", "and_not1", "orn2", "or_not1")},
    **dict.fromkeys(("andn1", "and_not0"), lambda a, b: ~a & b),
}


def _save_exec(compute: Callable[[int, int], int], width: int, *, new_one: bool = False) -> Handler:
    """Return the decoder for an instruction that computes a new EXEC from its source and the old EXEC.

    Args:
        compute: a function that takes the source and the old EXEC, and returns the new EXEC.
        new_one: whether the destination gets the new EXEC, as in S_ANDN1_WREXEC; otherwise it gets the old EXEC.
    """

    def build(operands: Operands) -> Run:
        if width != operands.target.lanes:
            raise operands.instruction.unknown(f"{width} bits of EXEC in a wave of {operands.target.lanes} lanes")
        result, text = operands.instruction.operands
        get = operands.quad(text) if width == 64 else operands.number(text)
        put = operands.put_number(result, width // 32)
        operands.reads.update(range(EXEC, EXEC + width // 32))
        operands.writes.update((SCC, *range(EXEC, EXEC + width // 32)))
        every = (1 << width) - 1

        def run(wave: Wave) -> None:
            old, value = wave.exec_bits, get(wave)
            new = compute(value, old) & every
            put(wave, new if new_one else old)
            wave.set_exec(new)
            wave.scc = int(new != 0)

        return run

    return build


def _shift(compute: Callable[[int, int], int], width: int) -> Handler:
    def build(operands: Operands) -> Run:
        result, first, second = operands.instruction.operands
        value = operands.quad(first) if width == 64 else operands.number(first)
        amount, put = operands.number(second), operands.put_number(result, width // 32)
        return _applied(operands, put, lambda wave: _flagged(compute(value(wave), amount(wave) & width - 1), width))

    return build


def _bit_field(width: int, *, sign: bool) -> Handler:
    """Return the decoder for S_BFE, whose second source holds the offset (low bits) and the width (bits 16 to 22)."""

    def build(operands: Operands) -> Run:
        result, first, second = operands.instruction.operands
        value = operands.quad(first) if width == 64 else operands.number(first)
        control, put = operands.number(second), operands.put_number(result, width // 32)

        def compute(wave: Wave) -> Pair:
            given = control(wave)
            size = given >> 16 & 127
            field = value(wave) >> (given & width - 1) & (1 << size) - 1
            # A field that extends beyond the highest bit is truncated, so its sign is in the highest bit that remains.
            size = min(size, width - (given & width - 1))
            return _flagged(signed(field, size) if sign and size else field, width)

        return _applied(operands, put, compute)

    return build


def _compare(
    compute: Callable[[int, int], bool], *, sign: bool = False, width: int = 32, short: bool = False
) -> Handler:
    """Return the decoder for S_CMP, or, if `short` is set, for S_CMPK, which compares with a 16-bit constant."""

    def build(operands: Operands) -> Run:
        first, second = operands.instruction.operands
        read = operands.quad if width == 64 else operands.signed_number if sign else operands.number
        left = read(first)
        right: GetNumber
        if short:
            value = int(second, 0)
            value = signed(value, 16) if sign else value & 0xFFFF
            right = lambda _: value  # noqa: E731
        else:
            right = read(second)
        operands.writes.add(SCC)

        def run(wave: Wave) -> None:
            wave.scc = int(compute(left(wave), right(wave)))

        return run

    return build


COMPARES: dict[str, Callable[[int, int], bool]] = {
    "lt": lambda a, b: a < b,
    "gt": lambda a, b: a > b,
    "le": lambda a, b: a <= b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
}


def _select(width: int) -> Handler:
    def build(operands: Operands) -> Run:
        result, first, second = operands.instruction.operands
        read = operands.quad if width == 64 else operands.number
        left, right, put = read(first), read(second), operands.put_number(result, width // 32)
        operands.reads.add(SCC)
        return lambda wave: put(wave, left(wave) if wave.scc else right(wave))

    return build


def _extreme(*, largest: bool, sign: bool) -> Handler:
    def build(operands: Operands) -> Run:
        result, first, second = operands.instruction.operands
        read = operands.signed_number if sign else operands.number
        left, right, put = read(first), read(second), operands.put_number(result)
        gpu = operands.target.gpu
        # The manuals of these GPUs set SCC if both are equal; those of older ones, and of gfx110x, do not.
        newer = operands.target.generation >= 12 or gpu in {"gfx942", "gfx950"} or gpu.startswith("gfx115")
        inclusive = largest and newer

        def compute(wave: Wave) -> Pair:
            a, b = left(wave), right(wave)
            first_wins = (a >= b if inclusive else a > b) if largest else a < b
            return (a if first_wins else b), int(first_wins)

        return _applied(operands, put, compute)

    return build


def _constant_add(operands: Operands) -> Run:
    """Decode S_ADDK_I32, which adds a 16-bit constant, and sets SCC on signed overflow."""
    result, constant = operands.instruction.operands
    value, get, put = signed(int(constant, 0), 16), operands.signed_number(result), operands.put_number(result)

    def compute(wave: Wave) -> Pair:
        total = get(wave) + value
        return total, int(total not in _I32)

    return _applied(operands, put, compute)


def _constant_multiply(operands: Operands) -> Run:
    result, constant = operands.instruction.operands
    value, get, put = signed(int(constant, 0), 16), operands.signed_number(result), operands.put_number(result)
    return lambda wave: put(wave, get(wave) * value)


def _constant_move(operands: Operands) -> Run:
    result, constant = operands.instruction.operands
    value, put = signed(int(constant, 0), 16), operands.put_number(result)
    return lambda wave: put(wave, value)


def _conditional_move(operands: Operands) -> Run:
    result, text = operands.instruction.operands
    old, get, put = operands.number(result), operands.number(text), operands.put_number(result)
    operands.reads.add(SCC)
    return lambda wave: put(wave, get(wave) if wave.scc else old(wave))


def _test_bit(*, wanted: int) -> Handler:
    def build(operands: Operands) -> Run:
        first, second = operands.instruction.operands
        value, bit = operands.number(first), operands.number(second)
        operands.writes.add(SCC)

        def run(wave: Wave) -> None:
            wave.scc = int((value(wave) >> (bit(wave) & 31) & 1) == wanted)

        return run

    return build


def _set_bit(*, to: int) -> Handler:
    def build(operands: Operands) -> Run:
        result, text = operands.instruction.operands
        old, bit, put = operands.number(result), operands.number(text), operands.put_number(result)

        def run(wave: Wave) -> None:
            mask = 1 << (bit(wave) & 31)
            put(wave, old(wave) | mask if to else old(wave) & ~mask)

        return run

    return build


def _overflowing(total: int) -> Pair:
    return total, int(total not in _I32)


def _with_carry(*, subtract: bool) -> Handler:
    def build(operands: Operands) -> Run:
        result, first, second = operands.instruction.operands
        left, right, put = operands.number(first), operands.number(second), operands.put_number(result)
        operands.reads.add(SCC)

        def compute(wave: Wave) -> Pair:
            if subtract:
                total = left(wave) - right(wave) - wave.scc
                return total, int(total < 0)
            total = left(wave) + right(wave) + wave.scc
            return total, total >> 32

        return _applied(operands, put, compute)

    return build


def _lowest_bit(value: int) -> int:
    """Return the position of the lowest set bit; if no bit is set, -1, which becomes all ones in a register."""
    return (value & -value).bit_length() - 1


def _highest_bit(width: int) -> Callable[[int], int]:
    return lambda value: width - value.bit_length() if value else WORD


def _leading_signs(width: int) -> Callable[[int], int]:
    """Return the function that counts the leading bits that equal the sign bit; if all bits do, it returns all ones."""
    ones, count = (1 << width) - 1, _highest_bit(width)
    return lambda value: count(value ^ ones if value >> width - 1 else value)


def _of_width(width: int) -> dict[str, Handler]:
    """Return the decoders, by mnemonic, for the `width`-bit forms of instructions that exist for 32 and for 64 bits."""
    words = width // 32
    table: dict[str, Handler] = {
        f"s_lshl_b{width}": _shift(lambda a, n: a << n, width),
        f"s_lshr_b{width}": _shift(lambda a, n: a >> n, width),
        f"s_ashr_i{width}": _shift(lambda a, n: signed(a, width) >> n, width),
        f"s_bfe_u{width}": _bit_field(width, sign=False),
        f"s_bfe_i{width}": _bit_field(width, sign=True),
        f"s_cselect_b{width}": _select(width),
        f"s_mov_b{width}": unary(lambda a: a, words, width, flags=False) if width == 32 else _move_quad,
        f"s_not_b{width}": unary(lambda a: _flagged(~a, width), words, width),
        f"s_brev_b{width}": unary(lambda a: int(f"{a:0{width}b}"[::-1], 2), words, width, flags=False),
        f"s_bcnt1_i32_b{width}": unary(lambda a: _flagged(a.bit_count()), 1, width),
        **dict.fromkeys((f"s_ff1_i32_b{width}", f"s_ctz_i32_b{width}"), unary(_lowest_bit, 1, width, flags=False)),
        **dict.fromkeys(
            (f"s_flbit_i32_b{width}", f"s_clz_i32_u{width}"), unary(_highest_bit(width), 1, width, flags=False)
        ),
        **dict.fromkeys(
            ("s_flbit_i32", "s_cls_i32") if width == 32 else ("s_flbit_i32_i64", "s_cls_i32_i64"),
            unary(_leading_signs(width), 1, width, flags=False),
        ),
    }
    table.update({f"s_{name}_b{width}": _logic(logic, width) for name, logic in LOGIC.items()})
    table.update({f"s_{name}_saveexec_b{width}": _save_exec(logic, width) for name, logic in SAVE_EXEC.items()})
    for name in ("andn1", "andn2", "and_not0", "and_not1"):
        table[f"s_{name}_wrexec_b{width}"] = _save_exec(SAVE_EXEC[name], width, new_one=True)
    return table


def _comparing() -> dict[str, Handler]:
    table: dict[str, Handler] = {}
    for name, compare in COMPARES.items():
        for sign, letter in ((True, "i"), (False, "u")):
            table[f"s_cmp_{name}_{letter}32"] = _compare(compare, sign=sign)
            table[f"s_cmpk_{name}_{letter}32"] = _compare(compare, sign=sign, short=True)
        if name in {"eq", "lg"}:
            table[f"s_cmp_{name}_u64"] = _compare(compare, width=64)
    return table


def _shift_and_add(amount: int) -> Handler:
    return _binary(lambda a, b: ((a << amount) + b, int((a << amount) + b > WORD)))


HANDLERS: dict[str, Handler] = {
    **_of_width(32),
    **_of_width(64),
    **_comparing(),
    **{f"s_lshl{amount}_add_u32": _shift_and_add(amount) for amount in range(1, 5)},
    **dict.fromkeys(("s_add_u32", "s_add_co_u32"), _binary(lambda a, b: (a + b, a + b >> 32))),
    **dict.fromkeys(("s_sub_u32", "s_sub_co_u32"), _binary(lambda a, b: (a - b, int(a < b)))),
    **dict.fromkeys(("s_addc_u32", "s_add_co_ci_u32"), _with_carry(subtract=False)),
    **dict.fromkeys(("s_subb_u32", "s_sub_co_ci_u32"), _with_carry(subtract=True)),
    **dict.fromkeys(("s_add_i32", "s_add_co_i32"), _binary(lambda a, b: _overflowing(a + b), sign=True)),
    **dict.fromkeys(("s_sub_i32", "s_sub_co_i32"), _binary(lambda a, b: _overflowing(a - b), sign=True)),
    **dict.fromkeys(("s_addk_i32", "s_addk_co_i32"), _constant_add),
    "s_max_i32": _extreme(largest=True, sign=True),
    "s_max_u32": _extreme(largest=True, sign=False),
    "s_min_i32": _extreme(largest=False, sign=True),
    "s_min_u32": _extreme(largest=False, sign=False),
    "s_movk_i32": _constant_move,
    "s_mulk_i32": _constant_multiply,
    "s_cmov_b32": _conditional_move,
    "s_mul_i32": _binary(lambda a, b: a * b, flags=False),
    "s_mul_hi_u32": _binary(lambda a, b: a * b >> 32, flags=False),
    "s_mul_hi_i32": _binary(lambda a, b: a * b >> 32, sign=True, flags=False),
    "s_mul_u64": _binary(lambda a, b: a * b, 64, flags=False),
    **dict.fromkeys(("s_add_nc_u64", "s_add_u64"), _binary(lambda a, b: a + b, 64, flags=False)),
    **dict.fromkeys(("s_sub_nc_u64", "s_sub_u64"), _binary(lambda a, b: a - b, 64, flags=False)),
    "s_absdiff_i32": _binary(lambda a, b: _flagged(abs(signed(a - b, 32))), sign=True),
    "s_abs_i32": unary(lambda a: _flagged(abs(a)), sign=True),
    "s_sext_i32_i16": unary(lambda a: signed(a, 16), flags=False),
    "s_sext_i32_i8": unary(lambda a: signed(a, 8), flags=False),
    "s_bitcmp0_b32": _test_bit(wanted=0),
    "s_bitcmp1_b32": _test_bit(wanted=1),
    "s_bitset0_b32": _set_bit(to=0),
    "s_bitset1_b32": _set_bit(to=1),
    "s_bfm_b32": _binary(lambda a, b: (1 << (a & 31)) - 1 << (b & 31), flags=False),
    "s_pack_ll_b32_b16": _binary(lambda a, b: a & 0xFFFF | (b & 0xFFFF) << 16, flags=False),
    "s_pack_lh_b32_b16": _binary(lambda a, b: a & 0xFFFF | b & 0xFFFF0000, flags=False),
    "s_pack_hl_b32_b16": _binary(lambda a, b: a >> 16 | (b & 0xFFFF) << 16, flags=False),
    "s_pack_hh_b32_b16": _binary(lambda a, b: a >> 16 | b & 0xFFFF0000, flags=False),
}
