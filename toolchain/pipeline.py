"""The plan: which stages, in what order, what is already there; and the run that makes the rest."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock, Timeout

from toolchain import console, process, recipe
from toolchain.digest import write_atomically
from toolchain.errors import LockHeldError, PolicyError, ToolchainError
from toolchain.goals import by_arch, request_of, stages_of
from toolchain.machines import this_machine
from toolchain.oci.image import ImageSpec, LayerBlob, add_layer, read_layers, standard_annotations, write_image
from toolchain.oci.layer import Compression, normalise_tar, write_layer
from toolchain.oci.layer import compress as compress_layer
from toolchain.oci.layout import Layout
from toolchain.prefetch import Prefetch
from toolchain.recipe import Mount, Recipe
from toolchain.settings import EPOCH, Cache, Request
from toolchain.sources.resolve import fetch_source
from toolchain.sources.tree import Source
from toolchain.stages.stage import Built, Planned, Stage

if TYPE_CHECKING:
    import subprocess
    from contextlib import AbstractContextManager

    from toolchain.engine.buildah import Buildah
    from toolchain.engine.progress import Progress
    from toolchain.reuse import Reuse


@dataclass(frozen=True)
class PlanRow:
    """A planned stage, whether its result is already here, and what its image is for where that is not this machine
    alone."""

    planned: Planned
    built: Built | None
    arch: str = ""

    def as_json(self) -> dict[str, Any]:
        """A row of `plan --json`; scripts depend on these names."""
        row: dict[str, Any] = {
            "name": self.planned.name,
            "image": self.planned.image,
            "input_digest": self.planned.input_digest,
            "reused": self.built is not None,
            "sources": [source.as_plan() for source in self.planned.sources],
            "binaries": list(self.planned.binaries),
            **({"arch": self.arch} if self.arch else {}),
        }
        if self.planned.partial:
            row["partial"] = self.planned.partial
        return row


def plan(request: Request, goal: str) -> list[PlanRow]:
    """What `build` would do, architecture by architecture. Reads files only: no network, no engine.

    Raises:
        LockedError: with `request.lock`, something is not as it is locked.
    """
    rows: list[PlanRow] = []
    # An architecture that is refused is told before anything that another one lacks.
    for one, stages in [(one, stages_of(goal, one)) for one in by_arch(request)]:
        below: dict[str, Planned] = {}
        for stage in stages:
            own = request_of(stage, one)
            planned = stage.plan(own, below)
            below[stage.name] = planned
            elsewhere = request.arch != (this_machine(),)
            row = PlanRow(planned, find(request.cache, planned), own.arch[0] if elsewhere else "")
            if row not in rows:  # all architectures share this machine's base
                rows.append(row)
    _within_lock(request, [row.planned for row in rows])
    return rows


def find(cache: Cache, planned: Planned) -> Built | None:
    """The finished result for these inputs, if its record and all its blobs are here."""
    digest = planned.input_digest
    if digest is None:
        return None
    try:
        record = json.loads(record_path(cache, digest).read_bytes())
        layout = Layout(cache.images)
        for part in (record["manifest"], *(layer["digest"] for layer in record["layers"])):
            if not layout.has(part):
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Built(
        planned=planned,
        input_digest=digest,
        manifest=record["manifest"],
        layers=tuple(record["layers"]),
        facts=record["facts"],
        reused=True,
    )


def records(cache: Cache) -> list[dict[str, Any]]:
    """What was finished here, oldest first; each as `BuildShop.finish` wrote it."""
    found = []
    for path in sorted(cache.records.glob("*.json"), key=lambda p: p.stat().st_mtime):
        with contextlib.suppress(OSError, ValueError):
            found.append(json.loads(path.read_bytes()))
    return found


def find_image(cache: Cache, name: str) -> list[dict[str, Any]]:
    """The records of all finished images called `name`, newest first."""
    return [record for record in reversed(records(cache)) if record["image"] == name]


def record_path(cache: Cache, input_digest: str) -> Path:
    """Where the record of a finished stage lies."""
    return cache.records / f"{input_digest.removeprefix('sha256:')}.json"


def build(request: Request, goal: str, *, command: Sequence[str] = (), reuse: Reuse | None = None) -> list[Built]:
    """Build every stage of `goal` that is not here yet.

    Args:
        command: how to run this again, for messages.
        reuse: where to ask for a finished image first, and whose signature counts there.

    Raises:
        ToolchainError: a stage failed; what is finished stays.
    """
    # What is wrong with the request must show before the first long step, not behind it.
    rows = plan(request, goal)
    for row in rows:
        _allowed(request, row.planned)
    # What may come finished from elsewhere needs no sources.
    wanted = [source for row in rows if row.built is None and reuse is None for source in row.planned.sources]
    prefetch = Prefetch(wanted, cache=request.cache, offline=request.offline, patches=request.patches)
    results: dict[str, Built] = {}
    for one in by_arch(request):
        for built in _build_stages(one, goal, prefetch, command, reuse):
            results.setdefault(built.input_digest, built)
    return list(results.values())


def _build_stages(
    request: Request, goal: str, prefetch: Prefetch, command: Sequence[str], reuse: Reuse | None
) -> list[Built]:
    stages = stages_of(goal, request)
    planned_below: dict[str, Planned] = {}
    built_below: dict[str, Built] = {}
    for number, stage in enumerate(stages, 1):
        own = request_of(stage, request)
        planned = stage.plan(own, planned_below)
        built = find(request.cache, planned)
        if built is None:
            with _stage_lock(request.cache, planned):
                built = find(request.cache, planned)  # the one we waited for may have made it
                if built is None and reuse is not None:
                    from toolchain.reuse import take  # noqa: PLC0415 - the registry client and cryptography

                    built = take(own, planned, reuse)
                if built is None:
                    built = _build_stage(
                        own, stage, planned, built_below, prefetch, of=(number, len(stages)), again=command
                    )
                    _within_lock(request, [built.planned])  # a base that was made just now shows what is in it
        planned_below[stage.name] = built.planned
        built_below[stage.name] = built
    return list(built_below.values())


def _within_lock(request: Request, planned: Sequence[Planned], *, fetched: Source | None = None) -> None:
    """With `--locked` nothing comes in that the lock does not hold."""
    if request.lock is not None:
        from toolchain import locking  # noqa: PLC0415 - most calls have no lock

        locking.check(request, planned)
        if fetched is not None:
            locking.check_tree(request, fetched)


def _allowed(request: Request, planned: Planned) -> None:
    """Prebuilt code enters by name alone."""
    for name in planned.binaries:
        if name not in request.allow_binary:
            raise PolicyError(
                f"{planned.image} needs the prebuilt {name}, and only sources enter by default",
                why="; ".join(source.ref for source in planned.sources),
                fix=f"allow it by name: --allow-binary {name}",
            )


def _build_stage(
    request: Request,
    stage: Stage,
    planned: Planned,
    below: Mapping[str, Built],
    prefetch: Prefetch,
    *,
    of: tuple[int, int],
    again: Sequence[str],
) -> Built:
    from toolchain.engine.progress import Progress  # noqa: PLC0415 - a no-op build needs none of it

    name = (planned.input_digest or "unlocked").removeprefix("sha256:")[:12]
    log = request.cache.logs / f"{stage.name}-{name}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    console.note(f"{stage.name}: {planned.image} (stage {of[0]} of {of[1]}); full log: {log}")
    started = time.monotonic()
    try:
        with Progress(stage.name, *of, {}, console.err) as progress:
            shop = BuildShop(
                request=request, log=log, progress=progress, stage=f"{stage.name}-{name}", prefetch=prefetch
            )
            built = stage.build(planned, below, shop)
    except ToolchainError as error:
        command = " ".join(again) or f"toolchain build {stage.name}"
        error.fix = "\n       ".join(part for part in (error.fix, f"full log: {log}", f"run again: {command}") if part)
        raise
    console.note(f"{stage.name}: done in {console.duration(time.monotonic() - started)}")
    return built


@contextlib.contextmanager
def _stage_lock(cache: Cache, planned: Planned) -> Iterator[None]:
    """One builder for each work; a second one waits and says for whom."""
    cache.locks.mkdir(parents=True, exist_ok=True)
    key = planned.input_digest.removeprefix("sha256:")[:16] if planned.input_digest else planned.image
    lock, owner = FileLock(cache.locks / f"{planned.name}-{key}.lock"), cache.locks / f"{planned.name}-{key}.pid"
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = owner.read_text() if owner.is_file() else "another process"
        console.note(f"{planned.name}: waiting for {holder}, which holds the lock for {planned.image}")
        try:
            lock.acquire(timeout=float(os.environ.get("TOOLCHAIN_LOCK_TIMEOUT", "86400")))
        except Timeout as error:
            raise LockHeldError(f"{planned.image} is being built by {holder}", fix="wait for it, or end it") from error
    try:
        owner.write_text(f"pid {os.getpid()} ({' '.join(sys.argv[1:4])})")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


@dataclass
class BuildShop:
    """The pipeline's side of `stages.stage.Shop`, for one stage."""

    request: Request
    log: Path
    progress: Progress
    stage: str
    prefetch: Prefetch
    _engine: Buildah | None = None
    _started: float = field(default_factory=time.monotonic)

    @property
    def cache(self) -> Cache:
        """The tool's folder."""
        return self.request.cache

    @property
    def engine(self) -> Buildah:
        """buildah, started when first needed, its isolation proved."""
        if self._engine is None:
            from toolchain.engine.buildah import Buildah  # noqa: PLC0415 - a no-op build starts no engine

            self._engine = Buildah(self.cache)
        return self._engine

    @property
    def runner(self) -> Buildah:
        """See `Shop`."""
        return self.engine

    def work(self) -> Path:
        """See `Shop`."""
        folder = self.cache.work / self.stage
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def fetch(self, source: Source) -> Source:
        """See `Shop`."""
        self.prefetch.wait(source.name)
        patches = self.request.patches.get(source.name, ())
        # What is built from is read once more: neither a disk that decays nor a hand in the store shall be built in.
        got = fetch_source(source, cache=self.cache, offline=self.request.offline, patches=patches, verify=True)
        _within_lock(self.request, [], fetched=got)
        return got

    def build(self, recipe_: Recipe) -> Path:
        """See `Shop`."""
        out = self.work() / "out"
        self.progress.weigh(recipe_.steps)
        if out.exists():
            # A killed invocation had finished the build but not the layer; the cache makes the tree again at no cost.
            shutil.rmtree(out)
        self.engine.build(recipe_, root=recipe.root(), out=out, log=self.log, on_line=self.on_line)
        return out

    def worker(
        self, image: str, argv: Sequence[str], *, mounts: Sequence[Mount], env: Mapping[str, str]
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        """See `Shop`."""
        return self.engine.worker(image, argv, mounts=mounts, env=env)

    def unpack(self, built: Built) -> Path:
        """See `Shop`."""
        folder = self.work() / f"unpacked-{built.planned.name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        # Not by sources.unpack: it is a layer of our own, and a system's headers may differ in case alone.
        blob = Layout(self.cache.images).blob(built.layers[-1]["digest"])
        process.run(["tar", "--extract", "--no-same-owner", "--file", blob, "--directory", folder], log=self.log)
        return folder

    def image(self, built: Built) -> str:
        """See `Shop`."""
        return self.engine.ensure_image(built.planned.image, self.cache.images, built.manifest)

    def jobs(self, kind: Literal["compile", "link", "kernel"]) -> int:
        """See `Shop`."""
        from toolchain.engine.resources import jobs_for  # noqa: PLC0415

        return jobs_for(kind, self.request.jobs)

    def require_disk(self, count: int) -> None:
        """See `Shop`."""
        from toolchain.engine.resources import require_disk  # noqa: PLC0415

        require_disk(self.cache.root, count)

    def step(self, name: str) -> None:
        """See `Shop`."""
        self.progress.line(f"@step {name}")

    def on_line(self, line: str) -> None:
        """See `Shop`."""
        self.progress.line(line)

    def finish(
        self,
        planned: Planned,
        *,
        tree: Path | None = None,
        tar: Path | None = None,
        normalise: bool = True,
        under: Built | None = None,
        compress: bool = True,
        facts: Mapping[str, Any],
        labels: Mapping[str, str] | None = None,
        check: Callable[[str], Mapping[str, Any]] | None = None,
        check_on: Built | None = None,
    ) -> Built:
        """See `Shop`."""
        from toolchain.evidence import run_facts  # noqa: PLC0415 - a no-op build leaves no record

        layout = Layout(self.cache.images).ensure()
        self.step("layer")
        raw = self.work() / "layer.tar"
        if tar is not None:
            layer = normalise_tar(tar, raw, epoch=EPOCH)
        else:
            assert tree is not None  # noqa: S101 - one of the two
            layer = write_layer(tree, raw, epoch=EPOCH, normalise=normalise)
        lower = read_layers(layout, layout.resolve(under.manifest)) if under is not None else ()
        labels = {**(labels or {}), "toolchain.input-digest": str(planned.input_digest)}
        found: dict[str, Any] = {}
        if check is not None and check_on is not None:
            plain = add_layer(layout, compress_layer(layer, self.work() / "plain", "none"), created_by=planned.name)
            base = read_layers(layout, layout.resolve(check_on.manifest))
            # Containers of it run here, whatever the layer is for.
            candidate = self._write(layout, planned, (*base, plain), {}, this_machine())
            image = self.engine.ensure_image(f"{planned.image}-check", self.cache.images, candidate)
            found = dict(check(image))
            self.engine.forget_image(image)
        how: Compression = self._compression() if compress else "none"
        self.step("compress" if compress else "store")
        blob = compress_layer(layer, self.work() / "blob", how)
        top = add_layer(layout, blob, created_by=f"toolchain {planned.name}", move=True)
        manifest = self._write(layout, planned, (*lower, top), labels, self.request.arch[0])
        digest = planned.input_digest
        assert digest is not None  # noqa: S101 - a stage is only built on locked ones; base resolves itself first
        self.progress.line("@step done")
        facts = {
            **facts,
            **found,
            "unpacked_bytes": layer.size,
            "blob_bytes": blob.size,
            "diff_id": layer.diff_id,
            "seconds": self.progress.summary(),
            "total_seconds": round(time.monotonic() - self._started, 1),
        }
        if tree is not None:
            facts["largest"] = largest(tree)
            facts["disk_bytes"] = sum(size for _, size in _files(tree))
        layers = tuple(part.descriptor.as_json() for part in (*lower, top))
        record = {
            "stage": planned.name,
            "image": planned.image,
            "input_digest": digest,
            "inputs": planned.inputs,
            **run_facts(self.request, planned, facts["total_seconds"]),
            "binaries": list(planned.binaries),
            "partial": planned.partial,
            "arch": self.request.arch[0],
            "manifest": manifest,
            "layers": list(layers),
            "facts": facts,
        }
        # The tag keeps the blobs from the garbage collector; the record is what makes the result count. So it is last.
        layout.tag(layout.resolve(manifest), f"{planned.image}.{digest.removeprefix('sha256:')[:12]}")
        write_atomically(record_path(self.cache, digest), json.dumps(record, indent=1).encode())
        self._tidy(planned)
        return Built(planned=planned, input_digest=digest, manifest=manifest, layers=layers, facts=facts)

    def _compression(self) -> Compression:
        return "zstd" if self.request.compression == "zstd" else "gzip"

    def _write(
        self, layout: Layout, planned: Planned, layers: tuple[LayerBlob, ...], labels: Mapping[str, str], arch: str
    ) -> str:
        spec = ImageSpec(
            arch=arch,
            layers=layers,
            labels=labels,
            annotations=standard_annotations(epoch=EPOCH, title=planned.image),
            epoch=EPOCH,
        )
        return write_image(layout, spec).digest

    def _tidy(self, planned: Planned) -> None:
        """Unfinished work is finished: give the disk back. The compiler cache stays."""
        if self._engine is not None and planned.input_digest is not None:
            self._engine.drop_cache(planned.name, planned.input_digest.removeprefix("sha256:")[:12])
        shutil.rmtree(self.cache.work / self.stage, ignore_errors=True)


def _files(tree: Path) -> Iterator[tuple[str, int]]:
    for folder, _, names in os.walk(tree):
        for name in names:
            status = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - a hundred thousand files
            yield os.path.relpath(os.path.join(folder, name), tree), status.st_size  # noqa: PTH118


def largest(tree: Path, count: int = 10) -> list[dict[str, Any]]:
    """The largest files below `tree`: path and bytes."""
    rows = sorted(_files(tree), key=lambda row: (-row[1], row[0]))[:count]
    return [{"path": f"/{path}", "bytes": size} for path, size in rows]
