"""`plan` and `fetch`: what would be built, and bringing its sources in."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from toolchain import console
from toolchain.build.plan import PlanRow, settled, undecided_in
from toolchain.build.plan import plan as plan_stages
from toolchain.build.record import tell_unread
from toolchain.build.untried import tried_in, untried_in
from toolchain.catalog import stages
from toolchain.catalog.costs import Cost, cost_of
from toolchain.catalog.stages import row as stage_row
from toolchain.cli import options as o
from toolchain.cli.request import CAMPAIGN, with_request
from toolchain.engine.resources import MEMORY, cores
from toolchain.errors import PolicyError, SourceError
from toolchain.request import Request
from toolchain.sources.amounts import told_to
from toolchain.sources.distro import known_packages
from toolchain.sources.tree import Source
from toolchain.stages.prebuilt import let_in_names

StageArg = Annotated[str, typer.Argument(help=stages.choice(), autocompletion=o.stage())]


@with_request(*CAMPAIGN, "contract", "mirrors")
def plan(stage: StageArg = "all", *, request: Request, trusting: Sequence[dict[str, Any]] = ()) -> None:
    """Show what would be built and what is already here. No network, no engine."""
    rows = plan_stages(request, stage, proved=True)
    _check_packages(rows)
    if any(row.to_build for row in rows):
        tell_unread(request.cache)
    if request.json:
        stages_told = [row.as_json() | tried_in(row, request, rows) | _cost(row, request, cores()) for row in rows]
        console.data({"stages": stages_told, "trusting": list(trusting)})
    else:
        for combination in untried_in(rows, request):  # docs/compatibility.md lists what was built
            console.text(f"untried: {combination}")
        _show(rows)
        for line in (*_takes(rows, request, cores()), *_copies(rows, stage)):
            console.text(line)
    if refused := _refused(rows, request):
        names = " ".join(f"--allow-binary {name}" for name in refused)
        console.warn(f"`build` refuses what is prebuilt with {PolicyError.code}, unless it is allowed: {names}")
    for name in undecided_in(rows, request):
        console.warn(
            f"`build` refuses the prebuilt {name} in Triton's source with {PolicyError.code}:"
            f" give --drop-binary {name}, or --allow-binary {name}"
        )


def _check_packages(rows: Sequence[PlanRow]) -> None:
    """Refuse what hours cannot be told of: a distribution's package that neither the data nor a fetch knows.

    Raises:
        SourceError: with the packages on record.
    """
    for source in (source for row in rows for source in row.planned.sources if source.kind == "distro"):
        if source.digest is None and all(package.name != source.where for package in known_packages()):
            known = dict.fromkeys(package.name for package in known_packages())
            raise SourceError(
                f"{source.where} is not on record",
                why=f"known are {', '.join(known)}",
                fix="take one of these; if the distribution has it, `toolchain fetch` with the same words finds it,"
                " and then plan knows it",
            )


def _show(rows: Sequence[PlanRow]) -> None:
    from toolchain.cli.listing import Listing  # noqa: PLC0415 - only people look at a table

    told = []
    for row in rows:
        planned = row.planned
        sources = "\n".join(
            f"{s.name} {s.ref}" + _how_sure(s) + "".join(f"\n  + {patch.name}" for patch in row.patches.get(s.name, ()))
            for s in planned.sources
        )
        digest = (planned.input_digest or "not locked yet").removeprefix("sha256:")[:16]
        state = "here" if row.built else "to build"
        binaries = ", ".join(planned.binaries)
        note = "; ".join(filter(None, (planned.partial, planned.note)))
        told.append((planned.name, row.arch, state, planned.image, note, digest, sources, binaries))
    columns = ("stage", "arch", "state", "image", "note", "input digest", "sources", "prebuilt")
    empty = [name for at, name in enumerate(columns) if not any(row[at] for row in told)]
    shown = [at for at, name in enumerate(columns) if name not in empty]
    cells = [[row[at] for at in shown] for row in told]
    head = ("stage", "arch", "state", "image")
    console.show(Listing(columns=[columns[at] for at in shown], rows=cells, head=head, lines=True))


def _refused(rows: Sequence[PlanRow], request: Request) -> list[str]:
    """The prebuilt things that `build` would refuse, sorted."""
    wanted = {name for row in rows if row.to_build for name in row.planned.binaries}
    return sorted(wanted.difference(let_in_names(request))) if wanted else []


def _cost_of(row: PlanRow, request: Request) -> Cost | None:
    spec = request.sources.get("triton")
    parts = {"llvm": request.only, "triton": "wheel" if spec is not None and spec.wheel else ""}
    name = stage_row(row.planned.name).costs or row.planned.name
    return cost_of(name, parts.get(row.planned.name, "")) if row.to_build else None


def _cost(row: PlanRow, request: Request, count: int) -> dict[str, Any]:
    cost = _cost_of(row, request)
    if cost is None:
        return {}
    memory = {"memory_per_job": MEMORY[cost.job]} if cost.job else {}
    return {"takes": {**cost.as_json(count), "disk": row.planned.disk, **memory}}


def _takes(rows: Sequence[PlanRow], request: Request, count: int) -> Iterator[str]:
    """What building the rest takes on this machine, a line for each stage, at most 80 columns wide."""
    told = [(row, cost) for row in rows if (cost := _cost_of(row, request))]
    if told:
        yield f"still to build, on {count} core{'s' if count != 1 else ''} (estimates: docs/costs.md):"
    names = [f"{row.planned.name} {row.arch}".rstrip() for row, _ in told]
    width = max((9, *(len(name) + 1 for name in names)))
    for name, (row, cost) in zip(names, told, strict=True):
        parts = [cost.time_for(count)]
        if row.planned.disk:
            parts.append(f"disk {console.size(row.planned.disk)}")
        if cost.job:
            parts.append(f"memory {console.size(MEMORY[cost.job])} a {cost.job}")
        yield f"  {name:{width}}" + ", ".join(parts)
        if not row.planned.partial and (all_of_them := _kernels(cost, request, count)):
            yield f"  {'':{width}}{all_of_them}"


def _kernels(cost: Cost, request: Request, cores: int) -> str:
    """How many kernels of AOTriton there are to compile, and their time; empty for other stages."""
    if cost.kernels is None:
        return ""
    from toolchain.catalog.aotriton_generations import generation_of  # noqa: PLC0415 - data of one stage
    from toolchain.stages.aotriton_library import DEFAULT_GPUS, release_asked  # noqa: PLC0415

    gpus, release = request.gpus or DEFAULT_GPUS, release_asked(request)
    return cost.all_kernels(len(gpus), cores, generation_of(release).kernels(gpus) if release else (0, 0))


def _copies(rows: Sequence[PlanRow], target: str) -> Iterator[str]:
    """What takes the images into a Dockerfile once they are published."""
    wanted = [row.planned for row in rows if row.planned.prefix and row.planned.name in stages.published(target)]
    if wanted:
        yield "in a Dockerfile, once it is published to REGISTRY/NAMESPACE:"
    for planned in wanted:
        yield f"  COPY --from=REGISTRY/NAMESPACE/{planned.image} \\"
        yield f"      {planned.prefix} {planned.prefix}"


def _how_sure(source: Source) -> str:
    """What is to be said of a source beside its name: the tag it is at, and whether its digest was promised."""
    if source.tag and source.digest is None:
        return " (tag, resolved when fetched)"
    tag = f" (tag {source.tag})" if source.tag else ""
    return tag + ("" if source.locked or tag else " (unlocked)")


class _Amounts:
    """Says how far a fetch is, at its tenths or each ten seconds."""

    def __init__(self) -> None:
        self._what, self._tenth, self._said = "", -1, 0.0

    def tell(self, what: str, done: int, total: int) -> None:
        """See `sources.amounts.Listener`."""
        tenth, now = 10 * done // total if total else 0, time.monotonic()
        if what == self._what and (tenth == self._tenth or now - self._said < 1) and now - self._said < 10:
            return
        self._what, self._tenth, self._said = what, tenth, now
        console.note(f"  {what}: {console.share(done, total)}")


@with_request(*CAMPAIGN, "contract")
def fetch(stage: StageArg = "all", *, request: Request) -> None:
    """Bring the sources of a stage into the store."""
    from toolchain.build.fetching import fetch_for  # noqa: PLC0415 - plan needs none of it
    from toolchain.build.locking import check_tree  # noqa: PLC0415

    request.cache.check()
    found = []
    for row in settled(request, stage, ask=True):
        for source in row.planned.sources:
            console.note(f"{source.name}: {source.ref}")
            with told_to(_Amounts().tell):
                got = fetch_for(request, source, patched=True)
            check_tree(request, got)
            found.append(got.as_plan() | {"path": str(got.path)})
    if request.json:
        console.data({"sources": found})
    else:
        for entry in found:
            console.text(*(str(entry[key]) for key in ("name", "digest", "path")))
