"""Tests of toolchain.core.typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from toolchain.core.typed import TypedError, typed


@dataclass(frozen=True)
class Part:
    name: str
    weight: float = 1.0


@dataclass(frozen=True)
class Whole:
    kind: Literal["a", "b"]
    count: int
    parts: tuple[Part, ...] = ()
    by_name: Mapping[str, Part] = field(default_factory=dict)
    note: str | None = None
    free: Any = None


GOOD: dict[str, Any] = {
    "kind": "a", "count": 2, "parts": [{"name": "x", "weight": 3}], "by-name": {"y": {"name": "y"}}, "note": None,
    "free": [1, {}],
}  # fmt: skip


def test_a_table_becomes_its_dataclass() -> None:
    whole = typed(Whole, GOOD)
    assert whole == Whole("a", 2, (Part("x", 3.0),), {"y": Part("y")}, None, [1, {}])
    assert type(whole.parts[0].weight) is float
    assert typed(Whole, {"kind": "b", "count": 0}) == Whole("b", 0)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"kind": "c"}, "row.kind"),
        ({"count": True}, "row.count"),
        ({"count": 1.0}, "row.count"),
        ({"parts": {}}, "row.parts"),
        ({"parts": [{"name": "x"}, {"name": 1}]}, "row.parts.1.name"),
        ({"parts": [{"weight": 1.0}]}, "row.parts.0.name"),
        ({"parts": [{"name": "x", "weight": float("nan")}]}, "row.parts.0.weight"),
        ({"parts": [{"name": "x", "weight": 10**400}]}, "row.parts.0.weight"),
        ({"by-name": {"y": {"name": "y", "more": 1}}}, "row.by-name.y.more"),
        ({"by_name": {}}, "row.by_name"),
        ({"note": 5}, "row.note"),
        ({"other": 1}, "row.other"),
    ],
)
def test_error_names_the_place_of_the_fault(change: dict[str, Any], where: str) -> None:
    with pytest.raises(TypedError) as caught:
        typed(Whole, GOOD | change, "row")
    assert caught.value.where == where


@pytest.mark.parametrize("value", [None, [], "text", 1])
def test_value_other_than_a_table_is_refused(value: Any) -> None:
    with pytest.raises(TypedError):
        typed(Whole, value)


def test_error_about_a_nan_shows_the_value() -> None:
    with pytest.raises(TypedError, match="nan"):
        typed(float, float("nan"))
