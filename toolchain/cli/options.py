"""Typer options, made from the declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from toolchain.catalog import stages
from toolchain.request import model as request_module
from toolchain.request.options import GIVEN, Declared, Option


def typed(option: Option, *also: str, help: str = "", environment: bool = True, panel: bool = False) -> Any:  # noqa: A002 - as in Typer
    """The Typer option of a declaration.

    Args:
        also: further flags of one verb.
        help: the help text for one verb, if it differs from the declaration's.
        environment: whether its environment variable is read.
        panel: whether the help shows it under its panel, for verbs with many options.
    """
    names = [f"{option.flag}/--no-{option.name}" if option.negated else option.flag]
    names += [*([f"-{option.short}"] if option.short else []), *also]
    text, variable = help or option.help, option.variable if option.environment and environment else None
    if option.kind == "pairs" and variable:
        # Typer would split at every space; `defaults.pairs_from_environment` reads it.
        text, variable = f"{text} \\[env var: {variable}]", None
    return typer.Option(
        *names, help=text, envvar=variable, min=option.least, metavar=option.metavar, autocompletion=completion(option),
        rich_help_panel=option.panel if panel else None,
    )  # fmt: skip


def completion(option: Option) -> Callable[[str], list[str]] | None:
    """The shell completion of an option's value; in a comma-separated list it completes the last item."""
    known = option.known
    if known is None:
        return None

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if option.kind == "commas" else ("", "", incomplete)
        taken = before.split(",")
        return [f"{before}{comma}{value}" for value in known() if value.startswith(last) and value not in taken]

    return complete


def stage(*without: str) -> Callable[[str], list[str]]:
    """The completion of a stage.

    Args:
        without: stages to leave out.
    """
    return lambda incomplete: [name for name in stages.targets() if name not in without and name.startswith(incomplete)]


def parameter(declared: Declared, *, environment: bool = True) -> inspect.Parameter:
    """An option of a request as a parameter of a verb."""
    given, default = GIVEN[declared.option.kind], declared.given_default
    kind: Any = given if default is not None else given | None
    return inspect.Parameter(
        declared.option.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typed(declared.option, environment=environment, panel=True)],
    )


def _of_request(name: str, **more: Any) -> Any:
    return typed(next(row.option for row in request_module.options() if row.option.name == name), **more)


# For verbs without a `Request`.
AllowBinaryOpt = Annotated[list[str] | None, _of_request("allow-binary")]
JsonOpt = Annotated[bool, _of_request("json")]
CacheOpt = Annotated[Path | None, _of_request("cache")]
RunnerOpt = Annotated[str, _of_request("runner")]
SigstoreOpt = Annotated[
    Path | None,
    typer.Option(
        "--sigstore",
        envvar="TOOLCHAIN_SIGSTORE",
        help="Trust config of a private Sigstore. \\[default: the public one]",
    ),
]
