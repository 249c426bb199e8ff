"""A plugin for tests, with two verbs and a check that reports a wrong kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from toolchain.core import console
from toolchain.core.cache import Cache
from toolchain.core.check_result import Object
from toolchain.core.plugins import Plugin, Verb
from toolchain.core.stored_file import StoredFile
from toolchain.stages.kernel_check import Note, Progress

PLUGIN = Plugin(
    verbs=(
        Verb("greet", "tests.small_plugin:greet", "Print a greeting."),
        Verb("kernels weigh", "tests.small_plugin:weigh", "Print a weight."),
    ),
    check="tests.small_plugin",
)
ROW = {"name": "a.hsaco", "status": "wrong", "reason": "it is 2, not 1"}
RESULT = {"available": 3, "checked": 2, "right": 1, "wrong": 1, "skipped": 0, "refused": 0, "kernels": [ROW]}
required: list[bool] = []


def greet() -> None:
    """Print a greeting."""
    console.text("hello")


def weigh() -> None:
    """Print a weight."""
    console.text("1 kg")


def require_check() -> None:
    required.append(True)


def check_objects(
    objects: Sequence[Object],
    folder: Path,
    cache: Cache,
    *,
    count: int,
    jobs: int,
    progress: Progress | None,
    note: Note,
) -> dict[str, Any]:
    note("a.hsaco", ROW)
    return dict(RESULT)


def check_files(
    files: Iterable[StoredFile], cache: Cache, *, count: int, jobs: int, label: str, progress: Progress | None
) -> dict[str, Any]:
    return dict(RESULT)
