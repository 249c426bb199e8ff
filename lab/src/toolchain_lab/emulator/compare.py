"""Vector compare instructions, which write a lane mask to VCC, to other scalar registers or to EXEC."""

from __future__ import annotations

import numpy as np

from toolchain_lab.emulator.bits import Array
from toolchain_lab.emulator.float_math import classify
from toolchain_lab.emulator.lanewise import Compute, Handler, LaneOp, parts
from toolchain_lab.emulator.operands import Operands, Run
from toolchain_lab.emulator.wave import Wave

_ORDER: dict[str, Compute] = {
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) if a is b else np.isnan(a) | np.isnan(b)


def _ordered(a: Array, b: Array) -> Array:
    # NaN is the only value that is not equal to itself.
    same: Array = np.equal(a, a)
    return same if a is b else same & np.equal(b, b)


def _different(a: Array, b: Array) -> Array:
    """Return whether a is less than or greater than b. This is false if either of them is NaN."""
    return np.less(a, b) | np.greater(a, b)


def _not(compare: Compute) -> Compute:
    return lambda a, b: ~np.asarray(compare(a, b))


FLOAT: dict[str, Compute] = {
    **_ORDER,
    "lg": _different,
    "o": _ordered,
    "u": _unordered,
    "nge": _not(np.greater_equal),
    "nlg": _not(_different),
    "ngt": _not(np.greater),
    "nle": _not(np.less_equal),
    "neq": np.not_equal,
    "nlt": _not(np.less),
}
_INTEGER: dict[str, Compute] = {**_ORDER, "ne": np.not_equal}
_TYPES = {"i32": "i", "u32": "u", "i64": "l", "u64": "q", "i16": "s", "u16": "w"}


def _rows() -> dict[str, LaneOp]:
    rows: dict[str, LaneOp] = {}
    for name, compare in FLOAT.items():
        rows[f"{name}_f32"] = LaneOp("b", "ff", compare)
        rows[f"{name}_f64"] = LaneOp("b", "ee", compare)
        rows[f"{name}_f16"] = LaneOp("b", "hh", compare)
    for kind, letter in _TYPES.items():
        for name, compare in _INTEGER.items():
            rows[f"{name}_{kind}"] = LaneOp("b", letter * 2, compare)
    rows["class_f16"] = LaneOp("b", "hw", classify)
    rows["class_f32"] = LaneOp("b", "fu", classify)
    rows["class_f64"] = LaneOp("b", "eu", classify)
    return rows


LANE_OPS: dict[str, LaneOp] = {f"v_cmp_{name}": row for name, row in _rows().items()}


def _writes_exec(row: LaneOp) -> Handler:
    """Return the decoder for a V_CMPX instruction, which writes EXEC, and on gfx9 also VCC or the named registers."""

    def build(operands: Operands) -> Run:
        compute, put = parts(operands, row)
        put_exec = operands.put_mask(operands.exec)
        if operands.target.generation > 9:
            operands.writes.difference_update(range(106, 108))

        def run(wave: Wave) -> None:
            result = compute(wave)
            if operands.target.generation == 9:
                put(wave, result)
            put_exec(wave, result)

        return run

    return build


HANDLERS: dict[str, Handler] = {f"v_cmpx_{name}": _writes_exec(row) for name, row in _rows().items()}
