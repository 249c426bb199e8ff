"""The published, bit-exact rules by which CDNA's matrix instructions round their sums.

The rules are those of Xie, Wang, Yang and Yang, "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix
Cores" (arXiv:2511.10909). The flushing of denormals on CDNA2 is also described in Li et al., "FTTN: Feature-Targeted
Testing for Numerical Properties of NVIDIA & AMD Matrix Accelerators" (arXiv:2403.00232). The bits of a NaN result may
differ from those on hardware.

Each rule splits the products of a sum into groups. For one group after the other, the products are added to the
accumulator, and the sum is rounded to float32:

- `chain`, for float32 on CDNA1 to CDNA3: each product is added by a fused multiply-add.
- `exact`, for CDNA1: the products of a group and the accumulator are added exactly, and the sum is rounded once.
- `flushed`, for CDNA2: every product and every pairwise sum is rounded to float32, and all denormals become 0.
- `aligned`, for CDNA3: the products are truncated at 24 bits below the largest exponent of the group, and added. The
  sum is rounded down at 32 bits, and the accumulator at 24 bits, below the larger of their two exponents. The total is
  rounded down to 32 significant bits before it is converted to float32.
- `interleaved`, for fp8 and bf8 on CDNA3: this rule differs from `aligned` in two ways. The even and the odd products
  are truncated and added separately, and their two sums are rounded down at 24 bits below the larger exponent. The
  accumulator is ignored if its exponent is more than 25 below that of the products.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from toolchain_lab.emulator.bits import Array
from toolchain_lab.emulator.float_math import add_to_odd, fma, two_sum
from toolchain_lab.emulator.wave import Target

_EXPONENT = np.uint64(0x7FF << 52)
_EXPONENT_32 = np.uint32(0xFF << 23)
_TINY = np.float32(2.0**-126)
# These are the smallest normal numbers of the types. The rule `flushed` replaces denormals by 0, and the rules
# `aligned` and `interleaved` treat denormals as if they had the exponent of the smallest normal number.
_SMALLEST = {"f16": 2.0**-14, "bf16": 2.0**-126, "xf32": 2.0**-126, "f32": 2.0**-126, "fp8": 2.0**-7, "bf8": 2.0**-15}
# This exponent is used for 0, so that a product with 0 has a smaller exponent than any other product.
_ZERO = -450
# If the exponents within each factor differ by no more than this, every product of scaled nonzero values is a normal
# float32.
_SPREAD = 48


@dataclass(frozen=True)
class Factor:
    """A factor of a matrix product, prepared for a rounding rule.

    Args:
        values: the numbers in the factor, `float64[k, row]`, which may be infinite or NaN.
        exponents: the exponents of the values, `int16[k, row]`; `_ZERO` for 0, and 0 for infinity and NaN. None if
            the rule does not need exponents.
        top: the largest of the exponents; 0 if the rule does not need exponents.
        scaled: the values divided by 2^top, as `float32[k, row]`; None if the rule does not need them, if all values
            are 0, if one is infinite or NaN, or if one is too small compared with the largest.
    """

    values: Array
    exponents: Array | None = None
    top: int = 0
    scaled: Array | None = None


@dataclass(frozen=True)
class Rule:
    """The rule by which a matrix instruction rounds its sums.

    Args:
        name: `chain`, `exact`, `flushed`, `aligned` or `interleaved`.
        group: the number of products that are added in one step.
    """

    name: str
    group: int

    def factor(self, matrix: Array, kind: str) -> Factor:
        """Prepare a matrix as a factor for `add`.

        Args:
            matrix: the elements, `float64[row, k]`.
            kind: the type from which the elements were converted, such as `f16`.
        """
        values = np.ascontiguousarray(matrix.T)
        smallest = _SMALLEST[kind]
        if self.name == "flushed":
            return Factor(np.where(np.abs(values) < smallest, 0.0, values))
        if self.name not in {"aligned", "interleaved"}:
            return Factor(values)
        exponents = ((values.view(np.uint64) >> np.uint64(52)) & np.uint64(0x7FF)).astype(np.int16) - np.int16(1023)
        infinite = exponents == 1024
        zero = exponents == -1023
        np.maximum(exponents, np.int16(math.log2(smallest)), out=exponents)
        exponents[zero], exponents[infinite] = _ZERO, 0
        top = int(exponents.max())
        if top == _ZERO or infinite.any() or int(exponents.min(where=~zero, initial=top)) < top - _SPREAD:
            return Factor(values, exponents, top)
        return Factor(values, exponents, top, np.ldexp(values, -top).astype(np.float32))

    def add(self, left: Factor, right: Factor, addend: Array) -> Array:
        """Return the matrix product of two factors plus an addend, `float32[rows of left, rows of right]`.

        The addend is an array of the same shape, or one number.
        """
        depth, rows = left.values.shape
        total = np.broadcast_to(np.asarray(addend, np.float32), (rows, right.values.shape[1]))
        if self.name == "flushed":
            total = np.where(np.abs(total) < _TINY, np.float32(0), total)
        step = _STEPS[self.name]
        for start in range(0, depth, self.group):
            total = step(left, right, slice(start, start + self.group), total)
        return total


def _outer(left: Array, right: Array, group: slice) -> Array:
    """Return the products for the values of k in the slice `group`, `[k, row, column]`."""
    return np.multiply(left[group, :, None], right[group, None, :])


def _chain(left: Factor, right: Factor, group: slice, total: Array) -> Array:
    for k in range(group.start, min(group.stop, len(left.values))):
        total = fma(left.values[k, :, None], right.values[k, None, :], total)
    return total


def _exact(left: Factor, right: Factor, group: slice, total: Array) -> Array:
    products = _outer(left.values, right.values, group)
    plain = products.sum(0) + total
    if len(products) > 2:
        # Products of float16 are multiples of 2^-48 and smaller than 2^32. If each is split into a high and a low part,
        # both parts can be summed without rounding errors.
        high = (products + 1.5 * 2.0**44) - 1.5 * 2.0**44
        parts = high.sum(0), (products - high).sum(0), total.astype(np.float64)
    else:
        parts = products[0], products[1], total.astype(np.float64)
    result: Array = (_sum_to_odd(*parts) + 0.0).astype(np.float32)
    return np.where(np.isfinite(plain), result, plain.astype(np.float32))


def _sum_to_odd(a: Array, b: Array, c: Array) -> Array:
    """Return the sum of three float64 arrays, rounded to odd, so that a later rounding to float32 is correct.

    The method is that of Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using
    rounding to odd", IEEE Transactions on Computers, 2008.
    """
    upper, lower = two_sum(b, c)
    high, low = two_sum(a, upper)
    return add_to_odd(high, add_to_odd(low, lower))


def _flush(values: Array) -> Array:
    return np.asarray(values * (np.abs(values) >= _TINY))


def _flushed(left: Factor, right: Factor, group: slice, total: Array) -> Array:
    sums = _flush(_outer(left.values, right.values, group).astype(np.float32))
    while len(sums) > 1:
        sums = _flush(sums[::2] + sums[1::2])
    return _flush(total + sums[0])


def _cut(left: Factor, right: Factor, group: slice) -> tuple[Array, Array]:
    """Truncate the products of a group to multiples of 2^-24 times a power of two, and add them.

    The sums in these units and the powers of two are returned, both as `[row, column]`.
    """
    if left.exponents is None or right.exponents is None:
        raise AssertionError(group)
    exponents = np.add(left.exponents[group, :, None], right.exponents[group, None, :]).max(0)
    top = left.top + right.top
    powers = np.ldexp(1.0, exponents)
    if left.scaled is not None and right.scaled is not None and top < 127:
        # Here float32 is precise enough, and it is faster than float64. The conversion to integers truncates the
        # products.
        scale = np.ldexp(np.float32(1), np.minimum(np.int16(24 + top) - exponents, np.int16(120)))
        scaled = _outer(left.scaled, right.scaled, group)
        scaled *= scale
        return scaled.astype(np.int32).sum(0, dtype=np.int32), powers
    products = _outer(left.values, right.values, group)
    if top >= 127:
        products[np.abs(products) >= 2.0**128] *= np.inf
    products *= 2.0**24 / powers
    np.trunc(products, out=products)
    return products.sum(0) + 0.0, powers


def _aligned(left: Factor, right: Factor, group: slice, total: Array) -> Array:
    dot, powers = _cut(left, right, group)
    return _round_down(dot, powers, total)


def _interleaved(left: Factor, right: Factor, group: slice, total: Array) -> Array:
    even, even_powers = _cut(left, right, slice(group.start, group.stop, 2))
    odd, odd_powers = _cut(left, right, slice(group.start + 1, group.stop, 2))
    powers = np.maximum(even_powers, odd_powers)
    dot = np.floor(even * (even_powers / powers)) + np.floor(odd * (odd_powers / powers))
    return _round_down(dot, powers, total, near=2.0**-25)


def _round_down(dot: Array, powers: Array, total: Array, *, near: float = 0.0) -> Array:
    """Add the sum of a group to the accumulator, round down to 32 significant bits, and then round to float32.

    Args:
        dot, powers: the sums and their powers of two, in the form that `_cut` returns.
        total: the accumulator.
        near: the accumulator is ignored if its power of two is less than `near` times that of the products.
    """
    own = np.maximum((total.view(np.uint32) & _EXPONENT_32).view(np.float32), _TINY)
    np.minimum(own, np.float32(2.0**127), out=own)
    share = 1.0 / np.maximum(powers, own)
    units = np.floor(total * (share * 2.0**24))
    if near:
        units = np.where(own * share < near, 0.0, units)
    units *= 256
    units += np.floor(dot * (powers * share * 256))
    # The unit is 2^-32 times the larger of `powers` and `own`. The result keeps 32 significant bits, or fewer if it is
    # a denormal.
    quantum = np.maximum((units.view(np.uint64) & _EXPONENT).view(np.float64), share * 2.0**-94)
    np.minimum(quantum, 2.0**60, out=quantum)
    quantum *= 2.0**-31
    units = np.floor(units / quantum)
    units *= quantum
    units *= 2.0**-32 / share
    return np.asarray(units.astype(np.float32))


_STEPS: dict[str, Callable[[Factor, Factor, slice, Array], Array]] = {
    "chain": _chain,
    "exact": _exact,
    "flushed": _flushed,
    "aligned": _aligned,
    "interleaved": _interleaved,
}
_CDNA3 = {
    "f32": Rule("chain", 1),
    "f16": Rule("aligned", 8),
    "bf16": Rule("aligned", 8),
    "xf32": Rule("aligned", 4),
    "fp8": Rule("interleaved", 16),
    "bf8": Rule("interleaved", 16),
}
_RULES = {
    "gfx908": {"f32": Rule("chain", 1), "f16": Rule("exact", 4), "bf16": Rule("exact", 2)},
    "gfx90a": {
        "f32": Rule("chain", 1),
        "f16": Rule("flushed", 4),
        "bf16": Rule("flushed", 2),
        "bf16_1k": Rule("flushed", 4),
    },
    "gfx940": _CDNA3,
    "gfx941": _CDNA3,
    "gfx942": _CDNA3,
}


def rule_of(target: Target, kind: str) -> Rule | None:
    """Return the rule by which the GPU's matrix instructions on a type round their sums.

    The result is None if no rule is published for the GPU and the type, or if `target.exact` is false.

    Args:
        kind: the type in the instruction's name, such as `f16`, `bf16_1k` or `fp8`.
    """
    return _RULES.get(target.gpu, {}).get(kind) if target.exact else None
