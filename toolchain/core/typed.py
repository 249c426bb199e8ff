"""Values of TOML and JSON as dataclasses: the one check of types at the edges of the tool's data.

Done here and not by pydantic, which every plan would wait for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")
_NAMES = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list", tuple: "a list",
    dict: "a table", Mapping: "a table", type(None): "null",
}  # fmt: skip


class TypedError(ValueError):
    """A value of another type than its place has.

    Args:
        where: the way to it, `source.3.patches`; empty for the value itself.
        why: what is wrong with it.
    """

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}" if where else why)
        self.where = where
        self.why = why


def typed(kind: type[Kind], value: Any, where: str = "") -> Kind:
    """A value as its type: a dataclass of a table, a tuple of a list, any other of its very type.

    A key may have hyphens where the field has underscores. A whole number serves as a float.

    Args:
        kind: a dataclass whose fields are text, numbers, flags, `Literal`, `tuple[X, ...]`, `Mapping[str, X]`,
            `X | None`, other dataclasses, or `Any`.
        where: the way to the value, for messages.

    Raises:
        TypedError: another type, an unknown key, or one that is missing.
        Exception: whatever the dataclass itself raises.
    """
    made: Kind = _read(kind, value, where)
    return made


def _read(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return _one_of(inner, value, where)
    if origin is Literal:
        if value not in inner:
            raise TypedError(where, f"it is one of {', '.join(map(repr, inner))}")
        return value
    if origin is not None or is_dataclass(hint):
        return _inside(hint, value, where)
    if hint is float and type(value) in {int, float}:
        if not math.isfinite(value):
            raise TypedError(where, f"it must be a finite number, and is {value}")
        return float(value)
    if type(value) is not hint:
        raise TypedError(where, f"it must be {_name(hint)}, and is {_name(type(value))}")
    return value


def _inside(hint: Any, value: Any, where: str) -> Any:
    """A list or a table, each value in it as its type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_read(inner[0], item, _below(where, at)) for at, item in enumerate(value))
    if origin in {dict, Mapping} and isinstance(value, dict):
        return {key: _read(inner[1], item, _below(where, key)) for key, item in value.items()}
    if is_dataclass(hint) and isinstance(value, dict):
        return _row(hint, value, where)
    raise TypedError(where, f"it must be {_name(hint)}, and is {_name(type(value))}")


def _one_of(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    failures = []
    for hint in hints:
        try:
            return _read(hint, value, where)
        except TypedError as error:
            failures.append(error)
    # The one that got furthest tells most.
    raise max(failures, key=lambda error: len(error.where))


def _row(kind: Any, value: Mapping[str, Any], where: str) -> Any:
    known, needed = _fields(kind)
    given: dict[str, Any] = {}
    for key, item in value.items():
        name = key.replace("-", "_")
        if name not in known:
            raise TypedError(_below(where, key), f"unknown key; known keys: {', '.join(sorted(known))}")
        if name in given:
            raise TypedError(_below(where, key), "it is there twice")
        given[name] = _read(known[name], item, _below(where, key))
    if missing := [name for name in needed if name not in given]:
        raise TypedError(_below(where, missing[0]), "it is missing")
    return kind(**given)


@lru_cache
def _fields(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """The types of a dataclass's fields by name, and those that have no default."""
    hints = get_type_hints(kind)
    needed = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]
    return {field.name: hints[field.name] for field in fields(kind)}, needed


def _below(where: str, key: object) -> str:
    return f"{where}.{str(key)[:80]}" if where else str(key)[:80]


def _name(hint: Any) -> str:
    kind = get_origin(hint) or hint
    return "a table" if is_dataclass(kind) else _NAMES.get(kind, getattr(kind, "__name__", str(kind)))
