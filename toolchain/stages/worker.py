"""An image that compiles kernels for the campaigns of a scheduler: Triton, the worker, Dask and the kernels' sources.

A machine that runs it needs neither this tool nor an engine that builds. What results are named by is what a local
campaign names them by, so both share a store.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import toolchain
from toolchain.core import recipe, strict_json
from toolchain.core.digest import canonical, sha256_file
from toolchain.core.errors import ContractError, UnsupportedError
from toolchain.core.filesystem import emptied
from toolchain.core.recipe import digests
from toolchain.request.model import Request
from toolchain.sources.pypi import known_pypi
from toolchain.stages import aotriton_images, kernels
from toolchain.stages.aotriton_library import aotriton_source, require_aotriton
from toolchain.stages.kernel_workers import COMMAND, RECIPE, KernelProject, allocator, layer_digests
from toolchain.stages.prebuilt import names_allowed, take_in
from toolchain.stages.python import own_python
from toolchain.stages.stage import (
    Built,
    ContractCheck,
    ImageParts,
    LayerContent,
    Planned,
    Workspace,
    image_labels,
    source_inputs,
    stage_inputs,
)
from toolchain.stages.triton_wheel import unzip

BINARY = "dask"
# No distribution has Dask in the version that the tool needs, and different versions are incompatible.
WHEELS = (
    "click", "cloudpickle", "dask", "distributed", "fsspec", "jinja2", "locket", "markupsafe", "msgpack", "packaging",
    "partd", "psutil", "pyyaml", "sortedcontainers", "tblib", "toolz", "tornado", "zict",
)  # fmt: skip
PYTHON = "3.13"  # that those wheels are for
FOLDER = "/usr/lib/toolchain/worker"
PROGRAM = "/usr/bin/kernel-worker"
# What of this package runs there: `build.contained_worker` and all that it imports.
MODULES = (
    "__init__", "catalog/__init__", "catalog/gpus", "core/__init__", "core/console", "core/digest", "core/environment",
    "core/errors", "core/filesystem", "core/process", "core/strict_json", "core/typed", "data/__init__",
    "engine/__init__", "engine/own_network", "engine/resources", "kernels/__init__", "kernels/bounds",
    "kernels/dask_board", "kernels/dask_link", "kernels/dask_worker", "kernels/executors", "kernels/ledger",
    "kernels/reached", "kernels/result_name", "kernels/rules", "kernels/store", "kernels/worker",
    "kernels/worker_process", "pipeline/__init__", "pipeline/contained_worker",
)  # fmt: skip
_FILES = (*(f"{name}.py" for name in MODULES), "data/gpus.toml")
_START = f"""#!/bin/sh
export PYTHONPATH={FOLDER}:{FOLDER}/site PYTHONDONTWRITEBYTECODE=1
exec python3 -m toolchain.pipeline.contained_worker "$@"
"""


@dataclass(frozen=True, kw_only=True)
class WorkerDetails:
    """What is decided of an image of a worker.

    Args:
        variables: of its compile processes.
        beside: digests of what of ours runs beside Triton.
    """

    variables: Mapping[str, str]
    beside: Mapping[str, str]


@dataclass(frozen=True)
class WorkerStage:
    """See `Stage`.

    Args:
        of: the stage whose kernels it compiles: `kernels` or `aotriton`.
    """

    of: str
    name: str = "worker"

    @property
    def project(self) -> KernelProject:
        """The project that they compile."""
        return aotriton_images.PROJECT if self.of == "aotriton" else kernels.PROJECT

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[WorkerDetails]:
        _check_python(request)
        variables, beside = {**self.project.variables, **allocator(request)}, digests(*self.project.recipe)
        source = aotriton_source(request) if self.of == "aotriton" else kernels.sdist_source(request)
        libraries = tuple(known_pypi(f"library-{project}", project, "") for project in WHEELS)
        triton = dependencies["triton"]
        resolved = {
            "triton": triton.input_digest,
            "sources": source_inputs([source, *libraries], request.patches),
        }
        more = {
            "of": self.of,
            "variables": variables,
            "recipe": beside,
            "program": {name: sha256_file(_package() / name) for name in _FILES},
        }
        of = "aotriton" if self.of == "aotriton" else "flash-attn"
        return Planned(
            name=self.name,
            image=f"kernel-worker-{of}-{source.short_id}-{dependencies['base'].details.name}",
            inputs=stage_inputs(self.name, request, resolved, more),
            sources=(source, *libraries),
            binaries=tuple(sorted({*triton.binaries, *names_allowed(source.name, request), BINARY})),
            engine=request.contract,
            has_contract_check=True,
            details=WorkerDetails(variables=variables, beside=beside),
        )

    def build(self, planned: Planned[WorkerDetails], dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        workspace.step("source")
        source = workspace.fetch(planned.sources[0])
        if self.of == "aotriton":
            require_aotriton(source.path)
        # Results are named by the whole tree.
        intake, findings = take_in(planned.sources[0].name, source.path, workspace.request, whole=True)
        planned = replace(planned, binaries=intake.binaries(planned.binaries))
        triton = dependencies["triton"]
        tree = emptied(workspace.work() / "tree")
        for wheel in planned.sources[1:]:
            unzip(workspace.fetch(wheel).path, tree / FOLDER.lstrip("/") / "site")
        self._lay(tree, planned, source.path, layer_digests(triton, workspace.cache))
        return workspace.finish(
            planned,
            LayerContent(tree=tree),
            ImageParts(
                labels=image_labels(planned, binaries=planned.binaries, licensed=False),
                under=triton,
                entrypoint=(PROGRAM,),
            ),
            facts={"of": self.of, "found_binaries": intake.rows(findings)},
            check=ContractCheck(run=_check(workspace), on=triton) if workspace.request.contract else None,
        )

    def _lay(self, tree: Path, planned: Planned[WorkerDetails], source: Path, triton: Sequence[str]) -> None:
        """Lay all but Dask into the tree of the layer; `triton` as `layer_digests` gives it."""
        project, top, folder = self.project, recipe.root(), tree / FOLDER.lstrip("/")
        details = planned.details
        for name in details.beside:
            _copy(top / name, tree / RECIPE.lstrip("/") / name)
        for name in _FILES:
            _copy(_package() / name, folder / "toolchain" / name)
        shutil.copytree(
            source, tree / project.source.lstrip("/"), symlinks=True,
            ignore=shutil.ignore_patterns(".git", "__pycache__"),
        )  # fmt: skip
        content = {
            "format": 1,
            "name": planned.image,
            "stage": self.of,
            "source": project.source,
            "command": COMMAND,
            "variables": details.variables,
            "triton": list(triton),
            "recipe": details.beside,
            "environment": dict(project.environment),
            "search": project.search,
        }
        (folder / "kernels.json").write_bytes(canonical(content) + b"\n")
        program = tree / PROGRAM.lstrip("/")
        program.parent.mkdir(parents=True)
        program.write_text(_START, encoding="utf-8")
        program.chmod(0o755)


def _package() -> Path:
    return Path(toolchain.__file__).resolve().parent


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)


def _check_python(request: Request) -> None:
    """Raise UnsupportedError for a base whose Python cannot import Dask's wheels.

    A user's own base is checked when the image is tried.
    """
    if request.base.image is None and (has := own_python(request)) != PYTHON:
        raise UnsupportedError(
            f"no image of a worker is made on base {request.base}",
            why=f"Dask's wheels are for Python {PYTHON}, and it has {has}",
            fix="use --base debian13",
        )


def _check(workspace: Workspace) -> Callable[[str], Mapping[str, Any]]:
    """Check that the image's own program starts and imports Dask."""

    def check(image: str) -> Mapping[str, Any]:
        workspace.step("contract")
        done = workspace.runner.run(image, [PROGRAM, "--check"], log=workspace.log, capture=True, check=False)
        try:
            return {"contract": strict_json.read(done.stdout)}
        except ValueError:
            raise ContractError(
                "the worker does not start in its image",
                why="\n".join(done.tail),
                fix=f"see that the base's Python is {PYTHON}; full log: {workspace.log}",
            ) from None

    return check
