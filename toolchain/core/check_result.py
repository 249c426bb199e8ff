"""The result of a check of kernels in records and statements. A plugin checks kernels; the tool reads the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.core.errors import NumbersError

RIGHT, WRONG, SKIPPED, REFUSED = STATUSES = ("right", "wrong", "skipped", "refused")
_LISTED = 20


@dataclass(frozen=True)
class Object:
    """A code object to be checked, its name in its place, its GPU and its kernel; both are empty if unknown."""

    path: Path
    name: str
    gpu: str
    kernel: str


def describe(numbers: Mapping[str, Any]) -> str:
    """The result of a check, in a sentence."""
    counts = {name: int(numbers[name]) for name in STATUSES}
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


def require_right(numbers: Mapping[str, Any]) -> None:
    """Check that no kernel is wrong."""
    if wrong := [row for row in numbers["kernels"] if row["status"] == WRONG]:
        why = listed([(str(row["name"]), str(row["reason"])) for row in wrong])
        raise NumbersError(
            "wrong-numbers", f"{len(wrong)} of {numbers['checked']} kernels compute wrong numbers", why=why
        )


def listed(rows: Sequence[tuple[str, str]]) -> str:
    """Some kernels with their reasons, for a message."""
    lines = [f"{name}: {reason}" for name, reason in rows[:_LISTED]]
    return "\n".join([*lines, *([f"… and {len(rows) - _LISTED} more"] if rows[_LISTED:] else [])])
