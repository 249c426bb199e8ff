"""All cases of Triton's language, and their compilation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from lab.tests.language_cases import arithmetic_cases, matrix_cases, memory_cases, movement_cases, program_cases
from lab.tests.language_cases.language_case import LanguageCase

CASES: tuple[LanguageCase, ...] = tuple(
    case
    for family in (arithmetic_cases, matrix_cases, memory_cases, movement_cases, program_cases)
    for case in family.cases()
)
WORKER = Path(__file__).parents[3] / "aotriton" / "worker.py"
# Triton before 3.5 has no linker, and runs that of TRITON_HIP_LLD_PATH. The last two variables vary the worker.
PASSED = ("PATH", "TRITON_HIP_LLD_PATH", "LD_PRELOAD", "PYTHONHASHSEED")


def compile_cases(
    folder: Path, gpu: str, cases: Iterable[LanguageCase] = CASES, *, python: str = sys.executable
) -> dict[str, Path | str]:
    """Compile cases for a GPU with the kernel worker.

    Returns:
        The object of each case, or the reason why Triton does not compile the case. LLVM may end the worker; then
        another worker compiles the cases that are left.
    """
    results: dict[str, Path | str] = {}
    left = list(cases)
    while left:
        done = subprocess.run(
            [python, str(WORKER)],
            input="".join(json.dumps(case.rule(folder, gpu)) + "\n" for case in left),
            capture_output=True,
            text=True,
            check=False,
            env={"HOME": str(folder), **{name: os.environ[name] for name in PASSED if name in os.environ}},
        )
        answers = [json.loads(line) for line in done.stdout.splitlines()[1:]]
        for case, answer in zip(left, answers, strict=False):
            results[case.name] = Path(answer["object"]) if answer["status"] == "done" else str(answer["reason"])
        left = left[len(answers) :]
        if left:
            results[left[0].name] = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no reason"
            left = left[1:]
    return results
