"""The result of a kernel check, as records and statements contain it. A plugin runs the check."""

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
    """A code object to check.

    Args:
        name: the name in the results.
        gpu: LLVM's name for the GPU; empty if unknown.
        kernel: the name of the kernel; empty if unknown.
    """

    path: Path
    name: str
    gpu: str
    kernel: str


def describe(numbers: Mapping[str, Any]) -> str:
    """Return a line of text that summarizes the result of a check."""
    counts = {name: int(numbers[name]) for name in STATUSES}
    parts = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    total = f"{checked_count(numbers)} of {int(numbers['available'])} kernels checked by emulation"
    return f"{total}: {parts}" if parts else total


def checked_count(numbers: Mapping[str, Any]) -> int:
    """Return the number of kernels whose result is right or wrong, without those that were skipped or refused."""
    return int(numbers[RIGHT]) + int(numbers[WRONG])


def enough(numbers: Mapping[str, Any] | None, count: int) -> bool:
    """Return whether a check tried the requested number of kernels, or all kernels if there are fewer.

    Args:
        numbers: the result of the check; None if there was no check.
        count: the requested number of kernels; 0 for all.
    """
    if not numbers:
        return False
    available = int(numbers["available"])
    return sum(int(numbers[name]) for name in STATUSES) >= min(count or available, available)


def require_right(numbers: Mapping[str, Any]) -> None:
    """Raise a NumbersError if the check found kernels that compute wrong numbers."""
    if wrong := [row for row in numbers["kernels"] if row["status"] == WRONG]:
        why = listed([(str(row["name"]), str(row["reason"])) for row in wrong])
        raise NumbersError(
            "wrong-numbers", f"{len(wrong)} of {checked_count(numbers)} checked kernels compute wrong numbers", why=why
        )


def listed(rows: Sequence[tuple[str, str]]) -> str:
    """Return the first 20 rows as lines `NAME: REASON`; if there are more rows, the last line contains their number."""
    lines = [f"{name}: {reason}" for name, reason in rows[:_LISTED]]
    return "\n".join([*lines, *([f"… and {len(rows) - _LISTED} more"] if rows[_LISTED:] else [])])
