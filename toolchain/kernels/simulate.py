"""A campaign on many machines, calculated from measured times: no machine is asked, and nothing is compiled.

The model is list scheduling of whole kernels. Each core takes the next kernel when it has finished one. Two ways:

- `shards`: clusters go to machines by `shards.heaviest`, and each machine works off its own kernels. Its
  one coordinating process names the results, asks the store, and adds to it, one after the other.
- `scheduler`: every core of every machine takes the next kernel of the whole. One scheduler hands them out, one after
  the other, and the workers themselves talk to the store.

What it leaves out: machines that die or wait for each other, a store that slows down when many ask, memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from toolchain.kernels.shards import heaviest

Way = Literal["shards", "scheduler"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One code object.

    Args:
        cluster: name of the kernels that stay together on one machine of `shards`.
        seconds: of one core.
        size: bytes of its result in a store.
        hit: the store has it.
    """

    cluster: str
    seconds: float
    size: int = 0
    hit: bool = False


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a kernel costs beside its compile, in seconds, and what a machine costs before its first kernel.

    Args:
        name: the name of a result, of each kernel.
        hit: fetched, checked and laid out.
        miss: asked for in vain.
        add: stored.
        task: of the scheduler's time, each kernel that is compiled; in `shards` there is none.
        setup: each machine, before it begins.
        core_setup: core seconds of each machine that its cores share, such as building a library.
        setup_size: bytes that each machine fetches before it begins.
    """

    name: float = 0.0
    hit: float = 0.0
    miss: float = 0.0
    add: float = 0.0
    task: float = 0.0
    setup: float = 0.0
    core_setup: float = 0.0
    setup_size: int = 0

    def before(self, cores: int) -> float:
        """Seconds of a machine before its first kernel."""
        return self.setup + self.core_setup / cores


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What is paid for a core hour and for a gigabyte that is moved."""

    core_hour: float = 0.0
    gigabyte: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a campaign takes.

    Args:
        machines: those that were asked for.
        used: those that have a kernel; the others are not paid for.
        seconds: until the last one has finished.
        core_hours: that are paid for: a machine's cores, from its setup to its end. In `shards` a machine ends with
            its own part, with a scheduler all of them stay to the end.
        busy: share of these in which a core compiles.
        moved: bytes between machines, store and registry.
        cost: by `Prices`.
    """

    machines: int
    used: int
    seconds: float
    core_hours: float
    busy: float
    moved: int
    cost: float


def list_schedule(seconds: Iterable[float], cores: int, *, dispatch: float = 0.0) -> float:
    """When the last of some kernels has finished, where each core takes the next one when it is free.

    Args:
        dispatch: seconds in which whoever hands a kernel out can hand out no other.

    Raises:
        ValueError: no core.
    """
    if cores < 1:
        raise ValueError("kernels need a core")
    waiting = iter(seconds)
    handed, last = 0.0, 0.0
    free: list[float] = []
    for one in islice(waiting, cores):
        handed += dispatch
        heapq.heappush(free, handed + one)
        last = max(last, handed + one)
    for one in waiting:
        handed = max(handed, free[0]) + dispatch if dispatch else free[0]
        end = handed + one
        heapq.heapreplace(free, end)
        last = max(last, end)
    return last


def simulate(
    kernels: Sequence[Kernel],
    machines: int,
    *,
    cores: int,
    costs: Costs | None = None,
    prices: Prices | None = None,
    way: Way = "shards",
) -> Outcome:
    """What a campaign takes on so many machines of so many cores.

    Raises:
        ValueError: no machine, or no core.
    """
    if machines < 1 or cores < 1:
        raise ValueError("a campaign needs a machine with a core")
    costs, prices = costs or Costs(), prices or Prices()
    ends = (_shards if way == "shards" else _scheduled)(kernels, machines, cores, costs)
    paid = sum(ends) * cores
    work = sum(one.seconds for one in kernels if not one.hit)
    moved = sum(one.size for one in kernels) + len(ends) * costs.setup_size
    return Outcome(
        machines=machines,
        used=len(ends),
        seconds=max(ends, default=0.0),
        core_hours=paid / 3600,
        busy=work / paid if paid else 0.0,
        moved=moved,
        cost=paid / 3600 * prices.core_hour + moved / 1e9 * prices.gigabyte,
    )


def _shards(kernels: Sequence[Kernel], machines: int, cores: int, costs: Costs) -> list[float]:
    # The cut does not know what the store has: it is made of all kernels' seconds.
    weights: dict[str, float] = {}
    for one in kernels:
        weights[one.cluster] = weights.get(one.cluster, 0.0) + one.seconds
    where = heaviest(weights, machines)
    parts: dict[int, list[Kernel]] = {}
    for one in kernels:
        parts.setdefault(where[one.cluster], []).append(one)
    return [costs.before(cores) + _machine(part, cores, costs) for part in parts.values()]


def _machine(kernels: Sequence[Kernel], cores: int, costs: Costs) -> float:
    """Seconds of one shard: the store is asked for all, then the rest is compiled and added as it comes."""
    left = [one.seconds for one in kernels if not one.hit]
    hits = len(kernels) - len(left)
    asked = len(kernels) * costs.name + hits * costs.hit + len(left) * costs.miss
    return asked + max(list_schedule(left, cores), len(left) * costs.add)


def _scheduled(kernels: Sequence[Kernel], machines: int, cores: int, costs: Costs) -> list[float]:
    asked = costs.name + costs.miss + costs.add
    spans = [one.seconds + asked if not one.hit else costs.name + costs.hit for one in kernels]
    used = min(machines, -(-len(kernels) // cores))
    if not used:
        return []
    end = costs.before(cores) + list_schedule(spans, used * cores, dispatch=costs.task)
    return [end] * used


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What no number of machines gets below, in seconds.

    Args:
        longest: the longest kernel that is compiled.
        slowest: the cluster that takes one machine the longest: in `shards` it is not divided.
        before: each machine's setup.
        total: the setup, and the longer of both that counts.
    """

    longest: float
    slowest: float
    before: float
    total: float


def floor_of(kernels: Sequence[Kernel], *, cores: int, costs: Costs | None = None, way: Way = "shards") -> Floor:
    """The floor of a campaign.

    Raises:
        ValueError: no core.
    """
    costs = costs or Costs()
    clusters: dict[str, list[Kernel]] = {}
    for one in kernels:
        clusters.setdefault(one.cluster, []).append(one)
    longest = max((one.seconds for one in kernels if not one.hit), default=0.0)
    slowest = max((_machine(inside, cores, costs) for inside in clusters.values()), default=0.0)
    tasks = len(kernels) * costs.task
    before = costs.before(cores)
    return Floor(
        longest=longest,
        slowest=slowest,
        before=before,
        total=before + (slowest if way == "shards" else max(longest, tasks)),
    )


def spread(count: int, share: float) -> list[bool]:
    """Which of `count` kernels a store has that has a share of them: evenly spread, `round(count * share)` in all.

    Raises:
        ValueError: no share.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"{share} is no share")
    hits = round(count * share)
    return [(at + 1) * hits // count > at * hits // count for at in range(count)]
