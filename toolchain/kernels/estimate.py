"""The kernels of a release with what each takes, for `simulate`: from a plan and ledgers where there are any.

Without a plan the kernels are counted by data/kernel_times.toml; without a ledger their seconds are those of that file.
"""

from __future__ import annotations

import math
import random
import sqlite3
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from toolchain import strict_json
from toolchain.data import load
from toolchain.errors import ConfigError, UnsupportedError
from toolchain.kernels.aotriton_plan import CLUSTER, COMPILE, FIELDS, lines
from toolchain.kernels.ledger import DONE
from toolchain.kernels.simulate import Kernel

# So many kernels of one function and GPU tell how its seconds lie; of fewer the data knows as much.
ENOUGH = 20
_NAME_A_PLAN = "name the folder that AOTriton's generator wrote"


@dataclass(frozen=True, slots=True)
class Planned:
    """A kernel that is to be compiled; `out` is empty where no plan names it."""

    kernel: str
    gpu: str
    cluster: str
    out: str = ""


@dataclass(frozen=True, kw_only=True)
class Times:
    """What kernels took.

    Args:
        exact: seconds by the path of an object.
        seen: seconds by function and GPU, sorted.
        sizes: mean bytes by function and GPU.
    """

    exact: Mapping[str, float]
    seen: Mapping[tuple[str, str], Sequence[float]]
    sizes: Mapping[tuple[str, str], int]


@dataclass(frozen=True)
class _Table:
    functions: Mapping[str, Mapping[str, Any]]
    gpus: Mapping[str, Mapping[str, Any]]
    spread: float
    cluster: int

    def factor(self, gpu: str) -> float:
        row = self.gpus.get(gpu, {})
        return float(row["factor"]) if "factor" in row else self.factor(row["factor-of"]) if row else 1.0


def _table() -> _Table:
    data = load("kernel_times")
    return _Table(data["kernel"], {row["name"]: row for row in data["gpu"]}, data["spread"], data["cluster"])


def counted(gpus: Sequence[str]) -> tuple[list[Planned], str]:
    """The kernels of some GPUs as the data counts them, and a sentence on where that is from.

    Raises:
        UnsupportedError: a GPU that nobody has counted.
    """
    table, commit = _table(), load("kernel_times")["commit"]
    if lacking := [gpu for gpu in gpus if gpu not in table.gpus]:
        raise UnsupportedError(
            f"nobody has counted the kernels of {', '.join(lacking)}",
            why=f"counted: {', '.join(table.gpus)}",
            fix="name the folder of AOTriton's plan with --plan",
        )
    found = []
    for gpu in gpus:
        for function, count in zip(table.functions, table.gpus[gpu]["kernels"], strict=True):
            found += [Planned(function, gpu, f"{gpu}/{function}/{at // table.cluster}") for at in range(count)]
    alike = [gpu for gpu in gpus if not table.gpus[gpu].get("counted", True)]
    also = f"; {', '.join(alike)} as gfx1100, not run" if alike else ""
    return found, f"counted by upstream's generator at {commit[:8]}, in clusters of {table.cluster}{also}"


def planned(folder: Path, gpus: Sequence[str]) -> list[Planned]:
    """The kernels of AOTriton's own plan, for some GPUs or, of none, for all in it.

    Args:
        folder: what the generator wrote, with `Bare.compile` and `Bare.cluster`.

    Raises:
        SourceError: they cannot be read, or have another form.
        ConfigError: no kernel for one of the GPUs.
    """
    clusters: dict[str, str] = {}
    for fields in lines(folder / CLUSTER, 5, fix=_NAME_A_PLAN):
        # Of several clusters that share an object the first stands for all: none was ever seen.
        for path in fields[4:]:
            clusters.setdefault(path, "/".join(fields[:4]))
    found: dict[str, Planned] = {}
    for fields in lines(folder / COMPILE, FIELDS, fix=_NAME_A_PLAN):
        path, function, gpu = fields[2], fields[4], fields[8]
        if not gpus or gpu in gpus:
            found[path] = Planned(function, gpu, clusters.get(path, path), path)
    if lacking := sorted(set(gpus) - {one.gpu for one in found.values()}):
        raise ConfigError(
            f"the plan in {folder} has no kernel for {', '.join(lacking)}", fix="name other GPUs with --gpu"
        )
    return list(found.values())


def times_of(ledgers: Iterable[Path]) -> Times:
    """What ledgers know. They are only read, also while campaigns write to them.

    Raises:
        ConfigError: one of them cannot be read.
    """
    exact: dict[str, float] = {}
    seen: dict[tuple[str, str], list[float]] = {}
    sizes: dict[tuple[str, str], list[int]] = {}
    for path in ledgers:
        try:
            with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as db:
                rows = [strict_json.read(content) for (content,) in db.execute("SELECT content FROM entry").fetchall()]
        except (sqlite3.Error, ValueError) as error:
            raise ConfigError(f"the ledger {path} cannot be read", why=str(error), fix="name another one") from error
        for row in rows:
            # What came from a store has another machine's seconds.
            if row.get("status") == DONE and not row.get("origin"):
                exact[row["out"]] = row["seconds"]
                seen.setdefault((row["kernel"], row["target"]), []).append(row["seconds"])
                sizes.setdefault((row["kernel"], row["target"]), []).append(row["size"])
    return Times(
        exact=exact,
        seen={key: sorted(inside) for key, inside in seen.items()},
        sizes={key: round(statistics.fmean(inside)) for key, inside in sizes.items()},
    )


def timed(plan: Sequence[Planned], times: Times) -> tuple[list[Kernel], Counter[str]]:
    """Each kernel with its seconds and bytes, and how many have their seconds from where.

    A kernel that a ledger has takes its seconds from there. Others take theirs in turn from what the ledgers have of
    its function and GPU, or from the distribution of the data: all quantiles alike, in an order by chance that is the
    same each time, so that kernels of one cluster are not alike.

    Raises:
        UnsupportedError: a function that neither knows.
    """
    table, origins = _table(), Counter[str]()
    groups: dict[tuple[str, str], list[int]] = {}
    seconds = [0.0] * len(plan)
    for at, one in enumerate(plan):
        # The plan's paths are those of the build that wrote it, a ledger's are below it.
        known = next((times.exact[path] for path in _tails(one.out) if path in times.exact), None)
        if known is not None:
            seconds[at] = known
            origins["ledger"] += 1
        else:
            groups.setdefault((one.kernel, one.gpu), []).append(at)
    for (function, gpu), places in groups.items():
        values, origin = _values(table, times, function, gpu, len(places))
        random.Random(f"{function} {gpu}").shuffle(values)  # noqa: S311 - an order, no secret
        origins[origin] += len(places)
        for at, value in zip(places, values, strict=True):
            seconds[at] = value
    return [
        Kernel(one.cluster, value, _size(table, times, one)) for one, value in zip(plan, seconds, strict=True)
    ], origins


def _tails(path: str) -> Iterator[str]:
    """`/build/plan/a/b`, `build/plan/a/b`, `plan/a/b`, `a/b`, `b`; nothing of an empty path."""
    while path:
        yield path
        path = path.partition("/")[2]


def _values(table: _Table, times: Times, function: str, gpu: str, count: int) -> tuple[list[float], str]:
    shares = [(at + 0.5) / count for at in range(count)]
    seen = times.seen.get((function, gpu), ())
    if len(seen) >= ENOUGH:
        return [seen[int(share * len(seen))] for share in shares], "ledger of the function"
    if function not in table.functions:
        raise UnsupportedError(
            f"nobody has measured {function}",
            why=f"measured: {', '.join(table.functions)}",
            fix=f"name a ledger with {ENOUGH} of its kernels for {gpu}: --ledger FILE",
        )
    median = float(table.functions[function]["median"]) * table.factor(gpu)
    normal = statistics.NormalDist(math.log(median), table.spread)
    return [math.exp(normal.inv_cdf(share)) for share in shares], "table"


def _size(table: _Table, times: Times, one: Planned) -> int:
    known = times.sizes.get((one.kernel, one.gpu))
    return known if known is not None else int(table.functions.get(one.kernel, {}).get("bytes", 0))


def kept_without(plan: Sequence[Planned]) -> tuple[str, list[bool]]:
    """The function with the most kernels, and which kernels a store still has when only its source has changed."""
    if not plan:
        return "", []
    largest = Counter(one.kernel for one in plan).most_common(1)[0][0]
    return largest, [one.kernel != largest for one in plan]
