"""Kernels on many machines, shown: real kernels by a Dask scheduler with faults, by shards, from a store and locally.

    many_machines.py --python P --other-python P2 --source TREE [--kernels 40] [--json FILE]
                     [--parts ways,orders,speed] [--rounds 3] [--orders 2000]

P is an interpreter with Triton, P2 one with another Triton, TREE the unpacked sdist of flash-attn that
`aotriton/flash-attn.toml` names. Run as root with the repository's own Python; needs iproute2, openssl and util-linux.

Machines are network namespaces with a switch of their own: one for the scheduler (TLS, certificates of a throw-away
authority), one for the campaign, four for workers. They see one kernel store, as by NFS. Each compile process is in a
namespace without interfaces. What happens:

- `one` dies with all that it runs while it compiles, and comes back; later the worker process of `two` is killed, and
  comes back;
- `liar` compiles other kernels than it is told; the campaign checks all that it is given (`--recheck all`);
- `other` has the other Triton.

Then four shards on two machines with a store each, merged; and a later campaign with the scheduler's store. All must
give what one machine alone gives: the layer that the stage would publish, all files, the exported ledger entries. The
figures: two local workers against one, `--rounds` times in turn; and `--orders` orders that do nothing, through the
whole path of a campaign on a scheduler.

Exit code 1 when anything is not as it must be. Ctrl-C ends all and removes everything; so does the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP))

from scripts.levers import cpu_of  # noqa: E402
from scripts.machine_roles import GPUS, Machine, command, new_machine, triton_of  # noqa: E402
from scripts.namespaces import Namespaces, kill, lacking, wait_for  # noqa: E402
from toolchain.kernels.shared import SharedResults  # noqa: E402
from toolchain.kernels.store import FolderStore  # noqa: E402

PORT = 8786
WORKERS = ("one", "two", "liar", "other")
PARTS = ("ways", "orders", "speed")
SLOTS = 32
_COMPARED = ("kernels", "layer", "files", "entries")


def until(true: Callable[[], object], what: str, seconds: float, alive: Sequence[subprocess.Popen[bytes]] = ()) -> None:
    """Wait for something, for so long, and while some programs run."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end or any(child.poll() is not None for child in alive):
            raise SystemExit(f"no {what}")
        time.sleep(0.05)


def say(text: str) -> None:
    """Tell how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@dataclass
class Protocol:
    """What is run, and what came of it.

    Args:
        root: a folder for all of it.
        like: what all machines have alike, see `Machine`.
        other: the same of the machine with another Triton.
    """

    root: Path
    like: Mapping[str, Any]
    other: Mapping[str, Any]
    ways: dict[str, dict[str, Any]] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)

    def check(self, what: str, *, holds: bool) -> None:
        """Note whether something is as it must be."""
        self.checks[what] = holds
        say(f"{'yes' if holds else 'NO'}: {what}")

    def way(self, name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Run one of the ways, and note what came out."""
        say(name)
        began, load = time.monotonic(), os.getloadavg()[0]
        found = run()
        self.ways[name] = {**found, "seconds": round(time.monotonic() - began, 1), "load": load}
        return found

    def local(self) -> dict[str, Any]:
        """One machine alone."""
        machine = new_machine(self.root / "local", self.like)
        return machine.digests(machine.run())

    def shards(self) -> dict[str, Any]:
        """Four shards on two machines, each with a folder and a store of its own, and what a third one merges."""
        stores = [FolderStore(self.root / f"store-{place}") for place in "ab"]
        compiled = 0
        for number in range(1, 5):
            place = "ab"[(number - 1) // 2]
            root = self.root / f"cache-{place}"
            machine = Machine(**{**self.like, "root": str(root)}) if root.exists() else new_machine(root, self.like)
            machine.run(shared=SharedResults([stores["ab".index(place)]], machine.naming()), part=(number, 4))
        for place in "ab":
            compiled += len(Machine(**{**self.like, "root": str(self.root / f"cache-{place}")}).began())
        merging = new_machine(self.root / "merged", self.like)
        found = merging.digests(merging.run(shared=SharedResults(stores, merging.naming(), only=True)))
        self.check(
            f"four shards compile {found['kernels']} kernels once, the merge none",
            holds=compiled == found["kernels"] and not merging.began(),
        )
        return found

    def from_store(self, store: Path) -> dict[str, Any]:
        """Another machine, with the store that a campaign left."""
        machine = new_machine(self.root / "later", self.like)
        found = machine.digests(machine.run(shared=SharedResults([FolderStore(store)], machine.naming())))
        self.check("a later campaign compiles nothing that the store has", holds=not machine.began())
        return found

    def scheduler(self, net: Namespaces) -> tuple[str, subprocess.Popen[bytes]]:
        """Start a scheduler in its namespace; its address, when it answers."""
        address = f"tls://{net.address('scheduler')}:{PORT}"
        trust = net.trust("scheduler")
        child = net.start(
            "scheduler",
            [sys.executable, "-m", "dask", "scheduler", "--protocol", "tls", "--host", net.address("scheduler"),
             "--port", str(PORT), "--no-dashboard", "--no-show",
             "--tls-ca-file", trust["DASK_DISTRIBUTED__COMM__TLS__CA_FILE"],
             "--tls-cert", trust["DASK_DISTRIBUTED__COMM__TLS__SCHEDULER__CERT"],
             "--tls-key", trust["DASK_DISTRIBUTED__COMM__TLS__SCHEDULER__KEY"]],
        )  # fmt: skip
        until(lambda: "Scheduler at:" in net.log("scheduler"), "scheduler", 120, [child])
        return address, child

    def dask(self, net: Namespaces, store: Path) -> dict[str, Any]:
        """A campaign on a scheduler; two workers die and come back, one lies, one has another Triton."""
        address, _ = self.scheduler(net)
        machines = {name: new_machine(self.root / name, self.like) for name in WORKERS[:2]}
        machines["liar"] = new_machine(self.root / "liar", self.like, lies=True)
        machines["other"] = new_machine(self.root / "other", self.other)

        def start(name: str) -> subprocess.Popen[bytes]:
            given = {"machine": machines[name], "name": name, "store": str(store), "address": address}
            return net.start(name, command("station", given, self.root / f"{name}.json"))

        stations = {name: start(name) for name in WORKERS}
        until(lambda: all("serves" in net.log(name) for name in WORKERS), "workers", 180, list(stations.values()))
        desk = new_machine(self.root / "desk", self.like)
        ordered = self.root / "desk.json"
        given = {"machine": desk, "store": str(store), "address": address}
        campaign = net.start("desk", command("campaign", given, ordered))
        for name, share, whole in (("one", 0.2, True), ("two", 0.5, False)):
            most = round(share * self.like["kernels"])
            until(partial(_has_results, store, most), "results", 1800, [campaign])
            begun = len(machines[name].began())
            until(partial(_begins_another, machines[name], begun), f"kernel on {name}", 300, [campaign])
            kill(stations[name], whole=whole)
            say(f"killed {name}, {len(stored(store))} results in the store")
            time.sleep(3)
            stations[name] = start(name)
        if wait_for(campaign, 3600):
            raise SystemExit(f"the campaign failed:\n{net.log('desk')[-4000:]}")
        found: dict[str, Any] = json.loads(ordered.with_suffix(".result").read_text())
        self._judge(found, machines, desk, store)
        return found

    def _judge(
        self, found: dict[str, Any], machines: Mapping[str, Machine], desk: Machine, store: Path
    ) -> None:  # fmt: skip
        began = {name: machine.began() for name, machine in machines.items()}
        lies = {row["rule"] for row in began["liar"]}
        naming, rules = desk.naming(), {rule.id: rule for rule in desk.rules().rules}
        there = stored(store)
        arrived = {one: there[naming.name(rule)] for one, rule in rules.items() if naming.name(rule) in there}
        honest = [row for name in ("one", "two") for row in began[name]]
        twice = [row for row in honest if row["rule"] not in lies and row["at"] > arrived[row["rule"]]]
        again = {row["rule"] for row in honest} & lies
        # Each kernel ends once at an honest worker; what they began beyond that ended with them.
        lost = len(honest) - len(rules)
        said, origins = found["shared"]["lied"], Counter(found["origins"].values())
        found |= {
            "began": {**{name: len(rows) for name, rows in began.items()}, "check": len(desk.began())},
            "lost_with_workers": lost,
            "lies": len(lies),
            "said_of_the_liar": len(said.get("worker liar", [])),
            "by_origin": dict(origins),
        }
        self.check("the two workers were killed in the middle of a kernel, and lost that alone", holds=lost == 2)
        self.check("all results are in the store", holds=len(arrived) == len(rules))
        self.check("what reached the store was not compiled again", holds=not twice)
        self.check("the liar is named, and nobody else", holds=list(said) == ["worker liar"] and bool(lies))
        self.check(
            "all that the liar gave was compiled by others, nothing of it is left",
            holds=lies <= again and not {"worker liar"} & origins.keys(),
        )
        refused = {name: list(why.values()) for name, why in found["refused"].items()}
        self.check(
            "the worker of another Triton is refused by name, and compiled nothing",
            holds=refused.get("other") == ["it was made by another Triton"] and not began["other"],
        )
        self.check("the workers that died are not refused", holds=not {"one", "two"} & refused.keys())

    def compare(self) -> None:
        """Hold the ways against one machine alone."""
        same = {name: [way[part] for part in _COMPARED] for name, way in self.ways.items()}
        for name, found in same.items():
            if name != "local":
                self.check(f"{name}: layer, files and entries are those of one machine", holds=found == same["local"])

    def efficiency(self, rounds: int) -> dict[str, Any]:
        """Kernels by one local worker and by two, in turn."""
        rows: list[dict[str, Any]] = []
        for turn in range(rounds):
            for workers in (1, 2) if turn % 2 == 0 else (2, 1):
                say(f"{workers} local workers")
                machine = new_machine(self.root / f"speed-{turn}-{workers}", self.like)
                own = resource.getrusage(resource.RUSAGE_CHILDREN)
                began = time.monotonic()
                result = machine.run(workers=workers)
                wall = time.monotonic() - began
                used = resource.getrusage(resource.RUSAGE_CHILDREN)
                spent = used.ru_utime + used.ru_stime - own.ru_utime - own.ru_stime
                compiling = sum(entry.seconds for entry in result.entries)
                rows.append({
                    "workers": workers,
                    "seconds": round(wall, 2),
                    "cpu_each": round(spent / len(result.entries), 4),
                    "busy": round(compiling / wall / workers, 3),
                    "load": round(os.getloadavg()[0], 1),
                })  # fmt: skip
                say(json.dumps(rows[-1]))
        one, two = ([row for row in rows if row["workers"] == workers] for workers in (1, 2))
        pairs = [a["seconds"] / b["seconds"] / 2 for a, b in zip(one, two, strict=True)]
        cpu, busy = (
            [statistics.median(row[what] for row in some) for some in (one, two)] for what in ("cpu_each", "busy")
        )
        return {
            "runs": rows,
            "efficiency": [round(one, 3) for one in pairs],
            "median": round(statistics.median(pairs), 3),
            "cpu_each": cpu,
            "busy": busy,
            # What others take of the cores is in neither.
            "efficiency_by_cpu": round(cpu[0] / cpu[1] * busy[1] / busy[0], 3),
        }

    def overhead(self, net: Namespaces, count: int, rounds: int) -> dict[str, Any]:
        """Orders that do nothing, through scheduler and executor."""
        say(f"{count} orders that do nothing, {rounds} times")
        address, scheduler = self.scheduler(net)
        given = {"address": address, "store": str(self.root / "store-idle"), "scratch": str(self.root / "idle-dask")}
        idle = {**given, "machine": new_machine(self.root / "idle", self.like), "slots": SLOTS}
        worker = net.start("one", command("idle", idle, self.root / "idle.json"))
        until(lambda: "serves" in net.log("one"), "worker", 120, [scheduler, worker])
        asked = {**given, "machine": new_machine(self.root / "asking", self.like), "orders": count, "rounds": rounds}
        file, before = self.root / "asking.json", [cpu_of(one.pid) for one in (scheduler, worker)]
        if wait_for(net.start("desk", command("orders", asked, file)), 1800):
            raise SystemExit(f"the orders failed:\n{net.log('desk')[-4000:]}")
        after = [cpu_of(one.pid) for one in (scheduler, worker)]
        found = json.loads(file.with_suffix(".result").read_text())["rounds"]

        def each(seconds: float) -> float:
            return round(1000 * seconds / count, 3)

        used = [each((new - old) / rounds) for old, new in zip(before, after, strict=True)]
        return {
            "orders": count,
            "slots": SLOTS,
            "ms_each": [each(one["seconds"]) for one in found],
            "ms_naming": [each(one["naming"]) for one in found],
            "cpu_ms": {
                "scheduler": used[0],
                "worker": used[1],
                "campaign": each(statistics.median(one["campaign_cpu"] for one in found)),
            },
            "load": os.getloadavg()[0],
        }


def stored(store: Path) -> dict[str, float]:
    """The results of a folder: when each came there, by name."""
    found = {}
    for path in store.glob("results/*/*"):
        with contextlib.suppress(OSError):
            found[path.parent.name + path.name] = path.stat().st_mtime
    return found


def _has_results(store: Path, least: int) -> bool:
    return len(stored(store)) >= least


def _begins_another(machine: Machine, begun: int) -> bool:
    return len(machine.began()) > begun


def table(told: Mapping[str, Any]) -> list[str]:
    """What came out, as Markdown."""
    ways, checks = told.get("ways", {}), told.get("checks", {})
    lines = ["| way | kernels | layer | all files | exported entries | seconds |", "|---" * 6 + "|"]
    for name, way in ways.items():
        digests = " | ".join(f"`{way[part].removeprefix('sha256:')[:16]}…`" for part in _COMPARED[1:])
        lines.append(f"| {name} | {way['kernels']} | {digests} | {way['seconds']:.0f} |")
    lines += ["", "| check | |", "|---|---|"]
    lines += [f"| {what} | {'yes' if holds else '**no**'} |" for what, holds in checks.items()]
    if speed := told.get("efficiency"):
        lines += ["", "| local workers | s | CPU s a kernel | compiling | load |", "|---" * 5 + "|"]
        lines += [
            f"| {row['workers']} | {row['seconds']} | {row['cpu_each']} | {row['busy']:.1%} | {row['load']} |"
            for row in speed["runs"]
        ]
        whole, by_cpu = speed["efficiency"], speed["efficiency_by_cpu"]
        lines += [
            "",
            f"Efficiency {whole}, median {speed['median']}; by CPU seconds and time that they compile {by_cpu}",
        ]
    if cost := told.get("overhead"):
        lines += ["", f"{cost['orders']} orders, {cost['slots']} slots: {cost['ms_each']} ms each"]
        lines += [f"CPU milliseconds of them: {cost['cpu_ms']}"]
    return lines


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What was asked for; `parts` as a list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter with Triton")
    parser.add_argument("--other-python", default="", help="an interpreter with another Triton")
    parser.add_argument("--source", required=True, type=Path, help="the unpacked sdist of flash-attn")
    parser.add_argument("--kernels", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--orders", type=int, default=2000)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of these, with commas between")
    parser.add_argument("--json", type=Path, help="all that came out; written after each part")
    given = parser.parse_args(arguments)
    given.parts = given.parts.split(",")
    if not set(given.parts) <= set(PARTS) or min(given.kernels, given.rounds, given.orders) < 1:
        parser.error(f"--parts are of {','.join(PARTS)}, numbers are 1 or more")
    if not given.other_python and "ways" in given.parts:
        parser.error("--other-python is needed for the ways")
    return given


def main(arguments: Sequence[str]) -> int:
    """Run as a program."""
    given = parse(arguments)
    if why := lacking():
        raise SystemExit(f"this machine cannot have machines of its own: {why}")
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, lambda number, _: sys.exit(128 + number))
    triton = triton_of(given.python)
    other = triton_of(given.other_python) if given.other_python else {}
    if other.get("digest") == triton["digest"]:
        raise SystemExit("--python and --other-python have the same Triton")
    like = {
        "python": given.python, "triton": triton["digest"], "source": str(given.source.resolve()),
        "kernels": given.kernels,
    }  # fmt: skip
    told: dict[str, Any] = {"triton": triton, "other": other, "gpus": GPUS, "cores": os.cpu_count()}

    def note(**more: Any) -> None:
        told.update(more)
        if given.json:
            given.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="many-machines-") as folder:
        root = Path(folder)
        protocol = Protocol(root, like, {**like, "python": given.other_python, "triton": other.get("digest", "")})
        names = ("scheduler", "desk", *WORKERS)
        try:
            if "ways" in given.parts:
                store = root / "store"
                protocol.way("local", protocol.local)
                with Namespaces(root / "faults", names) as net:
                    protocol.way("Dask, with faults", lambda: protocol.dask(net, store))
                protocol.way("four shards and a merge", protocol.shards)
                protocol.way("from the store of Dask", lambda: protocol.from_store(store))
                protocol.compare()
        finally:
            note(ways=protocol.ways, checks=protocol.checks)
        if "orders" in given.parts:
            with Namespaces(root / "idle-net", names) as net:
                note(overhead=protocol.overhead(net, given.orders, given.rounds))
        if "speed" in given.parts:
            note(efficiency=protocol.efficiency(given.rounds))
    print("\n".join(table(told)))
    return 0 if all(protocol.checks.values()) else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
