"""What the machines of many_machines.py do: a campaign, a shard, a worker of a scheduler, orders that do nothing.

`machine_roles.py ROLE FILE` runs one of them in a namespace; FILE is JSON, see `Machine` and the roles.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP))

from toolchain.digest import sha256_file, sha256_json  # noqa: E402
from toolchain.kernels.campaign import CampaignResult, run_campaign  # noqa: E402
from toolchain.kernels.dask_executor import DaskExecutor  # noqa: E402
from toolchain.kernels.dask_status import ask  # noqa: E402
from toolchain.kernels.dask_worker import serve  # noqa: E402
from toolchain.kernels.executors import LocalExecutor  # noqa: E402
from toolchain.kernels.ledger import FAILED, Ledger, reproducible  # noqa: E402
from toolchain.kernels.result_name import Naming  # noqa: E402
from toolchain.kernels.rules import RuleSet, load_rules  # noqa: E402
from toolchain.kernels.shards import shard_of  # noqa: E402
from toolchain.kernels.shared import SharedResults  # noqa: E402
from toolchain.kernels.station import Bench, Limits, Station  # noqa: E402
from toolchain.kernels.store import FolderStore  # noqa: E402
from toolchain.oci.layer import write_layer  # noqa: E402
from toolchain.sources.tree import tree_digest  # noqa: E402
from toolchain.stages.kernel_workers import WORKER_FILES  # noqa: E402

GPUS = ("gfx942", "gfx1100")
LIMITS = Limits(timeout=900)
_WORKER, _STANDIN = TOP / "aotriton" / "worker.py", TOP / "aotriton" / "standin"


def triton_of(python: str) -> dict[str, str]:
    """Version and digest of the Triton of an interpreter. The digest is that of all its files."""
    code = "import triton, pathlib; print(triton.__version__); print(pathlib.Path(triton.__file__).parent)"
    done = subprocess.run([python, "-B", "-c", code], check=True, capture_output=True, text=True)
    version, folder = done.stdout.split("\n")[:2]
    files = {
        str(path.relative_to(folder)): sha256_file(path)
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    return {"version": version, "digest": sha256_json(files)}


class Noted:
    """The way to a compile process: notes each task before it goes there, and changes it for a liar."""

    def __init__(self, stream: Any, log: Path, *, lies: bool) -> None:
        self._stream, self._log, self._lies = stream, log, lies

    def write(self, text: str) -> None:
        task = json.loads(text)
        if self._lies:
            # An object that Triton made, for this GPU and of this kernel: only compiling it again finds it.
            task["waves_per_eu"] = 2 if task["waves_per_eu"] != 2 else 1
        row = {"rule": str(task["id"]).split()[0], "at": time.time()}
        with self._log.open("ab", buffering=0) as stream:
            stream.write(json.dumps(row).encode() + b"\n")
        self._stream.write(json.dumps(task) + "\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine that compiles: its own folder, and what all machines have alike.

    Args:
        root: its folder; holds ledger, objects, and `compiled.jsonl`, a line for each kernel that it began.
        python: an interpreter with Triton.
        triton: digest of that Triton.
        source: the unpacked source of flash-attn, only read.
        kernels: how many.
        lies: it compiles something else than it is told.
    """

    root: str
    python: str
    triton: str
    source: str
    kernels: int
    lies: bool = False

    @property
    def out(self) -> Path:
        """Folder of the objects."""
        return Path(self.root) / "out"

    @property
    def log(self) -> Path:
        """A line for each kernel that it began to compile."""
        return Path(self.root) / "compiled.jsonl"

    def rules(self) -> RuleSet:
        """What is compiled."""
        return load_rules(TOP / "aotriton" / "flash-attn.toml", Path(self.source), GPUS, limit=self.kernels)

    def naming(self) -> Naming:
        """Names the results, as a stage does; the digest of Triton's files stands for the layers of its image."""
        recipe = {name: sha256_file(TOP / name) for name in WORKER_FILES} | {"standin": tree_digest(_STANDIN)}
        return Naming(Path(self.source), triton=[self.triton], recipe=recipe, environment={}, search=[""])

    @contextlib.contextmanager
    def start(self) -> Iterator[subprocess.Popen[str]]:
        """Start a compile process, in a network namespace without interfaces."""
        home = Path(self.root) / "home"
        home.mkdir(exist_ok=True)
        pipe = subprocess.PIPE
        with subprocess.Popen(
            ["unshare", "--net", self.python, str(_WORKER)],
            stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True,
            env={"PATH": os.defpath, "HOME": str(home), "PYTHONPATH": f"{_STANDIN}:{self.source}"},
        ) as child:  # fmt: skip
            child.stdin = Noted(child.stdin, self.log, lies=self.lies)  # type: ignore[assignment]
            yield child

    def local(self, workers: int) -> LocalExecutor:
        """Compile processes on this machine."""
        return LocalExecutor(self.start, workers=workers, timeout=LIMITS.timeout)

    def began(self) -> list[dict[str, Any]]:
        """The kernels that it began to compile: `{"rule", "at"}`."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def run(
        self,
        *,
        workers: int = 1,
        shared: SharedResults | None = None,
        part: tuple[int, int] | None = None,
        address: str = "",
        on_count: Any = None,
    ) -> CampaignResult:
        """Run a campaign: here, or by the workers of a scheduler."""
        shard = shard_of(self.rules(), part, shared)
        here = self.local(workers)
        with contextlib.ExitStack() as stack:
            ledger = stack.enter_context(Ledger(Path(self.root) / "ledger.sqlite"))
            executor: LocalExecutor | DaskExecutor = here
            if address:
                executor = stack.enter_context(
                    DaskExecutor(
                        address, rules=shard.rules.rules, shared=shared, out=self.out, limits=LIMITS, patience=120
                    )
                )
            result = run_campaign(
                shard.rules, executor, ledger, self.out, worker_tree=self.source, shared=shared, checker=here,
                tell=executor.tell if isinstance(executor, DaskExecutor) else None, on_count=on_count,
            )  # fmt: skip
        shard.finish(shared, result.entries)
        return result

    def digests(self, result: CampaignResult) -> dict[str, Any]:
        """What came out: the layer that the stage would publish, all files with names, the exported entries."""
        files = {str(path.relative_to(self.out)): sha256_file(path) for path in self.out.rglob("*") if path.is_file()}
        layer = write_layer(self.out, Path(self.root) / "layer.tar", epoch=0)
        (Path(self.root) / "layer.tar").unlink()
        return {
            "kernels": result.counts()["done"],
            "files": sha256_json(files),
            "layer": layer.diff_id,
            "entries": sha256_json(reproducible(result.entries)),
            "shared": dict(result.shared),
        }


def new_machine(root: Path, like: Mapping[str, Any], **other: Any) -> Machine:
    """A machine with a new folder."""
    root.mkdir(parents=True)
    return Machine(**{**like, "root": str(root), **other})


def station(given: Mapping[str, Any]) -> None:
    """A worker of a scheduler: `{"machine", "name", "store", "address"}`."""
    machine = Machine(**given["machine"])
    machine.out.mkdir(exist_ok=True)
    bench = Bench(
        start=machine.start, naming=machine.naming(), out=machine.out, seen=(machine.source, str(machine.out))
    )
    scratch = Path(machine.root) / f"dask-{os.getpid()}"
    scratch.mkdir()
    with Station(bench, FolderStore(Path(given["store"])), name=given["name"], slots=1, limits=LIMITS) as one:
        serve(given["address"], one, scratch)


def campaign(given: Mapping[str, Any]) -> dict[str, Any]:
    """A campaign on a scheduler that believes nothing: `{"machine", "store", "address"}`."""
    machine = Machine(**given["machine"])
    shared = SharedResults([FolderStore(Path(given["store"]))], machine.naming(), recheck=1.0)
    result = machine.run(shared=shared, address=given["address"])
    return {
        **machine.digests(result),
        "origins": {entry.out: entry.origin for entry in result.entries},
        "refused": {row["name"]: row["refused_by"] for row in ask(given["address"])["machines"] if row["refused_by"]},
    }


class _Idle(Station):
    """Answers each order at once, and does nothing."""

    def obey(self, order: Mapping[str, Any]) -> dict[str, Any]:
        return {"status": FAILED, "worker": self.name, "reason": str(order["name"]), "seconds": 0.0, "attempt": 1}


def idle(given: Mapping[str, Any]) -> None:
    """A worker that does nothing: `{"machine", "store", "address", "slots"}`."""
    machine = Machine(**given["machine"])
    bench = Bench(start=machine.start, naming=machine.naming(), out=machine.out, seen=("/", "/"))
    store = FolderStore(Path(given["store"]))
    with _Idle(bench, store, name="idle", slots=given["slots"], limits=LIMITS) as one:
        serve(given["address"], one, Path(given["scratch"]))


def orders(given: Mapping[str, Any]) -> dict[str, Any]:
    """Orders that do nothing: `{"machine", "store", "address", "orders", "rounds"}`; seconds of each round.

    They go the whole way of `DaskExecutor.run`: named, sent, scheduled, answered, heard. Neither ledger nor store is
    asked.
    """
    machine = Machine(**given["machine"])
    some = machine.rules().rules
    found = []
    for turn in range(given["rounds"]):
        rules = [
            replace(some[number % len(some)], options=(("number", f"{turn}-{number}"),))
            for number in range(given["orders"])
        ]
        shared = SharedResults([FolderStore(Path(given["store"]))], machine.naming())
        began = time.monotonic()
        names = {shared.name(rule) for rule in rules}
        named = time.monotonic()
        with DaskExecutor(
            given["address"], rules=rules, shared=shared, out=machine.out, limits=LIMITS, patience=60
        ) as executor:
            sent, cpu = time.monotonic(), time.process_time()
            heard = {outcome["reason"] for outcome in executor.run([{"id": rule.id} for rule in rules])}
            found.append(
                {"seconds": time.monotonic() - sent, "naming": named - began, "campaign_cpu": time.process_time() - cpu}
            )
        if heard != names:
            raise SystemExit(f"{len(names)} orders, {len(heard & names)} answers to them")
    return {"rounds": found}


ROLES = {"station": station, "campaign": campaign, "idle": idle, "orders": orders}


def command(role: str, given: Mapping[str, Any], file: Path) -> list[str]:
    """The command that plays a role; what it returns goes to FILE with `.result` behind it."""
    file.write_text(json.dumps({**given, "machine": asdict(given["machine"])}), encoding="utf-8")
    return [sys.executable, str(Path(__file__)), role, str(file)]


def main(arguments: Sequence[str]) -> int:
    """Run as a program."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    logging.getLogger("toolchain").setLevel(logging.INFO)
    role, file = arguments[0], Path(arguments[1])
    result = ROLES[role](json.loads(file.read_text(encoding="utf-8")))
    if result is not None:
        file.with_suffix(".result").write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
