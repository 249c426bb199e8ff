"""Conversion of TOML and JSON values to dataclasses, with a check of all types.

This module does not use pydantic, because importing pydantic is slow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")
_PLAIN = {str, int, bool}  # a value of exactly this type needs no further check
_NAMES = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list", tuple: "a list",
    dict: "a table", Mapping: "a table", type(None): "null",
}  # fmt: skip


class TypedError(ValueError):
    """A value has the wrong type or is not allowed, or a key is unknown, missing or repeated.

    Args:
        where: the keys that lead to the value, such as `source.3.patches`; empty for the whole document.
    """

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}" if where else why)
        self.where = where
        self.why = why


def typed(kind: type[Kind], value: Any, where: str = "") -> Kind:
    """Convert a value to a type; raise a TypedError if the value does not fit the type.

    A table becomes a dataclass or a dict, and a list becomes a tuple. A whole number is accepted as a float. A key may
    have hyphens where the field has underscores.

    Args:
        kind: a type; the fields of a dataclass can be `str`, `int`, `float`, `bool`, `Literal`, `tuple[X, ...]`,
            `Mapping[str, X]`, `X | None`, other dataclasses, or `Any`.
        where: the keys that lead to the value, for the error; empty for the whole document.
    """
    read: Kind = _read(kind, value, where)
    return read


def _read(hint: Any, value: Any, where: str) -> Any:
    if hint is Any or (type(value) is hint and hint in _PLAIN):
        return value
    if (origin := get_origin(hint)) is not None:
        return _read_generic(hint, origin, value, where)
    if is_dataclass(hint):
        return _read_row(hint, value, where)
    if hint is float and type(value) in {int, float}:
        try:
            number = float(value)
        except OverflowError:  # a whole number of more than 308 digits
            number = math.inf
        if not math.isfinite(number):
            raise TypedError(where, f"it must be a finite number, but is {number}")
        return number
    _require(hint, value, where, hint)
    return value


def _read_generic(hint: Any, origin: Any, value: Any, where: str) -> Any:
    inner = get_args(hint)
    if origin is UnionType:
        return _read_union(inner, value, where)
    if origin is Literal:
        if value not in inner:
            raise TypedError(where, f"it must be one of {', '.join(map(repr, inner))}")
        return value
    if origin is tuple:
        _require(hint, value, where, list, tuple)
        return tuple([_read(inner[0], item, _below(where, at)) for at, item in enumerate(value)])
    _require(hint, value, where, dict)
    return {key: _read(inner[1], item, _below(where, key)) for key, item in value.items()}


def _read_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    failures = []
    for kind in kinds:
        try:
            return _read(kind, value, where)
        except TypedError as error:
            failures.append(error)
    # The error with the longest path is the deepest one, so it comes from the type that fits the value best.
    raise max(failures, key=lambda error: len(error.where))


def _read_row(kind: Any, value: Any, where: str) -> Any:
    _require(kind, value, where, dict)
    hints, needed = _fields(kind)
    given: dict[str, Any] = {}
    for key, item in value.items():
        name = key.replace("-", "_")
        if name not in hints:
            raise TypedError(_below(where, key), f"unknown key; known keys: {', '.join(sorted(hints))}")
        if name in given:
            raise TypedError(_below(where, key), "the key occurs twice")
        given[name] = _read(hints[name], item, _below(where, key))
    if missing := [name for name in needed if name not in given]:
        raise TypedError(_below(where, missing[0]), "the key is missing")
    return kind(**given)


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the types of a dataclass's fields, and the names of the fields without a default."""
    hints = get_type_hints(kind)
    known = {field.name: hints[field.name] for field in fields(kind)}
    return known, [one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING]


def _require(hint: Any, value: Any, where: str, *kinds: Any) -> None:
    if type(value) not in kinds:
        raise TypedError(where, f"it must be {_name(hint)}, but is {_name(type(value))}")


def _below(where: str, key: object) -> str:
    return f"{where}.{str(key)[:80]}" if where else str(key)[:80]


def _name(hint: Any) -> str:
    kind = get_origin(hint) or hint
    return "a table" if is_dataclass(kind) else _NAMES.get(kind, getattr(kind, "__name__", str(kind)))
