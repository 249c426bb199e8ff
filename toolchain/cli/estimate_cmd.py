"""`kernels estimate`: what a release takes on many machines, before anybody rents them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from toolchain import console
from toolchain.catalog.costs import cost_of, costs
from toolchain.catalog.gpus import known_gpus
from toolchain.catalog.releases import aotriton_release
from toolchain.cli.request import with_request
from toolchain.errors import ConfigError
from toolchain.kernels.estimate import counted, kept_without, planned, timed, times_of
from toolchain.kernels.simulate import Costs, Kernel, Outcome, Prices, floor_of, simulate, spread
from toolchain.option_values import is_store_folder
from toolchain.option_values import recheck as share_of
from toolchain.request import Request

MACHINES = "1,2,5,10,20,50,100,200,500,1000"
# Seconds a kernel, measured: docs/measurements/index.md, Shared. By the kind of store.
STORES = {
    "folder": Costs(name=0.0004, hit=0.023, miss=0.0007, add=0.016),
    "layout": Costs(name=0.0006, hit=0.025, miss=0.0002, add=0.003),
    "registry": Costs(name=0.0003, hit=0.032, miss=0.0014, add=0.017),
}

MachinesOpt = Annotated[str, typer.Option("--machines", help="Numbers of machines, with commas between.")]
CoresOpt = Annotated[int, typer.Option("--cores", min=1, help="Cores of each machine; each compiles one kernel.")]
WayOpt = Annotated[
    Literal["shards", "scheduler"],
    typer.Option("--way", help="How kernels are spread: whole clusters (--shard), or one by one by a scheduler."),
]
ReusedOpt = Annotated[
    str | None,
    typer.Option(
        "--reused",
        metavar="SHARE",
        help="Share of results that a second release takes from the store: 0.9, 90% or all."
        " \\[default: all but the function with the most kernels]",
    ),
]
PlanOpt = Annotated[Path | None, typer.Option("--plan", help="Folder with the kernel list of AOTriton's generator.")]
LedgerOpt = Annotated[
    list[Path] | None, typer.Option("--ledger", help="A ledger to take seconds from, beside those in the cache.")
]
TaskOpt = Annotated[
    float, typer.Option("--task-ms", min=0, help="Milliseconds that the scheduler takes for each kernel.")
]
SetupOpt = Annotated[float, typer.Option("--setup", min=0, help="Seconds that a machine needs before it can begin.")]
HourOpt = Annotated[float, typer.Option("--core-hour", min=0, help="Price of a core hour, in any currency.")]
GigabyteOpt = Annotated[float, typer.Option("--gigabyte", min=0, help="Price of a GB that is moved.")]


@with_request("jobs", "contract", "shard", "select", "limit", "recheck")
def kernels_estimate(
    machines: MachinesOpt = MACHINES,
    cores: CoresOpt = 32,
    way: WayOpt = "shards",
    reused: ReusedOpt = None,
    plan: PlanOpt = None,
    ledger: LedgerOpt = None,
    task_ms: TaskOpt = 1.0,
    setup: SetupOpt = 300.0,
    core_hour: HourOpt = 0.04,
    gigabyte: GigabyteOpt = 0.05,
    *,
    request: Request,
) -> None:
    """Estimate what a whole release of AOTriton's kernels takes on many machines. Starts nothing, uses no network.

    The default prices are placeholders.
    """
    numbers, gpus = _numbers(machines), _gpus(request, plan)
    rows, whence = (
        counted(gpus) if plan is None else (planned(plan, gpus), f"the plan in {console.one_line(str(plan))}")
    )
    times = times_of([*sorted(request.cache.work.glob("*/ledger.sqlite")), *(ledger or ())])
    kernels, origins = timed(rows, times)
    store = "registry"
    if request.kernel_store is not None:
        place = request.kernel_store
        store = "folder" if is_store_folder(place) else "layout" if place.startswith("oci:") else "registry"
    each = replace(
        STORES[store], task=task_ms / 1000, setup=setup, core_setup=_library(), setup_size=_image_bytes()
    )  # fmt: skip
    if reused is None:
        largest, hits = kept_without(rows)
        how = f"the source of {largest} has changed"
    else:
        hits, how = spread(len(rows), _share(reused)), "as --reused says"
    again = [replace(one, hit=hit) for one, hit in zip(kernels, hits, strict=True)]
    prices = Prices(core_hour=core_hour, gigabyte=gigabyte)

    def told(some: Sequence[Kernel]) -> dict[str, Any]:
        floor = floor_of(some, cores=cores, costs=each, way=way)
        outcomes = [simulate(some, one, cores=cores, costs=each, prices=prices, way=way) for one in numbers]
        return {"floor": asdict(floor), "machines": [_row(one) for one in outcomes]}

    document = {
        "gpus": sorted({one.gpu for one in rows}),
        "kernels": len(rows),
        "clusters": len({one.cluster for one in rows}),
        "plan": whence,
        "seconds_from": dict(sorted(origins.items())),
        "core_hours": round(sum(one.seconds for one in kernels) / 3600, 3),
        "bytes": sum(one.size for one in kernels),
        "way": way,
        "cores": cores,
        "store": store,
        "costs": asdict(each),
        "prices": asdict(prices),
        "first_release": told(kernels),
        "second_release": {"reused": round(sum(hits) / len(hits), 4) if hits else 0.0, "how": how, **told(again)},
    }
    if request.json:
        console.data(document)
        return
    for line in screen(document):
        console.text(line)


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(re.fullmatch(r"[1-9]\d{0,5}", part.strip()) for part in parts):
        raise ConfigError(f"--machines {text!r} are no numbers of machines", fix="e.g. --machines 1,10,100")
    return sorted({int(part) for part in parts})


def _share(text: str) -> float:
    try:
        return share_of(text)
    except ConfigError as error:
        raise ConfigError(f"--reused {text!r} is no share", fix="e.g. --reused 90%, 0.9 or all") from error


def _gpus(request: Request, plan: Path | None) -> Sequence[str]:
    if request.gpus or plan is not None:
        return request.gpus
    if request.aotriton is not None:
        return aotriton_release(request.aotriton, allow_unknown=True).gpus
    return known_gpus()


def _library() -> float:
    """Core seconds of AOTriton's library, which each shard builds: the middle of what was seen."""
    cost = cost_of("aotriton")
    return sum(cost.minutes) / 2 * cost.cores * 60 if cost is not None else 0.0


def _image_bytes() -> int:
    """Packed bytes of the Triton image, base included."""
    packed = {one.stage: one.output[0] for one in costs() if one.output and not one.part}
    return (packed["base"] + packed["triton"]) * 1_000_000


def _row(one: Outcome) -> dict[str, Any]:
    return {
        "machines": one.machines,
        "used": one.used,
        "hours": round(one.seconds / 3600, 4),
        "core_hours": round(one.core_hours, 3),
        "busy": round(one.busy, 4),
        "bytes": one.moved,
        "cost": round(one.cost, 2),
    }


def screen(told: Mapping[str, Any]) -> Iterator[str]:
    """An estimate for people, of lines of 80 columns but for what the user named."""
    yield f"{told['kernels']:,} kernels in {told['clusters']:,} clusters, for {len(told['gpus'])} GPUs"
    yield from _wrapped(f"kernels: {told['plan']}")
    origins = ", ".join(f"{count:,} by {name}" for name, count in told["seconds_from"].items())
    yield f"seconds: {origins}; {told['core_hours']:,.1f} core hours of compiling"
    way = f"{told['cores']} cores a machine, by {told['way']}"
    yield f"objects: {console.size(told['bytes'])}; store: {told['store']}; {way}"
    yield f"prices: {told['prices']['core_hour']:g} a core hour, {told['prices']['gigabyte']:g} a GB"
    yield from _part("the first release", told["first_release"])
    second = told["second_release"]
    yield from _part(f"a second one, {second['reused']:.0%} from the store", second)
    yield f"  ({second['how']}; after another Triton it is a first one)"


def _part(title: str, part: Mapping[str, Any]) -> Iterator[str]:
    floor = part["floor"]
    yield ""
    yield f"{title}: never below {console.duration(floor['total'])}"
    yield (
        f"  (setup {console.duration(floor['before'])}, slowest cluster {floor['slowest']:.0f} s,"
        f" longest kernel {floor['longest']:.0f} s)"
    )
    yield f"{'machines':>10} {'used':>6} {'hours':>9} {'core hours':>11} {'busy':>6} {'GB':>8} {'cost':>10}"
    for row in part["machines"]:
        yield (
            f"{row['machines']:>10,} {row['used']:>6,} {row['hours']:>9.2f} {row['core_hours']:>11,.1f}"
            f" {row['busy']:>6.0%} {row['bytes'] / 1e9:>8.1f} {row['cost']:>10,.2f}"
        )


def _wrapped(text: str) -> list[str]:
    import textwrap  # noqa: PLC0415 - for people

    return textwrap.wrap(text, 80, subsequent_indent="  ")
