"""Parse a verb's options from the command line, the environment, the configuration file and the defaults."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperCommand

from toolchain.core import console
from toolchain.core.errors import ConfigError
from toolchain.core.home import expanded

if TYPE_CHECKING:
    from toolchain.cli.config_file import ConfigFile

COMMAND_LINE, ENVIRONMENT, FILE, NOWHERE = "COMMANDLINE", "ENVIRONMENT", "DEFAULT_MAP", "DEFAULT"
"""Typer's names for the sources of a parameter's value."""


class Command(TyperCommand):
    """A verb whose declared options can be set in the configuration file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments as Typer does, with values from the configuration file.

        An option for a single value may be given only once. The environment variable of a `never_empty` option must not
        be set to an empty value or to spaces, unless the command line sets the option.
        """
        from toolchain.cli.options import declaration_of  # noqa: PLC0415 - the list of verbs needs no options

        read_lightly(self, ctx)
        self._check_words(ctx, args)
        declared = {one.name: option for one in self.get_params(ctx) if (option := declaration_of(one)) is not None}
        if (file := file_of(ctx)) is not None:
            keys = {name: option.parameter for name, option in declared.items()}
            ctx.default_map = {name: file.values[key] for name, key in keys.items() if key in file.values}
        rest = super().parse_args(ctx, args)
        for name, option in declared.items():
            empty = option.never_empty and not os.environ.get(option.variable, "-").strip()
            if empty and source_of(ctx, name) != COMMAND_LINE:
                error = ConfigError(
                    "variable-empty",
                    f"{option.variable} is set but empty",
                    why="it decides which signatures are accepted or made, and an empty value would skip that check",
                    fix=f"set it to a value (in CI, check that the secret exists), or unset {option.variable}",
                )
                console.failure(error, as_json=any(ctx.params.get(one) for one in ("json", "json_")))
                raise typer.Exit(error.code)
        return rest

    def _check_words(self, ctx: Any, args: list[str]) -> None:
        try:
            given = self.make_parser(ctx).parse_args(list(args))[2]
        except typer.TyperException as error:
            from toolchain.request.model import options  # noqa: PLC0415 - only a wrong option needs it

            name = getattr(error, "option_name", "")
            if any(option.campaign and option.flag == name for option in options()):
                ctx.fail(f"{name} is an option of kernel campaigns; use `toolchain kernels run`")
            raise
        for one in given:
            once = one.param_type_name == "option" and not (one.multiple or getattr(one, "is_flag", False))
            if once and (times := given.count(one)) > 1:
                ctx.fail(f"{max(one.opts, key=len)} is given {times} times; use it once")


def read_lightly(command: Any, ctx: Any) -> None:
    """Let a command's parameters bypass Typer's converters for values that need no conversion.

    Typer converts values with pydantic, and importing pydantic is slow. An empty path or argument is refused. `~` at
    the beginning of a path stands for the user's home folder.
    """
    kinds = {
        name: _kind(one.annotation)
        for name, one in inspect.signature(command.callback, eval_str=True).parameters.items()
    }
    for one in command.get_params(ctx):
        one.process_value = _reader(one, kinds.get(one.name))


def _reader(parameter: Any, kind: Any) -> Any:
    process = parameter.process_value

    def read(ctx: Any, value: Any) -> Any:
        if value == "" and (kind is Path or parameter.param_type_name == "argument"):
            # `Path("")` is the current folder, but an empty value usually comes from an unset shell variable.
            raise typer.BadParameter("it is empty", ctx=ctx, param=parameter)
        texts = kind == list[str] and isinstance(value, list | tuple) and all(type(text) is str for text in value)
        if parameter.callback is not None or (not value and parameter.required):
            # A flag without a value is False, because Typer would convert None with pydantic.
            return process(ctx, value or False if getattr(parameter, "is_flag", False) else value)
        if value is None or texts or (kind in {str, int, bool, float} and type(value) is kind):
            return value
        if kind is Path and type(value) is str:
            return Path(expanded(value))
        return process(ctx, value)

    return read


def _kind(annotation: Any) -> Any:
    """Return the type in an annotation, without Typer's metadata and `| None`; None if there are several types."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
        return kinds[0] if len(kinds) == 1 else None
    return annotation


def file_of(context: Any) -> ConfigFile | None:
    """Return the content of the configuration file; None if there is no file."""
    file: ConfigFile | None = context.find_root().obj
    return file


def source_of(context: Any, name: str) -> str:
    """Return the source of a parameter's value, such as `COMMAND_LINE`; an empty string for an unknown parameter."""
    source = context.get_parameter_source(name)
    return source.name if source is not None else ""


def place_of(context: Any, name: str) -> str:
    """Return the option, environment variable or file that sets a parameter; an empty string for the default."""
    file = file_of(context)
    places = {
        COMMAND_LINE: f"--{name.replace('_', '-')}",
        ENVIRONMENT: f"TOOLCHAIN_{name.upper()}",
        FILE: str(file.path) if file is not None else "",
    }
    return places.get(source_of(context, name), "")


@contextlib.contextmanager
def errors_as_data() -> Iterator[None]:
    """Also print usage errors in the block as JSON if the arguments contain `--json`."""
    try:
        yield
    except typer.TyperException as error:
        if "--json" in sys.argv:
            context = getattr(error, "ctx", None)
            named = context.command_path if context is not None else "toolchain"
            console.error_data(
                {"error": "Usage", "id": "usage", "exit_code": error.exit_code,
                 "what": error.format_message(), "why": "", "fix": f"{named} --help"}
            )  # fmt: skip
        raise
