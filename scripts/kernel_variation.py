"""Compile random kernels of AOTriton under other heaps, hash seeds and orders, and compare the objects.

    python -m scripts.kernel_variation PLAN SOURCE PYTHON --gpu GPU[,GPU] [--kernels N] [--seeds N] [--draw SEED]
        [--hash-seed SEED]

PLAN is the build folder of AOTriton's generator, SOURCE is the source tree that the generator read, and PYTHON is an
interpreter with Triton. For each GPU, a worker process compiles a random sample of kernels as usual, and the program
drops the slowest third of the sample. Then, for each seed, a worker process compiles the other kernels in another
order, with the allocator of `reproduce --vary` and another PYTHONHASHSEED. `--hash-seed` gives all runs the same
PYTHONHASHSEED, because the kernel workers of `toolchain` set it to 0. The program compares the objects and JSON files
with those of the usual run. It prints a JSON line for each GPU, and exits with 1 if a file differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scripts.heaps import compile_heap
from scripts.worker_run import command_line, compile_rules, planned
from toolchain.kernels.rules import Rule

Digests = dict[str, tuple[str, str]]  # the digests of the object and its JSON file, by the id of the rule


def compiled(source: Path, python: str, rules: Sequence[Rule], changed: Mapping[str, str]) -> tuple[Digests, Any]:
    """Compile rules with one worker process, and return the digests of their files and the worker's answers.

    Args:
        changed: environment variables to add or replace.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Old versions of Triton link with the program that this variable names.
        linker = {key: value for key, value in os.environ.items() if key == "TRITON_HIP_LLD_PATH"}
        answers = compile_rules(python, source, rules, folder, {**linker, **changed})
        files = {rule.id: [folder / f"{rule.id}{suffix}" for suffix in (".hsaco", ".json")] for rule in rules}
        digests = {key: [hashlib.sha256(path.read_bytes()).hexdigest() for path in both] for key, both in files.items()}
    return {key: (code, about) for key, (code, about) in digests.items()}, answers


def main(argv: Sequence[str]) -> int:
    """Compile and compare the kernels, print a row for each GPU, and return the exit code."""
    parser = command_line(__doc__)
    parser.add_argument("--kernels", type=int, default=200, help="the number of kernels of all GPUs together")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--draw", type=int, default=1, help="the seed of the sample")
    parser.add_argument("--hash-seed", type=int, help="the PYTHONHASHSEED of all runs (default: one for each seed)")
    given = parser.parse_args(argv)
    source, gpus = given.source.resolve(), given.gpu.split(",")
    plan = planned(given)
    fixed = {} if given.hash_seed is None else {"PYTHONHASHSEED": str(given.hash_seed)}
    wanted: list[Rule] = []
    usual: Digests = {}
    for gpu in gpus:
        rules = [rule for rule in plan if rule.target == gpu]
        count = given.kernels // len(gpus)
        sample = random.Random(given.draw).sample(rules, count * 3 // 2)  # noqa: S311 - a sample needs no secure numbers
        digests, answers = compiled(source, given.python, sample, fixed)
        seconds = {answer["id"]: answer["seconds"] for answer in answers}
        wanted += sorted(sample, key=lambda rule: float(seconds[rule.id]))[:count]
        usual |= digests
    with tempfile.TemporaryDirectory() as name:

        def again(seed: int) -> Digests:
            heap = compile_heap(Path(name), seed)
            shuffled = random.Random(seed).sample(wanted, len(wanted))  # noqa: S311
            changed = {"LD_PRELOAD": str(heap), "PYTHONHASHSEED": str(seed), **fixed}
            return compiled(source, given.python, shuffled, changed)[0]

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = list(pool.map(again, range(1, given.seeds + 1)))
    differing = {rule.id: rule for rule in wanted if any(digests[rule.id] != usual[rule.id] for digests in found)}
    for gpu in gpus:
        names = [rule.out for rule in differing.values() if rule.target == gpu]
        count = sum(rule.target == gpu for rule in wanted)
        row = {"gpu": gpu, "kernels": count, "seeds": len(found), "hash_seed": given.hash_seed}
        row |= {"equal": count - len(names), "differing": names}
        sys.stdout.write(json.dumps(row) + "\n")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
