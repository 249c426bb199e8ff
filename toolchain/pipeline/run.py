"""Run a plan: fetch or build each stage that has no result yet."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toolchain.catalog.architectures import emulator, this_machine
from toolchain.catalog.stages import CAMPAIGNS
from toolchain.core import console
from toolchain.core.cache import Cache
from toolchain.core.errors import BuildError, PolicyError, ToolchainError, UnreachableError
from toolchain.core.locks import held, in_use
from toolchain.core.process import CommandError
from toolchain.pipeline.compiler_cache import key_of
from toolchain.pipeline.fetching import Prefetch, fetch_for, patches_as_they_are
from toolchain.pipeline.plan import (
    PlanRow,
    awaited_in,
    find,
    online_in,
    plan,
    read_pins,
    require_commits,
    undecided_in,
    with_tree,
)
from toolchain.pipeline.records import known_record, record_as_it_is, tell_unread
from toolchain.pipeline.targets import below, by_arch, request_of, stages_of
from toolchain.pipeline.workspace import BuildWorkspace, within_lock
from toolchain.request.model import Request
from toolchain.stages.prebuilt import let_in_names
from toolchain.stages.stage import Built, Planned, Stage

if TYPE_CHECKING:
    from toolchain.pipeline.reuse import Reuse


def build(request: Request, target: str, *, reuse: Reuse | None = None) -> list[Built]:
    """Build every stage of `target` that is not finished here, and return the results of all stages.

    With `--shard`, a campaign is run even if it is finished.

    Args:
        reuse: the place where finished images are searched for before a stage is built; None to search nowhere.
    """
    # A wrong request must be refused before the first long step.
    rows = plan(request, target, proved=request.contract)
    if any(row.to_build for row in rows):
        tell_unread(request.cache)
    for row in rows:
        _allowed(request, row.planned, row.built)
    if not awaited_in(rows, request):
        require_commits(rows)
    if reuse is None:
        _ready(request, rows)
    rows = read_pins(request, target, rows, proved=request.contract)
    # Without `reuse`, Triton's tree is fetched now, so that a difference between its LLVM pin and the plan is found
    # before any LLVM is built.
    rows = with_tree(request, target, rows, fetch=reuse is None, proved=request.contract)
    if reuse is None and (names := undecided_in(rows, request)):
        raise PolicyError(
            "prebuilt-not-allowed",
            f"no option allows or drops the prebuilt {', '.join(names)} in Triton's source",
            why="prebuilt files are refused by default, so the build would fail after hours of compiling LLVM",
            fix=f"remove it: --drop-binary {names[0]}; or accept it: --allow-binary {names[0]}",
        )
    # With `reuse` a stage may come from a registry or layout and then needs no sources, so none are fetched in advance.
    building = [row.planned for row in rows if row.to_build or _again(request, row.planned)]
    sources = [source for planned in building if reuse is None for source in planned.sources]
    first = {(row.arch or this_machine(), row.planned.name): row.planned for row in rows}
    results: dict[str, Built] = {}
    # If everything is finished, no patches are copied into the cache, because it may belong to another user.
    with patches_as_they_are(request) if building else nullcontext(request) as kept:
        run = _Run(first=first, prefetch=Prefetch(kept, sources), reuse=reuse, request=request, rows=rows)
        for of_arch in by_arch(kept):
            for built in _build_stages(of_arch, target, run):
                results.setdefault(built.input_digest, built)
    return list(results.values())


@dataclass(kw_only=True)
class _Run:
    """The state of one call of `build`, which all stages and architectures share.

    Args:
        first: the plan of each stage before any build, by architecture and name.
        request: the request for all architectures.
        rows: the whole plan.
        finished: the architecture and the name of each stage that is finished.
        checked: whether `ready` has already made its check.
    """

    first: Mapping[tuple[str, str], Planned]
    prefetch: Prefetch
    reuse: Reuse | None
    request: Request
    rows: Sequence[PlanRow]
    finished: set[tuple[str, str]] = field(default_factory=set)
    checked: bool = False

    def ready(self) -> None:
        """Raise an error if this machine cannot build the remaining stages; see `_ready`.

        With `reuse`, the check is made once, when the first stage must be built, because it is not needed if all stages
        come from a registry or layout. Without `reuse`, the function `build` has already made the check.
        """
        if self.reuse is not None and not self.checked:
            self.checked = True
            left = [row for row in self.rows if (row.arch or this_machine(), row.planned.name) not in self.finished]
            _ready(self.request, left)


def _build_stages(request: Request, target: str, run: _Run) -> list[Built]:
    stages = stages_of(target, request)
    before: dict[str, Built] = {}
    # If the request has no patches, local sources or local base image, the first plan of a stage is used if its input
    # digest is known and the first plans of all earlier stages were used. Otherwise the stage is planned again, because
    # the stages below may have other digests now, or the user may have changed a patch, a source or the base.
    of_user = [*request.patches, *(name for name, spec in request.sources.items() if spec.path is not None)]
    stands = not of_user and request.base.image is None
    for number, stage in enumerate(stages, 1):
        own = request_of(stage, request)
        built_below = below(stage, own, before)
        planned_below = {name: built.planned for name, built in built_below.items()}
        first = run.first[own.arch[0], stage.name]
        planned = first if stands and first.input_digest else _known(stage, own, planned_below, run.prefetch)
        again = _again(own, planned)
        built = None if again else find(request.cache, planned, proved=own.contract)
        if built is None:
            with in_use(request.cache, make=True), stage_lock(request.cache, planned):
                # Another process may have built the stage in the meantime. A stage whose packages are resolved during
                # its build is planned again, because that process may have resolved them.
                if planned.input_digest is None or planned.online:
                    planned = stage.plan(own, planned_below)
                built = None if again else find(request.cache, planned, proved=own.contract)
                if built is None and run.reuse is not None and not again:
                    from toolchain.pipeline.reuse import take  # noqa: PLC0415 - most builds take no image

                    built = take(own, planned, run.reuse)
                if built is None:
                    run.ready()
                    run.prefetch.check()
                    built = _build_stage(own, stage, planned, built_below, run, of=(number, len(stages)))
                    if own.base.image is not None and known_record(own.cache, built.input_digest) is None:
                        record_as_it_is(own, built)
        if own.check is not None and stage.name in CAMPAIGNS:
            from toolchain.pipeline.finished_images import checked  # noqa: PLC0415 - most builds check nothing

            built = checked(own, built)
        # If the build resolved the packages of a base, they can be compared with the lock only now.
        within_lock(request, [built.planned])
        stands = planned is first and built.planned == first
        before[stage.name] = built
        run.finished.add((own.arch[0], stage.name))
    return list(before.values())


def _again(request: Request, planned: Planned) -> bool:
    """Return whether a stage is run even if it is finished, which is the case for a campaign with `--shard`.

    The campaign is run again because the kernel store may lack the results of the finished campaign.
    """
    return request.shard is not None and planned.name in CAMPAIGNS


def _known(stage: Stage, request: Request, dependencies: Mapping[str, Planned], prefetch: Prefetch) -> Planned:
    """Plan a stage, fetch each source whose digest is unknown before a fetch, and return the final plan.

    The digests are needed now, because without them the stage has no input digest and cannot be recorded.
    """
    planned = stage.plan(request, dependencies)
    unknown = [source for source in planned.sources if source.digest is None]
    for source in unknown:
        console.note(f"{planned.name}: fetching {source.ref}, whose digest is not known yet")
        prefetch.wait(source.name)
        fetch_for(request, source)
    return stage.plan(request, dependencies) if unknown else planned


def _ready(request: Request, rows: Sequence[PlanRow]) -> None:
    """Raise an error if the stages to build need something that is missing; do nothing if all stages are finished.

    The network, the cache folder, the disk space, the engine, the runner, the emulator, the tools in the user's own
    base and the plugin for `--check` are checked, as far as the stages need them.
    """
    to_build = [row.planned for row in rows if row.to_build]
    if not to_build:
        return
    if request.check is not None:
        from toolchain.stages.kernel_check import require_check  # noqa: PLC0415 - most builds check nothing

        require_check()
    if away := online_in(rows, request):
        images = " and ".join(planned.image for planned in away)
        verbs = dict.fromkeys(f"`toolchain build {planned.name} --arch {','.join(request.arch)}`" for planned in away)
        raise UnreachableError(
            "offline-missing",
            f"--offline forbids making {images}, and the cache does not contain {'it' if len(away) == 1 else 'them'}",
            fix=f"run {' and '.join(verbs)} once with a network and the same options, or import a bundle",
        )
    for row in rows:
        # For another machine, the contract check runs that machine's LLVM, and the build of Triton runs programs of
        # that machine even without a check. Both need an emulator.
        if row.to_build and row.arch not in {"", this_machine()}:
            if row.planned.name == "triton":
                emulator(row.arch, proof=False)
            elif row.planned.name == "llvm" and request.contract:
                emulator(row.arch)
    from toolchain.engine.resources import require_disk  # noqa: PLC0415 - a no-op build needs no disk space

    request.cache.check()
    require_disk(request.cache.root, max(planned.disk for planned in to_build))
    if any(planned.engine for planned in to_build):
        from toolchain.engine.probe import probe  # noqa: PLC0415 - a no-op build starts no engine
        from toolchain.engine.storage import Storage  # noqa: PLC0415

        probe(Storage(request.cache))
        if request.runner != "buildah":
            from toolchain.engine.docker_probe import describe, proved  # noqa: PLC0415 - most builds use buildah alone

            console.note(f"contract checks and kernels run on {describe(proved(request.cache))}")
        if request.base.image is not None:
            from toolchain.pipeline.own_base import check  # noqa: PLC0415 - most bases are recipes

            check(request, to_build)


def _allowed(request: Request, planned: Planned, built: Built | None) -> None:
    """Raise PolicyError if a stage needs or contains prebuilt code that the request does not allow by name.

    A finished stage is refused too, even if the request that built it allowed the code.
    """
    names = {*planned.binaries, *(built.binaries if built else ())}
    for name in sorted(names.difference(let_in_names(request) if names else ())):
        raise PolicyError(
            "prebuilt-not-allowed",
            f"{planned.image} needs the prebuilt {name}, which is refused by default",
            why="; ".join(source.ref for source in planned.sources),
            fix=f"allow it by name: --allow-binary {name}",
        )


def _build_stage(
    request: Request,
    stage: Stage,
    planned: Planned,
    dependencies: Mapping[str, Built],
    run: _Run,
    *,
    of: tuple[int, int],
) -> Built:
    from toolchain.engine.progress import Progress  # noqa: PLC0415 - a no-op build shows no progress
    from toolchain.engine.resources import require_disk  # noqa: PLC0415

    # The folder of a stage without an input digest is named after its image, because two bases may be built at the same
    # time and must not share a folder.
    name = planned.input_digest.removeprefix("sha256:")[:12] if planned.input_digest else planned.image
    log = request.cache.logs / f"{stage.name}-{name}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    console.note(f"{stage.name}: {planned.image} (stage {of[0]} of {of[1]}); full log: {log}")
    started = time.monotonic()
    try:
        with Progress(stage.name, *of) as progress:
            workspace = BuildWorkspace(
                request=request,
                log=log,
                progress=progress,
                stage=f"{stage.name}-{name}",
                prefetch=run.prefetch,
                compiler_cache=key_of(request, planned, dependencies),
                sources=planned.sources,
            )
            require_disk(request.cache.root, planned.disk)
            built = stage.build(planned, dependencies, workspace)
    except ToolchainError as error:
        # The advice of a CommandError is to run the command by hand. This is impossible here, because the command's
        # container no longer exists.
        failure = (
            BuildError("build-failed", error.what, why=error.why, fix="read the end of the log")
            if isinstance(error, CommandError)
            else error
        )
        looked = isinstance(failure, BuildError) and planned.engine
        look = [f"open a shell: toolchain shell {stage.name}, with the options of this build"] if looked else []
        failure.further = (f"full log: {log}", *look, f"run again: {console.command()}")
        if failure is error:
            raise
        raise failure from error
    console.note(f"{stage.name}: done in {console.duration(time.monotonic() - started)}")
    return built


def stage_lock(cache: Cache, planned: Planned) -> AbstractContextManager[None]:
    """Return a context manager that lets only one process build a stage at a time; others wait (see `locks.held`)."""
    key = planned.input_digest.removeprefix("sha256:")[:16] if planned.input_digest else planned.image
    return held(cache.locks / f"{planned.name}-{key}.lock", what=planned.image)
