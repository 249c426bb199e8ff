"""Open a shell in the container of a stage's step, so that the user can find out why the step failed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from toolchain.core import console, recipe
from toolchain.core.errors import ConfigError, UnsupportedError
from toolchain.core.locks import kept
from toolchain.core.recipe import Mount, Recipe
from toolchain.engine.shell import Shell, require_terminal
from toolchain.pipeline.compiler_cache import NONE
from toolchain.pipeline.fetching import Prefetch
from toolchain.pipeline.plan import plan
from toolchain.pipeline.run import stage_lock
from toolchain.pipeline.targets import request_of, stages_of
from toolchain.pipeline.workspace import BuildWorkspace
from toolchain.request.model import Request
from toolchain.stages.stage import Planned

if TYPE_CHECKING:
    import subprocess


class _LeftError(Exception):
    """The shell has ended with the exit code `code`, so the rest of the stage must not run."""

    def __init__(self, code: int) -> None:
        self.code = code


@dataclass
class _ShellWorkspace(BuildWorkspace):
    """A workspace whose first container runs the shell instead of its command."""

    shell: Shell = field(kw_only=True)
    folder: Path = field(kw_only=True)

    def work(self) -> Path:
        """Return a separate folder, because the shell must not change the folder of the build."""
        return self.folder

    def drop_tree(self, recipe_: Recipe) -> None:
        """Do nothing, so that the tree remains for the shell."""

    def jobs(self, kind: Literal["compile", "link", "kernel"]) -> int:
        """Return 1 for kernels, because each worker would open a shell; otherwise return the usual number of jobs."""
        return 1 if kind == "kernel" else super().jobs(kind)

    def build(self, recipe_: Recipe) -> NoReturn:
        """Run the shell in the container of a recipe's step, and raise `_LeftError` with the shell's exit code."""
        raise _LeftError(self.shell.of_step(self.engine, recipe_, root=recipe.root()))

    def finish(self, planned: Planned, *_args: object, **_facts: object) -> NoReturn:
        """Raise UnsupportedError, because the stage is finished without a container."""
        raise UnsupportedError(
            "stage-not-in-container", f"{planned.name} is made without a container", fix="read its log"
        )

    def worker(
        self, image: str, argv: Sequence[str], *, mounts: Sequence[Mount], env: Mapping[str, str]
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        """Run the shell in the container of a worker, and raise `_LeftError` with the shell's exit code."""
        console.note(f"the worker runs: {' '.join(argv)}")
        raise _LeftError(self.shell.of_worker(self.engine, image, mounts=mounts, env=env))


def open_shell(request: Request, target: str, argv: Sequence[str], *, show: Callable[[str], None]) -> int:
    """Run a shell or a command in the container of a stage instead of the stage's own step, and return its exit code.

    Raise the errors of `plan` and of `Shell.of_step`; ConfigError if the request is for several architectures, if a
    stage below is not finished here, if the stage's input digest is unknown, or if a shell has no terminal; and
    UnsupportedError if the stage is made without a container.

    Args:
        argv: the command; empty for a shell.
        show: a function that is called with each line of a command's output.
    """
    if len(request.arch) > 1:
        raise ConfigError(
            "shell-several-architectures",
            "a shell can be opened for only one architecture",
            fix=f"name one: --arch {request.arch[0]}",
        )
    require_terminal(argv)
    rows = {row.planned.name: row for row in plan(request, target)}
    stages = {stage.name: stage for stage in stages_of(target, request)}
    name, last = list(stages.items())[-1]
    planned = rows[name].planned
    below = {stage: row.built for stage, row in rows.items() if stage != name}
    if missing := [stage for stage, built in below.items() if built is None]:
        raise ConfigError(
            "shell-not-built",
            f"{name} has no container yet: {rows[missing[0]].planned.image} is not finished here",
            fix=f"toolchain build {missing[0]}; or, if that fails, toolchain shell {missing[0]}",
        )
    if not planned.engine:
        raise UnsupportedError("stage-not-in-container", f"{name} is made without a container", fix="read its log")
    if planned.input_digest is None:
        raise ConfigError(
            "shell-not-built",
            f"{name} has no container yet: the digests of its inputs are not known",
            fix=f"toolchain build {name}, which finds them out",
        )
    from toolchain.engine.progress import Progress  # noqa: PLC0415 - a refused request shows no progress

    own = request_of(last, request)
    request.cache.work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="shell-", dir=request.cache.work))
    workspace = _ShellWorkspace(
        request=own,
        log=folder / "log",
        progress=Progress(name),
        stage=name,
        prefetch=Prefetch(own, []),
        compiler_cache=NONE,
        sources=planned.sources,
        shell=Shell(argv, tell=console.note, show=show),
        folder=folder,
    )
    try:
        with kept(folder), stage_lock(request.cache, planned):
            last.build(planned, {stage: built for stage, built in below.items() if built is not None}, workspace)
    except _LeftError as left:
        return left.code
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    raise UnsupportedError("stage-not-in-container", f"{name} is made without a container", fix="read its log")
