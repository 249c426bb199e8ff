"""The verbs `plan`, which shows what would be built, and `fetch`, which downloads sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from toolchain.catalog import stages
from toolchain.catalog.costs import Cost, cost_of
from toolchain.catalog.stages import row as stage_row
from toolchain.cli import options as o
from toolchain.cli.build_options import HOW, with_request
from toolchain.cli.transfers import amounts_told
from toolchain.core import console
from toolchain.core.errors import PolicyError, SourceError, UnreachableError
from toolchain.core.pages import page
from toolchain.engine.resources import MEMORY, cores
from toolchain.pipeline.plan import PlanRow, online_in, resolved_plan, tried_in, undecided_in, untried_in
from toolchain.pipeline.plan import plan as plan_stages
from toolchain.pipeline.records import tell_unread
from toolchain.pipeline.unfinished import unfinished
from toolchain.request.model import Request
from toolchain.sources.distro import known_packages
from toolchain.sources.tree import Source
from toolchain.stages.prebuilt import let_in_names, unknown_names

StageArg = Annotated[str, typer.Argument(help=stages.choice(), autocompletion=o.complete_stage)]


@with_request(*HOW, "contract", "mirrors")
def plan(stage: StageArg = "all", *, request: Request) -> None:
    """Show what would be built and what is already built. The verb uses no network and starts no container."""
    rows = plan_stages(request, stage, proved=True)
    _check_packages(rows)
    if any(row.to_build for row in rows):
        tell_unread(request.cache)
    if request.json:
        documents = [row.as_json() | tried_in(row, request, rows) | _cost(row, request, cores()) for row in rows]
        console.data({"stages": documents})
    else:
        for combination in untried_in(rows, request):
            console.text(f"untried: {combination}")
        _show(rows)
        for line in (*_takes(rows, request, cores()), *_copies(rows, stage)):
            console.text(line)
    if refused := _refused(rows, request):
        names = " ".join(f"--allow-binary {name}" for name in refused)
        console.warn(f"`build` will refuse prebuilt inputs (exit code {PolicyError.code}) unless you add: {names}")
    for name in unknown_names(request):
        names = page("docs/reference/names.md#prebuilt-files")
        console.warn(f"no known prebuilt file is called {name!r}; {names} lists the names")
    for planned in online_in(rows, request):
        console.warn(f"`build --offline` will refuse to build {planned.image} (exit code {UnreachableError.code})")
    if away := _away(rows, request):
        console.warn(f"`build --offline` will fail, because sources are not in the store: {', '.join(away)}")
    for name in undecided_in(rows, request):
        console.warn(
            f"`build` will refuse the prebuilt {name} in Triton's source (exit code {PolicyError.code}) unless you add"
            f" --drop-binary {name} or --allow-binary {name}"
        )


def _check_packages(rows: Sequence[PlanRow]) -> None:
    """Raise a SourceError if a distribution package has no known digest and its name is not in data/distro.toml."""
    for source in (source for row in rows for source in row.planned.sources if source.kind == "distro"):
        if source.digest is None and all(package.name != source.where for package in known_packages()):
            known = dict.fromkeys(package.name for package in known_packages())
            raise SourceError(
                "unknown-package",
                f"unknown distribution package {source.where}",
                why=f"known: {', '.join(known)}",
                fix="use a known package; or, if the distribution has this one, run `toolchain fetch` with the same "
                "options first",
            )


def _show(rows: Sequence[PlanRow]) -> None:
    from toolchain.cli.listing import Listing  # noqa: PLC0415 - `--json` does not need it

    table = []
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
        table.append((planned.name, row.arch, state, planned.image, note, digest, sources, binaries))
    columns = ("stage", "arch", "state", "image", "note", "input digest", "sources", "prebuilt")
    console.show(Listing(columns=columns, rows=table, head=("stage", "arch", "state", "image"), lines=True))


def _away(rows: Sequence[PlanRow], request: Request) -> list[str]:
    """Return the sources that `build` would not find in the store; an empty list unless `--offline` is given."""
    if not request.offline:
        return []
    from toolchain.pipeline.fetching import stored_for  # noqa: PLC0415 - a plan without --offline does not need it

    needed = {(s.name, s.ref): s for row in rows if row.to_build for s in row.planned.sources}
    return [f"{source.name} {source.ref}" for source in needed.values() if not stored_for(request, source)]


def _refused(rows: Sequence[PlanRow], request: Request) -> list[str]:
    """Return the prebuilt inputs that `build` would refuse, sorted."""
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
    begun = unfinished(request.cache, row.planned)
    steps = {} if begun is None else {"steps_done": begun.done, "steps": begun.total}
    time = cost.as_json(count, 1.0 if begun is None else begun.left)
    return {"takes": {**time, "disk": row.planned.disk, **memory, **steps}}


def _takes(rows: Sequence[PlanRow], request: Request, count: int) -> Iterator[str]:
    """Yield lines with the estimated costs of the unbuilt stages on a machine with `count` cores."""
    costs = [(row, cost) for row in rows if (cost := _cost_of(row, request))]
    if costs:
        yield f"still to build, on {count} core{'s' if count != 1 else ''} (estimates: {page('docs/costs.md')}):"
    names = [f"{row.planned.name} {row.arch}".rstrip() for row, _ in costs]
    width = max((9, *(len(name) + 1 for name in names)))
    for name, (row, cost) in zip(names, costs, strict=True):
        begun = unfinished(request.cache, row.planned)
        parts = [cost.time_for(count, 1.0 if begun is None else begun.left)]
        if row.planned.disk:
            parts.append(f"disk {console.size(row.planned.disk)}")
        if cost.job:
            parts.append(f"memory {console.size(MEMORY[cost.job])} per {cost.job}")
        yield f"  {name:{width}}" + ", ".join(parts)
        if begun is not None:
            yield f"  {'':{width}}{begun.done:,} of {begun.total:,} steps are already done"
        if row.planned.name == "aotriton" and not row.planned.partial:
            yield f"  {'':{width}}{_kernels(cost, row.planned.details, count)}"


def _kernels(cost: Cost, details: Any, cores: int) -> str:
    """Return a phrase about the number of AOTriton kernels and the time to compile all of them."""
    from toolchain.catalog.aotriton_generations import generation_of  # noqa: PLC0415

    release = details.release
    return cost.all_kernels(cores, generation_of(release).kernels(details.gpus) if release else None)


def _copies(rows: Sequence[PlanRow], target: str) -> Iterator[str]:
    """Yield a heading, and Dockerfile lines that copy the prefixes of the images to publish for `target`."""
    kept = (row.planned for row in rows if row.planned.prefix and row.planned.name in stages.published(target))
    wanted = dict.fromkeys((planned.image, planned.prefix) for planned in kept)  # one name for all architectures
    if wanted:
        yield "to use it in a Dockerfile, after publishing it to REGISTRY/NAMESPACE:"
    for image, prefix in wanted:
        yield f"  COPY --from=REGISTRY/NAMESPACE/{image} \\"
        yield f"      {prefix} {prefix}"


def _how_sure(source: Source) -> str:
    """Return a note about a source: an unknown commit, its tag, or a missing lock; else an empty string."""
    if source.pending:
        known = "unknown until fetched" if "://" in source.pending else "not known in full"
        return f"{known}: {source.pending}"
    if source.tag and source.digest is None:
        return " (tag, resolved when fetched)"
    tag = f" (tag {source.tag})" if source.tag else ""
    return tag + ("" if source.locked or tag else " (unlocked)")


@with_request(*HOW, "contract")
def fetch(stage: StageArg = "all", *, request: Request) -> None:
    """Download the sources of a stage into the cache."""
    from toolchain.pipeline.fetching import fetch_for  # noqa: PLC0415
    from toolchain.pipeline.locking import check_tree  # noqa: PLC0415

    request.cache.check()
    fetched = []
    for row in resolved_plan(request, stage, ask=True):
        for source in row.planned.sources:
            console.note(f"{source.name}: {source.ref}")
            with amounts_told():
                got = fetch_for(request, source, patched=True)
            check_tree(request, got)
            fetched.append(got.as_plan() | {"path": str(got.path)})
    if request.json:
        console.data({"sources": fetched})
    else:
        for entry in fetched:
            console.text(*(str(entry[key]) for key in ("name", "digest", "path")))
