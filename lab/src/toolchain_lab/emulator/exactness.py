"""Bounds on the errors of approximate instructions.

An instruction is exact if the emulator follows a documented rule for its result, such as IEEE 754 or a rule in
`accumulation`. Otherwise it is approximate, and its error has a bound or is unknown.
"""

from __future__ import annotations

import re

from toolchain_lab.emulator.accumulation import rule_of
from toolchain_lab.emulator.wave import Target

EXACT, APPROXIMATE, UNSUPPORTED = LABELS = ("exact", "approximate", "unsupported")
_MATRIX = re.compile(r"v_(?:s?mfmac?|s?wmmac?)_(?:scale_)?f\d+_(?:\d+x){2}(\d+)_?(x?b?fp?\d+)(_1k)?")
_DOT = re.compile(r"v_dot(\d)(?:c|acc)?_(?!i32|u32)")
_ULP = "1 unit in the last place, as AMD's manuals for CDNA4 and RDNA3.5 state"
# These are the bounds for approximate instructions other than matrix instructions and dot products.
_BOUNDS = (
    (re.compile(r"v_(s_)?(exp|log|rcp|rsq|sqrt)_(f32|f16)"), _ULP),
    (re.compile(r"v_(rcp|rsq|sqrt)_f64"), "2^29 units in the last place, as AMD's manuals for CDNA4 and RDNA3.5 state"),
    (re.compile(r"v_(s_)?(exp|log|rcp_iflag|rcp|rsq|sqrt|sin|cos|tanh)_"), "unknown, because AMD's manuals state none"),
    (re.compile(r"v_div_fmas"), "1 unit in the last place, where a result is scaled"),
    (re.compile(r"v_fma_mix(lo|hi)"), "1 unit in the last place, because the sum is rounded to float32 first"),
)


def bound(name: str, target: Target, magnitude: float | None = None) -> str:
    """Return a description of the bound on an instruction's error, or an empty string if the instruction is exact.

    Args:
        magnitude: the largest recorded upper bound on the sum of |a*b| + |c|; None if none was recorded. For an
            instruction with a published rule, it is infinity if bf8 factors gave an infinite or NaN result.
    """
    if match := _MATRIX.match(name):
        if rule_of(target, match[2] + (match[3] or "")) is not None:
            return "unknown, because no rule is published for bf8 products with infinity or NaN" if magnitude else ""
        return _of_sum(int(match[1]), match[2], magnitude)
    if match := _DOT.match(name):
        return _of_sum(int(match[1]), "f16", magnitude)
    return next((text for pattern, text in _BOUNDS if pattern.match(name)), "")


def _of_sum(terms: int, kind: str, magnitude: float | None) -> str:
    """Return a description of the bound on the error of a sum of products.

    The emulator adds the terms in float64. Hardware may add them in any order, and may lose one unit in the last place
    of the result's type for each term. Hardware may also truncate xf32 factors that the emulator rounds.
    """
    units = terms + 2 + (1 << 14 if kind == "xf32" else 0)
    bits = 52 if kind == "f64" else 23
    text = f"{units} * 2^-{bits} * (sum of |a*b| + |c|)"
    return text if magnitude is None else f"{text}, here at most {units * 2.0**-bits * magnitude:.1e}"
