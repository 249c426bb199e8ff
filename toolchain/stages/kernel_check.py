"""Check compiled kernels for the option `--check`.

A plugin runs the kernels in an emulator, and compares their results with those of a computation in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from toolchain.core import console, plugins
from toolchain.core.cache import Cache
from toolchain.core.check_result import Object, describe, require_right
from toolchain.core.stored_file import StoredFile
from toolchain.request.model import Request
from toolchain.stages.stage import Workspace

if TYPE_CHECKING:
    from toolchain.kernels.campaign import CampaignResult
    from toolchain.kernels.ledger import Ledger
    from toolchain.kernels.rules import Rule

STEP = "numbers"
Progress = Callable[[int, int, str], None]
Note = Callable[[str, Mapping[str, Any]], None]


class KernelCheck(Protocol):
    """The functions that a plugin provides for `--check`.

    Each check returns facts for a record, in the form that `core.check_result` reads.
    """

    def require_check(self) -> None:
        """Raise an error if a program that a check needs is not installed; called before the stages are built."""

    def check_objects(
        self,
        objects: Sequence[Object],
        folder: Path,
        cache: Cache,
        *,
        count: int,
        jobs: int,
        progress: Progress | None,
        note: Note,
    ) -> dict[str, Any]:
        """Check the code objects that a campaign compiled.

        Args:
            folder: the folder above all objects.
            count: the maximum number of kernels to try; 0 for all.
            progress: called with the number of results so far, the total number of kernels, and a label.
            note: called with the name of each tried kernel and its result.
        """

    def check_files(
        self, files: Iterable[StoredFile], cache: Cache, *, count: int, jobs: int, label: str, progress: Progress | None
    ) -> dict[str, Any]:
        """Check the code objects in `files`.

        Args:
            files: the files of an image or of a Triton cache. The iterable can be iterated several times.
        """


def _plugin() -> KernelCheck:
    check: KernelCheck = plugins.hook("check", "--check")
    return check


def require_check() -> None:
    """Raise an error if the plugin for `--check`, or a program that it needs, is not installed."""
    _plugin().require_check()


def check_numbers(
    result: CampaignResult, rules: Sequence[Rule], out: Path, ledger: Ledger, workspace: Workspace
) -> dict[str, Any]:
    """Check a sample of a campaign's kernels, and return the plugin's facts; they are empty without `--check`.

    The value of `--check` is the maximum size of the sample; 0 means all kernels. NumbersError is raised if a kernel
    computes wrong numbers.
    """
    count = workspace.request.check
    if count is None:
        return {}
    sources = {rule.id: f"{rule.source}:{rule.kernel}" for rule in rules}
    objects = [Object(out / entry.out, entry.out, entry.target, sources[entry.id]) for entry in result.done]
    ids = {entry.out: entry.id for entry in result.done}
    workspace.step(STEP)
    return _accepted(
        _plugin().check_objects(
            objects, out, workspace.cache, count=count, jobs=workspace.jobs("kernel"), progress=workspace.count,
            note=lambda name, row: ledger.note_check(ids[name], row),
        )
    )  # fmt: skip


def check_files(
    files: Iterable[StoredFile], request: Request, *, label: str, jobs: int, progress: Progress | None = None
) -> dict[str, Any]:
    """Check a sample of the code objects in `files`, and return the plugin's facts; see `KernelCheck.check_files`.

    NumbersError is raised if a kernel computes wrong numbers.
    """
    return _accepted(
        _plugin().check_files(files, request.cache, count=request.check or 0, jobs=jobs, label=label, progress=progress)
    )


def _accepted(numbers: dict[str, Any]) -> dict[str, Any]:
    console.note(describe(numbers))
    require_right(numbers)
    return numbers
