"""Write and read statements about kernels whose numerical results were checked by emulation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolchain import __version__
from toolchain.core.check_result import describe
from toolchain.core.errors import UntrustedError
from toolchain.trust import attest
from toolchain.trust.statements import subjects_of

# This is a name and not an address; docs/lab/emulator.md explains it.
PREDICATE = "urn:toolchain:numbers:v1"


def statement(about: Sequence[attest.Resource], numbers: Mapping[str, Any]) -> attest.Statement:
    """Return the statement about the kernels that were checked, were skipped (and why), or gave wrong results."""
    return attest.statement(about, PREDICATE, {"numbers": dict(numbers), "tool": __version__})


def result(statements: Iterable[Mapping[str, Any]], needed: set[str]) -> str:
    """Return the result in the signed statements about an image as a sentence; empty if there is none.

    If there are several statements, the one about the most kernels is used.

    Args:
        needed: the digests that a statement must contain.
    """
    texts = [
        statement
        for statement in statements
        if statement["predicateType"] == PREDICATE and needed <= subjects_of(statement)
    ]
    try:
        rows = [dict(text["predicate"]["numbers"]) for text in texts]
        if any(row["wrong"] for row in rows):
            raise UntrustedError("numbers-wrong", "numbers: kernels in it compute wrong numbers, as its publisher says")
        best = max(rows, key=lambda row: int(row["checked"]), default=None)
        return "" if best is None else describe(best)
    except (KeyError, TypeError, ValueError) as error:
        raise UntrustedError(
            "numbers-malformed", "numbers: the statement is malformed", why="a field is missing, or has another form"
        ) from error
