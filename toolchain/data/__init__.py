"""Facts about the world as rows of TOML, and the one way to read them."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from toolchain.core.errors import ConfigError, ToolchainError
from toolchain.core.typed import TypedError, typed

Row = TypeVar("Row")
FOLDER = Path(__file__).resolve().parent


def load(name: str) -> dict[str, Any]:
    """A file of this folder by its name without the ending: `load("gpus")`."""
    return read_toml(FOLDER / f"{name}.toml")


def read_toml(
    path: Path, *, error: type[ToolchainError] = ConfigError, fix: str = "reinstall toolchain"
) -> dict[str, Any]:
    """A data file, parsed once a process: callers must not change it.

    Args:
        fix: what to do about one that is damaged; by default it came with the tool.
    """
    try:
        status = path.stat()
        return _parsed(path, status.st_mtime_ns, status.st_size)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as failure:
        raise error("data-unusable", f"the data file {path.name} is unusable", why=str(failure), fix=fix) from failure


@cache
def _parsed(path: Path, _modified: int, _size: int) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def typed_row(
    kind: type[Row], content: object, name: str, source: Path, *, error: type[ToolchainError] = ConfigError
) -> Row:
    """A table of a data file as a dataclass; see `toolchain.core.typed`.

    Args:
        name: the name of the table, for messages.
        source: the file, for messages.

    Raises:
        error: an unknown key, a value of another type, or one that is missing.
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
