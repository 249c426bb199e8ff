"""Option values that have their type already, without loading pydantic to convert them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from toolchain.core.errors import ConfigError

_READER = "get_runtime_param"
# Variables that decide whose signatures are accepted or made. Typer takes an empty one for none at all.
NEVER_EMPTY = frozenset(
    f"TOOLCHAIN_{name}"
    for name in ("IDENTITY", "ISSUER", "KERNEL_KEY", "KEY", "POLICY", "PUBLIC_KEY", "SIGSTORE", "SOURCE_REPO")
)


def empty_variable(variable: str) -> ConfigError:
    """For a variable about keys and signatures that is set and empty: a missing secret must not skip a check."""
    return ConfigError(
        f"{variable} is set and empty",
        why="it decides which signatures are accepted or made; an empty value would skip that check",
        fix=f"give it a value (in CI: is the secret there?), or unset {variable}",
    )


def take_as_given(parameters: Iterable[Any]) -> None:
    """Let values that need no conversion pass: None, text, lists of text, and paths without further checks.

    Typer asks pydantic for a reader of each parameter, given or not. Loading it takes a quarter of the time of a plan.
    Each parameter gives its reader by a method, which is replaced here. With a Typer that works differently nothing
    is replaced: it is slower, and reads the same.

    Args:
        parameters: of a command, as Typer made them, before any value was read.
    """
    for parameter in parameters:
        if _READER not in vars(parameter) and hasattr(parameter, _READER) and hasattr(parameter, "type_descriptor"):
            reader = _AsGiven(parameter)
            setattr(parameter, _READER, lambda reader=reader: reader)


class _AsGiven:
    """A reader of one parameter's values; falls back to Typer's own reader where conversion is needed."""

    def __init__(self, parameter: Any) -> None:
        self._typers = getattr(parameter, _READER)
        about, demands = parameter.type_descriptor, parameter.type_descriptor.parameter_info
        checked = about.is_ranged or about.is_choice or about.is_file or demands.parser is not None
        if about.annotation is Path:
            checked = demands.exists or demands.resolve_path or demands.allow_dash or demands.path_type is not None
        self._kind = None if checked else about.annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value, as Typer's own reader gives it."""
        if value == "" and (self._kind is Path or param.param_type_name == "argument"):
            # `Path("")` is the current folder, which an unset variable of a script does not mean.
            raise typer.BadParameter("it is empty", ctx=ctx, param=param)
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        texts = isinstance(value, list | tuple) and all(type(text) is str for text in value)
        if (self._kind in {str, int, bool, float} and type(value) is self._kind) or (self._kind == list[str] and texts):
            return list(value) if texts else value
        # Typer refuses an existing path that is not readable.
        if self._kind is Path and type(value) is str and (not os.path.lexists(value) or os.access(value, os.R_OK)):
            return Path(value)
        return self._typers().coerce(value, param=param, ctx=ctx)
