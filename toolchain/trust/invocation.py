"""Write the options in a provenance as the command that builds the image again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from toolchain.request.declaration import plain
from toolchain.request.model import DEFAULT_GLIBC, build_command, options

_LONGEST = 4000


def request_command(request: Any) -> str:
    """Return the command for the request in a provenance; empty if it is malformed or too long.

    A checkout is given by its tree in the store, and a patch by its file name, because paths are those of the
    publisher's machine. Options with default values are omitted.
    """
    if not isinstance(request, Mapping) or not isinstance(request.get("stage"), str):
        return ""
    try:
        text = shlex.join(build_command(request["stage"], [*_words(request)]))
    except (TypeError, ValueError, RecursionError):  # the signer decides the form, so it may be malformed
        return ""
    # Users copy the command, so it must not contain characters that a terminal hides or reorders.
    return text if len(text) <= _LONGEST and text.isprintable() else ""


def _words(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that differ from their defaults."""
    # Without a floor, the base is always given.
    usual = {"glibc": DEFAULT_GLIBC} if request.get("glibc") else {"base": None}
    for option in options():
        value = request.get(option.field)
        if value in (None, "", [], {}) or value == usual.get(option.field, plain(option.default)):
            continue
        if option.field == "shard" and isinstance(value, list):
            value = "/".join(map(str, value))
        yield from option.words(value)
