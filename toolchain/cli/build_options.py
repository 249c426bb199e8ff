"""The options of verbs that plan or run a build, and their conversion to a `Request`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from toolchain.cli.options import parameter
from toolchain.cli.parsing import COMMAND_LINE, file_of, place_of, source_of
from toolchain.core import console
from toolchain.core.cache import Cache, default_cache
from toolchain.core.errors import ConfigError, ToolchainError
from toolchain.core.locks import in_use
from toolchain.pipeline.triton_choice import Choice, doubts, resolve_triton
from toolchain.request import model as request_module
from toolchain.request.declaration import PANELS, Option
from toolchain.request.model import DEFAULT_GLIBC, Request

if TYPE_CHECKING:
    from toolchain.pipeline.lockfile import Lock


HOW = ("check", "jobs", "runner", "fresh", "kernel_store", "kernel_key", "scheduler")
"""Fields of `Request` that decide how a stage is built, but not its content. Verbs that take a `Request` but build
nothing lack the options of these fields.
"""

# A function of this type takes a verb's own parameters, which it may change, and the values of `cache` and of the
# options that are on the command line. It returns the stage and the options that an image was built with, or None if
# the user named no image.
Recorded = Callable[[dict[str, Any], Mapping[str, Any]], tuple[str, dict[str, Any]] | None]
# This type contains the origins of option values: each parameter has a mapping from its NAME=VALUE pairs to their
# origins, or from the empty string to the origin of its whole value.
Places = Mapping[str, Mapping[str, str]]


def with_request(
    *without: str, recorded: Recorded | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces the parameter `request` of a verb with the options of a `Request`.

    Args:
        without: the fields of `Request` for which the verb has no option.
        recorded: a function that returns the options of an image. Those that decide what is built override the
            environment, the configuration file and the defaults, but not the command line.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        declared = [option for option in request_module.options() if option.field not in without]
        offered = [parameter(option) for option in declared]

        @functools.wraps(verb)
        def command(ctx: typer.Context, **given: Any) -> None:
            target = str(given.get("stage", "kernels"))  # `reproduce` has no `stage`; `recorded` returns it
            places: dict[str, Mapping[str, str]] = {}
            taken = _take_recorded(ctx, given, declared, recorded) if recorded is not None else None
            if taken is not None:
                target = taken
            else:
                for option in declared:
                    name = option.parameter
                    places[name] = {"": place} if (place := place_of(ctx, name)) else {}
                    if option.kind == "pairs" and (pairs := _joined(ctx, option, given[name])):
                        given[name], places[name] = list(pairs), pairs
            request = make_request(
                **{option.name: given.pop(option.name) for option in offered},
                target=target,
                places=places,
            )
            with in_use(request.cache), _told_where(places):
                verb(request=request, **given)

        parameters = inspect.signature(verb, eval_str=True).parameters
        own = [one for name, one in parameters.items() if name != "request"]
        keyword = inspect.Parameter.KEYWORD_ONLY
        context = inspect.Parameter("ctx", keyword, annotation=typer.Context)
        ordered = sorted((*own, *offered), key=_place_in_help)
        everything = [context, *(option.replace(kind=keyword) for option in ordered)]
        command.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined] # Typer reads it
        command.__annotations__ = {option.name: option.annotation for option in everything}
        return command

    return decorate


def _take_recorded(
    context: typer.Context, given: dict[str, Any], declared: Sequence[Option], recorded: Recorded
) -> str | None:
    """Set the options that decide what is built and are not on the command line to their recorded values.

    An option without a recorded value is set to its default. A recorded NAME=VALUE pair is added unless the command
    line contains a pair with the same name. `--base` on the command line replaces a recorded `--glibc`, and `--glibc`
    replaces a recorded `--base`.

    Returns:
        The recorded stage; None if `recorded` returns None, in which case no option is set.
    """
    options = {option.parameter: option for option in declared}
    typed = {name for name in options if source_of(context, name) == COMMAND_LINE}
    own = {name: value for name, value in given.items() if name not in options}
    if (original := recorded(own, {name: given[name] for name in {*typed, "cache"}})) is None:
        return None
    target, values = original
    for name in given.keys() - options.keys() - own.keys():
        del given[name]
    given.update(own)
    for name, option in options.items():
        if option.kind == "pairs" and name in typed:
            given[name] = [*given[name], *_others(given[name], values.get(name, ()))]
        elif option.is_input and name not in typed:
            given[name] = values.get(name, option.given_default)
    if "base" in typed:
        given["glibc"] = given["glibc"] if "glibc" in typed else None
    elif "glibc" in typed:
        given["base"] = None
    return target


def _joined(context: typer.Context, option: Option, given: list[str] | None) -> dict[str, str]:
    """Return an option's NAME=VALUE pairs from the command line, the environment and the configuration file.

    The result maps each pair to its origin. If several origins set a name, the command line overrides the
    environment, and the environment overrides the file.
    """
    file = file_of(context)
    typed = given or () if source_of(context, option.parameter) == COMMAND_LINE else ()
    # Typer would split an environment variable at every space. Paths may contain spaces, so the variable is split only
    # before NAME=.
    of_environment = os.environ.get(option.variable, "").strip()
    names = "|".join(map(re.escape, option.of)) or r"[^\s=]+"
    weaker = [(option.variable, re.split(rf"\s+(?=(?:{names})=)", of_environment) if of_environment else [])]
    if file is not None:
        weaker.append((str(file.path), file.values.get(option.parameter, [])))
    pairs = dict.fromkeys(typed, option.flag)
    for place, texts in weaker:
        pairs |= dict.fromkeys(_others(pairs, texts), place)
    if typed and len(pairs) > len(typed):
        others = (f"{text} from {place}" for text, place in pairs.items() if place != option.flag)
        console.note(f"{option.flag} also has {', '.join(others)}")
    return pairs


def _others(strong: Iterable[str], weak: Iterable[str]) -> list[str]:
    """Return the NAME=VALUE pairs in `weak` whose name does not occur in `strong`."""
    named = {text.partition("=")[0] for text in strong}
    return [text for text in weak if text.partition("=")[0] not in named]


def _place_in_help(option: inspect.Parameter) -> int:
    """Return the position of an option's panel in the help; -1 if the option has no panel."""
    panels = [getattr(about, "rich_help_panel", None) for about in getattr(option.annotation, "__metadata__", ())]
    return next((PANELS.index(panel) for panel in panels if panel in PANELS), -1)


_CONTROL = {*map(chr, range(32)), "\x7f"}


def _one_line(flag: str, value: Any) -> None:
    """Raise a ConfigError if text contains a control character, or if a path contains NUL."""
    for text in value if isinstance(value, list) else [value]:
        barred = _CONTROL if isinstance(text, str) else {"\0"} if isinstance(text, Path) else set()
        if barred & set(str(text)):
            raise ConfigError(
                "control-character",
                f"{flag} {str(text)[:200]!r} contains a control character",
                fix="remove line breaks, tabs and other control characters",
            )


def _floor(base: str | None, glibc: str | None) -> str:
    """Return the oldest glibc that LLVM must work with; an empty string if LLVM is built only for the user's base.

    Raise a ConfigError if both parameters are given, and an UnsupportedError if LLVM cannot be built for the glibc.
    """
    if base and glibc:
        raise ConfigError(
            "options-exclude",
            f"--base {base} and --glibc {glibc} exclude each other",
            why="--base builds LLVM for that base only, but --glibc for every system with that glibc or newer",
            fix="omit one of them; --base '' overrides a base from a file or the environment",
        )
    if not glibc:
        return "" if base else DEFAULT_GLIBC
    from toolchain.catalog.floors import floor_of  # noqa: PLC0415

    return floor_of(glibc).glibc


@contextlib.contextmanager
def _told_where(places: Places) -> Iterator[None]:
    """If the block raises a ToolchainError that mentions options, append the origins of their values to its text."""
    try:
        yield
    except ToolchainError as error:
        _tell_places(error, places)
        raise


def _tell_places(error: ToolchainError, places: Places, name: str = "") -> None:
    """Append the origins of option values, such as an environment variable or a file, to the text of an error.

    No origin is appended for a value from the command line, or if it is unclear which of several places set a value.

    Args:
        name: the parameter that the error is about; if empty, all parameters whose option the error mentions.
    """
    told = []
    for parameter_name in [name] if name else places:
        flag = f"--{parameter_name.replace('_', '-')}"
        if name or re.search(rf"{flag}\b(?!-)", f"{error.what} {error.fix}"):
            by_text = places.get(parameter_name, {})
            meant = {place for text, place in by_text.items() if text.partition("=")[2] in error.what}
            found = meant if len(meant) == 1 else set(by_text.values())
            told += [f"{flag} is from {place}" for place in found if len(found) == 1 and not place.startswith("--")]
    if told:
        error.what += f" ({', '.join(told)})"


def _settled(choice: Choice, lock: Lock | None, request: Request) -> Choice:
    if not choice.target and choice.triton is None:
        return choice
    choice = resolve_triton(choice, lock=lock, cache=request.cache)
    for line in choice.notes:
        console.note(line)
    for line in doubts(choice):
        console.warn(line)
    return choice


def make_request(
    *,
    target: str = "",
    places: Places | None = None,
    **given: Any,
) -> Request:
    """Return the request for option values; raise an error if a value, or a combination of values, is invalid.

    Args:
        target: the requested stage; an empty string for none.
        places: the origins of values, for messages.
        given: values by parameter, in the form of the command line; missing values and None mean the default.
    """
    options = {option.parameter: option for option in request_module.options()}
    places = places or {}
    values, name = {}, ""
    try:
        for name, option in options.items():
            _one_line(option.flag, given.get(name))
        given["cache"] = given.get("cache") or default_cache()
        # `--base ''` cancels a base from the configuration file or from TOOLCHAIN_BASE.
        given["base"] = given.get("base") or None
        for name, value in given.items():
            values[options[name].field] = options[name].value(value)
        name = "" if given.get("base") else "glibc"
        values["glibc"] = _floor(given.get("base"), given.get("glibc"))
    except ToolchainError as error:
        _tell_places(error, places, name)
        raise
    request = request_module.Request(**values)
    if both := sorted({*request.allow_binary} & {*request.drop_binary}):
        with _told_where(places):
            what = f"--allow-binary {both[0]} and --drop-binary {both[0]} exclude each other"
            raise ConfigError("options-exclude", what, fix="omit one of them")
    _note_used(request.cache, request)
    lock: Lock | None = None
    if request.locked or request.lock_file is not None:
        from toolchain.pipeline.lockfile import DEFAULT, read  # noqa: PLC0415 - most calls have no lock

        lock = read(request.lock_file or Path(DEFAULT))
    choice = Choice(target=target, triton=request.triton, aotriton=request.aotriton, sources=request.sources)
    with _told_where(places):
        choice = _settled(choice, lock, request)
    request = replace(request, triton=choice.triton, aotriton=choice.aotriton, sources=dict(choice.sources), lock=lock)
    if "llvm" not in request.sources:
        return request
    from toolchain.stages.triton_edits import with_edits  # noqa: PLC0415

    return replace(request, patches=with_edits(request, target))


def _note_used(cache: Cache, request: Request) -> None:
    for path in (path for paths in request.patches.values() for path in paths):
        if path.is_relative_to(cache.store):  # `cache prune` removes stored patches that look unused
            from toolchain.sources.store import mark_used  # noqa: PLC0415

            mark_used(path.parent)
