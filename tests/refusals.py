"""Expect an error by its id."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from toolchain.core.errors import ToolchainError
from toolchain_lab.emulator.errors import EmulatorError


@contextmanager
def refused(id: str, *named: object) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect an error with this id, which docs/exit-codes.md lists.

    Args:
        named: values that the message must contain.
    """
    with pytest.raises((ToolchainError, EmulatorError)) as caught:
        yield caught
    error: Any = caught.value
    assert error.id == id, str(error)
    text = "\n".join((error.what, error.why, error.fix))
    assert [value for value in named if str(value) not in text] == [], text
