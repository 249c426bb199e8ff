"""Write and read statements about kernels whose numerical results were checked by emulation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolchain import __version__
from toolchain.core.check_result import checked_count, describe
from toolchain.core.errors import UntrustedError
from toolchain.trust import attest
from toolchain.trust.statements import subjects_of

# This URN is only a name. docs/lab/emulator.md describes the statements of this type.
PREDICATE = "urn:toolchain:numbers:v1"


def statement(about: Sequence[attest.Resource], numbers: Mapping[str, Any]) -> attest.Statement:
    """Return a statement with the result of a numerical check of an image's kernels.

    Args:
        numbers: the result of the check, in the form that `core.check_result` reads.
    """
    return attest.statement(about, PREDICATE, {"numbers": dict(numbers), "tool": __version__})


def result(statements: Iterable[Mapping[str, Any]], needed: set[str]) -> str:
    """Return a phrase with the result of the numerical check of an image's kernels, or an empty string.

    The string is empty if no statement about the image contains a result. If several do, the phrase describes the
    result with the most checked kernels. UntrustedError is raised if one of these statements reports wrong results or
    is malformed.

    Args:
        statements: signed statements of any type.
        needed: the digests that the subjects of a statement must include.
    """
    texts = [
        statement
        for statement in statements
        if statement["predicateType"] == PREDICATE and needed <= subjects_of(statement)
    ]
    try:
        rows = [dict(text["predicate"]["numbers"]) for text in texts]
        if any(row["wrong"] for row in rows):
            raise UntrustedError(
                "numbers-wrong", "numbers: its publisher states that some of its kernels compute wrong results"
            )
        best = max(rows, key=checked_count, default=None)
        return "" if best is None else describe(best)
    except (KeyError, TypeError, ValueError) as error:
        raise UntrustedError(
            "numbers-malformed", "numbers: the statement is malformed", why="a field is missing, or has another form"
        ) from error
