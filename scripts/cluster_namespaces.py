"""Run kernel campaigns with a Dask scheduler and workers in two network namespaces.

    python -m scripts.cluster_namespaces CACHE_ONE CACHE_TWO [--rounds 2] -- --source triton=pypi:3.7.1 …

The script needs root, `ip` and openssl. Both caches must contain the base and the Triton image. Before each campaign,
the script removes the records and ledgers of kernels from CACHE_ONE, so that the campaign compiles all kernels again.
The words after `--` are options for `kernels run` and `kernels worker`. For each campaign, the script prints a line of
JSON with the image's digest, the number of kernels that each worker compiled, the seconds of the compile step, and the
average share of these seconds in which a worker compiled.

Of the first four campaigns, the first runs locally, the second runs with two workers, the third with a worker that is
killed, and the fourth with a scheduler that is restarted. The exit code is 1 if the digests of their images differ.

The other campaigns measure the efficiency of two workers, each pinned to a core; the digests of their images are not
compared. After three short campaigns to warm up, each round runs a campaign with the first worker, a campaign with the
second worker, and a campaign with both. The efficiency is the rate with both workers divided by the sum of the two
single rates. On a busy machine, --nice -20 gives the workers priority.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolchain.kernels.ledger import look

ONE, TWO = "toolchain-one", "toolchain-two"
HOST = {ONE: "10.99.0.1", TWO: "10.99.0.2"}
CORE = {ONE: "0", TWO: "1"}
LONGEST = 900.0  # seconds that one campaign may take
Child = subprocess.Popen[bytes]


def run(*words: str, check: bool = True) -> None:
    subprocess.run(words, check=check, timeout=60, capture_output=not check)


@contextlib.contextmanager
def namespaces() -> Iterator[None]:
    """Make two network namespaces that are connected only to each other, and remove them at the end of the block."""
    try:
        run("ip", "link", "add", "tc-one", "type", "veth", "peer", "name", "tc-two")
        for name, link in ((ONE, "tc-one"), (TWO, "tc-two")):
            run("ip", "netns", "add", name)
            run("ip", "link", "set", link, "netns", name)
            run("ip", "-n", name, "address", "add", f"{HOST[name]}/30", "dev", link)
            for device in ("lo", link):
                run("ip", "-n", name, "link", "set", device, "up")
        yield
    finally:
        for name in (ONE, TWO):
            run("ip", "netns", "del", name, check=False)
        run("ip", "link", "del", "tc-one", check=False)


def certificates(folder: Path) -> dict[str, str]:
    """Make a certificate authority and a certificate, and return Dask's environment variables with their paths."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    openssl("req", *new, "-keyout", "one.key", "-out", "one.csr", "-subj", "/CN=one")
    openssl("x509", "-req", "-in", "one.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-out", "one.pem")  # fmt: skip
    tls = "DASK_DISTRIBUTED__COMM__TLS__"
    files = {f"{tls}CA_FILE": "ca.pem"}
    for role in ("CLIENT", "WORKER", "SCHEDULER"):
        files |= {f"{tls}{role}__CERT": "one.pem", f"{tls}{role}__KEY": "one.key"}
    return {name: str(folder / file) for name, file in files.items()}


class Machines:
    """The processes of two machines, each of which is a network namespace.

    Args:
        caches: the cache of each machine, by the name of its namespace.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], caches: Mapping[str, Path], options: list[str], nice: int
    ) -> None:
        self._nice = nice
        self._folder, self._environment, self._caches, self._options = folder, environment, caches, options
        self._children: list[Child] = []

    def start(self, name: str, machine: str, *words: str, output: int | None = None) -> Child:
        log = (self._folder / f"{name}.log").open("ab")
        child = subprocess.Popen(
            ["ip", "netns", "exec", machine, *words],
            env=os.environ | self._environment, start_new_session=True, stdout=output or log, stderr=log,
        )  # fmt: skip
        self._children.append(child)
        return child

    def scheduler(self, port: int) -> Child:
        where = ("--host", HOST[ONE], "--port", str(port), "--protocol", "tls", "--dashboard-address", "127.0.0.1:0")
        return self.start(f"scheduler-{port}", ONE, sys.executable, "-m", "distributed.cli.dask_scheduler", *where)

    def worker(self, machine: str, port: int) -> Child:
        words = ("kernels", "worker", f"tls://{HOST[ONE]}:{port}", "kernels", *self._options)
        name = f"{machine.removeprefix('toolchain-')}-{port}"
        return self.start(
            f"worker-{name}", machine, "nice", "-n", str(self._nice), "taskset", "-c", CORE[machine],
            sys.executable, "-m", "toolchain", *words,
            "--cache", str(self._caches[machine]), "--jobs", "1", "--name", name,
        )  # fmt: skip

    def campaign(
        self, what: str, port: int = 0, *more: str, meanwhile: Callable[[int], bool] = lambda _: True
    ) -> dict[str, Any]:
        """Run a campaign in the first namespace, print its row, and return the row.

        Args:
            port: the port of the scheduler; 0 for a campaign without one.
            meanwhile: a function that is called with the number of finished kernels until it returns True.
        """
        cache = self._caches[ONE]
        for record in cache.glob("records/*.json"):
            if json.loads(record.read_bytes())["stage"] == "kernels":
                record.unlink()
        for ledger in cache.glob("logs/*.ledger.sqlite"):
            ledger.unlink()
        where = ("--scheduler", f"tls://{HOST[ONE]}:{port}") if port else ("--jobs", "1")
        words = ("kernels", "run", "kernels", *self._options, *more, *where, "--cache", str(cache), "--json")
        child = self.start("campaigns", ONE, sys.executable, "-m", "toolchain", *words, output=subprocess.PIPE)
        end, called = time.monotonic() + LONGEST, False
        while child.poll() is None and not called and time.monotonic() < end:
            ledgers = list(cache.glob("work/kernels-*/ledger.sqlite"))
            called = meanwhile(look(ledgers[0]).count if ledgers else 0)
            time.sleep(0.2)
        output, _ = child.communicate(timeout=max(end - time.monotonic(), 1))
        if child.returncode != 0:
            raise SystemExit(f"{what} failed: {output.decode()}\nsee {self._folder}")
        if not called:
            raise SystemExit(f"{what}: the campaign ended before 2 kernels were compiled; choose more kernels")
        built = json.loads(output)["stages"][-1]
        (kept,) = cache.glob("logs/*.ledger.sqlite")
        entries, seconds = look(kept).entries, built["facts"]["seconds"]["compile"]
        makers = Counter(entry.origin or "here" for entry in entries)
        row = {
            "campaign": what, "manifest": built["manifest"], "kernels": built["facts"]["kernels"], "makers": makers,
            "seconds": round(seconds, 1),
            "busy": round(sum(entry.seconds for entry in entries) / seconds / len(makers), 3),
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        return row

    def close(self) -> None:
        for child in self._children:
            kill(child)


def kill(child: Child) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(60)


def faults(machines: Machines) -> set[str]:
    """Run four campaigns, one with a killed worker and one with a restarted scheduler, and return the digests."""
    found = [machines.campaign("local")]
    scheduler, _, second = machines.scheduler(8786), machines.worker(ONE, 8786), machines.worker(TWO, 8786)
    found.append(machines.campaign("two workers", 8786))

    def kill_worker(count: int) -> bool:
        if count >= 2:
            kill(second)
        return count >= 2

    found.append(machines.campaign("a worker is killed", 8786, meanwhile=kill_worker))
    machines.worker(TWO, 8786)

    def restart(count: int) -> bool:
        if count >= 2:
            kill(scheduler)
            machines.scheduler(8786)
        return count >= 2

    found.append(machines.campaign("the scheduler is restarted", 8786, meanwhile=restart))
    return {row["manifest"] for row in found}


def efficiency(machines: Machines, rounds: int) -> None:
    """Measure each worker alone and both workers together, and print the efficiency of each round."""
    ways = {"one": (8801, (ONE,)), "two": (8802, (TWO,)), "both": (8803, (ONE, TWO))}
    for port, workers in ways.values():
        machines.scheduler(port)
        for machine in workers:
            machines.worker(machine, port)
    for port, _ in ways.values():
        machines.campaign("to begin", port, "--limit", "8")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (port, _) in ways.items():
            seconds[name].append(machines.campaign(name, port)["seconds"])
    for number in range(rounds):
        one, two, both = (seconds[name][number] for name in ways)
        print(json.dumps({"efficiency": round(1 / both / (1 / one + 1 / two), 3)}), flush=True)


def main(words: Sequence[str] | None = None) -> int:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("caches", nargs=2, type=Path)
    reader.add_argument("--rounds", type=int, default=2)
    reader.add_argument("--nice", type=int, default=0, help="niceness of the workers")
    reader.add_argument("--only", choices=("faults", "efficiency"))
    own, _, options = " ".join(sys.argv[1:] if words is None else words).partition(" -- ")
    given = reader.parse_args(own.split())
    one, two = (cache.absolute() for cache in given.caches)
    folder = Path(tempfile.mkdtemp(prefix="cluster-"))  # the folder is kept, because it contains the logs
    with namespaces():
        machines = Machines(folder, certificates(folder), {ONE: one, TWO: two}, options.split(), given.nice)
        try:
            same = faults(machines) if given.only != "efficiency" else {""}
            if given.only != "faults":
                efficiency(machines, given.rounds)
        finally:
            machines.close()
    return len(same) != 1


if __name__ == "__main__":
    sys.exit(main())
