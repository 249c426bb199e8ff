"""Statements about kernels whose numbers were checked by emulation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolchain import __version__
from toolchain.core.check_result import describe
from toolchain.core.errors import UntrustedError
from toolchain.trust import attest
from toolchain.trust.statements import subjects_of

# A name of this project's own, not an address; explained in docs/lab/emulator.md.
PREDICATE = "urn:toolchain:numbers:v1"


def statement(about: Sequence[attest.Resource], numbers: Mapping[str, Any]) -> attest.Statement:
    """The statement: the kernels that were checked, those that were skipped and why, those that are wrong."""
    return attest.statement(about, PREDICATE, {"numbers": dict(numbers), "tool": __version__})


def result(statements: Iterable[Mapping[str, Any]], needed: set[str]) -> str:
    """Return the result of the signed statements about an image, in a sentence; empty if none is about it.

    Of several the one about the most kernels is used.

    Args:
        needed: the digests that a statement must name.
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
