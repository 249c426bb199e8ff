"""Emulated kernels of Triton's language give the results of their references, or the emulator refuses them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
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
from toolchain_lab.emulator.placement import ACROSS, UPPER
from toolchain_lab.emulator.program import Program

GPUS = ("gfx942", "gfx1100")
# A run stops after this number of instructions, because a planted fault may make a loop endless.
LIMIT = 300_000


def by_gpu() -> Mapping[str, list[LanguageCase]]:
    """Return a quick run's cases: the first of each kernel and of each type of a product, and a third of the others."""
    seen: set[tuple[str, ...]] = set()
    first: list[LanguageCase] = []
    others: list[LanguageCase] = []
    for case in CASES:
        kind = (case.kernel, *(case.types.values() if case.kernel == "product" else ()))
        (others if kind in seen else first).append(case)
        seen.add(kind)
    return {gpu: [*first, *others[at::3]] for at, gpu in enumerate(GPUS)}


QUICK = by_gpu()
# The number of right cases in a quick run, and in all. Triton does not compile the others, or the emulator refuses
# them.
RIGHT = {"gfx942": (112, 183), "gfx1100": (113, 182)}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Path | str]]:
    """Return the compiled cases by GPU; two threads compile for both GPUs at the same time."""
    folder = tmp_path_factory.mktemp("language")
    with ThreadPoolExecutor(len(QUICK)) as pool:
        done = pool.map(lambda gpu: compile_cases(folder, gpu, QUICK[gpu]), QUICK)
        return dict(zip(QUICK, done, strict=True))


def emulated(case: LanguageCase, path: Path) -> str:
    """Run a case twice, with other arguments, addresses, garbage and order of waves, and return its outcome."""
    program = Program.of(load(path), disassembler())
    return "refused" if program.unknown() else outcome(case, program, read_metadata(path))


def outcome(case: LanguageCase, program: Program, metadata: Metadata) -> str:
    """Run a decoded program twice; return "right", "refused", or the difference from the reference."""
    for seed, reverse, placement in ((0, False, ACROSS), (1, True, UPPER)):
        problem = case.problem(seed)
        launch = Launch(metadata.parameters, problem.values, case.grid, metadata.waves, metadata.lds)
        try:
            done = run(program, launch, reverse=reverse, seed=seed, limit=LIMIT, placement=placement)
        except NotEmulatedError:
            return "refused"
        if difference := case.difference(problem, done.buffers):
            return f"{case.name}: {difference}"
    return "right"


def require_right(cases: Iterable[LanguageCase], objects: Mapping[str, Path | str], right: int) -> None:
    """Require that this number of cases is right, and that no result differs."""
    found = {case.name: emulated(case, path) for case in cases if isinstance(path := objects[case.name], Path)}
    counts = Counter(found.values())
    assert set(counts) <= {"right", "refused"}, counts
    assert counts["right"] == right, counts


@pytest.mark.parametrize("gpu", GPUS)
def test_results_of_quick_run_match_their_references(gpu: str, objects: Mapping[str, Mapping[str, Path | str]]) -> None:
    require_right(QUICK[gpu], objects[gpu], RIGHT[gpu][0])


@pytest.mark.nightly
@pytest.mark.parametrize("gpu", GPUS)
def test_results_of_other_cases_match_their_references(gpu: str, tmp_path: Path) -> None:
    rest = [case for case in CASES if case not in QUICK[gpu]]
    require_right(rest, compile_cases(tmp_path, gpu, rest), RIGHT[gpu][1] - RIGHT[gpu][0])


@pytest.mark.parametrize("seed", [53, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 6))])
def test_most_planted_faults_are_detected(seed: int, objects: Mapping[str, Mapping[str, Path | str]]) -> None:
    draw = random.Random(seed)
    choices = [(case, path) for gpu in GPUS for case in CASES if isinstance(path := objects[gpu].get(case.name), Path)]
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
