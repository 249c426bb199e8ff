"""Values as TOML, and why a text is not TOML."""

from __future__ import annotations

import json
import re
from typing import Any


def value(content: Any) -> str:
    """A value on one line: text, numbers, flags, lists, and tables without their empty members."""
    match content:
        case bool():
            return "true" if content else "false"
        case int() | float():
            return repr(content)
        case str():
            # JSON's escapes are TOML's, but for one character.
            return json.dumps(content, ensure_ascii=False).replace("\x7f", "\\u007f")
        case dict():
            return "{ " + ", ".join(f"{key(k)} = {value(v)}" for k, v in content.items() if v not in ("", [])) + " }"
        case _:
            return "[" + ", ".join(value(item) for item in content) + "]"


def key(text: str) -> str:
    """A key, quoted where it must be."""
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else value(text)


def why_not(error: Exception) -> str:
    """Return why a text could not be read as TOML."""
    match error:
        case UnicodeDecodeError():
            return "it is not UTF-8"
        case RecursionError():
            return "it is nested too deep"
        case _:
            return str(error)  # what is expected, at which line and column
