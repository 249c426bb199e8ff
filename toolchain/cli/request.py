"""The options of verbs that plan or run a build, and the `Request` made from them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from toolchain.cli.approval import Settings
from toolchain.cli.defaults import DEFAULT as DEFAULT_FILE
from toolchain.cli.defaults import beside, pairs_from_environment
from toolchain.cli.options import parameter
from toolchain.cli.values import NEVER_EMPTY, empty_variable
from toolchain.core import console
from toolchain.core.cache import Cache, default_cache
from toolchain.core.errors import ConfigError, ToolchainError
from toolchain.core.locks import in_use
from toolchain.pipeline.triton_choice import (
    COMMAND_LINE,
    ENVIRONMENT,
    FILE,
    NOWHERE,
    Choice,
    doubts,
    settle,
    wheel_hint,
)
from toolchain.request import model as request_module
from toolchain.request.model import DEFAULT_GLIBC, Request
from toolchain.request.options import GIVEN, PANELS, Option, as_list

if TYPE_CHECKING:
    from toolchain.lock.file import Lock


CAMPAIGN = ("check", "jobs", "runner", "fresh", "kernel_store", "kernel_key", "scheduler")
"""Fields of `Request` that only decide how things are built; verbs that build nothing do not take them."""


# From a verb's own parameters (which it may change) and the options given on the command line: the stage and the
# recorded options, or None if nothing was recorded.
Recorded = Callable[[dict[str, Any], Mapping[str, Any]], tuple[str, dict[str, Any]] | None]


def with_request(
    *without: str, unlisted: Sequence[str] = (), recorded: Recorded | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a verb's parameter `request` by the options that make a `Request`.

    A verb with a parameter `trusting` gets the rows of `_trusting` in it.

    All such verbs take the options that decide what is built, so that the same options work for `plan` and `build`.

    Args:
        without: fields of `Request` that this verb does not use.
        unlisted: fields that it reads only from the environment and the file, since another verb has them as options.
        recorded: gives the options an image was built with. They replace environment, file and defaults; the command
            line overrides them.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        declared = [row for row in request_module.options() if row.field not in without]
        offered = [parameter(row) for row in declared if row.field not in unlisted]
        others = [row.option for row in declared if row.field in unlisted]

        @functools.wraps(verb)
        def command(ctx: typer.Context, **given: Any) -> None:
            target = str(given.get("stage", "kernels"))  # `kernels run` names no stage
            ranks: dict[str, int] = {}
            origins: dict[str, Mapping[str, str]] = {}
            folder = Path.cwd()
            taken = _take_recorded(ctx, given, recorded) if recorded is not None else None
            if taken is not None:
                target = taken
                folder = Path(os.devnull)  # ignore pins and checkouts in the current folder
            else:
                ranks = _ranks(ctx, given)
                origins = _join_weaker(ctx, given, _origins(ctx, [option.name for option in offered]))
            request = make_request(
                folder=folder,
                **{option.name: given.pop(option.name) for option in offered},
                **{option.parameter: _from_elsewhere(ctx, option) for option in others},
                target=target,
                ranks=ranks,
                origins=origins,
            )
            rows = _trusting(ctx)
            if rows:
                console.note(f"from {rows[0]['from']}: {', '.join(_said(row) for row in rows)}")
            if "trusting" in _parameters(verb):
                given["trusting"] = rows
            with in_use(request.cache), _told_where(origins):
                verb(request=request, **given)

        own = [own for name, own in _parameters(verb).items() if name not in {"request", "trusting"}]
        keyword = inspect.Parameter.KEYWORD_ONLY
        context = inspect.Parameter("ctx", keyword, annotation=typer.Context)
        ordered = sorted((*own, *offered), key=_place_in_help)
        everything = [context, *(option.replace(kind=keyword) for option in ordered)]
        command.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined] # what Typer reads
        command.__annotations__ = {option.name: option.annotation for option in everything}
        return command

    return decorate


def _from_elsewhere(context: typer.Context, option: Option) -> Any:
    """The value in the environment or the file of an option that the verb does not list.

    Raises:
        ConfigError: the variable has a value of another kind, or it names a key and is empty.
    """
    text = os.environ.get(option.variable, "")
    if option.variable in NEVER_EMPTY and option.variable in os.environ and not text.strip():
        raise empty_variable(option.variable)
    if not text:
        return context.lookup_default(option.parameter)
    if option.kind in {"names", "pairs"}:
        return text.split()
    try:
        value = read_flag(text) if option.kind == "flag" else GIVEN[option.kind](text)
    except ValueError as error:
        raise ConfigError(f"{option.variable} is {text!r}", why=str(error), fix="correct it, or unset it") from error
    if option.least is not None and value < option.least:
        raise ConfigError(
            f"{option.variable} is {text}", why=f"it must be at least {option.least:g}", fix="correct it, or unset it"
        )
    return value


def read_flag(text: str) -> bool:
    """A flag's variable, in the words that Typer reads."""
    words = {"1": True, "true": True, "t": True, "yes": True, "y": True, "on": True} | dict.fromkeys(
        ("0", "false", "f", "no", "n", "off"), False
    )
    try:
        return words[text.strip().lower()]
    except KeyError:
        raise ValueError("neither true nor false") from None


def origin_of(context: typer.Context, name: str) -> str:
    """Where a parameter's value comes from: COMMANDLINE, ENVIRONMENT, DEFAULT_MAP (the file) or DEFAULT; empty for
    what the verb does not take."""
    source = context.get_parameter_source(name)
    return source.name if source is not None else ""


def _take_recorded(context: typer.Context, given: dict[str, Any], recorded: Recorded) -> str | None:
    """Set options that the command line does not give to their recorded values.

    Returns:
        The stage; None if nothing was recorded.
    """
    declared = {
        option.option.parameter: option for option in request_module.options() if option.option.parameter in given
    }

    def typed(name: str) -> bool:
        return origin_of(context, name) == "COMMANDLINE"

    own = {name: value for name, value in given.items() if name not in declared}
    chosen = {name: given[name] for name in declared if typed(name) or name == "cache"}
    if (original := recorded(own, chosen)) is None:
        return None
    target, values = original
    given.update(own)
    for name in own.keys() ^ {name for name in given if name not in declared}:
        del given[name]
    for name, row in declared.items():
        if row.option.kind == "pairs" and typed(name):
            given[name] = [*given[name], *beside(given[name], values.get(name, ()))]
        elif row.option.is_input and not typed(name):
            given[name] = values.get(name, row.given_default)
    if typed("base"):
        given["glibc"] = None if not typed("glibc") else given["glibc"]
    elif typed("glibc"):
        given["base"] = None
    return target


def _place_in_help(option: inspect.Parameter) -> int:
    """The sort key of an option: its panel's position; options without a panel come first."""
    panels = [getattr(about, "rich_help_panel", None) for about in getattr(option.annotation, "__metadata__", ())]
    return next((PANELS.index(panel) for panel in panels if panel in PANELS), -1)


def _ranks(context: typer.Context, given: Mapping[str, Any]) -> dict[str, int]:
    """The precedence of the options that name a Triton, for `toolchain.pipeline.triton_choice`."""
    ranks = {"COMMANDLINE": COMMAND_LINE, "ENVIRONMENT": ENVIRONMENT, "DEFAULT_MAP": FILE}

    def rank(name: str) -> int:
        return ranks.get(origin_of(context, name), NOWHERE)

    def names_triton(texts: Sequence[str]) -> bool:
        return any(text.startswith("triton=") for text in texts)

    named = {name: rank(name) for name in ("triton", "aotriton", "source")}
    # Sources of the environment are merged into those of the file, and combined with those of the command line.
    if named["source"] != COMMAND_LINE or not names_triton(given.get("source") or ()):
        named["source"] = ENVIRONMENT if names_triton(pairs_from_environment().get("source", ())) else FILE
    return {**named, "lock": min(rank("locked"), rank("lock_file"))}


def _parameters(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function, eval_str=True).parameters)


_CONTROL = {*map(chr, range(32)), "\x7f"}


def _one_line(flag: str, value: Any) -> None:
    """Refuse control characters: option values end up in labels, records, file names and build arguments.

    Raises:
        ConfigError: it contains a control character.
    """
    for text in value if isinstance(value, list) else [value]:
        # A path may contain any of them except NUL.
        barred = _CONTROL if isinstance(text, str) else {"\0"} if isinstance(text, Path) else set()
        if barred & set(str(text)):
            raise ConfigError(
                f"{flag} {str(text)[:200]!r} contains a control character",
                fix="remove line breaks, tabs and the like",
            )


def _floor(base: str | None, glibc: str | None) -> str:
    """The glibc that a portable LLVM is built for; empty if a base is named, since LLVM is then built for that base.

    Raises:
        ConfigError: both are named.
        UnsupportedError: unknown glibc version.
    """
    if base and glibc:
        raise ConfigError(
            f"--base {base} and --glibc {glibc} exclude each other",
            why="--base builds LLVM for that base only, --glibc for every system with that glibc or newer",
            fix="leave one of them out; --base '' overrides a base from a file or the environment",
        )
    if not glibc:
        return "" if base else DEFAULT_GLIBC
    from toolchain.catalog.floors import floor_of  # noqa: PLC0415 - the default is known

    return floor_of(glibc).glibc


# By parameter: the place that each of its texts comes from, with an empty text for the whole value. The empty place is
# the command line.
Origins = Mapping[str, Mapping[str, str]]


def _origins(context: typer.Context, names: Sequence[str]) -> dict[str, Mapping[str, str]]:
    """The places of values that the command line does not give, for messages."""
    places = {name: place_of(context, name) for name in names}
    return {name: {"": place} for name, place in places.items() if place and not place.startswith("--")}


def place_of(context: typer.Context, name: str) -> str:
    """The origin of a parameter's value: its option, a variable or a file; empty for the default."""
    flag = f"--{name.replace('_', '-')}"
    places = {"COMMANDLINE": flag, "ENVIRONMENT": f"TOOLCHAIN_{name.upper()}", "DEFAULT_MAP": str(file_of(context))}
    return places.get(origin_of(context, name), "")


def file_of(context: typer.Context) -> Path:
    """The file of option values, as it is named."""
    return Path(context.find_root().params.get("config") or DEFAULT_FILE)


def _trusting(context: typer.Context) -> list[dict[str, Any]]:
    """The values of the file that affect trust and that neither command line nor environment overrides.

    Options that the verb itself does not take are included: `plan` shows what `build` would use.
    """
    file = context.find_root().obj
    if not isinstance(file, Settings):
        return []
    rows = []
    for name, value in file.trusting.items():
        parameter_name = name.replace("-", "_")
        origin = origin_of(context, parameter_name)
        if origin == "DEFAULT_MAP" or not (origin or os.environ.get(f"TOOLCHAIN_{parameter_name.upper()}")):
            rows.append({"option": name, "value": value, "from": os.path.realpath(file.path)})
    return rows


def _said(row: Mapping[str, Any]) -> str:
    return f"{row['option']} = {' '.join(map(str, as_list(row['value'])))}"


@contextlib.contextmanager
def _told_where(origins: Origins) -> Iterator[None]:
    """Add to an error where the values of the options that it names come from."""
    try:
        yield
    except ToolchainError as error:
        _tell_places(error, origins)
        raise


def _tell_places(error: ToolchainError, origins: Origins, name: str = "") -> None:
    """Add to an error where the value comes from that it is about.

    Args:
        name: the parameter; if empty, every parameter whose option the error names.
    """
    places_told = []
    for parameter_name in [name] if name else origins:
        flag = f"--{parameter_name.replace('_', '-')}"
        if name or re.search(rf"{flag}\b(?!-)", f"{error.what} {error.fix}"):
            by_text = origins.get(parameter_name, {})
            meant = {place for text, place in by_text.items() if text.partition("=")[2] in error.what}
            places = meant if len(meant) == 1 else set(by_text.values())
            places_told += [f"{flag} is from {place}" for place in places if place and len(places) == 1]
    if places_told:
        error.what += f" ({', '.join(places_told)})"


def _join_weaker(context: typer.Context, given: dict[str, Any], origins: Origins) -> dict[str, Mapping[str, str]]:
    """Combine sources and patches of weaker places with stronger ones, by name, and print a line about it.

    Returns:
        The origins; for sources and patches by text.
    """
    by_text = dict(origins)
    for name in ("source", "patch"):
        origin = origin_of(context, name)
        weaker = list(context.lookup_default(name) or ())
        of_environment = pairs_from_environment().get(name, [])
        if origin not in {"COMMANDLINE", "DEFAULT_MAP"} or not weaker:
            continue
        typed = origin == "COMMANDLINE"
        variable = f"TOOLCHAIN_{name.upper()}"
        strong = given[name] if typed else of_environment
        joined = beside(strong, weaker)
        given[name] = [*strong, *joined]
        places = {text: variable if text in of_environment else str(file_of(context)) for text in given[name]}
        by_text[name] = places | (dict.fromkeys(strong, "") if typed else {})
        overruled = [text for text in weaker if text not in joined and text not in strong]
        if strong and (joined or overruled):
            effects = {"is combined with": joined, "overrides": overruled}
            effect = " and ".join(f"{verb} {', '.join(texts)}" for verb, texts in effects.items() if texts)
            console.note(f"--{name} from {'the command line' if typed else variable} {effect}")
    return by_text


def _settled(choice: Choice, lock: Lock | None, request: Request, folder: Path) -> Choice:
    """Decide which Triton is meant, and print what was decided for the user."""
    if not choice.target and choice.triton is None:
        return choice
    choice = settle(choice, lock=lock, folder=folder, cache=request.cache)
    hint = wheel_hint(choice, request.allow_binary)
    for line in (*choice.notes, *([hint] if hint else [])):
        console.note(line)
    for line in doubts(choice):
        console.warn(line)
    return choice


def make_request(
    *,
    target: str = "",
    ranks: Mapping[str, int] | None = None,
    origins: Origins | None = None,
    folder: Path | None = None,
    **given: Any,
) -> Request:
    """Check and combine option values.

    Args:
        target: the requested stage; if empty, the folder is not searched.
        ranks: see `toolchain.pipeline.triton_choice.Choice`.
        origins: the places that values come from, for messages.
        folder: where to look for pins and checkouts; by default the current folder.
        given: by parameter, as on the command line; missing values and None mean the default.

    Raises:
        ConfigError, UnsupportedError: a value that cannot be used.
    """
    options = {declared.option.parameter: declared for declared in request_module.options()}
    origins = origins or {}
    values, name = {}, ""
    try:
        for name, declared in options.items():
            _one_line(declared.option.flag, given.get(name))
        given["cache"] = given.get("cache") or default_cache()
        given["base"] = given.get("base") or None  # an empty value overrides a file or the environment
        for name, value in given.items():
            values[options[name].field] = options[name].value(value)
        name = "" if given.get("base") else "glibc"
        values["glibc"] = _floor(given.get("base"), given.get("glibc"))
    except ToolchainError as error:
        _tell_places(error, origins, name)
        raise
    request = request_module.Request(**values)
    if both := sorted({*request.allow_binary} & {*request.drop_binary}):
        with _told_where(origins):
            what = f"--allow-binary {both[0]} and --drop-binary {both[0]} exclude each other"
            raise ConfigError(what, fix="leave one of them out")
    _note_used(request.cache, request)
    lock: Lock | None = None
    if request.locked or request.lock_file is not None:
        from toolchain.lock.file import DEFAULT, read  # noqa: PLC0415 - most calls have no lock

        lock = read(request.lock_file or Path(DEFAULT))
    choice = Choice(
        target=target,
        triton=request.triton,
        aotriton=request.aotriton,
        sources=request.sources,
        ranks=dict(ranks or {}),
    )
    with _told_where(origins):
        choice = _settled(choice, lock, request, folder or Path.cwd())
    request = replace(request, triton=choice.triton, aotriton=choice.aotriton, sources=dict(choice.sources), lock=lock)
    if "llvm" not in request.sources:
        return request
    from toolchain.stages.triton_edits import with_edits  # noqa: PLC0415 - only where an LLVM is named

    return replace(request, patches=with_edits(request, target))


def _note_used(cache: Cache, request: Request) -> None:
    for path in (path for paths in request.patches.values() for path in paths):
        if path.is_relative_to(cache.store):  # imported from a bundle
            from toolchain.sources.store import mark_used  # noqa: PLC0415 - the user's own patches are elsewhere

            mark_used(path.parent)
