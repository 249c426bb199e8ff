"""The only reader of JSON in this tool. It refuses documents that two programs could read differently.

Go's encoding/json, which most programs for images use, accepts a key in any case and the last of two equal keys. Python
takes keys as they are written. An ambiguous document would be checked as one thing and used as another.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

from toolchain.core.errors import DocumentError

LIMIT = 64 << 20  # bytes; an SBOM of LLVM has a few million
DEEPEST = 64  # objects and lists inside one another
_MOST = 3_000_000  # commas and brackets; a campaign of 300,000 kernels has half of that
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

Keys: TypeAlias = "Mapping[str, Keys | None]"
"""The keys of an object, each with the keys of the objects below it, or None if these are free. Lists have the keys
of their items."""


def read(content: bytes | str, name: str = "the document", *, keys: Keys | None = None, limit: int = LIMIT) -> Any:
    """Return the value of a JSON document. A text that is not JSON or not UTF-8 is a ValueError.

    Args:
        content: the document, in UTF-8 without a byte order mark.
        name: the document, for messages.
        keys: known keys. Others are allowed, unless they differ from a known key, or from each other, only in case.
        limit: the most bytes (characters, for text).

    Raises:
        DocumentError: a key that occurs twice or in another case, a number that is not finite, half a surrogate pair,
            too many bytes or values, or nesting that is too deep. It is a ValueError too.
    """
    if len(content) > limit:
        raise _error("json-too-large", name, f"it has {len(content)} bytes; {limit} are accepted")
    text = content if isinstance(content, str) else content.decode("utf-8")
    # A value of two bytes needs some hundred bytes of memory.
    if (count := sum(text.count(sign) for sign in "[{,")) > _MOST:
        raise _error("json-too-many-values", name, f"it has {count} values; {_MOST} are accepted")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for key, item in pairs:
            if key in value:
                raise _error("json-key-twice", name, f"the key {key[:40]!r} occurs twice")
            value[key] = item
        return value

    def finite(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            raise _error("json-not-finite", name, f"the number {digits[:40]} is too large")
        return number

    def constant(word: str) -> NoReturn:
        raise _error("json-not-finite", name, f"{word} is not a number")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_float=finite, parse_constant=constant)
    except RecursionError:
        raise _error("json-too-deep", name, _DEEP) from None
    _require_shallow(value, name)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise _error("json-half-surrogate", name, "it holds half a surrogate pair") from None
    if keys is not None:
        _require_case(value, keys, name)
    return value


_DEEP = f"it is nested more than {DEEPEST} deep"


def _require_shallow(value: Any, name: str) -> None:
    level = [value]
    for _ in range(DEEPEST + 1):
        groups = [item for item in level if isinstance(item, dict | list)]
        if not groups:
            return
        level = [item for group in groups for item in (group.values() if isinstance(group, dict) else group)]
    raise _error("json-too-deep", name, _DEEP)


def _require_case(value: Any, keys: Keys, name: str) -> None:
    if isinstance(value, list):
        for item in value:
            _require_case(item, keys, name)
    elif isinstance(value, dict):
        folded = {key.casefold(): key for key in keys}
        for key, item in value.items():
            if (known := folded.setdefault(key.casefold(), key)) != key:
                raise _error("json-key-case", name, f"the key {key[:40]!r} differs from {known[:40]!r} in case alone")
            if (below := keys.get(key)) is not None:
                _require_case(item, below, name)


def _error(id: str, name: str, why: str) -> DocumentError:
    return DocumentError(id, f"{name}: {why}", why="programs would read it differently, or not at all")
