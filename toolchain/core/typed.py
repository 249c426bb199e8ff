"""Values of TOML and JSON as dataclasses: the one check of types at the edges of the tool's data.

It is not done by pydantic, because every plan would wait for its import.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
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
    """Return a value as its type: a dataclass of a table, a tuple of a list, any other of its very type.

    A key may have hyphens where the field has underscores. A whole number serves as a float.

    Args:
        kind: a dataclass whose fields are text, numbers, flags, `Literal`, `tuple[X, ...]`, `Mapping[str, X]`,
            `X | None`, other dataclasses, or `Any`.
        where: the way to the value, for messages.

    Raises:
        TypedError: another type, an unknown key, or one that is missing.
        Exception: whatever the dataclass itself raises.
    """
    hint: Any = kind
    try:
        made: Kind = _reader(hint)(value)
    except TypedError as error:
        raise TypedError(_below(where, error.where) if error.where else where, error.why) from error
    return made


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return what reads the values of a type. Its errors say where in the value they are."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: value
    if origin is UnionType:
        return _of_union([_reader(one) for one in inner])
    if origin is Literal:
        return _of_literal(inner)
    if origin is tuple:
        return _of_list(hint, inner[0])
    if origin in {dict, Mapping}:
        return _of_table(hint, inner[1])
    return _of_row(hint) if is_dataclass(hint) else _of_leaf(hint)


def _of_union(readers: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        failures = []
        for reader in readers:
            try:
                return reader(value)
            except TypedError as error:
                failures.append(error)
        # The one that got furthest tells most.
        raise max(failures, key=lambda error: len(error.where))

    return read


def _of_literal(words: tuple[Any, ...]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value not in words:
            raise TypedError("", f"it is one of {', '.join(map(repr, words))}")
        return value

    return read


def _of_list(hint: Any, inner: Any) -> Callable[[Any], Any]:
    reader, plain = _reader(inner), _plain(inner)

    def read(value: Any) -> Any:
        _require(hint, value, list, tuple)
        return tuple(
            [
                item if plain is Any or type(item) is plain else _inside(reader, item, at)
                for at, item in enumerate(value)
            ]
        )

    return read


def _of_table(hint: Any, inner: Any) -> Callable[[Any], Any]:
    reader, plain = _reader(inner), _plain(inner)

    def read(value: Any) -> Any:
        _require(hint, value, dict)
        return {
            key: item if plain is Any or type(item) is plain else _inside(reader, item, key)
            for key, item in value.items()
        }

    return read


def _of_row(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    known = {field.name: (_plain(hints[field.name]), _reader(hints[field.name])) for field in fields(kind)}
    needed = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]

    def read(value: Any) -> Any:
        _require(kind, value, dict)
        given: dict[str, Any] = {}
        for key, item in value.items():
            name = key.replace("-", "_")
            if name not in known:
                raise TypedError(_below("", key), f"unknown key; known keys: {', '.join(sorted(known))}")
            if name in given:
                raise TypedError(_below("", key), "it is there twice")
            plain, reader = known[name]
            given[name] = item if plain is Any or type(item) is plain else _inside(reader, item, key)
        if missing := [name for name in needed if name not in given]:
            raise TypedError(_below("", missing[0]), "it is missing")
        return kind(**given)

    return read


def _of_leaf(hint: Any) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if hint is float and type(value) in {int, float}:
            if not math.isfinite(value):
                raise TypedError("", f"it must be a finite number, and is {value}")
            return float(value)
        _require(hint, value, hint)
        return value

    return read


def _plain(hint: Any) -> Any:
    """Return the type of values that are taken as they are, `Any` for all; None if values of the hint are read."""
    return hint if hint in {str, int, bool, Any} else None


def _require(hint: Any, value: Any, *kinds: Any) -> None:
    if type(value) not in kinds:
        raise TypedError("", f"it must be {_name(hint)}, and is {_name(type(value))}")


def _inside(reader: Callable[[Any], Any], item: Any, key: object) -> Any:
    try:
        return reader(item)
    except TypedError as error:
        raise TypedError(_below("", key) + (f".{error.where}" if error.where else ""), error.why) from error


def _below(where: str, key: object) -> str:
    return f"{where}.{str(key)[:80]}" if where else str(key)[:80]


def _name(hint: Any) -> str:
    kind = get_origin(hint) or hint
    return "a table" if is_dataclass(kind) else _NAMES.get(kind, getattr(kind, "__name__", str(kind)))
