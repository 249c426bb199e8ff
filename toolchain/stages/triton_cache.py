"""Compile a wheel's Triton kernels ahead of time into a Triton cache, in an image that MCV can also read.

MCV is Red Hat's Model Cache Vault, a program that unpacks Triton caches from OCI images. docs/tasks/wheels.md describes
the format of these images.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain.catalog.wheel_rows import wheel_row
from toolchain.core import console, recipe, strict_json
from toolchain.core.cache import LEDGER
from toolchain.core.digest import write_atomically
from toolchain.core.errors import ContractError, KernelError, UnsupportedError
from toolchain.core.filesystem import emptied
from toolchain.core.recipe import Mount, digests
from toolchain.core.stored_file import on_disk
from toolchain.kernels import cache_entries as triton_cache
from toolchain.kernels.calls import (
    Call,
    Outcome,
    WheelCalls,
    by_gpu,
    calls_of,
    in_orders,
    listed,
    local_memory,
    mount,
    outcome_of,
    rule_of,
    with_calls,
)
from toolchain.kernels.campaign import CampaignResult
from toolchain.kernels.ledger import Ledger
from toolchain.kernels.pool import CompileSetup
from toolchain.kernels.result_name import Naming
from toolchain.kernels.rules import RuleSet, cut
from toolchain.kernels.shards import shard_of
from toolchain.oci import labels
from toolchain.request.model import Request
from toolchain.stages import kernel_workers
from toolchain.stages.inputs import stage_inputs, triton_id
from toolchain.stages.kernel_check import STEP, check_files
from toolchain.stages.kernel_workers import (
    SCRATCH,
    VARIABLES,
    compiling,
    layer_digests,
    limits,
    part_of_kernels,
    stored_kernels,
    workers_here,
)
from toolchain.stages.stage import Built, ContractCheck, ImageParts, LayerContent, Planned, Workspace
from toolchain.stages.wheel import environment

RECIPE = "containerfiles/triton-cache"
# These are paths in a container: of the recipe, of the folder with the module that makes the calls, and of the file
# with the calls that the contract check makes.
_SEEN, _MODULES, _CHECKED = f"/recipe/{RECIPE}", "/src/calls", "/calls"
_NAMED = (f"{RECIPE}/calls.py", f"{RECIPE}/worker.py")
MADE = "made"  # the folder that Triton writes to, below the campaign's folder
_LISTED = 20


@dataclass(frozen=True)
class TritonCacheDetails:
    """The calls whose kernels fill a cache, and the table of the wheel's calls."""

    table: WheelCalls
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class TritonCacheStage:
    """The stage that compiles the kernels of a wheel's calls into a Triton cache.

    The only layer of the image contains the cache, and a manifest that describes the cache's entries to MCV.
    """

    name: str = "triton-cache"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[TritonCacheDetails]:
        details = requested_calls(request)
        table, calls = details.table, details.calls
        below = {name: dependencies[name].input_digest for name in ("torch", "triton", table.wheel)}
        part = part_of_kernels(request)
        more = {
            "recipe": digests(f"{RECIPE}/calls.py", f"{RECIPE}/{table.module}.py"),
            "module": table.module,
            "calls": [call.name for call in calls],
            "mount": mount(),
            "keep_going": request.keep_going,
            **limits(request),
            **({"part": part} if part else {}),
        }
        wheel, triton = dependencies[table.wheel], dependencies["triton"]
        stem = f"triton-cache-partial-{table.wheel}" if part else f"triton-cache-{table.wheel}"
        return Planned(
            name=self.name,
            image=f"{stem}-triton-{triton_id(triton)}-{dependencies['base'].details.name}",
            inputs=stage_inputs(self.name, request, below, more),
            binaries=wheel.binaries,
            partial=part,
            engine=True,
            has_contract_check=True,
            note=f"for {len(calls)} calls of {table.wheel}; other shapes are compiled when they are first used",
            details=details,
        )

    def build(
        self, planned: Planned[TritonCacheDetails], dependencies: Mapping[str, Built], workspace: Workspace
    ) -> Built:
        request, table, calls = workspace.request, planned.details.table, planned.details.calls
        out = workspace.work() / "out"
        at = compile_setup(dependencies[table.wheel], out, workspace)
        workspace.step("compile")
        shared = workspace.shared_results(at.naming)
        with Ledger(workspace.work() / LEDGER) as ledger:
            rules = cut([rule_of(call, table.module) for call in calls], select=request.select, limit=request.limit)
            shard = shard_of(rules, request.shard, shared, limits(request))
            with compiling(at, workspace, shared) as workers:
                result = workers.run(shard.rules, ledger, calls=True)
            outcomes, about = outcomes_of(result, calls, out)
            _require_compiled(outcomes, keep_going=request.keep_going)
            shard.finish(shared, result.entries)
            _require_any(outcomes)
            # Results that were not compiled on this machine are added to the folder into which Triton compiles here.
            _unpack(outcomes, out)
            ordered: list[Outcome] = []
            if request.shard is None:
                # The calls are repeated in several orders, because a kernel's key may depend on earlier kernels. A
                # shard does not repeat them, because it contains only some of the calls.
                orders = in_orders(outcomes)
                here = workers_here(at, workspace, None if shared is None or shared.only else shared)
                orders_of = RuleSet(tuple(rule_of(call, table.module) for call in orders), len(orders))
                ordered, about = outcomes_of(here.run(orders_of, ledger, calls=True), orders, out)
                _require_compiled(ordered, keep_going=False)
                _unpack(ordered, out)
        everything = sorted([*outcomes, *ordered], key=lambda outcome: outcome.call.gpu)
        for row in by_gpu(everything):
            console.note(", ".join(f"{name} {value}" for name, value in row.items()))
        kernels = {
            (outcome.call.gpu, name, hash_) for outcome in everything if outcome.done for name, hash_ in outcome.kernels
        }
        tree = emptied(workspace.work() / "tree")
        entries = triton_cache.lay_out(out / MADE, kernels, tree, mount())
        triton_cache.write_manifest(entries, tree, about["mcv_key"])
        numbers = _check_numbers(tree, workspace)
        bad, refused = (
            [outcome for outcome in outcomes if not outcome.done and outcome.refused is kind] for kind in (False, True)
        )
        parts = [planned.partial] if planned.partial else []
        parts += [f"{len(refused)} calls refused by {table.wheel}"] if refused else []
        parts += [f"{len(bad)} calls known bad"] if bad else []
        planned = replace(planned, partial=", ".join(parts))
        counts = {
            "done": sum(outcome.done for outcome in outcomes),
            "failed": sum(outcome.entry.status == "failed" for outcome in bad),
            "timed_out": sum(outcome.entry.status == "timeout" for outcome in bad),
        }
        triton = dependencies["triton"]
        return workspace.finish(
            planned,
            LayerContent(tree=tree),
            ImageParts(
                binaries=True,
                labels={
                    **triton_cache.labels(entries),
                    labels.KERNELS: json.dumps(counts, sort_keys=True),
                    labels.CACHE_MOUNT: mount(),
                    labels.CACHE_TRITON: triton.input_digest,
                    labels.CACHE_TRITON_LAYER: layer_digests(triton, workspace.cache)[-1],
                    labels.CACHE_TRITON_KEY: f"sha256:{about['triton_key']}",
                    **triton_cache.key_label(about["mcv_key"]),
                    labels.CACHE_TRITON_PATH: about["path"],
                    labels.CACHE_CALLS: json.dumps([outcome.call.name for outcome in outcomes if outcome.done]),
                },
            ),
            facts={
                "kernels": counts,
                "known_bad": [outcome.call.name for outcome in bad],
                "failures": {outcome.call.name: outcome.entry.reason for outcome in bad},
                "refused": {outcome.call.name: outcome.entry.reason for outcome in refused},
                **stored_kernels(outcome.entry for outcome in everything),
                "by_gpu": list(by_gpu(everything)),
                "entries": len(entries),
                "bytes": sum(entry.size for entry in entries),
                "about": {name: about[name] for name in ("triton", "python", "path", "triton_key")},
                "gpus": sorted({call.gpu for call in calls}),
                **({"numbers": numbers} if numbers else {}),
            },
            check=ContractCheck(run=_check_hits(table, everything, workspace), on=dependencies[table.wheel]),
        )


def requested_calls(request: Request) -> TritonCacheDetails:
    """Return the calls whose kernels are compiled: those of `--calls`, or else those in data/calls.toml.

    An error is raised if the request names more than one wheel, if no calls are listed for the wheel or a GPU, or if
    the calls of `--calls` are invalid.
    """
    if len(request.wheels) > 1:
        raise UnsupportedError(
            "several-wheels",
            "a Triton cache contains the kernels of only one wheel",
            why=f"--wheel names {', '.join(request.wheels)}",
            fix="build a cache for each wheel",
        )
    table = calls_of(_wheel(request))
    if request.calls is not None:
        table = with_calls(table, request.calls, request.gpus)
    return TritonCacheDetails(table, tuple(listed(table, request.gpus)))


def stands_on(request: Request) -> tuple[str, ...]:
    """Return the names of the stages below a cache."""
    return ("base", "torch", "triton", _wheel(request))


def _wheel(request: Request) -> str:
    return next(iter(request.wheels), "flash-attn")


def variables(wheel: str) -> dict[str, str]:
    """Return environment variables for the programs that call a wheel's functions.

    They are those of the wheel's image and some more, such as the path of Triton's cache.
    """
    home = {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}  # noqa: S108 - the path is in a container
    return {**environment([wheel_row(wheel)]), **home, "TRITON_CACHE_DIR": mount()}


def compile_setup(built: Built, out: Path, workspace: Workspace) -> CompileSetup:
    """Return the `CompileSetup` whose processes call the functions of a wheel, so that Triton fills its cache."""
    image = workspace.image_to_run(built)
    made = out / MADE
    if workspace.request.fresh:
        # A crash of the machine may have damaged entries here. The results of finished calls bring theirs again.
        emptied(made)
    (made / triton_cache.LAUNCHES).mkdir(parents=True, exist_ok=True)
    own = variables(built.planned.name)
    naming = Naming(
        recipe.root() / RECIPE,
        triton=layer_digests(built, workspace.cache),
        recipe=digests(*_NAMED),
        environment={
            **VARIABLES,
            **own,
            "PYTHONPATH": f"{own['PYTHONPATH']}:{_MODULES}",
            "TRITON_STORE_BINARY_ONLY": "1",
            "CALLS_LAUNCHES": f"{mount()}/{triton_cache.LAUNCHES}",
        },
        command=("python3", f"{_SEEN}/worker.py"),
    )
    # The cache is mounted at its final path, because Triton writes this path into the cache. The processes may share
    # the cache, because all of them have the same image, files and environment.
    cache = Mount(made, mount(), read_only=False)
    return kernel_workers.compile_setup(
        naming, image, workspace, source=_MODULES, out=out, scratch=out.with_name(SCRATCH), mounts=[cache]
    )


def outcomes_of(result: CampaignResult, calls: Sequence[Call], out: Path) -> tuple[list[Outcome], Mapping[str, Any]]:
    """Return the outcomes of calls, in the order of `calls`, and the workers' facts about Triton.

    Calls that the campaign did not contain have no outcome. The facts are empty if no call compiled.
    """
    by_name = {entry.cluster: entry for entry in result.entries}
    found = [outcome_of(call, by_name[call.name], out) for call in calls if call.name in by_name]
    return [outcome for outcome, _ in found], next((about for _, about in found if about), {})


def _unpack(outcomes: Sequence[Outcome], out: Path) -> None:
    for outcome in outcomes:
        if outcome.done:
            triton_cache.unpack(out / outcome.entry.out, out / MADE)


def _reasons(outcomes: Sequence[Outcome]) -> str:
    return "\n".join(
        f"{outcome.call.name}: {outcome.entry.reason.splitlines()[-1][:300]}" for outcome in outcomes[:_LISTED]
    )


def _require_compiled(outcomes: Sequence[Outcome], *, keep_going: bool) -> None:
    """Raise KernelError if calls failed or timed out, unless `keep_going` is set.

    Calls that the wheel refused are not failures.
    """
    bad = [outcome for outcome in outcomes if not outcome.done and not outcome.refused]
    if bad and not keep_going:
        raise KernelError(
            "kernels-failed",
            f"{len(bad)} of {len(outcomes)} calls did not compile",
            why=_reasons(bad),
            fix="use `kernels run triton-cache` with --keep-going to leave them out, "
            "or with --kernel-timeout SECONDS to give them more time",
        )


def _require_any(outcomes: Sequence[Outcome]) -> None:
    """If no call compiled, raise UnsupportedError if the wheel refused all of them, otherwise KernelError."""
    if any(outcome.done for outcome in outcomes):
        return
    why = _reasons(outcomes)
    if all(outcome.refused for outcome in outcomes):
        raise UnsupportedError(
            "wheel-refuses-calls", "the wheel refuses every call", why=why, fix="name other GPUs with --gpu"
        )
    raise KernelError(
        "kernels-failed",
        f"none of {len(outcomes)} calls compiled",
        why=why,
        fix="give them more time with --kernel-timeout SECONDS, or name other GPUs with --gpu",
    )


def _check_numbers(tree: Path, workspace: Workspace) -> dict[str, Any]:
    if workspace.request.check is None:
        return {}
    paths = [path for path in sorted(tree.rglob("*")) if path.is_file()]
    files = [on_disk(path, path.relative_to(tree).as_posix(), tree) for path in paths]
    workspace.step(STEP)
    return check_files(
        files, workspace.request, label="the cache", jobs=workspace.jobs("kernel"), progress=workspace.count
    )


def _not_served(rows: Sequence[Outcome], answers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return why repeated calls show that Triton does not use the whole cache; an empty string if it does.

    Args:
        answers: the answers of containerfiles/triton-cache/calls.py by the call's name.
    """
    for row in rows:
        if (answer := answers.get(row.call.name)) is None:
            return f"{row.call.name} was not answered"
        if answer["status"] != "done":
            return f"{row.call.name} failed: {answer['reason']}"
        if missed := sorted({str(kernel["name"]) for kernel in answer["kernels"] if not kernel["hit"]}):
            return f"{row.call.name} compiled {', '.join(missed)} again"
        if (count := len(answer["kernels"])) < len(row.kernels):
            return f"{row.call.name} launched {count} kernels instead of {len(row.kernels)}"
    return ""


def _check_hits(
    table: WheelCalls, outcomes: Sequence[Outcome], workspace: Workspace
) -> Callable[[str], Mapping[str, Any]]:
    """Return a contract check that repeats the calls that compiled, for each GPU in a fresh container with the cache.

    The check raises ContractError if a call fails, launches fewer kernels than in the campaign, or makes Triton compile
    a kernel again, and if the program that makes the calls fails.
    """

    def check(image: str) -> Mapping[str, Any]:
        workspace.step("contract")
        hits = 0
        done_calls = [outcome for outcome in outcomes if outcome.done]
        for gpu in dict.fromkeys(outcome.call.gpu for outcome in done_calls):
            rows = [outcome for outcome in done_calls if outcome.call.gpu == gpu]
            file = workspace.work() / f"{gpu}.jsonl"
            lines = [json.dumps(row.call.task(row.call.name)) for row in rows]
            write_atomically(file, "\n".join(lines).encode() + b"\n")
            command = f'cp -r /{triton_cache.FOLDER} {mount()} && exec python3 {_SEEN}/calls.py "$@" {_CHECKED}'
            done = workspace.runner.run(
                image,
                ["sh", "-c", command, "sh", gpu, str(local_memory(gpu)), table.module],
                mounts=[Mount(recipe.root() / RECIPE, _SEEN), Mount(file, _CHECKED)],
                env=variables(table.wheel),
                log=workspace.log,
                capture=True,
                check=False,
            )
            try:
                answers = {row["id"]: row for row in map(strict_json.read, done.stdout.splitlines()[1:])}
                why = "\n".join(done.tail) if done.returncode != 0 else _not_served(rows, answers)
                hits += sum(kernel["hit"] for answer in answers.values() for kernel in answer["kernels"])
            except (ValueError, KeyError, TypeError):  # the program ended in the middle of a line, or is hostile
                why = "\n".join(done.tail) or "an answer is malformed"
            if why:
                raise ContractError(
                    "cache-not-served",
                    f"Triton does not use the whole cache for {gpu} in a fresh container",
                    why=why,
                    fix="see the log",
                )
        return {"hits": hits}

    return check
