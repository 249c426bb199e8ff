"""Plant faults in compiled kernels, one at a time, and count how many of them `kernels check` notices.

    python lab/scripts/emulator_mutants.py [--gpus gfx942,gfx950,gfx1100,gfx1201] [--each 50] [--seed 1] [--json FILE]

The script compiles the attention kernel of lab/tests/emulated for each GPU, with 70 rows and blocks of 32, and runs its
last two workgroups as the check does. For each GPU, `--each` mutants change one executed instruction: the instruction
is removed, reads another register, is replaced by another operation, or has another offset. Each other mutant removes
an executed barrier or wait. A mutant is noticed if the result of the check is not `right`. The script lists each
mutant that survives, with the reason: no byte of the output changed, or the error stayed within the tolerance.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))

from lab.tests.emulated_objects import compile_all, rule  # noqa: E402
from lab.tests.planted_faults import Mutant, draw_mutant, executed, with_line  # noqa: E402
from toolchain.core.check_result import RIGHT  # noqa: E402
from toolchain_lab.bridge import disassembler, load, read_metadata  # noqa: E402
from toolchain_lab.emulator.control import is_barrier, wait  # noqa: E402
from toolchain_lab.emulator.errors import FaultyKernelError, NotEmulatedError  # noqa: E402
from toolchain_lab.emulator.launch import Launch, run  # noqa: E402
from toolchain_lab.emulator.metadata import Metadata  # noqa: E402
from toolchain_lab.emulator.program import Program  # noqa: E402
from toolchain_lab.emulator.syntax import parse  # noqa: E402
from toolchain_lab.numbers.case import Arguments, Case, Expected  # noqa: E402
from toolchain_lab.numbers.check import check_program  # noqa: E402
from toolchain_lab.numbers.elements import FP16, FP32, rows_tensor  # noqa: E402
from toolchain_lab.numbers.problem import Problem, Shape  # noqa: E402

ROWS, BLOCK, HEAD = 70, 32, 32


def cases(metadata: Metadata, seed: int) -> Iterator[Case]:
    """Yield a case with the last two blocks of queries, the last of which is not full."""
    arguments = Arguments(metadata)
    problem = Problem(FP16, Shape(((ROWS, ROWS),), 1, 1, HEAD, HEAD), HEAD**-0.5, seed, window=(None, None))
    out, lse = problem.empty("o", keys=False, heads=1), rows_tensor(1, 1, ROWS)
    arguments.tensors(q=problem.q, k=problem.k, v=problem.v, out=out, lse=lse)
    arguments.numbers(scale=problem.scale, n=ROWS)
    last = (ROWS - 1) // BLOCK
    rows = slice((last - 1) * BLOCK, ROWS)
    found = problem.results(0, 0, rows)
    log2 = np.log(2)
    expected = [
        Expected("out", "O", FP16, out.places[0, 0, rows], found.exact.o, found.plain.o),
        Expected("lse", "LSE", FP32, lse.places[0, 0, rows, 0], found.exact.lse / log2, found.single.lse / log2),
    ]
    yield Case(f"{ROWS} rows", arguments.done(), (last + 1, 1, 1), [(last - 1, 0, 0), (last, 0, 0)], expected)


class Subject:
    """A kernel from which mutants are made."""

    def __init__(self, path: Path) -> None:
        self.metadata = read_metadata(path)
        self.program = Program.of(load(path), disassembler())
        self.right = self.check(self.program)
        if self.right[0] != RIGHT:
            raise SystemExit(f"the unchanged kernel {path} fails the check: {self.right[1]}")
        self.bytes = self.output(self.program)
        self.executed = executed(self.program)

    def check(self, program: Program) -> tuple[str, str, float]:
        """Check a program, and return the status, the reason, and the largest error as a share of the allowed error.

        If the check raises an error, the status is the name of the error's class, and the share is 0.
        """
        try:
            done = check_program(program, self.metadata, "", make=cases)
        except (NotEmulatedError, FaultyKernelError) as error:
            return type(error).__name__, f"{error.what}: {error.why}", 0.0
        return done.status, done.reason, done.share

    def output(self, program: Program) -> bytes:
        (case,) = cases(self.metadata, 1)
        launch = Launch(
            self.metadata.parameters, case.values, case.grid, self.metadata.waves, self.metadata.lds, case.only
        )
        return b"".join(buffer.tobytes() for buffer in run(program, launch).buffers.values())

    def what_survived(self, program: Program, share: float) -> str:
        """Return the reason why the check did not notice a mutant."""
        if self.output(program) != self.bytes:
            return f"within the tolerance: {share:.2f} of it"
        return "no byte changed"


def measure(subject: Subject, gpu: str, each: int, seed: int) -> dict[str, Any]:
    """Check mutants of a kernel, and return the counts of the results and the survivors."""
    draw = random.Random(f"{seed} {gpu}")  # noqa: S311 - faults that can be drawn again
    counts: Counter[str] = Counter()
    survivors = []
    seen: set[tuple[int, str]] = set()

    def take(group: str, mutant: Mutant) -> None:
        program = with_line(subject.program, mutant)
        status, _, share = subject.check(program)
        counts[f"{group}: all"] += 1
        counts[f"{group}: {'survived' if status == RIGHT else status}"] += 1
        if status == RIGHT:
            why = subject.what_survived(program, share)
            survivors.append(
                {"group": group, "kind": mutant.kind, "before": mutant.before, "after": mutant.after, "why": why}
            )

    while counts["changed: all"] < each:
        mutant = draw_mutant(subject.program, subject.executed, draw)
        if mutant is not None and (mutant.place, mutant.after) not in seen:
            seen.add((mutant.place, mutant.after))
            take("changed", mutant)
    for place in sorted(set(subject.executed)):
        line = subject.program.lines[place]
        instruction = parse(line)
        if is_barrier(instruction):
            take("barrier", Mutant("left out", place, line.text, "s_nop 0"))
        elif instruction.name.startswith("s_wait") and wait(instruction):
            take("wait", Mutant("left out", place, line.text, "s_nop 0"))
    return {"gpu": gpu, "instructions": len(set(subject.executed)), "counts": dict(counts), "survivors": survivors}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="gfx942,gfx950,gfx1100,gfx1201")
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        gpus = given.gpus.split(",")
        for gpu, path in zip(gpus, compile_all([rule(Path(folder), "attention", gpu) for gpu in gpus]), strict=True):
            found = measure(Subject(path), gpu, given.each, given.seed)
            results.append(found)
            print(gpu, found["instructions"], "executed instructions;", found["counts"], flush=True)
            for row in found["survivors"]:
                print(f"    {row['group']}, {row['kind']}: {row['before']} -> {row['after']}: {row['why']}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
