"""Check compiled kernels for the option `--check`; see `toolchain.stages.kernel_check.KernelCheck`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolchain.core.cache import Cache
from toolchain.core.check_result import Object
from toolchain.core.stored_file import StoredFile
from toolchain_lab.bridge import disassembler, require_numpy
from toolchain_lab.numbers.objects import sample

if TYPE_CHECKING:
    from toolchain.stages.kernel_check import Note, Progress

SEED = 0


def require_check() -> None:
    """Raise ConfigError if numpy is not installed, and EngineError if no suitable llvm-objdump is installed."""
    require_numpy("--check")
    disassembler()


def check_objects(
    objects: Sequence[Object],
    folder: Path,
    cache: Cache,
    *,
    count: int,
    jobs: int,
    progress: Progress | None = None,
    note: Note | None = None,
) -> dict[str, Any]:
    """Check a sample of the code objects in a folder, and return the result as `Report.published` does.

    Args:
        count: the maximum size of the sample; 0 for all objects.
        note: a function that is called with the name and the result of each kernel.
    """
    chosen = sample(objects, count or None, SEED)
    return _checked(chosen, folder, cache, available=len(objects), jobs=jobs, progress=progress, note=note)


def check_files(
    files: Iterable[StoredFile], cache: Cache, *, count: int, jobs: int, label: str, progress: Progress | None = None
) -> dict[str, Any]:
    """Check a sample of the code objects in `files`, and return the result as `Report.published` does.

    Args:
        count: the maximum size of the sample; 0 for all objects.
        label: the name of the image or the folder that contains the files, for error messages.
    """
    from toolchain_lab.numbers.collect import collect  # noqa: PLC0415 - it imports numpy

    with tempfile.TemporaryDirectory(prefix="toolchain-check-") as scratch:
        folder = Path(scratch, "objects")
        collected = collect(files, folder, count=count or None, seed=SEED, label=label)
        return _checked(
            collected.objects, folder, cache, available=collected.available, jobs=jobs, progress=progress, note=None
        )


def _checked(
    chosen: Sequence[Object],
    folder: Path,
    cache: Cache,
    *,
    available: int,
    jobs: int,
    progress: Callable[[int, int, str], None] | None,
    note: Callable[[str, Mapping[str, Any]], None] | None,
) -> dict[str, Any]:
    from toolchain_lab.numbers.contained import check_contained  # noqa: PLC0415 - it imports numpy

    report = check_contained(
        chosen, folder, disassembler(), cache, jobs=jobs, available=available,
        on_row=None if progress is None else lambda row, done, total: progress(done, total, f"{row.kernel} {row.gpu}"),
    )  # fmt: skip
    if note is not None:
        for row in report.rows:
            note(row.name, row.as_json())
    return report.published()
