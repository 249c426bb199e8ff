"""What a verb was asked for, as a `Request`: its fields are the options, for all verbs that are about a build."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolchain import settings
from toolchain.cli.options import parameter
from toolchain.errors import ConfigError
from toolchain.locks import in_use
from toolchain.settings import Cache, Request, default_cache


def with_request(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options that make a `Request`, instead of its parameter `request`.

    So each verb that is about a build takes what `build` takes: a command line, a configuration file or a lock serves
    one as it serves the other.

    Args:
        without: fields of `Request` that mean nothing to this verb.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        offered = [parameter(one) for one in settings.options() if one.field not in without]

        @functools.wraps(verb)
        def command(**given: Any) -> None:
            request = make_request(**{one.name: given.pop(one.name) for one in offered})
            with in_use(request.cache):
                verb(request=request, **given)

        own = [one for name, one in _parameters(verb).items() if name != "request"]
        everything = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *offered)]
        command.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined] # what Typer reads
        command.__annotations__ = {one.name: one.annotation for one in everything}
        return command

    return decorate


def _parameters(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function, eval_str=True).parameters)


def _one_line(flag: str, value: Any) -> None:
    """Option values end in labels, records, file names and build arguments: none of these has room for a newline.

    Raises:
        ConfigError: a control character is in it.
    """
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and any(ord(char) < 32 or ord(char) == 127 for char in text):
            raise ConfigError(f"{flag} {text[:200]!r} holds a control character")


def make_request(**given: Any) -> Request:
    """Check and combine option values.

    Args:
        given: by parameter, as the command line gives them; the default holds for what is missing or None.

    Raises:
        ConfigError, UnsupportedError: a value that cannot be used.
    """
    declared = {one.option.parameter: one for one in settings.options()}
    for name, one in declared.items():
        _one_line(one.option.flag, given.get(name))
    given["cache"] = given.get("cache") or default_cache()
    values = {declared[name].field: declared[name].value(value) for name, value in given.items()}
    request = settings.Request(**values)
    _note_used(request.cache, request)
    if not request.locked and request.lock_file is None:
        return request
    from toolchain.lock.file import DEFAULT, read  # noqa: PLC0415 - most calls have no lock

    return replace(request, lock=read(request.lock_file or Path(DEFAULT)))


def _note_used(cache: Cache, request: Request) -> None:
    for path in (path for paths in request.patches.values() for path in paths):
        if path.is_relative_to(cache.store):  # as a bundle brings it
            from toolchain.sources.store import mark_used  # noqa: PLC0415 - patches of one's own lie elsewhere

            mark_used(path.parent)
