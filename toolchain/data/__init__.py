"""Facts about the world as rows of TOML, and the one way to read them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from toolchain.errors import ConfigError, ToolchainError

Row = TypeVar("Row")
FOLDER = Path(__file__).resolve().parent


def load(name: str) -> dict[str, Any]:
    """A file of this folder by its name without the ending: `load("gpus")`.

    Raises:
        ConfigError: it is missing or damaged.
    """
    return read_toml(FOLDER / f"{name}.toml")


def read_toml(path: Path, *, error: type[ToolchainError] = ConfigError) -> dict[str, Any]:
    """A data file that came with the tool.

    Raises:
        error: it is missing or damaged.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as failure:
        raise error(f"the data file {path.name} is unusable", why=str(failure), fix="reinstall toolchain") from failure


def typed_row(kind: type[Row], content: object, name: str, source: Path) -> Row:
    """A table of a data file as a dataclass: text, flags, tuples of text and mappings, each of its very type.

    Done here and not by pydantic, which every plan would wait for.

    Args:
        kind: the dataclass; a field without a default must be there.
        name: of the table, for messages.
        source: the file, for messages.

    Raises:
        ConfigError: an unknown key, a value of another type, or one that is missing.
    """
    if not isinstance(content, dict):
        raise _bad_value(source, name, "it is no table")
    wanted, hints = {one.name: one for one in fields(kind)}, get_type_hints(kind)  # type: ignore[arg-type]
    for key in content:
        if key not in wanted:
            why = f"known keys: {', '.join(sorted(wanted))}"
            raise ConfigError(f"{source}: unknown key '{name}.{key}'", why=why, fix="correct or remove the key")
    for key, one in wanted.items():
        if key not in content and one.default is MISSING and one.default_factory is MISSING:
            raise _bad_value(source, f"{name}.{key}", "it is missing")
    return kind(**{key: _typed(value, hints[key], f"{name}.{key}", source) for key, value in content.items()})


def _typed(value: Any, hint: Any, where: str, source: Path) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:  # with None, which TOML has not
        return _typed(value, inner[0], where, source)
    if origin is Literal:
        if value not in inner:
            raise _bad_value(source, where, f"it is one of {', '.join(map(repr, inner))}")
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_typed(item, inner[0], f"{where}.{at}", source) for at, item in enumerate(value))
    if origin in {dict, Mapping} and isinstance(value, dict):
        return {key: _typed(item, inner[1], f"{where}.{key}", source) for key, item in value.items()}
    if type(value) is not hint:
        raise _bad_value(source, where, f"it is {type(value).__name__}, and must be {getattr(hint, '__name__', hint)}")
    return value


def _bad_value(source: Path, where: str, why: str) -> ConfigError:
    return ConfigError(f"{source}: bad value for {where!r}", why=why, fix="correct or remove the key")
