"""The simulation of campaigns: cases reckoned by hand, floors, and what must hold of any plan."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from toolchain.kernels.shards import heaviest
from toolchain.kernels.simulate import (
    Costs,
    Floor,
    Kernel,
    Prices,
    floor_of,
    list_schedule,
    simulate,
    spread,
)


def kernels(**clusters: list[float]) -> list[Kernel]:
    return [Kernel(name, one, size=1000) for name, inside in clusters.items() for one in inside]


def some(seed: int, count: int = 300) -> list[Kernel]:
    chance = random.Random(seed)
    return [Kernel(f"c{chance.randrange(40)}", chance.lognormvariate(0.7, 0.8), 20_000) for _ in range(count)]


def test_each_core_takes_the_next_kernel() -> None:
    # Two cores: 3 and 2; at 2 the 4, which ends at 6; at 3 the 1, which ends at 4.
    assert list_schedule([3, 2, 4, 1], 2) == 6
    assert list_schedule([3, 2, 4, 1], 1) == 10
    assert list_schedule([3, 2, 4, 1], 9) == 4
    assert list_schedule([], 3) == 0
    with pytest.raises(ValueError, match="core"):
        list_schedule([1], 0)


def test_one_who_hands_out_is_one_after_the_other() -> None:
    # Handed out at 1, 2, 3 and 4: what is as short as that keeps no second core busy.
    assert list_schedule([1, 1, 1, 1], 4, dispatch=1) == 5
    assert list_schedule([1, 1, 1, 1], 2, dispatch=1) == 5
    # One core: it waits for nobody else, and each kernel costs 1 and 2.
    assert list_schedule([2, 2], 1, dispatch=1) == 6
    # Two cores: from 1 to 11 and from 2 to 12; then handed out until 12, and that core ends at 22.
    assert list_schedule([10, 10, 10], 2, dispatch=1) == 22


def test_heavy_clusters_go_first() -> None:
    assert heaviest({"a": 5, "b": 4, "c": 3, "d": 3}, 2) == {"a": 0, "b": 1, "c": 1, "d": 0}


def test_a_campaign_reckoned_by_hand() -> None:
    """Clusters of 6, 5 and 4 seconds on two machines of two cores, with every cost."""
    plan = kernels(a=[4, 2], b=[3, 2], c=[2, 2])
    costs = Costs(name=0.5, miss=0.25, add=0.5, setup=10, core_setup=4, setup_size=500_000_000)
    found = simulate(plan, 2, cores=2, costs=costs, prices=Prices(core_hour=3600, gigabyte=2))
    # a alone: 12 before, 1.5 to ask for two, 4 to compile. b and c: 12, 3 for four, then 3 | 2+2 and 2: 3+2 = 5.
    assert found.seconds == 12 + 3 + 5
    assert found.used == 2
    assert found.core_hours == pytest.approx((17.5 + 20) * 2 / 3600)
    assert found.busy == pytest.approx(15 / 75)
    assert found.moved == 6000 + 1_000_000_000
    assert found.cost == pytest.approx(75 + 2.000012)


def test_adding_bounds_a_machine_whose_kernels_are_short() -> None:
    assert simulate(kernels(a=[1] * 10), 1, cores=10, costs=Costs(add=2)).seconds == 20


def test_hits_are_not_compiled_and_cost_what_the_store_costs() -> None:
    plan = [replace(one, hit=True) for one in kernels(a=[4, 2], b=[3, 2])]
    found = simulate(plan, 1, cores=4, costs=Costs(name=0.5, hit=1, miss=100, add=100))
    assert found.seconds == 4 * 1.5
    assert found.busy == 0
    assert found.moved == 4000, "they are fetched"
    half = [replace(one, hit=number < 2) for number, one in enumerate(kernels(a=[4, 2], b=[3, 2]))]
    assert simulate(half, 1, cores=4, costs=Costs(hit=1)).seconds == 2 + 3


def test_a_store_that_has_all_leaves_nothing_to_compile() -> None:
    plan = some(1)
    costs = Costs(name=0.001, hit=0.01, setup=5)
    full = [replace(one, hit=hit) for one, hit in zip(plan, spread(len(plan), 1.0), strict=True)]
    assert floor_of(full, cores=4).longest == 0
    for way in ("shards", "scheduler"):
        found = simulate(full, 1, cores=1, costs=costs, way=way)
        assert found.seconds == pytest.approx(5 + len(plan) * 0.011)
        assert found.busy == 0


def test_a_scheduler_divides_clusters_and_bounds_by_its_own_time() -> None:
    plan = kernels(a=[2] * 8)
    assert simulate(plan, 4, cores=2).seconds == 8, "one cluster is one machine's"
    assert simulate(plan, 4, cores=2, way="scheduler").seconds == 2
    slow = simulate(plan, 4, cores=2, costs=Costs(task=3), way="scheduler")
    assert slow.seconds == 8 * 3 + 2
    assert floor_of(plan, cores=2, costs=Costs(task=3), way="scheduler").total == 24


def test_the_floor_is_the_slowest_cluster_or_the_longest_kernel() -> None:
    plan = kernels(a=[2] * 8, b=[5], c=[1, 1])
    assert floor_of(plan, cores=2, costs=Costs(setup=3)) == Floor(longest=5, slowest=8, before=3, total=11)
    assert floor_of(plan, cores=2, way="scheduler").total == 5
    assert floor_of([], cores=2).total == 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("cores", [1, 4])
def test_what_holds_of_any_plan(seed: int, cores: int) -> None:
    plan = some(seed)
    work, longest = sum(one.seconds for one in plan), max(one.seconds for one in plan)
    for way in ("shards", "scheduler"):
        floor = floor_of(plan, cores=cores, way=way).total
        before = float("inf")
        for machines in (1, 2, 3, 5, 6, 7, 13, 14, 39, 40, 59):
            found = simulate(plan, machines, cores=cores, way=way)
            assert found.seconds >= floor - 1e-9
            assert found.seconds >= work / (machines * cores) - 1e-9
            assert found.core_hours * 3600 >= work - 1e-6
            assert 0 < found.busy <= 1 + 1e-9
            # Two levels of list scheduling are monotonic but for the last kernel; one level is so in full.
            assert found.seconds <= before + (longest if way == "shards" else 1e-9)
            before = found.seconds
    assert simulate(plan, 1000, cores=cores).seconds == pytest.approx(floor_of(plan, cores=cores).total)


def test_machines_without_a_kernel_are_not_paid_for() -> None:
    plan = kernels(a=[2], b=[2], c=[2])
    assert simulate(plan, 1000, cores=1, costs=Costs(setup=8)).core_hours == pytest.approx(30 / 3600)
    assert simulate(plan, 1000, cores=2, way="scheduler").used == 2
    assert simulate([], 5, cores=2, way="scheduler").seconds == 0
    with pytest.raises(ValueError, match="machine"):
        simulate(plan, 0, cores=1)


def test_a_share_is_spread_evenly() -> None:
    assert spread(6, 0.5) == [False, True, False, True, False, True]
    assert sum(spread(1001, 0.9)) == 901
    assert spread(0, 0.5) == []
    assert (any(spread(9, 0)), all(spread(9, 1))) == (False, True)
    with pytest.raises(ValueError, match="share"):
        spread(5, 1.5)
