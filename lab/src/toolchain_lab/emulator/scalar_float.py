"""Scalar instructions on float32 and float16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from toolchain_lab.emulator import float_math
from toolchain_lab.emulator.compare import FLOAT
from toolchain_lab.emulator.lanewise import Handler
from toolchain_lab.emulator.operands import Get, Operands, Run
from toolchain_lab.emulator.registers import SCC
from toolchain_lab.emulator.scalar import unary
from toolchain_lab.emulator.wave import Wave

_READ: dict[str, Callable[[Operands, str], Get]] = {"f": Operands.f32, "h": Operands.half}


def _float(
    compute: Callable[..., Any], count: int, *, accumulate: bool = False, source: str = "f", result: str = "f"
) -> Handler:
    """Return the decoder for an instruction with `count` sources.

    Args:
        accumulate: whether the destination's old value is an additional source.
        source, result: `f` for float32; `h` for float16, in the lower half of a register whose upper half becomes 0.
    """
    kind, unsigned = (np.float32, np.uint32) if result == "f" else (np.float16, np.uint16)
    read = _READ[source]

    def build(operands: Operands) -> Run:
        texts = list(operands.instruction.operands)
        sources = texts[1 : 1 + count] + ([texts[0]] if accumulate else [])
        if len(texts) != count + 1:
            raise operands.instruction.unknown(f"{len(texts)} operands")
        gets, put = [read(operands, text) for text in sources], operands.put_number(texts[0])

        def run(wave: Wave) -> None:
            value = np.asarray(compute(*(get(wave) for get in gets)), kind)
            if result == "h" and wave.clamps_overflow and np.isinf(value):
                raise operands.instruction.unknown("an infinite result in the mode FP16_OVFL")
            put(wave, int(value.view(unsigned)))

        return run

    return build


def _float_compare(compute: Callable[..., object], source: str) -> Handler:
    def build(operands: Operands) -> Run:
        left, right = (_READ[source](operands, text) for text in operands.instruction.operands)
        operands.writes.add(SCC)

        def run(wave: Wave) -> None:
            wave.scc = int(bool(compute(left(wave), right(wave))))

        return run

    return build


def _from_integer(*, sign: bool) -> Handler:
    def build(operands: Operands) -> Run:
        result, text = operands.instruction.operands
        get, put = (operands.signed_number if sign else operands.number)(text), operands.put_number(result)
        return lambda wave: put(wave, int(np.float32(get(wave)).view(np.uint32)))

    return build


def _prefers_number(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns the other argument if one is NaN, and otherwise the result of `compute`.

    For a single number, numpy's `fmax` and `fmin` return NaN if an argument is a signaling NaN.
    """
    return lambda a, b: a if np.isnan(b) else b if np.isnan(a) else compute(a, b)


def _to_integer(low: float, high: float) -> Callable[[int], int]:
    return lambda bits: int(float_math.to_integer(np.array(bits, np.uint32).view(np.float32), low, high))


HANDLERS: dict[str, Handler] = {
    "s_add_f32": _float(np.add, 2),
    "s_sub_f32": _float(np.subtract, 2),
    "s_mul_f32": _float(np.multiply, 2),
    "s_max_f32": _float(float_math.maximum, 2),
    "s_min_f32": _float(float_math.minimum, 2),
    "s_max_num_f32": _float(_prefers_number(float_math.maximum), 2),
    "s_min_num_f32": _float(_prefers_number(float_math.minimum), 2),
    "s_fmac_f32": _float(float_math.fma, 2, accumulate=True),
    **dict.fromkeys(("s_fmamk_f32", "s_fmaak_f32"), _float(float_math.fma, 3)),
    "v_s_exp_f32": _float(float_math.exp2, 1),
    "v_s_log_f32": _float(float_math.log2, 1),
    "v_s_rcp_f32": _float(float_math.reciprocal, 1),
    "v_s_rsq_f32": _float(float_math.reciprocal_sqrt, 1),
    "v_s_sqrt_f32": _float(float_math.sqrt, 1),
    "s_floor_f32": _float(np.floor, 1),
    "s_ceil_f32": _float(np.ceil, 1),
    "s_trunc_f32": _float(np.trunc, 1),
    "s_rndne_f32": _float(np.rint, 1),
    "s_cvt_f32_i32": _from_integer(sign=True),
    "s_cvt_f32_u32": _from_integer(sign=False),
    "s_cvt_i32_f32": unary(_to_integer(-2147483648.0, 2147483647.0), flags=False),
    "s_cvt_u32_f32": unary(_to_integer(0.0, 4294967295.0), flags=False),
    **{f"s_cmp_{name}_f32": _float_compare(compare, "f") for name, compare in FLOAT.items()},
    **{f"s_cmp_{name}_f16": _float_compare(compare, "h") for name, compare in FLOAT.items()},
    "s_add_f16": _float(np.add, 2, source="h", result="h"),
    "s_sub_f16": _float(np.subtract, 2, source="h", result="h"),
    "s_mul_f16": _float(np.multiply, 2, source="h", result="h"),
    "s_fmac_f16": _float(float_math.fma_half, 2, accumulate=True, source="h", result="h"),
    "s_cvt_f16_f32": _float(lambda value: value, 1, result="h"),
    "s_cvt_f32_f16": _float(lambda value: value, 1, source="h"),
}
