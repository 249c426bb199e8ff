"""Plan a build: find its stages, the results that are finished here, and the untried combinations of versions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolchain.catalog.architectures import this_machine
from toolchain.catalog.components import line_of
from toolchain.catalog.tried import was_tried
from toolchain.core import console
from toolchain.core.cache import Cache
from toolchain.core.errors import ToolchainError
from toolchain.oci.layout import Layout
from toolchain.pipeline.fetching import fetch_for
from toolchain.pipeline.records import known_record, mark_used
from toolchain.pipeline.targets import below, by_arch, request_of, stages_of
from toolchain.pipeline.workspace import within_lock
from toolchain.request.model import Request
from toolchain.sources.patch import listed
from toolchain.sources.tags import asked_again, resolved
from toolchain.sources.tree import Source
from toolchain.stages.codegen_llvm import triton_here
from toolchain.stages.prebuilt import undecided
from toolchain.stages.stage import Built, Planned
from toolchain.stages.triton_origin import local_triton, triton_source
from toolchain.stages.triton_tree import head_of

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlanRow:
    """A planned stage and, if it is finished here, its result.

    Args:
        built: the result of the stage if it is finished here, otherwise None.
        arch: the architecture of the image; empty if the plan is for this machine's architecture only.
        patches: the patches in the request, by source.
    """

    planned: Planned
    built: Built | None
    arch: str = ""
    patches: Mapping[str, Sequence[Path]] = field(default_factory=dict)

    @property
    def to_build(self) -> bool:
        return self.built is None

    def as_json(self) -> dict[str, Any]:
        """Return the row that `plan --json` prints for the stage."""
        row: dict[str, Any] = {
            "name": self.planned.name,
            "image": self.planned.image,
            "input_digest": self.planned.input_digest,
            "reused": self.built is not None,
            "sources": [self._source(source) for source in self.planned.sources],
            "binaries": sorted({*self.planned.binaries, *(self.built.binaries if self.built else ())}),
            **({"arch": self.arch} if self.arch else {}),
        }
        if self.planned.partial:
            row["partial"] = self.planned.partial
        if self.planned.prefix:
            row["prefix"] = self.planned.prefix
        if self.planned.serves:
            row["serves"] = self.planned.serves
        return row

    def _source(self, source: Source) -> dict[str, Any]:
        patches = listed(self.patches.get(source.name, ()))
        return {**source.as_plan(), **({"patches": patches} if patches else {})}


def plan(request: Request, target: str, *, proved: bool = False) -> list[PlanRow]:
    """Return a row for each stage that `build` needs: one architecture after another, each with its lowest stage first.

    This function starts no engine and uses no network. With `--locked`, LockedError is raised if the inputs differ from
    those in the lock.

    Args:
        proved: see `find`.
    """
    rows = _rows(replace(request, looked_up={}), target, proved=proved)
    within_lock(request, [row.planned for row in rows])
    return rows


def _rows(request: Request, target: str, *, proved: bool) -> list[PlanRow]:
    rows: list[PlanRow] = []
    # The stages of all architectures are found first, so that an unsupported architecture is reported before a fault in
    # the plan of another one.
    for of_arch, stages in [(of_arch, stages_of(target, of_arch)) for of_arch in by_arch(request)]:
        planned_before: dict[str, Planned] = {}
        for stage in stages:
            own = request_of(stage, of_arch)
            planned = stage.plan(own, below(stage, own, planned_before))
            planned_before[stage.name] = planned
            elsewhere = request.arch != (this_machine(),)
            built = find(request.cache, planned, proved=proved)
            row = PlanRow(planned, built, own.arch[0] if elsewhere else "", own.patches)
            if row not in rows:  # every architecture has the same base, which is listed once
                rows.append(row)
    return rows


def resolved_plan(request: Request, target: str, *, ask: bool = False) -> list[PlanRow]:
    """Find the unknown commits of tags and the unknown repositories of commits, and return the plan after that.

    With `--offline` the network is not used: no repository is searched for. UnreachableError is raised if the commit of
    a tag is unknown, or if Triton's LLVM is named only in Triton's tree and the tree is not in the store. PinError is
    raised as `read_pins` describes.

    Args:
        ask: whether to look up the known commits of tags again, and to fetch Triton's tree even if no input digest
            depends on its content. It has no effect with `--offline`.
    """
    rows = plan(request, target)
    rows = read_pins(request, target, rows)
    if request.offline:
        return plan(request, target) if ask_tags(request, rows) else rows
    rows = with_tree(request, target, rows, ask=ask, fetch=ask)
    # Triton's tree may name the commit of an LLVM for GPUs but not its repository, which a fetch finds.
    among = [source for row in rows for source in row.planned.sources if source.among]
    for source in among:
        fetch_for(request, source)
    return plan(request, target) if among else rows


def with_tree(
    request: Request, target: str, rows: list[PlanRow], *, fetch: bool, ask: bool = False, proved: bool = False
) -> list[PlanRow]:
    """Resolve tags as `ask_tags` does, fetch Triton's tree if it is needed, and return the plan after that.

    The tree names Triton's LLVMs, and the plan depends on them.

    Args:
        rows: the current plan.
        fetch: whether to fetch the tree if any stage to build reads it; otherwise it is fetched only if a stage to
            build other than `triton` reads it.
        ask, proved: see `ask_tags` and `find`.
    """
    changed = ask_tags(request, rows, ask=ask)
    trees = tritons(rows)
    if fetch or any(planned.name != "triton" for planned, _ in trees):
        for source in {source.name: source for _, source in trees}.values():
            LOG.info("%s: fetching %s, whose LLVM pin is compared with the plan", source.name, source.ref)
            fetch_for(request, source)
            changed = True
    return plan(request, target, proved=proved) if changed else rows


def ask_tags(request: Request, rows: Sequence[PlanRow], *, ask: bool = False) -> bool:
    """Resolve the tags in a plan whose commits are unknown; with `ask`, look up the known commits of tags again.

    Return whether a commit was looked up. If so, the caller must plan again.
    """
    tagged = [source for row in rows for source in row.planned.sources if source.tag and (ask or not source.digest)]
    for source in tagged:
        if source.digest is None:
            resolved(source, cache=request.cache, offline=request.offline, mirrors=request.mirrors)
        else:
            asked_again(source, cache=request.cache, locked=request.lock is not None, mirrors=request.mirrors)
    return bool(tagged)


def find(cache: Cache, planned: Planned, *, proved: bool = False) -> Built | None:
    """Return the finished result of a planned stage, and mark it as used.

    Return None if the input digest of the stage is unknown, if its record is missing or damaged, or if the manifest or
    a layer of the image is missing.

    Args:
        proved: whether to return None also for a result that was built with --no-contract although the stage has a
            contract check.
    """
    digest = planned.input_digest
    record = known_record(cache, digest)
    if digest is None or record is None or (proved and planned.has_contract_check and not record.contract):
        return None
    layout = Layout(cache.images)
    if not all(layout.has(part) for part in (record.manifest, *record.layer_digests)):
        return None
    mark_used(cache, digest)
    return Built(
        planned=planned,
        input_digest=digest,
        manifest=record.manifest,
        layers=record.layers,
        facts=record.facts,
        reused=True,
        binaries=record.binaries,
    )


def tritons(rows: Sequence[PlanRow], *, checkouts: bool = False) -> list[tuple[Planned, Source]]:
    """Return the stages to build that read Triton's tree, each with the source of the tree.

    Args:
        checkouts: whether to include the stages whose tree is a folder of the user.
    """
    return [
        (row.planned, source)
        for row in rows
        if row.to_build
        for source in row.planned.sources
        if source.name == "triton" and source.kind != "pypi"
        if checkouts or not (source.path and source.path.is_dir())
    ]


def awaited_in(rows: Sequence[PlanRow], request: Request) -> list[Source]:
    """Return a list with Triton's source if Triton's tree must be fetched to find the commit of another source.

    The list is empty if the plan needs no tree, or if the tree is here.
    """
    pending = any(source.pending for row in rows for source in row.planned.sources)
    return [triton_source(request)] if pending and local_triton(request) is None else []


def require_commits(rows: Sequence[PlanRow]) -> None:
    """Raise PinError if a stage to build has a source whose full commit is unknown."""
    for source in (source for row in rows if row.to_build for source in row.planned.sources):
        source.require_commit()


def read_pins(request: Request, target: str, rows: list[PlanRow], *, proved: bool = False) -> list[PlanRow]:
    """Fetch Triton's tree if only the tree names Triton's LLVM, and return the plan after that.

    Raise PinError if the full commit of a source of a stage to build is still unknown after that.

    Args:
        proved: see `find`.
    """
    for source in awaited_in(rows, request):
        console.note(f"{source.name}: fetching {source.ref}, which names its LLVM")
        fetch_for(request, source)
        rows = plan(request, target, proved=proved)
    require_commits(rows)
    return rows


def undecided_in(rows: Sequence[PlanRow], request: Request) -> list[str]:
    """Return the names of Triton's prebuilt files that a build would refuse.

    No option allows or drops these files, and no file of the base replaces them. If Triton's tree is not here, rare
    files are left out (see `undecided`). The list is empty if Triton need not be built from source.
    """
    if not any(planned.name.startswith("triton") for planned, _ in tritons(rows, checkouts=True)):
        return []
    return [row.name for row in undecided(triton_here(request), request)]


def online_in(rows: Sequence[PlanRow], request: Request) -> list[Planned]:
    """With `--offline`, return the stages to build that need the network for more than sources; else an empty list."""
    return [row.planned for row in rows if row.to_build and row.planned.online] if request.offline else []


def tried_in(row: PlanRow, request: Request, rows: Sequence[PlanRow] = ()) -> dict[str, bool]:
    """Return `{"tried": True}` if a stage's combination of versions was tried, else `{"tried": False}`.

    See `was_tried`. The dictionary is empty for a stage whose combinations are not recorded, for a partial image, and
    for a wheel from the package index.
    """
    return {} if (label := _untried_label(row, request, rows)) is None else {"tried": label == ""}


def untried_in(rows: Sequence[PlanRow], request: Request) -> list[str]:
    """Return a description of each combination of versions in a plan that was not tried (see `was_tried`)."""
    return [label for row in rows if (label := _untried_label(row, request, rows))]


def _untried_label(row: PlanRow, request: Request, rows: Sequence[PlanRow]) -> str | None:
    """Return a description of a stage's combination of versions if it was not tried (see `was_tried`).

    Return an empty string if it was tried, and None in the cases in which the result of `tried_in` is empty.
    """
    planned = row.planned
    source = next((source for source in planned.sources if source.name == planned.name), None)
    if source is None or source.kind == "pypi" or planned.partial:
        return None
    where = _where(row, request)
    version = _version(source)
    if planned.name == "llvm":
        parts = _line(planned.serves)
        shown = f"LLVM {_short(version)} for {where}" + (f" with the parts for Triton {parts}" if parts else "")
        return "" if was_tried("llvm", version, where, triton=parts) else shown
    if planned.name == "triton":
        llvm = next((source for below in rows for source in below.planned.sources if source.name == "llvm"), None)
        on = _version(llvm) if llvm is not None else ""
        shown = f"Triton {_short(version)} on LLVM {_short(on)} for {where}"
        return "" if was_tried("wheel", version, where, llvm=on) else shown
    if planned.name == "aotriton":
        by = next((source for below in rows for source in below.planned.sources if source.name == "triton"), None)
        on, gpus, rocm = _version(by) if by is not None else "", planned.details.gpus, planned.details.rocms
        shown = f"AOTriton {_short(version)} by Triton {_short(on)} for {', '.join(gpus)} and {where}"
        return "" if was_tried("aotriton", version, where, triton=on, gpus=gpus, rocm=rocm) else shown
    return None


def _where(row: PlanRow, request: Request) -> str:
    if (row.arch or this_machine()) != "amd64":
        return row.arch or this_machine()
    return f"glibc {request.glibc}" if request.glibc else str(request.base)


def _version(source: Source) -> str:
    if source.kind == "local":
        return (head_of(source.path) if source.path is not None and source.path.is_dir() else "") or source.where
    return source.commit or source.version or source.tag or "of its pin"


def _short(version: str) -> str:
    return version[:12] if len(version) == 40 else version


def _line(version: str) -> str:
    """Return the release line of a version, such as `3.7` for `3.7.1`, or of the release most similar to a commit.

    If the line is unknown, return the version itself.
    """
    try:
        return line_of(version) if version else ""
    except ToolchainError:
        return version
