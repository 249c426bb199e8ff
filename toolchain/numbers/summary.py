"""Reads the result of a check in a record or a statement, as `campaign.Report.published` wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe(numbers: Mapping[str, Any]) -> str:
    """The result of a check, in a sentence."""
    counts = {name: int(numbers[name]) for name in ("right", "wrong", "skipped", "refused")}
    parts = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{int(numbers['checked'])} of {int(numbers['available'])} kernels checked by emulation: {parts}"


def enough(numbers: Mapping[str, Any] | None, count: int) -> bool:
    """Whether it checked as many kernels as requested.

    Args:
        numbers: None if nothing was checked.
        count: 0 for all.
    """
    if not numbers:
        return False
    available = int(numbers["available"])
    return int(numbers["checked"]) >= min(count or available, available)
