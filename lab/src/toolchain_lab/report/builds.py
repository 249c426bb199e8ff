"""Make the report about a finished image: stage times, files in its layer, ninja's steps, kernels and sources."""

from __future__ import annotations

import contextlib
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any, cast

from toolchain.catalog.stages import WITH_KERNELS
from toolchain.core import console
from toolchain.core.cache import LARGEST_NINJA_LOG, LEDGER, NINJA_LOG, Cache
from toolchain.core.filesystem import read_regular
from toolchain.core.record import Record
from toolchain.kernels.ledger import look
from toolchain.oci.compressed import unpacked
from toolchain.oci.layout import Layout
from toolchain.pipeline.finished_images import full_name
from toolchain.pipeline.records import stages_below
from toolchain_lab.examine.kernels import Kernel, kernels_in
from toolchain_lab.report.content import Cell, Column, Kind, Picture, Report, Section, Table, Tone
from toolchain_lab.report.kernel_tables import Figures, campaign_part, kernels_part
from toolchain_lab.report.ninja import Step, steps_of

_ALONE = 64 << 10  # bytes; each file of at least this size gets its own row
_DEEP = 2  # maximum depth of the folders by which smaller files are added up


def build_report(cache: Cache, record: Record) -> Report:
    """Return the report about a finished image in the cache."""
    records = [*reversed(stages_below(cache, record.inputs)), record]
    facts = record.facts
    total = sum(float(row.facts.get("total_seconds", 0)) for row in records)
    figures = [
        ("all stages, each once", console.duration(total), Tone.PLAIN),
        (f"stage {record.stage}", console.duration(float(facts.get("total_seconds", 0))), Tone.PLAIN),
        ("layer", console.size(float(facts.get("unpacked_bytes", 0))), Tone.PLAIN),
        ("layer, packed", console.size(float(facts.get("blob_bytes", 0))), Tone.PLAIN),
    ]
    sections = []
    if record.stage in WITH_KERNELS:
        more, section = _kernels(cache, record)
        figures += more
        sections.append(section)
    steps = steps_of(_kept_log(cache, record))
    if steps:
        figures.append(("steps of ninja", f"{len(steps):,}", Tone.PLAIN))
    sections.append(Section(title="Time by stage", table=_times(records)))
    sections += [_timeline(steps)] if steps else []
    if (files := _files(Layout(cache.images), record)).rows:
        note = f"Files of {console.size(_ALONE)} and more; smaller files are added up by folder."
        sections.append(Section(title="Content of the layer", table=files, note=note))
    if (sources := _sources(records)).rows:
        sections.append(Section(title="Sources", table=sources))
    subject = f"{full_name(record)}, {record.arch}" + (f"; {record.partial}" if record.partial else "")
    return Report(kind="build", title=record.image, subject=subject, figures=figures, sections=sections)


def _work(record: Record) -> str:
    return f"{record.stage}-{record.input_digest.removeprefix('sha256:')[:12]}"


def _kept_log(cache: Cache, record: Record) -> bytes:
    with contextlib.suppress(OSError):  # there is no log, for example, if the image was built elsewhere
        return read_regular(cache.kept(_work(record), NINJA_LOG), LARGEST_NINJA_LOG)
    return b""


def _kernels(cache: Cache, record: Record) -> tuple[Figures, Section]:
    there: list[Kernel] = kernels_in(full_name(record), cache)
    ledger = cache.kept(_work(record), LEDGER)
    if ledger.is_file() and (entries := look(ledger).entries):
        return campaign_part(entries, there)
    return kernels_part(there)


def _times(records: Iterable[Record]) -> Table:
    columns = [
        Column("stage", "Stage", Kind.CHOICE),
        Column("step", "Step", Kind.CHOICE),
        Column("seconds", "Time", Kind.SECONDS),
        Column("image", "Image", Kind.TEXT),
    ]
    rows: list[list[Cell]] = []
    for record in records:
        seconds = record.facts.get("seconds") or {}
        rows += [[record.stage, step, round(float(took), 1), record.image] for step, took in seconds.items()]
    picture = {"kind": "bars", "title": "Time by stage and step", "by": "stage", "split": "step", "value": "seconds"}
    return Table(columns=columns, rows=rows, sort="seconds", descending=True, pictures=[{**picture, "wide": True}])


def _timeline(steps: Sequence[Step]) -> Section:
    columns = [
        Column("kind", "Kind", Kind.CHOICE),
        Column("seconds", "Time", Kind.SECONDS),
        Column("start", "Start", Kind.SECONDS, help="since ninja began, without pauses"),
        Column("end", "End", Kind.SECONDS),
        Column("lane", "Job", help="number among the jobs that ran at the same time"),
        Column("folder", "Folder", Kind.CHOICE),
        Column("output", "Output", Kind.TEXT),
    ]
    rows: list[list[Cell]] = [
        [step.kind, round(step.seconds, 3), step.start, step.end, step.lane, _folder(step.output), step.output]
        for step in steps
    ]
    pictures: list[Picture] = [
        {
            "kind": "lanes", "title": "What ran when", "lane": "lane", "start": "start", "end": "end", "split": "kind",
            "label": "output", "wide": True,
        },
        {"kind": "bars", "title": "Time by folder", "by": "folder", "split": "kind", "value": "seconds", "top": 16},
        {"kind": "spread", "title": "How often a step takes", "of": "seconds", "split": "kind"},
    ]  # fmt: skip
    lanes, spent = max(step.lane for step in steps), sum(step.seconds for step in steps)
    note = f"{len(steps):,} steps, at most {lanes} at once, took {console.duration(spent)} together."
    return Section(
        title="The build by ninja's log", note=note,
        table=Table(columns=columns, rows=rows, sort="seconds", descending=True, pictures=pictures),
    )  # fmt: skip


def _folder(output: str) -> str:
    """Return the group of an output: at most the first four folders of its path.

    Folders from `CMakeFiles` on are left out. If no folder remains, the group is `top`.
    """
    folders = output.split("/")[:-1]
    if "CMakeFiles" in folders:
        folders = folders[: folders.index("CMakeFiles")]
    return "/".join(folders[:4]) or "top"


def _files(layout: Layout, record: Record) -> Table:
    sums: Counter[tuple[str, str]] = Counter()
    blob = record.layers[-1] if record.layers else None
    prefix = str(record.facts.get("prefix") or "/nowhere")
    if blob is not None:
        with (
            unpacked(layout.blob(str(blob["digest"])), str(blob["mediaType"])) as stream,
            tarfile.open(fileobj=cast("Any", stream), mode="r|") as tar,
        ):
            for member in tar:
                cast("Any", tar).members = []  # tarfile would otherwise keep every member in memory
                if member.isreg():
                    path = PurePosixPath("/", member.name)
                    below = path.relative_to(prefix) if path.is_relative_to(prefix) else path
                    name = str(path) if member.size >= _ALONE else f"{_folder_of(path, below)}/…"
                    sums[name, _family(below)] += member.size
    columns = [
        Column("family", "Part", Kind.CHOICE),
        Column("bytes", "Size", Kind.BYTES),
        Column("path", "File or folder", Kind.TEXT),
        Column("file", "File", Kind.TEXT),
    ]
    rows: list[list[Cell]] = [
        [family, size, name, PurePosixPath(name).name if not name.endswith("/…") else "/".join(name.split("/")[-3:])]
        for (name, family), size in sums.most_common()
    ]
    pictures: list[Picture] = [
        {"kind": "bars", "title": "Largest files", "by": "file", "split": "family", "value": "bytes", "top": 24},
        {"kind": "bars", "title": "Size by part", "by": "family", "split": "family", "value": "bytes"},
    ]
    return Table(columns=columns, rows=rows, sort="bytes", descending=True, pictures=pictures)


def _folder_of(path: PurePosixPath, below: PurePosixPath) -> PurePosixPath:
    """Return the folder to which the size of a small file is added: at most `_DEEP` folders below the prefix or `/`.

    Args:
        below: the path relative to the image's prefix, or `path` itself if it is outside the prefix.
    """
    extra = len(below.parts) - 1 - _DEEP - below.is_absolute()
    return path.parents[max(extra, 0)]


def _family(below: PurePosixPath) -> str:
    """Return the part of the image to which a file belongs: known libraries, such as `LLVM libraries`, or a folder."""
    if below.name.startswith("lib") and (".a" in below.suffixes or ".so" in below.suffixes):
        stem = below.name.removeprefix("lib")
        for name in ("LLVM", "MLIR", "lld", "clang", "triton"):
            if stem.startswith(name):
                return f"{name} libraries"
    folders = below.parent.parts
    return "/".join(folders[1:3]) if below.is_absolute() else folders[0] if folders else "other"


def _sources(records: Iterable[Record]) -> Table:
    columns = [
        Column("stage", "Stage", Kind.CHOICE),
        Column("source", "Source", Kind.TEXT),
        Column("ref", "Version", Kind.TEXT),
        Column("license", "Licence", Kind.CHOICE),
        Column("repository", "From", Kind.TEXT),
        Column("digest", "Digest", Kind.TEXT),
    ]
    rows: list[list[Cell]] = [
        [record.stage, source.name, source.ref, source.license, source.repository, source.digest or ""]
        for record in records
        for source in record.sources
    ]
    return Table(columns=columns, rows=rows)
