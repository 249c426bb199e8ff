"""Provide a stage's sources, engine and working folder, and write its finished image."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from toolchain.catalog.architectures import this_machine
from toolchain.core import process, recipe
from toolchain.core.amounts import reporting_to
from toolchain.core.cache import LEDGER, NINJA_LOG, Cache
from toolchain.core.digest import write_atomically
from toolchain.core.errors import LimitError
from toolchain.core.filesystem import emptied
from toolchain.core.recipe import CCACHE_MOUNT, Mount, Recipe
from toolchain.core.record import LayerFacts
from toolchain.oci.image import ImageSpec, LayerBlob, add_layer, read_layers, standard_annotations, write_image
from toolchain.oci.labels import INPUT_DIGEST
from toolchain.oci.layer import Compression, Layer, compressor_id, write_layer
from toolchain.oci.layer import compress as compress_layer
from toolchain.oci.layout import Layout
from toolchain.pipeline.compiler_cache import NONE, remove_unused, using
from toolchain.pipeline.fetching import Prefetch, fetch_for
from toolchain.pipeline.records import image_tag, new_record, stages_below, write_record
from toolchain.request.model import Request
from toolchain.sources.tree import FetchedSource, Source
from toolchain.stages.inputs import recorded_source
from toolchain.stages.stage import PLAIN, Built, ContractCheck, ImageParts, LayerContent, Planned
from toolchain.trust.contents import Contents, of_sources

if TYPE_CHECKING:
    import subprocess
    from contextlib import AbstractContextManager

    from toolchain.engine.buildah import Buildah
    from toolchain.engine.docker import DockerRunner
    from toolchain.engine.progress import Progress
    from toolchain.kernels.result_name import Naming
    from toolchain.kernels.shared import SharedResults


def within_lock(request: Request, planned: Sequence[Planned], *, fetched: Source | None = None) -> None:
    """With `--locked`, raise LockedError if the inputs of planned stages or a fetched source differ from the lock."""
    if request.lock is not None:
        from toolchain.pipeline import locking  # noqa: PLC0415 - most calls have no lock

        locking.check(request, planned)
        if fetched is not None:
            locking.check_tree(request, fetched)


@dataclass
class BuildWorkspace:
    """The workspace of one stage; see `stages.stage.Workspace`.

    Args:
        stage: the name of the stage's folder for unfinished work.
        prefetch: the thread that fetches sources in the background.
        compiler_cache: the key of the compiler cache (see `compiler_cache.key_of`).
        sources: the sources whose names describe the compiler cache in listings.
    """

    request: Request
    log: Path
    progress: Progress
    stage: str
    prefetch: Prefetch
    compiler_cache: str = NONE
    sources: Sequence[Source] = ()
    _compiled: Mapping[str, str] = field(default_factory=dict)
    _engine: Buildah | None = None
    _runner: DockerRunner | None = None
    _started: float = field(default_factory=time.monotonic)

    @property
    def cache(self) -> Cache:
        return self.request.cache

    @property
    def engine(self) -> Buildah:
        if self._engine is None:
            from toolchain.engine.buildah import Buildah  # noqa: PLC0415 - a no-op build starts no engine

            self._engine = Buildah(self.cache, variation=self.request.variation)
        return self._engine

    @property
    def runner(self) -> Buildah | DockerRunner:
        """The engine that `--runner` names: buildah, or docker after a probe has shown that docker can be used."""
        if self.request.runner == "buildah":
            return self.engine
        if self._runner is None:
            from toolchain.engine.docker_probe import proved  # noqa: PLC0415 - most builds use only buildah

            self._runner = proved(self.cache)
        return self._runner

    def work(self) -> Path:
        folder = self.cache.work / self.stage
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def fetch(self, source: Source) -> FetchedSource:
        with reporting_to(self.progress.amount):
            self.prefetch.wait(source.name)
            # Files that this process has not read yet are verified, because the disk may be faulty or another program
            # may have changed the store.
            got = fetch_for(self.request, source, patched=True, verify=True)
        within_lock(self.request, [], fetched=got)
        return got

    def build(self, recipe_: Recipe) -> Path:
        out = self.work() / "out"
        self.progress.weigh(recipe_.steps, ninja=recipe_.ninja)
        if out.exists():
            shutil.rmtree(out)
        try:
            with contextlib.ExitStack() as stack:
                if CCACHE_MOUNT in (recipe.root() / recipe_.containerfile).read_text(encoding="utf-8"):
                    self._compiled = {"compiler_cache": self.compiler_cache}
                    key = "" if self.compiler_cache == NONE else self.compiler_cache
                    recipe_ = replace(recipe_, compiler_cache=key)
                    stack.enter_context(using(self.cache, self.compiler_cache, self.sources))
                if self.request.fresh:
                    self.drop_tree(recipe_)
                self.engine.build(recipe_, root=recipe.root(), out=out, log=self.log, on_line=self.on_line)
        except LimitError as error:
            if error.discards:
                remove_unused(self.cache, self.compiler_cache)
            raise
        if steps := self.engine.ninja_log(recipe_.name, recipe_.cache_key):
            write_atomically(self.cache.kept(self.stage, NINJA_LOG), steps)
        return out

    def drop_tree(self, recipe_: Recipe) -> None:
        self.engine.drop_cache(recipe_.name, recipe_.cache_key)

    def worker(
        self, image: str, argv: Sequence[str], *, mounts: Sequence[Mount], env: Mapping[str, str]
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        return self.runner.worker(image, argv, mounts=mounts, env=env)

    def unpack(self, built: Built) -> Path:
        folder = emptied(self.work() / f"unpacked-{built.planned.name}")
        # tar is used here, because `sources.unpack` refuses names that differ only in case, and some header files of
        # the Linux kernel have such names.
        blob = Layout(self.cache.images).blob(built.layers[-1]["digest"])
        process.run(["tar", "--extract", "--no-same-owner", "--file", blob, "--directory", folder], log=self.log)
        return folder

    def image(self, built: Built) -> str:
        return self.engine.ensure_image(built.planned.image, self.cache.images, built.manifest)

    def image_to_run(self, built: Built) -> str:
        return self.runner.ensure_image(built.planned.image, self.cache.images, built.manifest)

    def jobs(self, kind: Literal["compile", "link", "kernel"]) -> int:
        from toolchain.engine.resources import jobs_for  # noqa: PLC0415

        return jobs_for(kind, self.request.jobs)

    def memory(self) -> int:
        from toolchain.engine.resources import memory_available  # noqa: PLC0415

        return memory_available()

    def shared_results(self, naming: Naming) -> SharedResults | None:
        from toolchain.pipeline.kernel_store import shared_results  # noqa: PLC0415 - most builds share nothing

        return shared_results(self.request, naming)

    def step(self, name: str) -> None:
        self.progress.step(name)

    def count(self, done: int, total: int, label: str = "") -> None:
        """Show the progress; raise the error of the prefetch thread, if there is one (see `Prefetch.check`)."""
        self.prefetch.check()
        self.progress.count(done, total, label)

    def on_line(self, line: str) -> None:
        """Show a line of output; raise the error of the prefetch thread, if there is one (see `Prefetch.check`)."""
        self.prefetch.check()
        self.progress.line(line)

    def finish(
        self,
        planned: Planned,
        content: LayerContent,
        image: ImageParts = PLAIN,
        *,
        facts: Mapping[str, Any],
        check: ContractCheck | None = None,
    ) -> Built:
        layout = Layout(self.cache.images).ensure()
        self.step("layer")
        layer = self._write_layer(content)
        below = [read_layers(layout, layout.resolve(part.manifest)) for part in (image.under, *image.beside) if part]
        lower = tuple({layer.diff_id: layer for layers in below for layer in layers}.values())
        labels = {
            **image.all_labels(planned),
            **self._contents(planned).labels(),
            INPUT_DIGEST: str(planned.input_digest),
        }
        checked: dict[str, Any] = {}
        if check is not None and self.request.contract:
            plain = add_layer(layout, compress_layer(layer, self.work() / "plain", "none"), created_by=planned.name)
            base = lower if check.on is None else read_layers(layout, layout.resolve(check.on.manifest))
            parts = ImageParts(environment=image.environment)
            # The candidate has this machine's architecture, because its containers run here even if the layer is for
            # another architecture.
            candidate = self._write(layout, planned, (*base, plain), parts, arch=this_machine())
            try:
                checked = self._check(planned, candidate, check)
            finally:
                layout.forget(candidate, *([plain.descriptor.digest] if content.compress else []))
        how: Compression = "gzip" if content.compress else "none"
        self.step("compress" if content.compress else "store")
        blob = compress_layer(layer, self.work() / "blob", how)
        top = add_layer(layout, blob, created_by=f"toolchain {planned.name}", move=True)
        manifest = self._write(layout, planned, (*lower, top), replace(image, labels=labels), arch=self.request.arch[0])
        digest = planned.input_digest
        assert digest is not None  # noqa: S101 - the digest is known when a stage is finished
        self.progress.step("done")
        measured = LayerFacts(
            unpacked_bytes=layer.size,
            blob_bytes=blob.size,
            diff_id=layer.diff_id,
            seconds=self.progress.summary(),
            total_seconds=round(time.monotonic() - self._started, 1),
            largest=tuple(largest(content.tree)) if content.tree is not None else (),
            disk_bytes=sum(size for _, size in _files(content.tree)) if content.tree is not None else None,
        )
        built = Built(
            planned=planned,
            input_digest=digest,
            manifest=manifest,
            layers=tuple(part.descriptor.as_json() for part in (*lower, top)),
            facts={**facts, **checked, **self._compiled, **measured.as_json()},
            binaries=tuple(planned.binaries),
        )
        # The tag protects the blobs from the garbage collector. The record is written after the image, because it marks
        # the stage as finished.
        layout.tag(layout.resolve(manifest), image_tag(planned.image, digest))
        runner = self._runner.facts if self._runner is not None else None
        record = new_record(self.request, planned, built, compressor=compressor_id(how), runner=runner)
        write_record(self.cache, record)
        self._tidy(planned)
        return built

    def _write_layer(self, content: LayerContent) -> Layer:
        if content.layer is not None:
            return content.layer
        assert content.tree is not None  # noqa: S101 - either `layer` or `tree` is set
        # A tree that is not normalised comes from a container. Its files have ids of the host, on which the container's
        # root has the id `first_id`.
        first = 0 if content.normalise else self.engine.first_id
        return write_layer(content.tree, self.work() / "layer.tar", normalise=content.normalise, first_id=first)

    def _check(self, planned: Planned, candidate: str, check: ContractCheck) -> dict[str, Any]:
        """Run a contract check on the image with the manifest digest `candidate`, and return the check's facts."""
        name = self.runner.ensure_image(f"{planned.image}-check", self.cache.images, candidate)
        try:
            return dict(check.run(name))
        finally:
            self.runner.forget_image(name)

    def _contents(self, planned: Planned) -> Contents:
        inputs = planned.inputs or {}
        below = stages_below(self.cache, inputs)
        rows = [recorded_source(self.request, source) for source in planned.sources]
        return of_sources([*rows, *(row for record in reversed(below) for row in record.sources)], inputs)

    def _write(
        self,
        layout: Layout,
        planned: Planned,
        layers: tuple[LayerBlob, ...],
        image: ImageParts,
        *,
        arch: str,
    ) -> str:
        spec = ImageSpec(
            arch=arch,
            layers=layers,
            labels=image.labels,
            annotations=standard_annotations(planned.image),
            environment=image.environment,
        )
        return write_image(layout, spec).digest

    def _tidy(self, planned: Planned) -> None:
        """Remove the unfinished work of a finished stage; keep its compiler cache and its ledger."""
        if self._engine is not None and planned.input_digest is not None:
            self._engine.drop_cache(planned.name, planned.tree_key)
        ledger = self.cache.work / self.stage / LEDGER
        if ledger.exists():
            ledger.replace(self.cache.kept(self.stage, LEDGER))
        shutil.rmtree(self.cache.work / self.stage, ignore_errors=True)


def _files(tree: Path) -> Iterator[tuple[str, int]]:
    for folder, _, names in os.walk(tree):
        for name in names:
            status = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - pathlib is slow
            yield os.path.relpath(os.path.join(folder, name), tree), status.st_size  # noqa: PTH118


def largest(tree: Path) -> list[dict[str, Any]]:
    """Return the ten largest files below `tree`, each with its path and its size in bytes."""
    rows = sorted(_files(tree), key=lambda row: (-row[1], row[0]))[:10]
    return [{"path": f"/{path}", "bytes": size} for path, size in rows]
