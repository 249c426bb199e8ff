"""A reader of GitHub's expressions, as far as the workflows use them: `${{ … }}` in a text, and `if:` conditions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:(?P<op>&&|\|\||==|!=|[!(),.\[\]*])|'(?P<text>(?:[^']|'')*)'|(?P<number>\d+)|(?P<word>[A-Za-z_][\w-]*))"
)
_INSERT = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
STATUS = ("success", "always", "cancelled", "failure")


class ExpressionError(Exception):
    """The error for an expression that this reader, or GitHub, does not support."""


@dataclass
class Scope:
    """The contexts, the status and the functions that an expression can read.

    Args:
        contexts: `github`, `inputs`, `steps` and so on; an expression that names another context is an error.
        status: the status of the job so far: `success`, `failure` or `cancelled`.
    """

    contexts: Mapping[str, Any]
    status: str = "success"
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.functions = {
            "success": lambda: self.status == "success",
            "failure": lambda: self.status == "failure",
            "cancelled": lambda: self.status == "cancelled",
            "always": lambda: True,
            "contains": _contains,
            "format": lambda text, *values: re.sub(r"\{(\d+)\}", lambda found: shown(values[int(found[1])]), text),
            "join": lambda values, between=",": between.join(map(shown, values)),
            "fromJSON": json.loads,
        }


def _contains(where: Any, what: Any) -> bool:
    if isinstance(where, list):
        return any(_equal(one, what) for one in where)
    return shown(what).lower() in shown(where).lower()


def shown(value: Any) -> str:
    """Return the text that GitHub inserts for a value."""
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, (bool, list, dict)) else str(value)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return one.lower() == other.lower()
    return bool(one == other) or shown(one) == shown(other) == ""


class _Reader:
    """A recursive-descent parser; `&&` and `||` return an operand, as in JavaScript."""

    def __init__(self, text: str, scope: Scope) -> None:
        self._scope, self._left = scope, []
        at = 0
        text = text.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ExpressionError(f"cannot read {text[at:]!r} in {text!r}")
            self._left.append((str(found.lastgroup), found[str(found.lastgroup)]))
            at = found.end()

    def whole(self) -> Any:
        value = self._or()
        if self._left:
            raise ExpressionError(f"{self._left[0][1]!r} was not expected")
        return value

    def _take(self, *wanted: str) -> str | None:
        if self._left and self._left[0][0] == "op" and self._left[0][1] in wanted:
            return self._left.pop(0)[1]
        return None

    def _or(self) -> Any:
        value = self._and()
        while self._take("||"):
            other = self._and()
            value = value or other
        return value

    def _and(self) -> Any:
        value = self._compared()
        while self._take("&&"):
            other = self._compared()
            value = value and other
        return value

    def _compared(self) -> Any:
        value = self._not()
        while found := self._take("==", "!="):
            value = _equal(value, self._not()) == (found == "==")
        return value

    def _not(self) -> Any:
        if self._take("!"):
            return not self._not()
        return self._behind(self._one())

    def _one(self) -> Any:
        if self._take("("):
            value = self._or()
            self._need(")")
            return value
        if not self._left:
            raise ExpressionError("it ends too early")
        kind, text = self._left.pop(0)
        if kind == "text":
            return text.replace("''", "'")
        if kind == "number":
            return int(text)
        if kind == "word":
            return self._named(text)
        raise ExpressionError(f"{text!r} was not expected")

    def _named(self, word: str) -> Any:
        if word in {"true", "false", "null"}:
            return {"true": True, "false": False, "null": None}[word]
        if self._take("("):
            values = []
            while not self._take(")"):
                values.append(self._or())
                self._take(",")
            if word not in self._scope.functions:
                raise ExpressionError(f"the function {word} is not known")
            return self._scope.functions[word](*values)
        if word not in self._scope.contexts:
            raise ExpressionError(f"the context {word} is not known here")
        return self._scope.contexts[word]

    def _behind(self, value: Any) -> Any:
        while found := self._take(".", "["):
            if found == "[":
                key = self._or()
                self._need("]")
            else:
                key = self._left.pop(0)[1]
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def _need(self, op: str) -> None:
        if not self._take(op):
            raise ExpressionError(f"{op} is missing")


def value_of(text: Any, scope: Scope) -> Any:
    """Evaluate the expressions in a value of the YAML; a single expression keeps its type, others become text."""
    if not isinstance(text, str):
        return text
    if alone := re.fullmatch(r"\s*\$\{\{((?:(?!\}\}).)*)\}\}\s*", text, re.DOTALL):
        return _Reader(alone[1], scope).whole()
    return _INSERT.sub(lambda found: shown(_Reader(found[1], scope).whole()), text)


def holds(condition: Any, scope: Scope) -> bool:
    """Return whether an `if:` holds; a condition without a status function also requires the status `success`."""
    text = "success()" if condition is None else str(condition).strip()
    if found := re.fullmatch(r"\$\{\{(.*)\}\}", text, re.DOTALL):
        text = found[1]
    if not re.search(rf"\b({'|'.join(STATUS)})\s*\(", text) and scope.status != "success":
        return False
    return bool(_Reader(text, scope).whole())
