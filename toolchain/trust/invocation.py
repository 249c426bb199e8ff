"""Turn the request in a provenance into the command that builds the image again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from toolchain.request.declaration import plain
from toolchain.request.model import DEFAULT_GLIBC, build_command, options

_LONGEST = 4000


def request_command(request: Any) -> str:
    """Return the shell command that builds an image again.

    An empty string is returned if the request is malformed, or if the command is too long or contains unprintable
    characters. Options with their default values are omitted.
    """
    if not isinstance(request, Mapping) or not isinstance(request.get("stage"), str):
        return ""
    try:
        text = shlex.join(build_command(request["stage"], [*_words(request)]))
    except (TypeError, ValueError, RecursionError):  # the signer may have written a malformed request
        return ""
    # Users copy the command, so it must not contain characters that a terminal hides or reorders.
    return text if len(text) <= _LONGEST and text.isprintable() else ""


def _words(request: Mapping[str, Any]) -> Iterator[str]:
    # Without a glibc floor, the base is always named, even if it is the default.
    usual = {"glibc": DEFAULT_GLIBC} if request.get("glibc") else {"base": None}
    for option in options():
        value = request.get(option.field)
        if value in (None, "", [], {}) or value == usual.get(option.field, plain(option.default)):
            continue
        if option.field == "shard" and isinstance(value, list):
            value = "/".join(map(str, value))
        yield from option.words(value)
