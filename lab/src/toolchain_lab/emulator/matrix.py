"""Matrix instructions: MFMA of CDNA and WMMA of RDNA.

A product follows the rule that is published for the GPU and the type, see `accumulation`. Where there is none, or
with `--fast`, products are summed in float64 and rounded once; the program then notes the magnitudes, which bound the
error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from toolchain_lab.emulator.accumulation import Factor, Rule, rule_of
from toolchain_lab.emulator.bits import Array, largest, widen_bf16
from toolchain_lab.emulator.errors import FaultyKernelError
from toolchain_lab.emulator.lanewise import Handler
from toolchain_lab.emulator.operands import Get, Operands, Register, Run
from toolchain_lab.emulator.wave import Wave

_MFMA = re.compile(r"v_mfma_f32_(32x32|16x16)x(\d+)_?(f16|bf16|f32|xf32)(_1k)?$")
_WMMA = re.compile(r"v_wmma_f32_16x16x16_(f16|bf16)$")
# Shapes by matrix size and type: k of one instruction.
_DEPTHS = {
    (32, "f16"): {8, 16},
    (16, "f16"): {16, 32},
    (32, "bf16"): {8, 16},
    (16, "bf16"): {16, 32},
    (32, "f32"): {2},
    (16, "f32"): {4},
    (32, "xf32"): {4},
    (16, "xf32"): {8},
}
# bf16 without _1k: the older form with half the depth.
_OLD_BF16 = {(32, 4), (16, 8)}


def _numbers(rows: Array, kind: str, *, cut: bool) -> Array:
    """Registers, `uint32[n, lanes]`, as each lane's numbers in order, `float64[lanes, k]`.

    Args:
        cut: whether float32 is cut off to xf32, as hardware does it; else it is rounded.
    """
    columns = np.ascontiguousarray(rows.T)
    if kind == "f16":
        return columns.view(np.float16).astype(np.float64)
    if kind == "bf16":
        return widen_bf16(columns.view(np.uint16)).astype(np.float64)
    if kind == "xf32":
        # 10 bits of mantissa remain.
        even = (columns >> np.uint32(13)) & np.uint32(1)
        columns = (columns + (np.uint32(0) if cut else np.uint32(0xFFF) + even)) & np.uint32(0xFFFFE000)
    return columns.view(np.float32).astype(np.float64)


# A factor is most often used by several instructions.
@lru_cache(maxsize=512)
def _factor_of(
    registers: bytes, count: int, parts: int, kind: str, *, rule: Rule | None = None, order: bytes = b""
) -> Factor:
    """A factor, whose rows are columns for the second one.

    Args:
        registers: `uint32[count, lanes]`; the lanes hold `parts` parts of k, one behind the other.
        rule: how it will be used; None for float64, where `largest` is the largest finite value.
        order: the order that its rows get, `int64`.
    """
    numbers = _numbers(np.frombuffer(registers, np.uint32).reshape(count, -1), kind, cut=rule is not None)
    rows = len(numbers) // parts
    matrix: Array = numbers.reshape(parts, rows, -1).transpose(1, 0, 2).reshape(rows, -1)
    if order:
        matrix = matrix[np.frombuffer(order, np.int64)]
    if rule is not None:
        return rule.factor(matrix, kind)
    return Factor(matrix, largest=largest(matrix))


@lru_cache(maxsize=512)
def _repeats(registers: bytes) -> bool:
    """Whether lanes 16 to 31 of 32 hold what lanes 0 to 15 do."""
    halves = np.frombuffer(registers, np.uint32).reshape(-1, 2, 16)
    return np.array_equal(halves[:, 0], halves[:, 1])


def _rows(size: int) -> bytes:
    """The rows of a product in the order of its registers, `int64`: register r of lane l has column l % size.

    Its row is 8*(r // 4) + 4*(l // 32) + r % 4 for 32 rows, 4*(l // 16) + r for 16.
    """
    parts = 64 // size
    registers = np.arange(size // parts)
    first = 8 * (registers // 4) + registers % 4 if size == 32 else registers
    return (first[:, None] + 4 * np.arange(parts)).astype(np.int64).tobytes()


_ROWS = {size: _rows(size) for size in (16, 32)}


def _wmma_registers(product: Array, generation: int) -> Array:
    """A product as registers of 32 lanes: row 2*r + l // 16 on gfx11, r + 8*(l // 16) on gfx12, column l % 16."""
    if generation == 11:
        return product.reshape(8, 32)
    return product.reshape(2, 8, 16).transpose(1, 0, 2).reshape(8, 32)


def mfma(a: Array, b: Array, c: Array, size: int, kind: str, *, rule: Rule | None) -> tuple[Array, float]:
    """a*b+c for matrices of size x size, as registers, and the magnitude that bounds the error.

    Args:
        a, b: `uint32[n, 64]`; lane l holds row (column) l % size, and the part l // size of k.
        c: `float32[r, 64]` or a number.
        rule: how it rounds; None for once.

    Returns:
        `float32[r, 64]`, and 0 if there is a rule.
    """
    parts = 64 // size
    left = _factor_of(a.tobytes(), len(a), parts, kind, rule=rule, order=_ROWS[size])
    right = _factor_of(b.tobytes(), len(b), parts, kind, rule=rule)
    if rule is not None:
        return rule.add(left, right, c.reshape(-1, size) if c.ndim else c).reshape(-1, 64), 0.0
    result: Array = ((left.values @ right.values.T).reshape(-1, 64) + c).astype(np.float32)
    return result, _magnitude(left, right, c)


def _magnitude(left: Factor, right: Factor, c: Array) -> float:
    """At least the sum of the magnitudes of everything that one result adds."""
    return int(left.values.shape[1]) * left.largest * right.largest + largest(c)


def wmma(a: Array, b: Array, c: Array, generation: int, kind: str) -> tuple[Array, float]:
    """a*b+c for 16x16 matrices on 32 lanes, and the magnitude that bounds the error.

    On gfx11 lanes 16 to 31 repeat lanes 0 to 15; on gfx12 they hold the second half of k.
    """
    if generation == 11:
        a, b = a[:, :16], b[:, :16]
    left, right = (_factor_of(factor.tobytes(), len(factor), generation - 10, kind) for factor in (a, b))
    result: Array = (_wmma_registers(left.values @ right.values.T, generation) + c).astype(np.float32)
    return result, _magnitude(left, right, c)


def handler_of(name: str) -> Handler | None:
    """The decoder of a matrix instruction; None if the name is unknown."""
    if match := _MFMA.match(name):
        size, depth, kind = int(match[1][:2]), int(match[2]), match[3]
        if depth in _DEPTHS[size, kind] or (kind == "bf16" and (size, depth) in _OLD_BF16):
            return _mfma(size, kind, match[4] or "")
    if match := _WMMA.match(name):
        return _wmma(match[1])
    return None


def _sources(operands: Operands) -> tuple[Register, Register, Register, Get]:
    result, first, second, add = operands.instruction.operands
    destination = operands.write(operands.vector(result))
    left, right = (operands.read(operands.vector(text)) for text in (first, second))
    register = operands.register(add)
    if register is None:
        return destination, left, right, operands.f32(add)
    if not register.vector:
        raise operands.instruction.unknown(f"{add} as the matrix to add")
    operands.read(register)
    start, end = register.index, register.index + register.count
    return destination, left, right, lambda wave: wave.vectors[start:end].view(np.float32)


def _matrix(compute: Callable[[Array, Array, Array], tuple[Array, float]]) -> Handler:
    def build(operands: Operands) -> Run:
        destination, left, right, add = _sources(operands)
        name = operands.instruction.name

        def run(wave: Wave) -> None:
            # EXEC does not matter to these.
            a = wave.vectors[left.index : left.index + left.count]
            b = wave.vectors[right.index : right.index + right.count]
            result, magnitude = compute(a, b, add(wave))
            wave.vectors[destination.index : destination.index + destination.count] = result.view(np.uint32)
            if magnitude:
                wave.group.note(name, magnitude)

        return run

    return build


def _mfma(size: int, kind: str, suffix: str) -> Handler:
    def build(operands: Operands) -> Run:
        rule = rule_of(operands.target, kind + suffix)
        return _matrix(lambda a, b, c: mfma(a, b, c, size, kind, rule=rule))(operands)

    return build


def _wmma(kind: str) -> Handler:
    def build(operands: Operands) -> Run:
        generation = operands.target.generation
        if operands.target.lanes != 32 or generation not in {11, 12}:
            raise operands.instruction.unknown(f"{operands.target.lanes} lanes on {operands.target.gpu}")
        address = operands.instruction.address

        def compute(a: Array, b: Array, c: Array) -> tuple[Array, float]:
            if generation == 11 and not (_repeats(a.tobytes()) and _repeats(b.tobytes())):
                raise FaultyKernelError(
                    "matrix-halves-differ",
                    f"a matrix instruction at {address:#x} has different halves",
                    why="on gfx11 lanes 16 to 31 must repeat lanes 0 to 15",
                )
            return wmma(a, b, c, generation, kind)

        return _matrix(compute)(operands)

    return build
