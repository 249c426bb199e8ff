"""List the calls whose kernels are compiled for a Triton cache, and collect the outcomes of the calls."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolchain.catalog.gpus import check_gpu
from toolchain.catalog.limits import limits_of
from toolchain.core import strict_json
from toolchain.core.digest import canonical
from toolchain.core.errors import ConfigError, UnsupportedError
from toolchain.data import FOLDER, load, typed_row
from toolchain.kernels.cache_entries import PACKED, packed_kernels
from toolchain.kernels.ledger import DONE, Entry
from toolchain.kernels.rules import Rule

_FILE = FOLDER / "calls.toml"
_MOST = 10_000  # the maximum number of calls in a user's list; a call for several GPUs is counted once
_LARGEST = 1 << 24  # the largest whole number that a user may give for an argument


@dataclass(frozen=True, kw_only=True)
class WheelCalls:
    """A `[[wheel]]` table of data/calls.toml, which documents the fields."""

    wheel: str
    module: str
    gpus: tuple[str, ...]
    call: tuple[Mapping[str, Any], ...]
    of_gpu: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def selector(self) -> str:
        """The name of the argument that selects the function."""
        return next(name for name in self.call[0] if name != "gpus")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of a wheel's function for a GPU, or several calls that one process makes in order.

    Args:
        rows: the arguments of each call, by name.
        order: a name for the order of several calls; empty for one call.
    """

    gpu: str
    rows: tuple[Mapping[str, Any], ...]
    order: str = ""

    @property
    def shape(self) -> str:
        """The arguments as text, such as `direction=forward,dtype=bf16,heads=32x8`; for several calls, their order."""
        return self.order or ",".join(f"{name}={as_text(value)}" for name, value in self.rows[0].items())

    @property
    def name(self) -> str:
        """The GPU and `shape`, such as `gfx942/direction=forward,dtype=bf16`."""
        return f"{self.gpu}/{self.shape}"

    def task(self, id_: str) -> dict[str, Any]:
        """Return the task from which containerfiles/triton-cache/calls.py makes the call."""
        return {"id": id_, "calls": [dict(row) for row in self.rows]}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a call. `kernels` lists each launched kernel: its function, and its hash in Triton's cache."""

    call: Call
    entry: Entry
    kernels: tuple[tuple[str, str], ...]

    @property
    def done(self) -> bool:
        """Whether the kernels of the call were compiled."""
        return self.entry.status == DONE

    @property
    def refused(self) -> bool:
        """Whether the wheel raised an error because it does not support the GPU or the arguments."""
        return self.entry.refused


def as_text(value: Any) -> str:
    """Return an argument's value as text, such as `true`, `bf16` or `32x8`."""
    if isinstance(value, bool):
        return str(value).lower()
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def mount() -> str:
    """Return the path at which a cache must be mounted for Triton."""
    return str(load("calls")["mount"])


def calls_of(wheel: str) -> WheelCalls:
    """Return the table of a wheel's calls; raise UnsupportedError if there is none."""
    rows = {row["wheel"]: row for row in load("calls")["wheel"]}
    if wheel not in rows:
        raise UnsupportedError("wheel-without-calls",
            f"no calls of {wheel} are listed", why=f"{_FILE.name} lists calls of {', '.join(rows)}",
            fix=f"use --wheel {next(iter(rows))}; another wheel needs a module that makes its calls",
        )  # fmt: skip
    return typed_row(WheelCalls, rows[wheel], wheel, _FILE)


def listed(table: WheelCalls, gpus: Sequence[str]) -> list[Call]:
    """Return the calls for `gpus`, grouped by GPU; if `gpus` is empty, for all GPUs of the table.

    UnsupportedError is raised if a GPU is unknown, has no calls, or lacks its arguments in the table.
    """
    calls: list[Call] = []
    for gpu in sorted(gpus or table.gpus):
        check_gpu(gpu)
        if table.of_gpu and gpu not in table.of_gpu:
            raise UnsupportedError(
                "gpu-without-calls",
                f"no calls of {table.wheel} are possible for {gpu}",
                why=f"the arguments that depend on the GPU are known for {', '.join(table.of_gpu)}",
                fix=f"name one of these GPUs, or add yours to `of_gpu` in {_FILE.name}",
            )
        axes = [
            {name: values for name, values in row.items() if name != "gpus"}
            for row in table.call if gpu in row.get("gpus", table.gpus)
        ]  # fmt: skip
        if not axes:
            named = sorted({name for row in table.call for name in row.get("gpus", table.gpus)})
            raise UnsupportedError(
                "gpu-without-calls",
                f"no calls of {table.wheel} are listed for {gpu}",
                why=f"calls are listed for {', '.join(named)}",
                fix="name one of these GPUs, or list calls for yours: `kernels run triton-cache --calls FILE`",
            )
        more = table.of_gpu.get(gpu, {})
        calls += [
            Call(gpu=gpu, rows=({**dict(zip(axe, values, strict=True)), **more},))
            for axe in axes for values in itertools.product(*axe.values())
        ]  # fmt: skip
    return list({call.name: call for call in calls}.values())


def with_calls(table: WheelCalls, text: str, gpus: Sequence[str]) -> WheelCalls:
    """Return `table` with the user's calls in place of its own; only functions in the table may be called.

    Args:
        text: a JSON list of rows like those of `WheelCalls.call`.
        gpus: the GPUs of the returned table; if empty, those that the calls name. A call that names no GPU stands for
            all GPUs of `table`.

    Raises:
        ConfigError: a call is invalid, or the list is empty or too long.
        UnsupportedError: a call names an unknown GPU.
    """
    rows: list[dict[str, Any]] = []
    count = 0
    for number, row in enumerate(strict_json.read(text), start=1):
        axes = {name: value if isinstance(value, list) else [value] for name, value in row.items()}
        if axes.get("gpus") == []:
            raise _invalid(f"call {number} of --calls names no GPU", fix="name GPUs, or leave `gpus` out")
        for gpu in axes.get("gpus", ()):
            if not isinstance(gpu, str):
                raise _invalid(
                    f"call {number} of --calls: {json.dumps(gpu)} is not a GPU",
                    fix=f"name GPUs as in gpus = {json.dumps(table.gpus[:1])}",
                )
            check_gpu(gpu)
        _check(table, {name: values for name, values in axes.items() if name != "gpus"}, f"call {number} of --calls")
        count += math.prod(len(values) for name, values in axes.items() if name != "gpus")
        rows.append(axes)
    if not 0 < count <= _MOST:
        raise _invalid(f"--calls lists {count} calls", f"from 1 to {_MOST} calls are possible", fix="change the list")
    named = {gpu for row in rows for gpu in row.get("gpus", table.gpus)}
    return replace(table, call=tuple(rows), gpus=tuple(gpus) or tuple(sorted(named)))


def _check(table: WheelCalls, axes: Mapping[str, list[Any]], where: str) -> None:
    selector = table.selector
    known = list(dict.fromkeys(value for row in table.call for value in row[selector]))
    for value in axes.get(selector) or [None]:
        if value not in known:
            raise _invalid(
                f"{where} has no {selector}, only {', '.join(axes) or 'nothing'}"
                if value is None
                else f"{where}: {value!r} is not a known {selector}",
                f"known for {table.wheel}: {', '.join(known)}",
                fix=f'give a value as in {selector} = ["{known[0]}"]',
            )
        like = [row for row in table.call if value in row[selector]]
        takes = [name for name in like[0] if name != "gpus"]
        if wrong := [
            *(f"{name} is missing" for name in takes if not axes.get(name)),
            *(f"{name} is not one of its arguments" for name in axes if name not in takes),
        ]:
            raise _invalid(
                f"{where}: {wrong[0]}",
                f"the arguments of {value} are {', '.join(takes)}",
                fix="give exactly these arguments",
            )
        for name in takes:
            examples = [example for row in like for example in row[name]]
            for given in axes[name]:
                if not any(_may_replace(given, example) for example in examples):
                    raise _invalid(
                        f"{where}: {name} cannot be {json.dumps(given)}",
                        f"{name} must be {_kind(examples)}",
                        fix=f"give a value as in {name} = {json.dumps(examples[:1])}",
                    )


def _invalid(what: str, why: str = "", *, fix: str) -> ConfigError:
    return ConfigError("calls-invalid", what, why=why, fix=fix)


def _kind(examples: Sequence[Any]) -> str:
    """Return text that describes the values that `_may_replace` accepts for these examples."""
    if isinstance(examples[0], bool):
        return "true or false"
    if isinstance(examples[0], int):
        return f"a whole number from 1 to {_LARGEST}"
    if isinstance(examples[0], list):
        return f"a list such as {json.dumps(examples[0])}"
    return f"one of {', '.join(map(json.dumps, examples))}"


def _may_replace(value: Any, example: Any) -> bool:
    """Return whether a user may give `value` where the table has `example`.

    A whole number may be replaced by any whole number from 1 to `_LARGEST`, and a boolean by any boolean. A list may
    be replaced by a list of the same length whose items may replace those of the example. Any other value, such as
    a word, must be equal to the example.
    """
    if isinstance(example, list):
        pairs = zip(value, example, strict=False) if isinstance(value, list) else ()
        return isinstance(value, list) and len(value) == len(example) and all(itertools.starmap(_may_replace, pairs))
    if isinstance(example, bool) or isinstance(value, bool):
        return isinstance(example, bool) and isinstance(value, bool)
    if isinstance(example, int):
        return isinstance(value, int) and 0 < value <= _LARGEST
    return bool(value == example)


def in_orders(outcomes: Iterable[Outcome]) -> list[Call]:
    """Return two calls for each GPU that has successful calls. Each of the two repeats these calls in one process.

    The first repeats them in order, and the second in reverse order, because a kernel's key may depend on the kernels
    that Triton compiled before it in the process.

    Args:
        outcomes: the outcomes of the calls, grouped by GPU.
    """
    calls = []
    for gpu, group in itertools.groupby(
        (outcome.call for outcome in outcomes if outcome.done), key=lambda call: call.gpu
    ):
        rows = tuple(row for call in group for row in call.rows)
        calls += [Call(gpu=gpu, rows=rows, order="all in order"), Call(gpu=gpu, rows=rows[::-1], order="all backwards")]
    return calls


def local_memory(gpu: str) -> int:
    """Return how many bytes of LDS a workgroup can have on a GPU that `check_gpu` accepts."""
    limits = limits_of(gpu)
    assert limits is not None  # noqa: S101 - a test checks that each of these GPUs has limits
    return limits.lds


def rule_of(call: Call, module: str) -> Rule:
    """Return the rule that stands for a call made by `module`; its object is a tar of cache entries."""
    function = str(next(iter(call.rows[0].values())))
    return Rule(
        source=f"{module}.py", root="", kernel=call.order or function, signature=(),
        constexprs=(("calls", canonical([dict(row) for row in call.rows]).decode()),),
        target=call.gpu, num_warps=0, num_stages=0, waves_per_eu=0, options=(("lds", local_memory(call.gpu)),),
        out=f"{call.name}{PACKED}", cluster=call.name,
    )  # fmt: skip


def outcome_of(call: Call, entry: Entry, out: Path) -> tuple[Outcome, Mapping[str, Any]]:
    """Return the outcome of a call, and the worker's facts about Triton, which are empty unless the call succeeded."""
    if entry.status != DONE:
        return Outcome(call=call, entry=entry, kernels=()), {}
    kernels, about = packed_kernels(out / entry.out)
    return Outcome(call=call, entry=entry, kernels=kernels), about


def by_gpu(outcomes: Iterable[Outcome]) -> Iterator[dict[str, Any]]:
    """Yield a row with counts and seconds for each GPU. `outcomes` must be grouped by GPU."""
    for gpu, group in itertools.groupby(outcomes, key=lambda outcome: outcome.call.gpu):
        rows = list(group)
        alone = [row for row in rows if not row.call.order]
        yield {
            "gpu": gpu,
            "calls": len(alone),
            "refused": sum(outcome.refused for outcome in alone),
            "failed": sum(not outcome.done and not outcome.refused for outcome in alone),
            "kernels": len({hash_ for outcome in alone if outcome.done for _, hash_ in outcome.kernels}),
            "entries": len({hash_ for row in rows if row.done for _, hash_ in row.kernels}),
            "seconds": round(sum(row.entry.seconds for row in rows), 1),
        }
