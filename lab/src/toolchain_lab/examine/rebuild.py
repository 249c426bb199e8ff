"""Compile some of the audited kernels again from their source, and compare the bytes."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError, SourceError
from toolchain.kernels.aotriton_plan import FLATZIP, read_plan
from toolchain.kernels.rules import Rule
from toolchain_lab.examine.audit import Audit, objects_of
from toolchain_lab.examine.contents import key_of
from toolchain_lab.examine.kernels import Kernel
from toolchain_lab.examine.launch_values import of_rule
from toolchain_lab.examine.recompile import Triton, compile_rules, rule_of


def rebuild(
    audited: Audit,
    count: int,
    triton: Triton,
    cache: Cache,
    *,
    source: Path,
    plan: Path | None,
    seed: int,
    timeout: float,
) -> dict[str, bool]:
    """Compile randomly chosen kernels again, and return, by key, whether each compiled to the same bytes.

    Args:
        count: the maximum number of kernels to compile.
        source: the root of the kernels' source.
        plan: the folder that AOTriton's generator wrote; if it is None, the compilation inputs are read from the JSON
            file next to each code object.
        timeout: the average time in seconds that a kernel may take; only the total time of all kernels is limited.
    """
    kernels = {kernel.key: kernel for kernel in audited.kernels if kernel.facts is not None}
    rules = _planned(plan, source, audited) if plan is not None else _beside(audited.what, kernels)
    usable = sorted(kernels.keys() & rules.keys())
    if not usable:
        raise ConfigError(
            "origin-unknown",
            "the compilation inputs of these kernels are unknown",
            why="packs of AOTriton need the plan of its generator, and code objects need their JSON files",
            fix="give --plan DIR, or name the folder of a campaign",
        )
    chosen = random.Random(seed).sample(usable, min(count, len(usable)))  # noqa: S311 - the sample must be reproducible
    result = {}
    with tempfile.TemporaryDirectory(prefix="toolchain-rebuild-") as scratch:
        tasks = []
        for number, key in enumerate(chosen):
            rule = rules[key]
            task: Any = rule_of(rule, source) if isinstance(rule, Path) else rule
            tasks.append({**task, "out": str(Path(scratch, str(number), "kernel.hsaco"))})
        answers = compile_rules(tasks, triton, cache, timeout=timeout * len(tasks))
        for key, answer in zip(chosen, answers, strict=True):
            result[key] = answer["status"] == "done" and answer["sha256"] == kernels[key].sha256
    return result


def _beside(what: str, kernels: Mapping[str, Kernel]) -> dict[str, Any]:
    root = Path(what)
    paths = {key: root / kernel.path for key, kernel in kernels.items() if kernel.launch}
    return {key: path for key, path in paths.items() if path.with_suffix(".json").is_file()}


def _rules(plan: Path, source: Path) -> dict[str, Rule]:
    """Return the rules of a plan, by the path of the code object.

    The paths in the plan may lie outside of `plan` and `source`, because both folders may have been moved.
    """
    try:
        with (plan / FLATZIP).open(encoding="utf-8") as stream:
            build = stream.readline().split(";")[3].partition("/aks2/")[0]
        with (plan / "Bare.compile").open(encoding="utf-8") as stream:
            file = stream.readline().split(";")[3]
    except (OSError, IndexError, UnicodeDecodeError) as error:
        why = error.strerror or "it cannot be read" if isinstance(error, OSError) else "its first line is not a rule"
        fix = "give the folder that AOTriton's generator wrote: --plan"
        raise SourceError("plan-missing", f"{plan} contains no plan of AOTriton", why=why, fix=fix) from error
    tree = file.partition("/modules/")[0]
    return {rule.out: rule for rule in read_plan(plan, source, build=build, source=tree).rules}


def launches_of(plan: Path, source: Path) -> Callable[[str, int], Mapping[str, Any] | None]:
    """Return a function that returns the launch values of a kernel, given its path in a pack and its LDS in bytes.

    The returned function returns None for a kernel that is not in the plan.
    """
    rules, keys = _rules(plan, source), objects_of(plan, ())

    def launch(path: str, shared: int) -> Mapping[str, Any] | None:
        out = keys.get(key_of(path))
        return None if out is None else of_rule(rules[out], shared)

    return launch


def _planned(plan: Path, source: Path, audited: Audit) -> dict[str, Any]:
    """Return a plan's tasks by kernel key; as in AOTriton, float32 dot products are compiled with IEEE precision."""
    rules = _rules(plan, source)
    keys = objects_of(plan, sorted(gpu for gpu in audited.gpus() if gpu.startswith("gfx")))
    return {key: {**rules[path].task(str(source.resolve()), "/"), "precision": "ieee"} for key, path in keys.items()}
