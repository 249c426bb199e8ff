"""Matrix instructions on integers, on 8-bit and 4-bit floats, and on float64.

Results are exact for integers. For 8-bit floats on CDNA 3, sums are rounded by the published rule, unless `--fast` is
given; see `accumulation`. All other products are summed in float64, and the sum is rounded to the type of the result.

The elements along k are in the order in which the registers hold them. The order of the hardware is reproduced only
for F8F6F4 instructions, because each of their scales applies to 32 consecutive elements.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from toolchain_lab.emulator.accumulation import rule_of
from toolchain_lab.emulator.bits import Array, largest
from toolchain_lab.emulator.conversions import format_of
from toolchain_lab.emulator.errors import FaultyKernelError
from toolchain_lab.emulator.lanewise import Handler, refuse_matrix_overflow
from toolchain_lab.emulator.operands import Get, Operands, Run
from toolchain_lab.emulator.wave import Target, Wave

_MFMA = re.compile(
    r"v_mfma_(?P<scale>scale_)?(?P<out>[fi]\d\d)_(?P<size>16|32)x(?P=size)x(?P<k>\d+)_?"
    r"(?P<kind>i8|f64|f8f6f4|(?:fp8|bf8)_(?:fp8|bf8))$"
)
_WMMA = re.compile(r"v_wmma_(?P<out>[fi]32)_16x16x16_(?P<kind>iu8|(?:fp8|bf8)_(?:fp8|bf8))$")
# These are the emulated values of k, the number of products in a sum, by the number of rows and the type.
_DEPTHS = {
    (16, "i8"): {16, 32, 64}, (32, "i8"): {8, 16, 32}, (16, "fp8"): {32}, (32, "fp8"): {16},
    (16, "f8f6f4"): {128}, (32, "f8f6f4"): {64}, (16, "f64"): {4},
}  # fmt: skip
# These are the numbers by which the modifiers CBSZ and BLGP of F8F6F4 instructions select the types. The 6-bit types, 2
# and 3, are not emulated.
_BY_NUMBER = {0: "fp8", 1: "bf8", 4: "fp4"}
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
_FP4 = np.concatenate([_FP4, -_FP4])


# The result is cached, because most factors are used by several instructions.
@lru_cache(maxsize=256)
def _numbers(registers: bytes, count: int, kind: str, target: Target) -> Array:
    """Convert registers, `uint32[count, lanes]`, to the numbers that each lane holds, `float64[lanes, numbers]`."""
    columns = np.ascontiguousarray(np.frombuffer(registers, np.uint32).reshape(count, -1).T)
    if kind == "f64":
        return columns.view(np.float64)
    if kind in {"i8", "u8"}:
        return columns.view(np.int8 if kind == "i8" else np.uint8).astype(np.float64)
    codes = columns.view(np.uint8)
    if kind == "fp4":
        return _FP4[np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)]
    return format_of(target, kind).decode(codes).astype(np.float64)


def _rows(numbers: Array, parts: int, *, chunks: int = 1) -> Array:
    """Arrange the numbers that the lanes of a wave hold, `float64[lanes, k / parts]`, as a matrix, `float64[rows, k]`.

    Args:
        parts: the number of groups of lanes, each of which holds a part of k.
        chunks: the number of chunks of k, each of which is divided among the groups of lanes.
    """
    rows = len(numbers) // parts
    return numbers.reshape(parts, rows, chunks, -1).transpose(1, 2, 0, 3).reshape(rows, -1)


def _registers(product: Array, target: Target, kind: str) -> Array:
    """Convert a product, `[rows, columns]`, to registers, `[r, lanes]`, in the layout that the GPU uses."""
    size = len(product)
    if target.generation == 11 or kind == "f64":
        return product.reshape(-1, target.lanes)
    if target.generation == 12:
        return product.reshape(2, 8, 16).transpose(1, 0, 2).reshape(8, 32)
    parts = 64 // size
    return product.reshape(-1, parts, 4, size).transpose(0, 2, 1, 3).reshape(-1, 64)


def _unpacked(registers: Array, size: int, parts: int) -> Array:
    """Convert MFMA registers with 32-bit elements to a matrix, `[size, size]`."""
    return registers.reshape(-1, 4, parts, size).transpose(0, 2, 1, 3).reshape(size, size)


def _added(product: Array, add: Array, out: str) -> Array:
    """Return the bits of `product + add` in the type `out`, as `uint32[registers, lanes]`."""
    if out == "i32":
        return (product.astype(np.int64) + add.view(np.int32)).astype(np.int32).view(np.uint32)
    if out == "f32":
        return np.asarray((product + add.view(np.float32)).astype(np.float32)).view(np.uint32)
    return np.stack([product + add], axis=-1).view(np.uint32).transpose(0, 2, 1).reshape(-1, product.shape[1])


def _addend(operands: Operands, text: str, out: str) -> Get:
    """Return the function that reads the addend: `uint32[r, lanes]`, or `float64[r, lanes]` if `out` is `f64`.

    If the addend is a constant, the function returns one number instead of an array.
    """
    register = operands.register(text)
    if register is None:
        return operands.f64(text) if out == "f64" else operands.u32(text)
    if not register.vector:
        raise operands.instruction.unknown(f"{text} as the addend")
    operands.read(register)
    start, end = register.index, register.index + register.count
    if out != "f64":
        return lambda wave: wave.vectors[start:end]

    def quads(wave: Wave) -> Array:
        words = wave.vectors[start:end].reshape(-1, 2, wave.lanes).transpose(0, 2, 1)
        return np.ascontiguousarray(words).view(np.float64)[..., 0]

    return quads


def _byte_scale(operands: Operands, number: int) -> Get:
    """Return the function that reads a scale, `float64[lanes, 1]`: a byte gives a power of two, or NaN if it is 255."""
    modifiers = operands.instruction.modifiers
    if "op_sel_hi" not in modifiers.names():
        raise operands.instruction.unknown("scales without op_sel_hi")
    byte = modifiers.vector("op_sel", [0, 0, 0])[number] + 2 * modifiers.vector("op_sel_hi", [])[number]
    bits, place = operands.u32(operands.instruction.operands[4 + number]), np.uint32(8 * byte)

    def get(wave: Wave) -> Array:
        power = (bits(wave) >> place & np.uint32(255)).astype(np.int32)
        return np.where(power == 255, np.nan, np.ldexp(1.0, power - 127)).reshape(-1, 1)

    return get


def _product(out: str, kinds: tuple[str, str], parts: int, *, mixed: bool = False, scaled: bool = False) -> Handler:
    def build(operands: Operands) -> Run:
        texts, target = operands.instruction.operands, operands.target
        if len(texts) != (6 if scaled else 4):
            raise operands.instruction.unknown(f"{len(texts)} operands")
        destination = operands.write(operands.vector(texts[0]))
        factors = [operands.read(operands.vector(text)) for text in texts[1:3]]
        add = _addend(operands, texts[3], out)
        scales = [_byte_scale(operands, number) for number in (0, 1)] if scaled else []
        address, repeats = operands.instruction.address, target.generation == 11
        first, last = destination.index, destination.index + destination.count
        rule = rule_of(target, kinds[0]) if out == "f32" and not mixed else None
        name = operands.instruction.name

        def run(wave: Wave) -> None:
            # The registers of all lanes are read and written, because matrix instructions ignore EXEC.
            matrices = []
            for number, factor in enumerate(factors):
                rows = wave.vectors[factor.index : factor.index + factor.count]
                if repeats:
                    if not np.array_equal(rows[:, :16], rows[:, 16:]):
                        raise FaultyKernelError(
                            "matrix-halves-differ",
                            f"the factors of the matrix instruction at {address:#x} differ between the wave's halves",
                            why="on gfx11 lanes 16 to 31 must hold the same values as lanes 0 to 15",
                        )
                    rows = rows[:, :16]
                numbers = _numbers(rows.tobytes(), len(rows), kinds[number], target)
                # In an F8F6F4 instruction, one lane of each group holds a part of a row. k runs over the first 16 bytes
                # of all these lanes, and then over their next 16 bytes if the type has 8 bits.
                chunks = len(rows) // 4 if mixed else 1
                matrix = _rows(numbers, parts, chunks=chunks)
                if scales:
                    matrix = matrix * _rows(scales[number](wave), parts).repeat(32, axis=1)
                matrices.append(matrix)
            left, right = matrices
            more = add(wave)
            if rule is not None:
                start = more.view(np.float32)
                start = _unpacked(start, len(left), parts) if start.ndim else start
                total = rule.add(rule.factor(left, kinds[0]), rule.factor(right, kinds[1]), start)
                if wave.clamps_overflow:
                    refuse_matrix_overflow(wave, operands.instruction, np.isinf(total))
                wave.vectors[first:last] = _registers(total, target, kinds[0]).view(np.uint32)
                if kinds == ("bf8", "bf8") and not np.isfinite(total).all():
                    wave.group.note(name, np.inf)
                return
            product = _registers(left @ right.T, target, kinds[0])
            # `more` may be a view of the destination, so it must be read before the result is written.
            if out != "i32":
                addend = more.view(np.float32) if out == "f32" else more
                wave.group.note(name, left.shape[1] * largest(left) * largest(right) + largest(addend))
            result = _added(product, more, out)
            if wave.clamps_overflow and out == "i32":
                refuse_matrix_overflow(
                    wave, operands.instruction, product + more.view(np.int32) != result.view(np.int32)
                )
            elif wave.clamps_overflow and out == "f32":
                refuse_matrix_overflow(wave, operands.instruction, np.isinf(result.view(np.float32)))
            wave.vectors[first:last] = result

        return run

    return build


def _wmma(out: str, kind: str) -> Handler:
    def build(operands: Operands) -> Run:
        generation, modifiers = operands.target.generation, operands.instruction.modifiers
        if operands.target.lanes != 32 or generation not in {11, 12}:
            raise operands.instruction.unknown(f"{operands.target.lanes} lanes on {operands.target.gpu}")
        if kind == "iu8":
            has_sign = modifiers.vector("neg_lo", [0, 0, 0])
            kinds = tuple("i8" if sign else "u8" for sign in has_sign[:2])
        else:
            kinds = tuple(kind.split("_"))
        return _product(out, (kinds[0], kinds[1]), generation - 10)(operands)

    return build


def _by_format(out: str, parts: int, *, scaled: bool) -> Handler:
    def build(operands: Operands) -> Run:
        modifiers = operands.instruction.modifiers
        left, right = (_BY_NUMBER.get(modifiers.number(name)) for name in ("cbsz", "blgp"))
        if left is None or right is None:
            raise operands.instruction.unknown("floats of 6 bits")
        return _product(out, (left, right), parts, mixed=True, scaled=scaled)(operands)

    return build


def handler_of(name: str) -> Handler | None:
    """Return the decoder for a matrix instruction; None if this module does not support the instruction."""
    if match := _WMMA.match(name):
        return _wmma(match["out"], match["kind"]) if (match["out"] == "i32") == (match["kind"] == "iu8") else None
    if (match := _MFMA.match(name)) is None:
        return None
    out, size, kind = match["out"], int(match["size"]), match["kind"]
    narrow = "fp8" if "_" in kind else kind
    if int(match["k"]) not in _DEPTHS.get((size, narrow), set()) or (match["scale"] and kind != "f8f6f4"):
        return None
    if out != {"i8": "i32", "f64": "f64"}.get(kind, "f32"):
        return None
    if kind == "f8f6f4":
        return _by_format(out, 64 // size, scaled=match["scale"] is not None)
    left, right = kind.split("_") if "_" in kind else (kind, kind)
    return _product(out, (left, right), 64 // size)
