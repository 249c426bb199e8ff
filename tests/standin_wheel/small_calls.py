"""The calls of small_wheel, for calls.py."""

from __future__ import annotations

from typing import Any

from small_wheel import attend

PACKAGE = "small_wheel"


def call(row: dict[str, Any]) -> None:
    """Call the only function of small_wheel."""
    attend(row["direction"], row["dtype"], row["seq"])
