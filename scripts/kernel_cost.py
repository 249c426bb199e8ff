"""Compare the CPU time of AOTriton's own compile script with that of this tool's worker, on rules drawn at random.

    python -m scripts.kernel_cost PLAN SOURCE PYTHON --gpu GPU[,GPU] [--groups N] [--single N] [--preload LIBRARY]

PLAN is the build folder of AOTriton's generator, SOURCE is the source tree that the generator read, and PYTHON is an
interpreter with Triton. The program measures two kinds of tasks: groups, which are 16 rules that follow each other in a
campaign, and single rules. The worker compiles a group or a single rule in one process. Upstream's script always
compiles each rule in a separate process. Both ways compile the same rules, and take turns in starting first. The
seconds are user and system time of all processes, including the time to start them. The program prints a JSON line for
each kind and GPU, and exits with 1 if the two ways produce different objects for a rule.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.worker_run import command_line, compile_rules, planned
from toolchain.catalog.aotriton_generations import generation_of
from toolchain.kernels.rules import Rule, in_order
from toolchain.stages.aotriton_images import SOURCE, upstream_arguments
from toolchain.stages.kernel_workers import VARIABLES

GROUP = 16
# `aotriton/upstream.py` sets these variables to the same values.
ENVIRONMENT = {
    "TRITON_F32_DEFAULT": "ieee",
    "TRITON_STORE_BINARY_ONLY": "1",
    "TRITON_DISABLE_LINE_INFO": "1",
}


class Ways:
    """The two ways to compile rules."""

    def __init__(self, source: Path, python: str, preload: str) -> None:
        self._source = source
        self._python = python
        self._worker = {"LD_PRELOAD": preload} if preload else {}
        self._of = generation_of("0.13b")

    def upstream(self, rules: Sequence[Rule], folder: Path) -> None:
        """Compile each rule with upstream's script in a separate process."""
        for rule in rules:
            words = upstream_arguments(rule, *self._of.words_of([rule.target]))
            words[0] = words[0].replace(SOURCE, str(self._source), 1)
            out = folder / f"{rule.id}.hsaco"
            env = {**VARIABLES, **ENVIRONMENT, "TRITON_CACHE_DIR": str(folder / f"cache-{rule.id}")}
            argv: list[str | Path] = [self._python, self._source / self._of.script, *words, "-o", out, "--timeout", "0"]
            subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)

    def worker(self, rules: Sequence[Rule], folder: Path) -> None:
        """Compile the rules with one process of the worker."""
        compile_rules(self._python, self._source, rules, folder, self._worker)

    def compare(self, rules: Sequence[Rule], first: str) -> tuple[dict[str, float], int]:
        """Compile rules in both ways, and return the CPU seconds of each way and the number of objects that differ.

        Args:
            first: the name of the way that compiles first.
        """
        seconds, digests = {}, {}
        for way in sorted(("upstream", "worker"), key=lambda way: way != first):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                before = _children()
                getattr(self, way)(rules, folder)
                seconds[way] = _children() - before
                objects = [folder / f"{rule.id}.hsaco" for rule in rules]
                digests[way] = [hashlib.sha256(path.read_bytes()).hexdigest() for path in objects]
        return seconds, sum(one != other for one, other in zip(digests["upstream"], digests["worker"], strict=True))


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def drawn(rules: Sequence[Rule], size: int, count: int, seed: int) -> list[Sequence[Rule]]:
    """Return at most `count` random sequences of `size` consecutive rules that are all for the same kernel."""
    starts = list(range(len(rules) - size + 1))
    random.Random(seed).shuffle(starts)  # noqa: S311 - a sample needs no secure numbers
    runs = (rules[start : start + size] for start in starts)
    alike = (run for run in runs if len({rule.kernel for rule in run}) == 1)
    return list(itertools.islice(alike, count))


def main(argv: Sequence[str]) -> int:
    """Run the measurements, print a row for each kind and GPU, and return the exit code."""
    parser = command_line(__doc__)
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--single", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--preload", default="", help="library for LD_PRELOAD of the worker")
    given = parser.parse_args(argv)
    plan = planned(given)
    ways, differ = Ways(given.source.resolve(), given.python, given.preload), 0
    for gpu in given.gpu.split(","):
        rules = in_order(rule for rule in plan if rule.target == gpu)
        for kind, size, count in (("groups", GROUP, given.groups), ("single", 1, given.single)):
            ratios, total = [], {"upstream": 0.0, "worker": 0.0}
            if not count:
                continue
            for number, run in enumerate(drawn(rules, size, count, given.seed)):
                seconds, bad = ways.compare(run, ("upstream", "worker")[number % 2])
                differ += bad
                ratios.append(seconds["upstream"] / seconds["worker"])
                total = {way: total[way] + seconds[way] for way in total}
            row = {"gpu": gpu, "kind": kind, "rules": size * len(ratios), **{w: round(s, 1) for w, s in total.items()}}
            row |= {"ratio": round(total["upstream"] / total["worker"], 2), "least": round(min(ratios), 2)}
            sys.stdout.write(json.dumps({**row, "most": round(max(ratios), 2), "differ": differ}) + "\n")
            sys.stdout.flush()
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
