"""Parsing of TOML documents, descriptions of errors in them, and conversion of values to TOML."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

_LONG = "an integer has more than 64 bits"
# A line that begins with a key of more than a hundred parts. tomllib takes quadratic time for the parts of a key.
_DEEP_KEY = re.compile(r"""^[ \t]*(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){100}""", re.MULTILINE)


def read(text: str) -> dict[str, Any]:
    """Parse a TOML document; raise a TOMLDecodeError, or a RecursionError if it is nested too deeply.

    An integer of more than 64 bits is an error in TOML, but tomllib accepts it, and Python cannot print a long one.
    """
    if _DEEP_KEY.search(text):
        raise RecursionError
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # an integer of more than 4,300 decimal digits
        raise tomllib.TOMLDecodeError(_LONG) from error
    waiting: list[Any] = [content]
    while waiting:
        match waiting.pop():
            case dict() as table:
                waiting += table.values()
            case list() as items:
                waiting += items
            case int() as number if not -(1 << 63) <= number < 1 << 63:
                raise tomllib.TOMLDecodeError(_LONG)
    return content


def value(content: Any) -> str:
    """Return a value as TOML on one line. In a table, a key is omitted if its value is an empty string or list."""
    match content:
        case bool():
            return "true" if content else "false"
        case int() | float():
            return repr(content)
        case str():
            # The JSON escapes that `json.dumps` writes are valid in TOML, but TOML also requires one for DEL.
            return json.dumps(content, ensure_ascii=False).replace("\x7f", "\\u007f")
        case dict():
            return "{ " + ", ".join(f"{key(k)} = {value(v)}" for k, v in content.items() if v not in ("", [])) + " }"
        case _:
            return "[" + ", ".join(value(item) for item in content) + "]"


def key(text: str) -> str:
    """Return a key as TOML, quoted if necessary."""
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else value(text)


def why_not(error: Exception) -> str:
    """Return the reason why a document is not TOML, derived from the error that parsing it raised."""
    match error:
        case UnicodeDecodeError():
            return "it is not UTF-8"
        case RecursionError():
            return "it is nested too deeply"
        case tomllib.TOMLDecodeError():  # the parser's message has the form `Text (at line 1, column 2)`
            said, _, place = str(error).rpartition(" (at ")
            return f"{place.rstrip(')')}: {said[:1].lower()}{said[1:]}" if said else str(error)
        case _:
            return "it is not TOML"
