"""Functions that read data files, which are TOML documents."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from toolchain.core import toml_text
from toolchain.core.errors import ConfigError, ToolchainError
from toolchain.core.typed import TypedError, typed

Row = TypeVar("Row")
FOLDER = Path(__file__).resolve().parent


def load(name: str) -> dict[str, Any]:
    """Return the content of a file in this folder, by its name without the suffix: `load("gpus")`."""
    return read_toml(FOLDER / f"{name}.toml")


def read_toml(
    path: Path, *, error: type[ToolchainError] = ConfigError, fix: str = "reinstall toolchain"
) -> dict[str, Any]:
    """Return the content of a data file.

    A process parses a file again only if its size or modification time has changed. So callers share the result and
    must not modify it.

    Args:
        error: the class of the error for a file that is unreadable or malformed.
        fix: the advice in this error.
    """
    try:
        status = path.stat()
        return _parsed(path, status.st_mtime_ns, status.st_size)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as failure:
        why = (failure.strerror or "it cannot be read") if isinstance(failure, OSError) else toml_text.why_not(failure)
        raise error("data-unusable", f"the data file {path.name} is unusable", why=why, fix=fix) from failure


@cache
def _parsed(path: Path, _modified: int, _size: int) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def typed_row(
    kind: type[Row], content: object, name: str, source: Path, *, error: type[ToolchainError] = ConfigError
) -> Row:
    """Return a table of a data file as a dataclass; see `toolchain.core.typed`.

    Args:
        name: the name of the table in messages.
        source: the path of the file in messages.
        error: the class of the error for a table that does not fit `kind`.
    """
    try:
        return typed(kind, content, name)
    except TypedError as failure:
        raise error(
            "data-bad-value",
            f"{source}: bad value for {failure.where!r}",
            why=failure.why,
            fix="correct or remove the key",
        ) from failure
