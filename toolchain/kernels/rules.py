"""Read, select and order rules, each of which describes one code object to compile."""

from __future__ import annotations

import ast
import fnmatch
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from toolchain.catalog.gpus import check_gpu
from toolchain.core.digest import canonical, sha256_json
from toolchain.core.errors import ConfigError, SourceError
from toolchain.data import read_toml

Value = str | int | float | bool | None
NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One code object to compile.

    Args:
        source: the path of the kernel's Python file below the source tree, with `/`.
        root: the folder of the source tree that is on the module path; empty or `.` for the tree itself.
        kernel: the name of the jit function.
        signature: (argument, type) pairs in the function's order. The type is `constexpr` if `constexprs` contains the
            argument.
        constexprs: (argument, value) pairs, sorted.
        target: LLVM's name for the GPU.
        options: other (name, value) pairs for Triton's backend, sorted.
        out: the object's path below the output folder, with `/`; the object's JSON is beside it.
        cluster: the name of the rule's group; a selection or shard never splits a group.
    """

    source: str
    root: str
    kernel: str
    signature: tuple[tuple[str, str], ...]
    constexprs: tuple[tuple[str, Value], ...]
    target: str
    num_warps: int
    num_stages: int
    waves_per_eu: int
    out: str
    cluster: str
    options: tuple[tuple[str, Value], ...] = ()
    # The id is computed when it is first used. A cached property would need a dictionary for each rule.
    _id: str = field(default="", init=False, repr=False, compare=False)

    @property
    def id(self) -> str:
        """16 hex digits of a SHA-256 over all fields that decide the object, but not over the content of files."""
        if not self._id:
            object.__setattr__(self, "_id", sha256_json(self._content()).removeprefix("sha256:")[:16])
        return self._id

    def _content(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "root": self.root,
            "kernel": self.kernel,
            "signature": dict(self.signature),
            "constexprs": dict(self.constexprs),
            "target": self.target,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "waves_per_eu": self.waves_per_eu,
            "options": dict(self.options),
        }

    def task(self, tree: str, out: str) -> dict[str, Any]:
        """Return the task for a worker that compiles this rule. `tree` and `out` are paths as the worker sees them."""
        base = PurePosixPath(tree)
        return {
            **self._content(),
            "id": self.id,
            "root": str(base / self.root),
            "source": str(base / self.source),
            "out": str(PurePosixPath(out) / self.out),
        }


@dataclass(frozen=True)
class RuleSet:
    """The selected rules, in the order of the plan, and the number of rules in the whole plan."""

    rules: tuple[Rule, ...]
    total: int

    @property
    def partial(self) -> bool:
        """Whether rules are missing from this set, because `--select`, `--limit` or `--shard` left them out."""
        return len(self.rules) < self.total

    @cached_property
    def digest(self) -> str:
        """A digest of the selected rules."""
        return sha256_json([[rule.id, rule.out, rule.cluster] for rule in self.rules])


def in_order(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the rules in an order in which rules that share work are adjacent.

    Rules of one function, GPU, signature, constants and options share the first compiler stages. Groups of such rules
    keep the order of their first rules.
    """
    groups: dict[tuple[Any, ...], dict[tuple[int, int], list[Rule]]] = {}
    for rule in rules:
        same = (rule.source, rule.kernel, rule.target, rule.signature, rule.constexprs, rule.options)
        groups.setdefault(same, {}).setdefault((rule.num_warps, rule.num_stages), []).append(rule)
    return tuple(rule for inside in groups.values() for alike in inside.values() for rule in alike)


def cut(rules: Iterable[Rule], *, select: str | None = None, limit: int | None = None) -> RuleSet:
    """Return the rules of the clusters that `select` and `limit` choose; no cluster is split.

    Args:
        select: a glob. A cluster is taken if the glob matches the kernel, the cluster or the id of one of its rules;
            None takes all clusters.
        limit: the number of rules at which no more clusters are taken; None for no limit. Clusters are taken
            round-robin from all pairs of GPU and kernel.

    Raises:
        ConfigError: `select` matches no rule, or `limit` is below 1.
    """
    everything = tuple(rules)
    if limit is not None and limit < 1:
        raise ConfigError(
            "kernel-limit-invalid", f"--limit {limit} selects no kernels", fix="give --limit 1 or more, or omit it"
        )
    clusters: dict[str, list[Rule]] = {}
    for rule in everything:
        clusters.setdefault(rule.cluster, []).append(rule)
    if select is not None:
        clusters = {name: inside for name, inside in clusters.items() if any(_matches(r, select) for r in inside)}
        if not clusters:
            kernels = ", ".join(sorted({rule.kernel for rule in everything}))
            raise ConfigError(
                "select-no-match",
                f"--select {select!r} matches no kernel",
                why=f"the kernels are {kernels}",
                fix="give a glob that matches one of these",
            )
    if limit is not None:
        clusters = _first(clusters, limit)
    kept = [rule for rule in everything if rule.cluster in clusters]
    return RuleSet(tuple(kept), len(everything))


def _matches(rule: Rule, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for text in (rule.kernel, rule.cluster, rule.id))


def _first(clusters: Mapping[str, list[Rule]], limit: int) -> dict[str, list[Rule]]:
    # Clusters are taken round-robin, so that a small selection covers several GPUs and kernels.
    queues: dict[tuple[str, str], list[str]] = {}
    for name, inside in clusters.items():
        queues.setdefault((inside[0].target, inside[0].kernel), []).append(name)
    taken: dict[str, list[Rule]] = {}
    left = limit
    for round_of_names in itertools.zip_longest(*queues.values()):
        for name in round_of_names:
            if name is None:
                continue
            if left <= 0:
                return taken
            taken[name] = clusters[name]
            left -= len(clusters[name])
    return taken


def load_rules(
    data: Path, source_root: Path, gpus: Sequence[str], *, select: str | None = None, limit: int | None = None
) -> RuleSet:
    """Return the rules that a data file describes, for the given GPUs.

    Args:
        data: a TOML file; aotriton/flash-attn.toml explains its form.
        source_root: the source tree that the data file describes. Its modules are parsed, but not imported.
        select, limit: see `cut`.

    Raises:
        ConfigError: the data file is unusable, two rules have the same id or output path, or `cut` raises it.
        SourceError: a kernel's source is unreadable, or does not have the function and arguments in the data file.
        UnsupportedError: a GPU is unknown.
    """
    for gpu in gpus:
        check_gpu(gpu)
    content = read_toml(data)
    root, targets = content["source"]["root"], sorted(set(gpus))
    rules = [rule for kernel in content["kernel"] for rule in _kernel(data, source_root, root, kernel, targets)]
    for what in ("id", "out"):
        seen: set[str] = set()
        for rule in rules:
            if getattr(rule, what) in seen:
                raise ConfigError(
                    "rules-collide",
                    f"{data}: two rules have the {what} {getattr(rule, what)}",
                    fix="change one of them in the data file",
                )
            seen.add(getattr(rule, what))
    return cut(rules, select=select, limit=limit)


def _kernel(data: Path, tree: Path, root: str, kernel: Mapping[str, Any], gpus: Sequence[str]) -> Iterator[Rule]:
    source, function = kernel["source"], kernel["function"]
    names = _arguments(tree / root / source, function)
    group = f"{PurePosixPath(source).stem}.{function}"
    for choice in _choices(kernel.get("axes", {}), kernel.get("skip", [])):
        resolved = _resolve(f"{data}: {group}", names, kernel["arguments"], choice)
        label = "_".join(f"{axis}-{canonical(value).decode().strip(chr(34))}" for axis, value in choice.items())
        for gpu in gpus:
            yield Rule(
                source=str(PurePosixPath(root) / source),
                root=root,
                kernel=function,
                signature=tuple((name, kind) for name, (kind, _) in resolved.items()),
                constexprs=tuple(
                    sorted((name, value) for name, (kind, value) in resolved.items() if kind == "constexpr")
                ),
                target=gpu,
                num_warps=kernel["num_warps"],
                num_stages=kernel["num_stages"],
                waves_per_eu=kernel["waves_per_eu"],
                out=f"{gpu}/{group}/{label or 'only'}.hsaco",
                cluster=f"{gpu}/{group}",
                options=tuple(sorted(kernel.get("options", {}).items())),
            )


def _choices(axes: Mapping[str, Sequence[Value]], skip: Sequence[Mapping[str, Value]]) -> Iterator[dict[str, Value]]:
    for values in itertools.product(*axes.values()):
        choice = dict(zip(axes, values, strict=True))
        if not any(all(choice.get(axis) == value for axis, value in without.items()) for without in skip):
            yield choice


def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a kernel source file; raise SourceError if the file cannot be read or parsed."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = str(error.strerror) if isinstance(error, OSError) else "it is not valid Python in UTF-8"
        raise SourceError(
            "kernel-source-unreadable",
            f"cannot read the kernel source {path}",
            why=why,
            fix="restore or correct this file",
        ) from error


def arguments_of(module: ast.Module, function: str) -> list[ast.arg] | None:
    """Return the positional arguments of a module's function in their order; None if there is no such function."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return [*node.args.posonlyargs, *node.args.args]
    return None


def _arguments(path: Path, function: str) -> dict[str, bool]:
    """Return the positional arguments of a function in their order, and whether each must be a constant."""
    arguments = arguments_of(parsed(path), function)
    if arguments is None:
        raise SourceError(
            "kernel-function-missing",
            f"{path} has no function {function}",
            fix="use the source version that the data file names",
        )
    return {
        argument.arg: argument.annotation is not None and "constexpr" in ast.unparse(argument.annotation)
        for argument in arguments
    }


def _resolve(
    where: str, names: Mapping[str, bool], arguments: Mapping[str, Value], choice: Mapping[str, Value]
) -> dict[str, tuple[str, Value]]:
    """Return the type and value of each argument in `names`.

    Args:
        arguments: types and values by name or glob. An exact name takes precedence over globs, and an earlier glob
            over a later one.
        names: the arguments of the function, each with whether it must be a constant.
        choice: the values of the axes; see `_fill`.
    """
    resolved: dict[str, tuple[str, Value]] = {}
    used: set[str] = set()
    for name, constant in names.items():
        pattern = next((p for p in arguments if p == name), None)
        if pattern is None:
            pattern = next((p for p in arguments if fnmatch.fnmatchcase(name, p)), None)
        if pattern is None:
            raise SourceError(
                "kernel-argument-missing",
                f"{where}: the argument {name} has no type or value",
                fix="use the source version that the data file names",
            )
        used.add(pattern)
        value = _fill(arguments[pattern], choice)
        if not isinstance(value, str):
            resolved[name] = ("constexpr", value)
        elif value == NONE:
            resolved[name] = ("constexpr", None)
        elif constant:
            raise ConfigError(
                "kernel-argument-constant",
                f"{where}: {name} is a constant of the kernel, but {value!r} is a type",
                fix=f"give {name} a value in the data file",
            )
        else:
            resolved[name] = (value, None)
    if idle := sorted(set(arguments) - used):
        raise SourceError(
            "kernel-argument-unknown",
            f"{where}: the kernel has no argument {', '.join(idle)}",
            fix="use the source version that the data file names",
        )
    return resolved


def _fill(value: Value, choice: Mapping[str, Value]) -> Value:
    """Return `value` with each `{axis}` replaced; a string that is only `{axis}` becomes the value of the axis."""
    if not isinstance(value, str):
        return value
    if value.startswith("{") and value.endswith("}") and value[1:-1] in choice:
        return choice[value[1:-1]]
    for axis, chosen in choice.items():
        value = value.replace("{" + axis + "}", str(chosen))
    return value
