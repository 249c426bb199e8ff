"""Write the records of finished stages to the cache, and find them there."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolchain import __version__
from toolchain.catalog.stages import STAGES, involves
from toolchain.core import console, strict_json
from toolchain.core.cache import Cache
from toolchain.core.digest import write_atomically
from toolchain.core.errors import ToolchainError
from toolchain.core.record import LOCAL_BUILDER, OTHER_BUILDER, Record, RecordError
from toolchain.oci.layout import Layout
from toolchain.request.declaration import declared, plain
from toolchain.request.model import Request
from toolchain.sources.edits import users_own
from toolchain.sources.spec import SourceSpec
from toolchain.stages.inputs import recorded_source
from toolchain.stages.stage import Built, Planned

BROUGHT = "bundle"  # the suffix of the names of bases that came from a bundle without a record


def image_tag(image: str, input_digest: str) -> str:
    """Return the name of an image in the cache's layout.

    The name ends with the first 12 digits of the input digest, or with `bundle` if the input digest is empty.
    """
    return f"{image}.{input_digest.removeprefix('sha256:')[:12] or BROUGHT}"


def new_record(
    request: Request,
    planned: Planned,
    built: Built,
    *,
    compressor: str = "",
    runner: Mapping[str, Any] | None = None,
) -> Record:
    """Return the record of a stage that is finished now, without paths of this machine.

    Args:
        built: the result; its facts contain `total_seconds` if it was built here.
        compressor: the program that wrote the blob of the stage's own layer (`oci.layer.compressor_id`).
        runner: the result of probing docker if docker ran checks or kernels, otherwise None.
    """
    now = time.time()
    # The cache may contain the result for another build, so it says nothing about a stage that used no container.
    isolation = isolation_facts(request.cache) if planned.engine else None
    return Record(
        stage=planned.name,
        image=planned.image,
        input_digest=built.input_digest,
        manifest=built.manifest,
        inputs=dict(planned.inputs or {}),
        sources=tuple(recorded_source(request, source) for source in planned.sources),
        request=asked_for(request, planned),
        started=round(now - float(built.facts.get("total_seconds", 0)), 1),
        finished=round(now, 1),
        tool=_tool(),
        isolation={**(isolation or {}), "runner": dict(runner)} if runner else isolation,
        binaries=built.binaries,
        partial=planned.partial,
        arch=request.arch[0],
        layers=built.layers,
        compressor=compressor,
        facts=built.facts,
    )


def _tool() -> dict[str, str]:
    tool = {"version": __version__, "builder": LOCAL_BUILDER}
    if os.environ.get("GITHUB_ACTIONS") == "true":
        server, repository = os.environ.get("GITHUB_SERVER_URL", ""), os.environ.get("GITHUB_REPOSITORY", "")
        tool["builder"] = f"{server}/{os.environ.get('GITHUB_WORKFLOW_REF', repository)}"
        tool["run"] = f"{server}/{repository}/actions/runs/{os.environ.get('GITHUB_RUN_ID', '')}"
    return tool


def asked_for(request: Request, planned: Planned) -> dict[str, Any]:
    """Return the request for a stage in the form that the stage's record contains."""
    values: dict[str, Any] = {
        "stage": planned.name,
        **{option.field: plain(getattr(request, option.field)) for option in declared(request) if option.is_input},
        # The path of a local image is not recorded. The digest of the image, which is an input, identifies it.
        "base": "oci:" if request.base.image is not None else str(request.base),
        "glibc": request.glibc or None,
        "sources": _asked_sources(request, planned),
        "patches": {name: names for name, files in request.patches.items() if (names := _names(files))},
    }
    return {name: value for name, value in values.items() if value not in (None, [], {})}


def _asked_sources(request: Request, planned: Planned) -> dict[str, str]:
    """Return the sources that the request names for a stage and for the stages below it, without local paths.

    A source of the stage itself is its `ref`, and any other source has the form of `--source`.
    """
    own = {source.name: source.ref for source in planned.sources}
    wanted = {name for row in STAGES if involves(planned.name, row.name) for name in row.sources}
    # The Triton that uses an LLVM decides which libraries of LLVM are built.
    wanted |= {"triton"} if "llvm" in wanted else set()
    return {
        name: own.get(name) or _elsewhere(name, spec, request)
        for name, spec in request.sources.items()
        if name in wanted
    }


def _elsewhere(name: str, spec: SourceSpec, request: Request) -> str:
    """Return the value of `--source` for a source, with its copy in the store instead of a local path.

    A stage need not have fetched the source: for LLVM, only the pin in a checkout of Triton is read.
    """
    if spec.path is None:
        return str(spec)
    try:
        source = request.locate(name, spec)
    except (ToolchainError, OSError):  # the user may have removed the checkout during a build of hours
        return f"local:{spec.path.name}"
    return f"stored:{source.where}@{source.digest}" if source.kind == "local" else source.ref


def _names(files: Sequence[Path]) -> list[str]:
    """Return the file names of the user's own patches; the tool's own edits are not among them."""
    return [path.name for path in users_own(files)]


def isolation_facts(cache: Cache) -> dict[str, Any] | None:
    """Return the result of the isolation probe on this machine; None if the cache contains no valid result."""
    try:
        value = strict_json.read((cache.engine / "isolation.json").read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_record(cache: Cache, record: Record) -> None:
    """Write the record of a stage, which makes the stage finished, and mark the stages below as used now."""
    path = cache.record(record.input_digest)
    used_mark(path).unlink(missing_ok=True)
    write_atomically(path, record.as_bytes())
    for below in stages_below(cache, record.inputs):
        mark_used(cache, below.input_digest)


def record_as_it_is(request: Request, built: Built) -> None:
    """Tag a local image (`--base oci:DIR`) and write its record, because the stages built on it need the record."""
    layout = Layout(request.cache.images)
    layout.tag(layout.resolve(built.manifest), image_tag(built.planned.image, built.input_digest))
    record = new_record(request, built.planned, built)
    # The builder is part of the provenance that `publish` signs, and the image was not built here.
    write_record(request.cache, replace(record, tool={**record.tool, "builder": OTHER_BUILDER}))


def read_record(cache: Cache, digest: str) -> Record:
    """Return the record of a finished stage; raise OSError if it cannot be read, and RecordError if it is damaged."""
    return Record.from_bytes(cache.record(digest).read_bytes())


def known_record(cache: Cache, digest: str | None) -> Record | None:
    """Return the record of a finished stage; None if it is missing or damaged, or if the input digest is None."""
    with contextlib.suppress(OSError, RecordError):
        return read_record(cache, digest) if digest is not None else None
    return None


def stages_below(cache: Cache, inputs: Mapping[str, Any]) -> list[Record]:
    """Return the records of the stages below a stage with these inputs, lowest first.

    Records that are missing or damaged are skipped.
    """
    below: dict[str, Record] = {}
    waiting = list(digests_below(inputs))
    while waiting:
        digest = waiting.pop()
        if digest not in below and (known := known_record(cache, digest)) is not None:
            below[digest] = known
            waiting += digests_below(known.inputs)
    order = {row.name: number for number, row in enumerate(STAGES)}
    return sorted(below.values(), key=lambda known: order.get(known.stage, len(order)))


def digests_below(inputs: Mapping[str, Any]) -> list[str]:
    """Return the values of a stage's inputs that are digests.

    They are the input digests of the stages below, and the digests of inputs that are not stages.
    """
    return [value for value in inputs.values() if isinstance(value, str) and value.startswith("sha256:")]


def unread_records(cache: Cache) -> list[Path]:
    """Return the record files that this version cannot read, for example because they are damaged, sorted by path."""
    read = {path for path, _ in finished(cache)}
    return sorted(path for path in cache.records.glob("*.json") if path not in read)


def tell_unread(cache: Cache) -> None:
    """Print a note with the number of images whose records this version cannot read, if there are any."""
    if unread := unread_records(cache):
        count = f"{len(unread)} image{'s' if len(unread) > 1 else ''}"
        console.note(f"ignoring {count} with records that this version cannot read; remove them: toolchain cache prune")


def used_mark(record: Path) -> Path:
    """Return the path of the file whose modification time is the last use of a finished stage.

    The file is missing if the stage was not used after its record was written. A use does not change the modification
    time of the record, because `finished` sorts the records by it.
    """
    return record.with_suffix(".used")


def mark_used(cache: Cache, digest: str) -> None:
    """Mark a finished stage as used now; nothing happens if the cache is not writable."""
    with contextlib.suppress(OSError):
        used_mark(cache.record(digest)).touch()


def published_mark(record: Path) -> Path:
    """Return the path of the file that lists where a finished image was published."""
    return record.with_suffix(".published")


def finished(cache: Cache) -> Iterator[tuple[Path, Record]]:
    """Yield the file and the record of each finished stage, in the order in which the records were written.

    Records that cannot be read are skipped.
    """
    files: list[tuple[float, Path]] = []
    for path in cache.records.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # another invocation may remove it
            files.append((path.stat().st_mtime, path))
    for _, path in sorted(files):
        with contextlib.suppress(OSError, RecordError):
            yield path, Record.from_bytes(path.read_bytes())


def records(cache: Cache) -> list[Record]:
    """Return the records of all finished stages in the order of `finished`; unreadable records are skipped."""
    return [record for _, record in finished(cache)]


def find_image(cache: Cache, name: str) -> list[Record]:
    """Return the records of all finished images called `name`, the last written record first."""
    return [record for record in reversed(records(cache)) if record.image == name]
