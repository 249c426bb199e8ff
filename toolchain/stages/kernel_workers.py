"""Run the workers that compile the kernels of a stage, on this machine or through a Dask scheduler."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolchain.catalog.bases import base_recipe
from toolchain.core import console
from toolchain.core.cache import Cache
from toolchain.core.filesystem import emptied
from toolchain.core.recipe import Mount, digests
from toolchain.core.record import STORED_KERNELS
from toolchain.oci.image import read_layers
from toolchain.oci.layout import Layout
from toolchain.request.model import Request
from toolchain.stages.stage import Built, Workspace
from toolchain.stages.triton_wheel import SITE

if TYPE_CHECKING:
    import subprocess

    from toolchain.kernels.bounds import Limits, MemoryBounds
    from toolchain.kernels.campaign import CampaignResult
    from toolchain.kernels.executors import Executor
    from toolchain.kernels.ledger import Entry, Ledger
    from toolchain.kernels.pool import CompileSetup
    from toolchain.kernels.result_name import Naming
    from toolchain.kernels.rules import RuleSet
    from toolchain.kernels.shared import SharedResults

# These files below the recipe root run in the same process as Triton, so a kernel's result may depend on them.
WORKER_FILES = ("aotriton/worker.py", "aotriton/shared_stages.py")
# This program starts a worker. Its digest is hashed into the names of kernel results, but it is not an input of
# images, because the program does not change their bytes.
_START = "aotriton/start.py"
# These are the paths, in a container, of the recipe's files and of the folder to which objects are written.
RECIPE, OUT = "/recipe", "/out"
# This is the name of the folder for the files that compile processes see.
SCRATCH = "compiling"
# Every compile process gets these environment variables. Those of the image are not passed on.
VARIABLES = {
    "HOME": "/tmp",  # noqa: S108 - the path is in a container
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Triton 3.0 iterates over sets, whose order differs in each process of Python, so without a seed its objects differ
    # from one run to the next. `python3 -I` would ignore the seed, so it is not used.
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
}


@dataclass(frozen=True, kw_only=True)
class KernelProject:
    """The files and environment variables that a project's compile processes need in addition to Triton.

    Args:
        source: the folder of the kernels' sources in the container.
        path: folders of the image and of the recipe that come first on the module path.
        environment: the environment variables that only this project sets.
        recipe: files and folders below the recipe root that run in the same process as Triton.
        search: see `kernels.reached.Reach`.
    """

    source: str
    path: tuple[str, ...]
    environment: Mapping[str, str]
    recipe: tuple[str, ...]
    search: tuple[str, ...] = ()

    def variables(self, request: Request) -> dict[str, str]:
        """Return all environment variables of the project's compile processes.

        These are `VARIABLES`, the project's own variables, and the result of `allocator`.
        """
        return {**VARIABLES, **self.environment, **allocator(request)}

    @property
    def command(self) -> tuple[str, ...]:
        """The command line of a compile process, without its environment variables."""
        last = (f"{self.source}/{folder}".rstrip("/") for folder in self.search)
        return ("python3", f"{RECIPE}/{_START}", ":".join(self.path), ":".join(last))

    def naming(self, tree: Path, triton: Sequence[str], request: Request) -> Naming:
        """Return the `Naming` for the results of compiling a source tree.

        Args:
            triton: the result of `layer_digests` for the Triton image.
        """
        from toolchain.kernels.result_name import Naming  # noqa: PLC0415 - a plan compiles nothing

        return Naming(
            tree,
            triton=triton,
            recipe=digests(_START, *self.recipe),
            environment=self.variables(request),
            command=self.command,
            search=self.search,
        )

    def compile_setup(
        self, tree: Path, triton: Built, out: Path, workspace: Workspace, *, scratch: Path
    ) -> CompileSetup:
        """Return the `CompileSetup` that compiles the kernels of a source tree; see the function `compile_setup`."""
        naming = self.naming(tree, layer_digests(triton, workspace.cache), workspace.request)
        image = workspace.image_to_run(triton)
        return compile_setup(naming, image, workspace, source=self.source, out=out, scratch=scratch)


def compile_setup(
    naming: Naming,
    image: str,
    workspace: Workspace,
    *,
    source: str,
    out: Path,
    scratch: Path,
    mounts: Sequence[Mount] = (),
) -> CompileSetup:
    """Return the `CompileSetup` of a stage that compiles kernels.

    The processes see only the image, the folder for their output, `mounts`, and files that are hashed into the names of
    the results. They get only environment variables that are hashed into these names.

    Args:
        naming: contains the environment variables and the command line of the processes.
        source: the folder of the kernels' sources in the container.
        scratch: the folder for the files that compile processes see; this function empties it.
    """
    from toolchain.kernels.file_sets import FileSets  # noqa: PLC0415 - a plan compiles nothing
    from toolchain.kernels.pool import CompileSetup  # noqa: PLC0415

    sets = FileSets(naming, emptied(scratch) / "seen")
    environment = dict(naming.shared["environment"])
    if workspace.request.variation is not None:
        # With `reproduce --vary`, the base's allocator is not loaded: it would override the change to the heap, and
        # jemalloc hangs if libfaketime is loaded.
        environment.pop("LD_PRELOAD", None)
    variables = [f"{name}={value}" for name, value in sorted(environment.items())]
    # `env -i` removes variables that the image's configuration or the engine adds.
    command = ["env", "-i", *variables, *naming.shared["command"]]
    # `toolchain shell` starts another program instead of `command`. There, Python finds Triton by PYTHONPATH.
    of_shell = {"PYTHONPATH": SITE, **environment}

    def start(files: str, folder: Path) -> AbstractContextManager[subprocess.Popen[str]]:
        shown = [
            Mount(sets.recipe, RECIPE),
            Mount(sets.sources(files), source),
            Mount(folder, OUT, read_only=False),
            *mounts,
        ]
        return workspace.worker(image, command, mounts=shown, env=of_shell)

    return CompileSetup(start=start, naming=naming, out=out, source=source, seen=OUT, scratch=scratch)


def layer_digests(triton: Built, cache: Cache) -> list[str]:
    """Return the diff_ids of the layers of an image with Triton, lowest first.

    The diff_ids are hashed into the names of kernel results. The digests of the blobs are not suitable, because they
    change when the layers are compressed.
    """
    layout = Layout(cache.images)
    return [layer.diff_id for layer in read_layers(layout, layout.resolve(triton.manifest))]


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The workers of a campaign.

    Args:
        bounds: the memory limits of workers on this machine; None for workers of a scheduler.
    """

    setup: CompileSetup
    workspace: Workspace
    shared: SharedResults | None
    executor: Executor
    bounds: MemoryBounds | None

    def run(
        self,
        rules: RuleSet,
        ledger: Ledger,
        on_count: Callable[[int, int, str], None] | None = None,
        *,
        calls: bool = False,
    ) -> CampaignResult:
        """Compile rules with the options of the request, and return the result of the campaign.

        Args:
            on_count: called to report progress; if it is None, the progress is reported as that of the stage.
            calls: whether the rules are calls of a wheel. Failures then raise no error here, because the caller reports
                them.
        """
        from toolchain.kernels.campaign import run_campaign  # noqa: PLC0415 - a plan compiles nothing

        return run_campaign(
            rules,
            self.executor,
            ledger,
            self.setup.out,
            worker_tree=self.setup.source,
            keep_going=calls or self.workspace.request.keep_going,
            on_count=on_count or self.workspace.count,
            on_end=None if calls else _tell,
            command=console.command(),
            bounds=self.bounds,
            shared=self.shared,
            scope=self.setup.naming.scope,
        )


@contextlib.contextmanager
def compiling(setup: CompileSetup, workspace: Workspace, shared: SharedResults | None) -> Iterator[Workers]:
    """Yield the workers of the request's scheduler, or workers on this machine if the request names no scheduler."""
    request = workspace.request
    if request.scheduler is None:
        yield workers_here(setup, workspace, shared)
        return
    from toolchain.kernels.cluster import ClusterExecutor, requirements  # noqa: PLC0415 - most builds use no Dask

    with ClusterExecutor(request.scheduler, requirements(setup, kernel_limits(request), request.runner)) as elsewhere:
        yield Workers(setup=setup, workspace=workspace, shared=shared, executor=elsewhere, bounds=None)


def workers_here(setup: CompileSetup, workspace: Workspace, shared: SharedResults | None) -> Workers:
    """Return workers on this machine, even if the request names a scheduler."""
    from toolchain.kernels.bounds import MemoryBounds  # noqa: PLC0415 - a plan compiles nothing
    from toolchain.kernels.executors import LocalExecutor  # noqa: PLC0415

    limit, count = kernel_limits(workspace.request), workspace.jobs("kernel")
    bounds = MemoryBounds.of(workspace.memory(), count, limit.memory)
    here = LocalExecutor(setup, workers=count, timeout=limit.timeout, bounds=bounds)
    return Workers(setup=setup, workspace=workspace, shared=shared, executor=here, bounds=bounds)


def allocator(request: Request) -> dict[str, str]:
    """Return the environment variable that makes compile processes load the base's allocator.

    The result is empty if the base has no allocator of its own or is a local image.
    """
    if request.base.image is not None:
        return {}
    library = base_recipe(request.base.recipe, request.arch[0]).allocator
    return {"LD_PRELOAD": library} if library else {}


def kernel_limits(request: Request) -> Limits:
    """Return the limits on time and memory for compiling one kernel."""
    from toolchain.kernels.bounds import Limits, patience  # noqa: PLC0415 - a plan compiles nothing

    return Limits(timeout=patience(request.kernel_timeout), memory=(request.kernel_memory or 0) * 10**6)


def part_of_kernels(request: Request) -> str:
    """Return a description of the selected kernels, such as `limit 300`; an empty string if all are selected."""
    shard = "/".join(map(str, request.shard or ()))
    part = {"select": request.select, "limit": request.limit, "shard": shard}
    return ", ".join(f"{name} {value}" for name, value in part.items() if value)


def campaign_inputs(request: Request, gpus: Sequence[str]) -> dict[str, Any]:
    """Return the inputs that determine which kernels are compiled, for which GPUs, and which of them may be missing."""
    return {
        "gpus": list(gpus),
        "select": request.select,
        "limit": request.limit,
        **({"shard": list(request.shard)} if request.shard is not None else {}),
        "keep_going": request.keep_going,
        **limits(request),
    }


def campaign_facts(result: CampaignResult, request: Request, gpus: Sequence[str]) -> dict[str, Any]:
    """Return a stage's facts about the kernels that its campaign compiled."""
    return {
        "kernels": result.counts(),
        "known_bad": [entry.out for entry in result.bad],
        "skipped": result.skipped,
        **({"kernel_store": result.shared} if result.shared else {}),
        **stored_kernels(result.entries),
        "about": result.about,
        "allocator": allocator(request).get("LD_PRELOAD", ""),
        "by_kernel": result.rows(),
        "gpus": list(gpus),
    }


def stored_kernels(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the fact that counts the kernels from kernel stores by signer; an empty dictionary if there are none."""
    from toolchain.kernels.ledger import Maker  # noqa: PLC0415 - a plan compiles nothing

    counted = Counter(entry.signer for entry in entries if entry.maker is Maker.STORE)
    rows = [{"store": "folder", "signer": signer, "kernels": count} for signer, count in sorted(counted.items())]
    return {STORED_KERNELS: rows} if rows else {}


def limits(request: Request) -> dict[str, float]:
    """Return the limits that are inputs: those that the user sets, but only with --keep-going.

    Without --keep-going, a kernel that exceeds a limit ends the build, so the limits cannot change an image.
    """
    values = {"timeout": request.kernel_timeout, "memory": request.kernel_memory}
    return {name: value for name, value in values.items() if value and request.keep_going}


def _tell(lines: Sequence[str]) -> None:
    for line in lines:
        console.note(line)
