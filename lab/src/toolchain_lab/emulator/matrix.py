"""Matrix instructions on 16-bit and 32-bit floats: MFMA on CDNA, and WMMA on RDNA.

Sums are rounded by the rule that is published for the GPU and the type; see `accumulation`. If no rule is published, or
with `--fast`, products are summed in float64, and the sum is rounded to float32. In that case, an upper bound on the
sum of magnitudes is recorded, from which `exactness` computes a bound on the error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from toolchain_lab.emulator.accumulation import Factor, Rule, rule_of
from toolchain_lab.emulator.bits import Array, largest, widen_bf16
from toolchain_lab.emulator.errors import FaultyKernelError
from toolchain_lab.emulator.lanewise import Handler, refuse_matrix_overflow
from toolchain_lab.emulator.operands import Get, Operands, Run
from toolchain_lab.emulator.registers import Register
from toolchain_lab.emulator.wave import Wave

_MFMA = re.compile(r"v_mfma_f32_(32x32|16x16)x(\d+)_?(f16|bf16|f32|xf32)(_1k)?$")
_WMMA = re.compile(r"v_wmma_f32_16x16x16_(f16|bf16)$")
# These are the emulated values of k, the number of products in a sum, by the number of rows and the type.
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
# These are the pairs (rows, k) of the emulated bf16 instructions that CDNA1 introduced. They lack the suffix _1k.
_OLD_BF16 = {(32, 4), (16, 8)}


def _numbers(rows: Array, kind: str, *, cut: bool) -> Array:
    """Convert registers, `uint32[n, lanes]`, to the numbers that each lane holds, `float64[lanes, numbers]`.

    Args:
        kind: the type of the elements: `f16`, `bf16`, `f32` or `xf32`.
        cut: whether float32 is truncated to xf32, as the published rule requires; otherwise it is rounded.
    """
    columns = np.ascontiguousarray(rows.T)
    if kind == "f16":
        return columns.view(np.float16).astype(np.float64)
    if kind == "bf16":
        return widen_bf16(columns.view(np.uint16)).astype(np.float64)
    if kind == "xf32":
        # The mantissa of xf32 has 10 bits, and that of float32 has 23, so 13 bits are cleared.
        even = (columns >> np.uint32(13)) & np.uint32(1)
        columns = (columns + (np.uint32(0) if cut else np.uint32(0xFFF) + even)) & np.uint32(0xFFFFE000)
    return columns.view(np.float32).astype(np.float64)


# The two functions below are cached, because most factors are used by several instructions.
@lru_cache(maxsize=512)
def _factor_of(registers: bytes, count: int, parts: int, kind: str, *, rule: Rule, order: bytes = b"") -> Factor:
    """Return a factor of a matrix product in one wave, prepared for a rounding rule.

    The registers of the second factor hold its columns in the same way as those of the first factor hold its rows.

    Args:
        registers: the bytes of `uint32[count, lanes]`; consecutive groups of lanes hold the `parts` parts of k.
        order: the bytes of the `int64` indices that reorder the rows; empty to keep their order.
    """
    numbers = _numbers(np.frombuffer(registers, np.uint32).reshape(count, -1), kind, cut=True)
    return rule.factor(_matrices(numbers, 1, parts, order)[0], kind)


@lru_cache(maxsize=512)
def _factors_of(
    registers: bytes, count: int, waves: int, parts: int, kind: str, *, order: bytes = b""
) -> tuple[Array, Array]:
    """Return the factor of each wave, `float64[waves, rows, k]`, and its largest finite magnitude, `float64[waves]`.

    Args:
        registers: the bytes of `uint32[count, waves * lanes]`.
    """
    numbers = _numbers(np.frombuffer(registers, np.uint32).reshape(count, -1), kind, cut=False)
    matrices = _matrices(numbers, waves, parts, order)
    return matrices, _largest(matrices)


def _matrices(numbers: Array, waves: int, parts: int, order: bytes) -> Array:
    """Arrange the numbers of all lanes, `float64[waves * lanes, k / parts]`, as `float64[waves, rows, k]`."""
    rows = len(numbers) // (waves * parts)
    matrices: Array = numbers.reshape(waves, parts, rows, -1).transpose(0, 2, 1, 3).reshape(waves, rows, -1)
    return matrices[:, np.frombuffer(order, np.int64)] if order else matrices


def _largest(matrices: Array) -> Array:
    """Return the largest finite magnitude of each matrix, `float64[waves]`."""
    found: Array = np.maximum.reduce(np.abs(matrices), axis=(1, 2)).astype(np.float64)
    return found if np.isfinite(found).all() else np.array([largest(matrix) for matrix in matrices])


@lru_cache(maxsize=512)
def _repeats(registers: bytes) -> bool:
    """Return whether lanes 16 to 31 of each 32 lanes hold the same values as lanes 0 to 15."""
    halves = np.frombuffer(registers, np.uint32).reshape(-1, 2, 16)
    return np.array_equal(halves[:, 0], halves[:, 1])


def _rows(size: int) -> bytes:
    """Return the row numbers of a product in the order in which MFMA registers hold them, as the bytes of `int64`.

    Register r of lane l holds column l % size of row 8*(r // 4) + 4*(l // 32) + r % 4 in a product with 32 rows, and of
    row 4*(l // 16) + r in a product with 16 rows.
    """
    parts = 64 // size
    registers = np.arange(size // parts)
    first = 8 * (registers // 4) + registers % 4 if size == 32 else registers
    return (first[:, None] + 4 * np.arange(parts)).astype(np.int64).tobytes()


_ROWS = {size: _rows(size) for size in (16, 32)}


def _wmma_registers(products: Array, generation: int) -> Array:
    """Convert products, `float64[waves, 16, 16]`, to the layout of WMMA registers, `float64[waves, 8, 32]`.

    Register r of lane l holds column l % 16 of row 2*r + l // 16 on gfx11, and of row r + 8*(l // 16) on gfx12.
    """
    if generation == 11:
        return products.reshape(-1, 8, 32)
    return products.reshape(-1, 2, 8, 16).transpose(0, 2, 1, 3).reshape(-1, 8, 32)


def _beside(registers: Array) -> Array:
    """Concatenate the registers of all waves: `[waves, r, lanes]` becomes `[r, waves * lanes]`."""
    return registers[0] if len(registers) == 1 else registers.transpose(1, 0, 2).reshape(registers.shape[1], -1)


def mfma(
    a: Array, b: Array, c: Array, size: int, kind: str, *, rule: Rule | None, waves: int = 1
) -> tuple[Array, float]:
    """Compute a*b+c as an MFMA instruction does, for one or more waves.

    Args:
        a, b: the registers of the factors, `uint32[n, waves * 64]`; lane l of a wave holds the row (for b, the column)
            l % size, and the part l // size of k.
        c: the registers of the addend, `float32[r, waves * 64]`, or one number.
        size: the number of rows, and of columns, in the result: 16 or 32.
        rule: the rule by which sums are rounded; None to sum in float64.

    Returns:
        The registers of the result, `float32[r, waves * 64]`, and the magnitude for the bound on the error, which is 0
        if a rule is given.
    """
    parts = 64 // size
    if rule is not None:
        results = []
        for first in range(0, 64 * waves, 64):
            own = np.s_[:, first : first + 64]
            left = _factor_of(a[own].tobytes(), len(a), parts, kind, rule=rule, order=_ROWS[size])
            right = _factor_of(b[own].tobytes(), len(b), parts, kind, rule=rule)
            total = rule.add(left, right, c[own].reshape(-1, size) if c.ndim else c)
            results.append(total.reshape(-1, 64))
        return np.concatenate(results, axis=1), 0.0
    left_of, largest_left = _factors_of(a.tobytes(), len(a), waves, parts, kind, order=_ROWS[size])
    right_of, largest_right = _factors_of(b.tobytes(), len(b), waves, parts, kind)
    products = (left_of @ right_of.transpose(0, 2, 1)).reshape(waves, -1, 64)
    magnitude = _magnitude(left_of.shape[2], largest_left, largest_right, c)
    return (_beside(products) + c).astype(np.float32), magnitude


def _magnitude(depth: int, left: Array, right: Array, c: Array) -> float:
    """Return an upper bound on the sum of |a*b| + |c| for every element of the result in every wave."""
    added = _largest(c.reshape(len(c), len(left), -1).transpose(1, 0, 2)) if c.ndim else largest(c)
    return float(np.max(depth * left * right + added))


def wmma(a: Array, b: Array, c: Array, generation: int, kind: str, *, waves: int = 1) -> tuple[Array, float]:
    """Compute a*b+c as a WMMA instruction does, for 16x16 matrices and one or more waves of 32 lanes.

    On gfx11, lanes 16 to 31 of a and b repeat lanes 0 to 15; on gfx12, they hold the second half of k.

    Returns:
        The registers of the result, `float32[8, waves * 32]`, and the magnitude for the bound on the error.
    """
    if generation == 11:
        a, b = (factor.reshape(len(factor), waves, 2, 16)[:, :, 0] for factor in (a, b))
    left, largest_left = _factors_of(a.tobytes(), len(a), waves, generation - 10, kind)
    right, largest_right = _factors_of(b.tobytes(), len(b), waves, generation - 10, kind)
    products = _wmma_registers(left @ right.transpose(0, 2, 1), generation)
    result: Array = (_beside(products) + c).astype(np.float32)
    return result, _magnitude(left.shape[2], largest_left, largest_right, c)


def handler_of(name: str) -> Handler | None:
    """Return the decoder for a matrix instruction; None if this module does not support the instruction."""
    if match := _MFMA.match(name):
        size, depth, kind = int(match[1][:2]), int(match[2]), match[3]
        if depth in _DEPTHS[size, kind] or (kind == "bf16" and not match[4] and (size, depth) in _OLD_BF16):
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
        raise operands.instruction.unknown(f"{add} as the addend")
    operands.read(register)
    start, end = register.index, register.index + register.count
    return destination, left, right, lambda wave: wave.vectors[start:end].view(np.float32)


def _matrix(compute: Callable[[Array, Array, Array, int], tuple[Array, float]]) -> Handler:
    def build(operands: Operands) -> Run:
        destination, left, right, add = _sources(operands)
        name = operands.instruction.name

        def run(wave: Wave) -> None:
            # The registers of all lanes are read and written, because matrix instructions ignore EXEC.
            a = wave.vectors[left.index : left.index + left.count]
            b = wave.vectors[right.index : right.index + right.count]
            result, magnitude = compute(a, b, add(wave), len(wave.members))
            if wave.clamps_overflow:
                refuse_matrix_overflow(wave, operands.instruction, np.isinf(result))
            wave.vectors[destination.index : destination.index + destination.count] = result.view(np.uint32)
            if magnitude:
                wave.group.note(name, magnitude)

        return run

    return build


def _mfma(size: int, kind: str, suffix: str) -> Handler:
    def build(operands: Operands) -> Run:
        rule = rule_of(operands.target, kind + suffix)
        return _matrix(lambda a, b, c, waves: mfma(a, b, c, size, kind, rule=rule, waves=waves))(operands)

    return build


def _wmma(kind: str) -> Handler:
    def build(operands: Operands) -> Run:
        generation = operands.target.generation
        if operands.target.lanes != 32 or generation not in {11, 12}:
            raise operands.instruction.unknown(f"{operands.target.lanes} lanes on {operands.target.gpu}")
        address = operands.instruction.address

        def compute(a: Array, b: Array, c: Array, waves: int) -> tuple[Array, float]:
            if generation == 11 and not (_repeats(a.tobytes()) and _repeats(b.tobytes())):
                raise FaultyKernelError(
                    "matrix-halves-differ",
                    f"the factors of the matrix instruction at {address:#x} differ between the halves of the wave",
                    why="on gfx11 lanes 16 to 31 must hold the same values as lanes 0 to 15",
                )
            return wmma(a, b, c, generation, kind, waves=waves)

        return _matrix(compute)(operands)

    return build
