"""A profile of LLVM and Triton at work: both built with counters, and run on kernels for several GPUs.

The kernels are those of flash-attn, forward and backward, for one GPU of each family of AMD's. AOTriton's are not among
them: they are what this project measures with.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from toolchain.core import console, recipe
from toolchain.core.digest import write_atomically
from toolchain.core.errors import BuildError
from toolchain.core.recipe import Mount, digests
from toolchain.request.model import Request
from toolchain.stages import kernels
from toolchain.stages.profile_use import ABOUT, CLANG, DATA, about, require_portable
from toolchain.stages.stage import Built, Planned, Workspace, image_labels, source_inputs, stage_inputs
from toolchain.stages.triton_source import CONTRACT_GPUS

if TYPE_CHECKING:
    from toolchain.kernels.worker_process import MakeWorker, Task

NAME = "profile"
LLVM, TRITON = "llvm-instrumented", "triton-instrumented"
FOLDER = "/usr/lib/toolchain/profile"
_RULES = "aotriton/flash-attn.toml"
# What a process counted is written when it ends. A chain of forks would end without it, and count what is shared once.
_COUNTS = "/profiles"
# By `%m` processes that have one number, each in a namespace of its own, add to one file.
_VARIABLES = {"LLVM_PROFILE_FILE": f"{_COUNTS}/%p-%m.profraw", "KERNEL_WORKER_WITHOUT": "shared"}
_HELLO, _LAST = 600.0, 600.0
# Written out of memory for all of LLVM and Triton by each process, and unpacked by the merge.
_DISK = 4_000_000_000
_MERGE = f"""
set -e
llvm-profdata merge --sparse --output=/out/{DATA} {_COUNTS}/*.profraw
clang --version | head -n 1 >/out/{CLANG}
"""


@dataclass(frozen=True)
class ProfileStage:
    """See `Stage`."""

    name: str = NAME

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[tuple[str, ...]]:
        require_portable(request)
        source, gpus = kernels.sdist_source(request), request.gpus or CONTRACT_GPUS
        resolved = {TRITON: dependencies[TRITON].input_digest, "sources": source_inputs([source], request.patches)}
        more = {
            "recipe": digests(_RULES, *kernels.PROJECT.recipe),
            "gpus": list(gpus),
            "select": request.select,
            "limit": request.limit,
        }
        return Planned(
            name=self.name,
            image=f"llvm-triton-{dependencies[LLVM].sources[0].short_id}-profile",
            inputs=stage_inputs(self.name, request, resolved, more),
            sources=(source,),
            binaries=dependencies[TRITON].binaries,
            disk=_DISK,
            engine=True,
            details=gpus,
        )

    def build(
        self, planned: Planned[tuple[str, ...]], dependencies: Mapping[str, Built], workspace: Workspace
    ) -> Built:
        from toolchain.kernels.rules import load_rules  # noqa: PLC0415 - a plan compiles nothing

        request = workspace.request
        workspace.step("source")
        source = workspace.fetch(planned.sources[0])
        intake, findings = kernels.take_in_sdist(source.path, request)
        planned = replace(planned, binaries=intake.binaries(planned.binaries))
        file, gpus = recipe.root() / _RULES, planned.details
        rules = load_rules(file, source.path, gpus, select=request.select, limit=request.limit).rules
        work = workspace.work()
        folders = [work / name for name in ("counts", "objects", "merged")]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        counts, objects, merged = folders
        # Counts of a run that was killed are of kernels that are counted again.
        for path in counts.iterdir():
            path.unlink()
        at = kernels.compile_setup(
            source.path,
            dependencies[TRITON],
            objects,
            workspace,
            mounts=[Mount(counts, _COUNTS, read_only=False)],
            variables=_VARIABLES,
        )
        workspace.step("train")
        tasks = [rule.task(*at.seen) for rule in rules]
        failed = train(at.start, tasks, workers=workspace.jobs("kernel"), on_count=workspace.count)
        raw = sorted(counts.glob("*.profraw"))
        if len(failed) == len(tasks) or not raw:
            raise BuildError(
                f"{len(failed)} of {len(tasks)} kernels failed, and {len(raw)} files of counts were left",
                why="\n".join(failed[:5]),
                fix="see the log: the profile is empty",
            )
        workspace.step("merge")
        image = workspace.image_to_run(dependencies[TRITON])
        mounts = [Mount(counts, _COUNTS, read_only=False), Mount(merged, "/out", read_only=False)]
        workspace.runner.run(image, ["sh", "-c", _MERGE], mounts=mounts, log=workspace.log)
        llvm, triton = (dependencies[name].planned.sources[0] for name in (LLVM, TRITON))
        trained = {"kernels": len(tasks) - len(failed), "gpus": sorted({rule.target for rule in rules})}
        facts = about(llvm, triton, request.patches, trained=trained)
        # A container wrote here: the names may be links.
        write_atomically(merged / ABOUT, (json.dumps(facts, indent=1, sort_keys=True) + "\n").encode())
        tree = work / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(merged, tree / FOLDER.lstrip("/"), symlinks=True)
        return workspace.finish(
            planned,
            tree=tree,
            facts={
                "prefix": FOLDER,
                "profile": facts,
                "bytes": (merged / DATA).stat().st_size,
                "failed": failed,
                "found_binaries": intake.rows(findings),
            },
            labels=image_labels(planned, revision=llvm.ref, binaries=planned.binaries),
        )


def train(
    make: MakeWorker, tasks: Sequence[Task], *, workers: int, on_count: Callable[[int, int, str], None]
) -> list[str]:
    """Compile tasks by long-lived workers that exit normally, so that each writes its counts.

    Args:
        on_count: called with tasks finished, all tasks, and what they are.

    Returns:
        the reason of each failed task.

    Raises:
        BuildError: a worker does not start, or ends by itself.
    """
    from toolchain.kernels.worker_process import DiedError, TimedOutError, Worker  # noqa: PLC0415

    left, failed, lock, through = list(reversed(tasks)), [], threading.Lock(), [0]

    def work() -> None:
        worker = Worker(make)
        try:
            worker.answer(_HELLO)
            while True:
                with lock:
                    if not left:
                        return
                    task = left.pop()
                answer = worker.ask(task, None)
                with lock:
                    through[0] += 1
                    if answer.get("status") != "done":
                        failed.append(f"{task['out']}: {answer.get('reason', '')}".strip()[:500])
                    on_count(through[0], len(tasks), "kernels")
        except (DiedError, TimedOutError) as error:
            with lock:
                left.clear()
            raise BuildError("an instrumented worker exited", why=str(error), fix="see the log") from error
        finally:
            worker.stop(patience=_LAST)

    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(work) for _ in range(min(workers, len(tasks)))]:
            future.result()
    if failed:
        console.note(f"{len(failed)} of {len(tasks)} kernels did not compile; the profile is of the others")
    return failed
