"""`build --check` of finished images: check the kernels in their layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from toolchain.core import console
from toolchain.core.check_result import enough
from toolchain.core.stored_file import StoredFile
from toolchain.oci.layer_files import open_members
from toolchain.oci.layout import Layout
from toolchain.pipeline.records import read_record, write_record
from toolchain.request.model import Request
from toolchain.stages.kernel_check import check_files
from toolchain.stages.stage import Built

_SUFFIXES = (".hsaco", ".json", ".zip", ".aks2", "__launch__")


class _Files:
    """The files of a layer that belong to kernels."""

    def __init__(self, path: Path, media_type: str) -> None:
        self._path, self._media_type = path, media_type

    def __iter__(self) -> Iterator[StoredFile]:
        for name, size, start in open_members(self._path, self._media_type):
            if name.endswith(_SUFFIXES):
                yield StoredFile(name, size, start)


def checked(request: Request, built: Built) -> Built:
    """Check the kernels of a finished image and record the result, unless its record already has enough checks."""
    if request.check is None or enough(built.facts.get("numbers"), request.check):
        return built
    from toolchain.engine.resources import jobs_for  # noqa: PLC0415

    console.note(f"{built.planned.name}: checking the numbers of {built.planned.image}")
    record = read_record(request.cache, built.input_digest)
    layer = record.layers[-1]
    files = _Files(Layout(request.cache.images).blob(layer["digest"]), str(layer["mediaType"]))
    numbers = check_files(files, request, label=built.planned.image, jobs=jobs_for("kernel", request.jobs))
    write_record(request.cache, replace(record, facts={**record.facts, "numbers": numbers}))
    return replace(built, facts={**built.facts, "numbers": numbers})
