"""The parser that this tool uses for JSON documents.

It refuses documents that two programs could interpret differently. For example, Go's encoding/json, which most
container programs use, ignores the case of keys, but Python's json module does not. A document with keys that differ
only in case could pass a check here and be read differently by such a program.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

from toolchain.core.errors import DocumentError

LIMIT = 64 << 20  # bytes
DEEPEST = 64  # levels of nested objects and lists
_MOST = 3_000_000  # commas and opening brackets
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

Keys: TypeAlias = "Mapping[str, Keys | None]"
"""The known keys of an object, each with the known keys of its value, or None if the value may have any keys. For a
list, the keys are those of its items."""


def read(content: bytes | str, name: str = "the document", *, keys: Keys | None = None, limit: int = LIMIT) -> Any:
    """Return the value of a JSON document; raise a ValueError if the document is not JSON or not UTF-8.

    Args:
        content: the document, in UTF-8 without a byte order mark.
        keys: the known keys. Unknown keys are allowed unless they differ only in case from a known key or from each
            other.
        limit: the maximum number of bytes, or of characters if `content` is a string.

    Raises:
        DocumentError: if a key occurs twice or is not allowed by `keys`, if a number is not finite, if half of a
            surrogate pair occurs, or if the document is too large, has too many values, or is nested too deeply. A
            DocumentError is also a ValueError.
    """
    require_size(content, name, limit=limit)
    text = content if isinstance(content, str) else content.decode("utf-8")

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
            raise _error("json-half-surrogate", name, "it contains half a surrogate pair") from None
    if keys is not None:
        _require_case(value, keys, name)
    return value


def require_size(content: bytes | str, name: str, *, limit: int = LIMIT) -> None:
    """Raise DocumentError if `read` would refuse a document because it is too large or has too many values."""
    if len(content) > limit:
        raise _error("json-too-large", name, f"it has {len(content)} bytes; the limit is {limit}")
    # A value of two bytes may need a hundred bytes of memory, so limiting the size of the document is not enough.
    signs: Any = "[{," if isinstance(content, str) else (b"[", b"{", b",")
    if (count := sum(content.count(sign) for sign in signs)) > _MOST:
        raise _error("json-too-many-values", name, f"it has {count} values; the limit is {_MOST}")


_DEEP = f"it has more than {DEEPEST} levels of nesting"


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
                raise _error("json-key-case", name, f"the key {key[:40]!r} differs from {known[:40]!r} only in case")
            if (below := keys.get(key)) is not None:
                _require_case(item, below, name)


def _error(id: str, name: str, why: str) -> DocumentError:
    return DocumentError(id, f"{name}: {why}", why="other programs may interpret it differently, or fail on it")
