"""Numbers that another machine wrote: a kernel store may be damaged, or lie, and then it is passed over."""

from __future__ import annotations

from typing import Any

_LONGEST = 1e9  # seconds; more than any kernel takes


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
