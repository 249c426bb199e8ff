"""What AOTriton's kernels cost in CPU seconds: upstream's way, and ours with each lever alone and with all of them.

    levers.py --source aotriton=PATH [--groups 25] [--seed 1] [--python P] [--upstream-python P] [--json FILE]

Draws random whole groups (one kernel, signature and GPU; they differ in warps, stages and waves per EU) from the plan
of AOTriton's generator, and compiles each group by each column in turn, in another order for each group. `upstream` is
AOTriton's compile.py, a process a kernel, on `--upstream-python`; `upstream, our Triton` is the same on `--python`; the
others are our worker on `--python`, and on `--profiled-python`, the same Triton built by a profile. CPU seconds are
user and system, of processes and children, and for a worker its start too. Objects must have the same bytes in all
columns of one Triton, built by a profile or not.

`--python` needs Triton, and `--plan-python` (the running one otherwise) numpy, pandas and PyYAML. `--plan FOLDER` keeps
the plan for the next time. No GPU is needed. Run with the repository's own Python.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP))

from toolchain.digest import sha256_file  # noqa: E402
from toolchain.kernels.aotriton_plan import read_plan  # noqa: E402
from toolchain.kernels.bounds import processes  # noqa: E402
from toolchain.kernels.rules import Rule, in_order  # noqa: E402
from toolchain.stages import aotriton_images  # noqa: E402

WORKER = TOP / "aotriton" / "worker.py"
ENVIRONMENT = {"TRITON_F32_DEFAULT": "ieee", "TRITON_STORE_BINARY_ONLY": "1", "TRITON_DISABLE_LINE_INFO": "1"}
LEVERS = ("shared", "direct", "parses")
UPSTREAM, OURS = "upstream", "upstream, our Triton"
_TICK = os.sysconf("SC_CLK_TCK")


def make_plan(python: str, tree: Path, gpus: Sequence[str], build: Path) -> None:
    """Have AOTriton's generator plan, as containerfiles/aotriton/build.sh does."""
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(tree / "python", Path(folder) / "aotriton", ignore=shutil.ignore_patterns("__pycache__"))
        env = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "AOTRITON_ENABLE_FP32": "1"}

        def tool(name: str, *arguments: str) -> None:
            command = [python, "-X", "utf8", "-m", f"aotriton.{name}", *arguments]
            subprocess.run(command, cwd=tree, env=env, check=True, stdout=sys.stderr)

        for database in tree.glob("modules/*/database"):
            into = build / database.parent.name / "database"
            for packed in database.rglob("*.sqlite3.tar.xz"):
                with tarfile.open(packed) as tar:
                    tar.extractall(into / packed.parent.relative_to(database), filter="data")
            tool(
                "database_compose", "--database_file", str(into / "tuning_database.sqlite3"), "--decomposed", str(into)
            )
        targets = [f"{gpu}_mod0" for gpu in gpus]
        tool("generate", "--target_gpus", *targets, "--build_dir", str(build), "--root_dir", str(tree))


def groups_of(rules: Sequence[Rule]) -> list[list[Rule]]:
    """Rules of one kernel, signature and GPU, in the order in which they are compiled."""
    found: dict[Any, list[Rule]] = {}
    for rule in in_order(rules):
        found.setdefault((rule.source, rule.kernel, rule.target, rule.signature, rule.constexprs), []).append(rule)
    return list(found.values())


def draw(groups: list[list[Rule]], gpus: Sequence[str], count: int, least: int, seed: int) -> list[list[Rule]]:
    """At least `count` groups and `least` rules, from each GPU in turn, in the plan's order."""
    chance = random.Random(seed)  # noqa: S311
    by_gpu = {gpu: [one for one in groups if one[0].target == gpu] for gpu in gpus}
    for inside in by_gpu.values():
        chance.shuffle(inside)
    chosen: list[list[Rule]] = []
    while len(chosen) < count or sum(map(len, chosen)) < least:
        chosen.append(by_gpu[gpus[len(chosen) % len(gpus)]].pop())
    places = {id(one): place for place, one in enumerate(groups)}
    return sorted(chosen, key=lambda one: places[id(one)])


@dataclass
class Column:
    """One way to compile.

    Args:
        name: as the table has it.
        python: the interpreter.
        environment: further variables.
        worker: whether it is our worker, or upstream's script.
    """

    name: str
    python: str
    tree: Path
    out: Path
    environment: Mapping[str, str]
    worker: bool
    samples: list[dict[str, Any]] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    total: float = 0.0
    _child: subprocess.Popen[str] | None = None

    def compile(self, number: int, group: Sequence[Rule]) -> None:
        """Compile a group and note what it cost."""
        began = time.monotonic()
        cpu = self._by_worker(group) if self.worker else sum(self._by_upstream(rule) for rule in group)
        wall = time.monotonic() - began
        self.samples.append({"group": number, "rules": len(group), "cpu": round(cpu, 3), "wall": round(wall, 3)})
        if not self.worker:
            self.total += cpu

    def _by_upstream(self, rule: Rule) -> float:
        path = self.out / f"{rule.id}.hsaco"
        with tempfile.TemporaryDirectory() as cache:
            env = {**os.environ, **ENVIRONMENT, **self.environment, "TRITON_CACHE_DIR": cache}
            arguments = aotriton_images.upstream_arguments(rule)
            arguments[0] = str(self.tree / rule.source)
            command = [self.python, str(self.tree / "python" / "compile.py"), *arguments, "-o", str(path)]
            child = subprocess.Popen(command, env=env)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode or not path.is_file():
            raise SystemExit(f"{self.name}: {rule.out} failed with {child.returncode}")
        self.digests[rule.id] = hashlib.sha256(path.read_bytes()).hexdigest()
        return used.ru_utime + used.ru_stime

    def _by_worker(self, group: Sequence[Rule]) -> float:
        before = 0.0 if self._child is None else cpu_of(self._child.pid)
        child = self._child = self._child or self._start()
        incoming, outgoing = child.stdin, child.stdout
        if incoming is None or outgoing is None:
            raise TypeError("a worker without pipes")
        for rule in group:
            task = {**rule.task(str(self.tree), str(self.out)), "out": str(self.out / f"{rule.id}.hsaco")}
            incoming.write(json.dumps(task) + "\n")
            incoming.flush()
            answer = json.loads(outgoing.readline())
            if answer["id"] != rule.id or answer["status"] != "done":
                raise SystemExit(f"{self.name}: {rule.out}: {answer['reason']}")
            self.digests[rule.id] = answer["sha256"]
        return cpu_of(child.pid) - before

    def _start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        env = {**os.environ, **ENVIRONMENT, **self.environment}
        child = subprocess.Popen(
            [self.python, str(WORKER)], env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        if child.stdout is None or not child.stdout.readline():
            raise SystemExit(f"{self.name}: the worker does not start")
        return child

    def end(self) -> None:
        """End the worker; its whole cost is known then."""
        if self._child is None or self._child.stdin is None:
            return
        self._child.stdin.close()
        _, status, used = os.wait4(self._child.pid, 0)
        self._child.returncode = os.waitstatus_to_exitcode(status)
        self.total = used.ru_utime + used.ru_stime


def cpu_of(pid: int) -> float:
    """CPU seconds of a process, all that it has waited for, and all that lives below it."""
    total = 0
    for one in processes(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total / _TICK


def columns(given: argparse.Namespace, tree: Path, out: Path) -> list[Column]:
    """The columns that are asked for."""
    found: list[Column] = []

    def add(name: str, python: str, environment: Mapping[str, str], *, worker: bool) -> None:
        folder = out / str(len(found))
        folder.mkdir()
        found.append(Column(name, python, tree, folder, environment, worker))

    def without(*levers: str) -> dict[str, str]:
        return {"KERNEL_WORKER_WITHOUT": ",".join(levers)}

    if given.upstream_python:
        add(UPSTREAM, given.upstream_python, {}, worker=False)
    if not given.no_upstream:
        add(OURS, given.python, {}, worker=False)
    add("worker, no lever", given.python, without(*LEVERS), worker=True)
    if not given.brief:
        add("worker, direct", given.python, without("shared", "parses"), worker=True)
        add("worker, parses", given.python, without("shared", "direct"), worker=True)
        add("worker, shared (and direct)", given.python, without("parses"), worker=True)
    if given.profiled_python:
        add("worker, by a profile alone", given.profiled_python, without(*LEVERS), worker=True)
    for python, what in ((given.python, "worker, all"), (given.profiled_python, "worker, all, by a profile")):
        if not python:
            continue
        add(what, python, {}, worker=True)
        for extra in given.extra:
            name, _, settings = extra.partition(":")
            add(f"{what}, {name}", python, dict(one.split("=", 1) for one in settings.split(",")), worker=True)
    return found


def table(found: Sequence[Column], rules: int) -> list[str]:
    """The result, a row a column."""
    base = {one.name: one.total for one in found}
    lines = [
        "| column | CPU s | s a kernel, median of groups | " + " | ".join(f"x {n}" for n in (UPSTREAM, OURS)) + " |"
    ]
    lines.append("|---" * 5 + "|")
    for one in found:
        each = statistics.median(row["cpu"] / row["rules"] for row in one.samples)
        less = [f"{base[name] / one.total:.2f}" if name in base and one.total else "" for name in (UPSTREAM, OURS)]
        lines.append(f"| {one.name} | {one.total:.1f} | {each:.2f} | {' | '.join(less)} |")
    return [*lines, f"{rules} rules"]


@functools.cache
def version(python: str) -> str:
    """What Triton an interpreter has: two of one version may be two builds, so its library counts."""
    command = [python, "-c", "import triton._C.libtriton as it, triton; print(triton.__version__, it.__file__)"]
    name, _, library = (
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip().partition(" ")
    )
    return f"{name} {sha256_file(Path(library)).removeprefix('sha256:')[:12]}"


def main(arguments: Sequence[str]) -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="aotriton=PATH")
    parser.add_argument("--gpus", default="gfx90a,gfx942,gfx1100")
    parser.add_argument("--groups", type=int, default=25)
    parser.add_argument("--rules", type=int, default=60, help="at least so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--upstream-python", default="")
    parser.add_argument("--profiled-python", default="", help="the Triton of --python, built by a profile")
    parser.add_argument("--no-upstream", action="store_true", help="without upstream's way on our Triton")
    parser.add_argument("--brief", action="store_true", help="no lever and all levers alone")
    parser.add_argument("--extra", action="append", default=[], help="NAME:VARIABLE=VALUE,…: all levers and these")
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--plan-python", default=sys.executable)
    parser.add_argument("--json", type=Path, help="raw samples; written after each group")
    given = parser.parse_args(arguments)
    tree, gpus = Path(given.source.removeprefix("aotriton=")).resolve(), given.gpus.split(",")
    with tempfile.TemporaryDirectory() as folder:
        plan = (given.plan or Path(folder) / "plan").resolve()
        if not (plan / "Bare.flatzip").is_file():
            make_plan(given.plan_python, tree, gpus, plan)
        rules = read_plan(plan, tree, build=str(plan), source=str(tree)).rules
        groups = groups_of([rule for rule in rules if rule.target in gpus])
        chosen = draw(groups, gpus, given.groups, given.rules, given.seed)
        out = Path(folder) / "out"
        out.mkdir()
        found = columns(given, tree, out)
        told: dict[str, Any] = {
            "seed": given.seed,
            "rules": sum(map(len, chosen)),
            "planned": {"rules": len(rules), "groups": len(groups)},
            "triton": {one.name: version(one.python) for one in found},
            "compared": {
                one.name: version(given.python if one.python == given.profiled_python else one.python) for one in found
            },
            "groups": [
                {"kernel": one[0].kernel, "gpu": one[0].target, "launch": [
                    [rule.num_warps, rule.num_stages, rule.waves_per_eu] for rule in one
                ]}
                for one in chosen
            ],
        }  # fmt: skip

        def note() -> None:
            rows = {
                one.name: {"total": round(one.total, 3), "samples": one.samples, "sha256": one.digests} for one in found
            }
            if given.json:
                given.json.write_text(json.dumps({**told, "columns": rows}, indent=1) + "\n", encoding="utf-8")

        for number, group in enumerate(chosen):
            print(f"{number + 1} of {len(chosen)}: {group[0].kernel} {group[0].target}, {len(group)}", file=sys.stderr)
            for turn in range(len(found)):
                found[(turn + number) % len(found)].compile(number, group)
            note()
        for one in found:
            one.end()
        note()
    print("\n".join(table(found, told["rules"])))
    for triton in sorted(set(told["compared"].values())):
        same = [one for one in found if told["compared"][one.name] == triton]
        odd = sorted({name for one in same for name in one.digests if one.digests[name] != same[0].digests[name]})
        print(
            f"Triton {triton}: {len(same)} columns, {len(same[0].digests) - len(odd)} of {len(same[0].digests)} equal"
        )
        if odd:
            print(f"differing: {', '.join(odd)}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
