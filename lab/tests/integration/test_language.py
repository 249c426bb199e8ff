"""Kernels that use Triton's language, emulated: each result is its reference, or the kernel is refused by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab.tests.language_cases.all_cases import CASES, compile_cases
from lab.tests.language_cases.language_case import LanguageCase
from toolchain_lab.bridge import disassembler, load, read_metadata
from toolchain_lab.emulator.errors import NotEmulatedError
from toolchain_lab.emulator.launch import Launch, run
from toolchain_lab.emulator.program import Program

# Cases that are right; Triton does not compile the others.
RIGHT = {"gfx942": 183, "gfx1100": 182}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Path | str]]:
    """The compiled cases by GPU; both GPUs are compiled at the same time."""
    folder = tmp_path_factory.mktemp("language")
    with ThreadPoolExecutor(len(RIGHT)) as pool:
        return dict(zip(RIGHT, pool.map(lambda gpu: compile_cases(folder, gpu), RIGHT), strict=True))


def emulated(case: LanguageCase, path: Path) -> str:
    """Run a case in both orders of its waves, with other garbage: "right", "refused", or the difference."""
    metadata = read_metadata(path)
    program = Program.of(load(path), disassembler())
    if program.unknown():
        return "refused"
    for seed, reverse in ((0, False), (1, True)):
        problem = case.problem()
        launch = Launch(metadata.parameters, problem.values, case.grid, metadata.waves, metadata.lds)
        try:
            done = run(program, launch, reverse=reverse, seed=seed)
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
