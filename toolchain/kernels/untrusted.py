"""JSON that another machine wrote: a kernel store may be damaged, or lie, and then it is passed over."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

_LONGEST = 1e9  # seconds; more than any kernel takes


def parsed(content: bytes | str) -> Any:
    """What it says.

    Raises:
        ValueError: it is no JSON, it is nested too deep, or a number in it is not finite.
    """
    try:
        return json.loads(content, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def seconds(value: Any) -> float:
    """A time that a kernel took, in seconds.

    Raises:
        ValueError, TypeError: it is none.
    """
    try:
        found = float(value)
    except OverflowError as error:
        raise ValueError("no kernel takes so long") from error
    if not 0 <= found <= _LONGEST:
        raise ValueError(f"{found} is no number of seconds")
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{text[:20]} is too large")
    return found
