"""Wrong AMD kernels of public reports: the check finds the fault in versions that have it, and no fault in others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.tests.language_cases.all_cases import compile_cases
from lab.tests.language_cases.reported_cases import REPORTS, Report
from toolchain.cli.app import app
from toolchain_lab.bridge import disassembler, load, read_metadata
from toolchain_lab.emulator.errors import FaultyKernelError
from toolchain_lab.emulator.launch import Launch, run
from toolchain_lab.emulator.program import Program

# The installed version of Triton; tests that are marked `full` download other versions.
OURS = "3.7.1"
LAB_TESTS = Path(__file__).parents[1]
Python = Callable[[str], str]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Python]:
    """Return a function that returns the Python with a version of Triton."""
    folder = tmp_path_factory.mktemp("tritons")

    @cache
    def python_of(version: str) -> str:
        if version == OURS:
            return sys.executable
        made = folder / version
        subprocess.run([sys.executable, "-m", "venv", made], check=True)
        subprocess.run([made / "bin" / "pip", "install", "--quiet", "--no-deps", f"triton=={version}"], check=True)
        return str(made / "bin" / "python")

    yield python_of
    shutil.rmtree(folder)


ROWS = [
    pytest.param(report, version, id=f"{report.name}-{version}", marks=[] if version == OURS else [pytest.mark.full])
    for report in REPORTS
    for version in report.wrong + report.right
]


def told(report: Report, path: Path, program: Program) -> str:
    """Return the message of the check about a kernel; an empty text if the kernel is right."""
    case, metadata = report.case, read_metadata(path)
    for seed, reverse in ((0, False), (1, True)):
        problem, only = case.problem(), [report.only] if report.only else None
        launch = Launch(metadata.parameters, problem.values, case.grid, metadata.waves, metadata.lds, only)
        try:
            done = run(program, launch, reverse=reverse, seed=seed)
        except FaultyKernelError as error:
            return str(error)
        if difference := case.difference(problem, done.buffers):
            return difference
    return ""


@pytest.mark.parametrize(("report", "version"), ROWS)
def test_reported_fault_is_found_in_wrong_versions_only(
    report: Report, version: str, python: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linker = next(
        filter(None, map(shutil.which, ("ld.lld", *(f"ld.lld-{number}" for number in range(22, 16, -1))))), ""
    )
    monkeypatch.setenv("TRITON_HIP_LLD_PATH", linker)  # Triton before 3.5 has no linker
    (path,) = compile_cases(tmp_path, report.gpu, [report.case], python=python(version)).values()
    assert isinstance(path, Path), path
    program = Program.of(load(path), disassembler())
    assert not program.unknown()
    found = told(report, path, program)
    if report.code:
        has = any(report.code.removeprefix("!") in line.text for line in program.lines)
        assert has == (report.code.startswith("!") == (version in report.right))
    if version in report.right:
        assert not found
    else:
        assert report.told in found


@pytest.mark.parametrize("gpu", ["gfx942", "gfx950"])
@pytest.mark.parametrize(("version", "code"), [("3.7.1", 24), pytest.param("3.8.0", 0, marks=pytest.mark.full)])
def test_wide_store_at_scalar_offset_needs_a_wait_state(
    gpu: str, version: str, code: int, python: Python, tmp_path: Path
) -> None:
    """LLVM 23 and Triton 3.8.0 contain the fix of llvm#197267."""
    made = tmp_path / "wide_store.hsaco"
    script, ir = LAB_TESTS / "compile_ir.py", LAB_TESTS / "emulated" / "wide_store.ll"
    command: list[str | Path] = [python(version), script, ir, gpu, made]
    subprocess.run(command, check=True)
    values = ("in=normal:256:fp32", "out=zeros:1024:fp32", "at=1024")
    words = ("--grid", "1", *(word for value in values for word in ("--arg", value)))
    done = CliRunner().invoke(app, ["emulate", str(made), *words])
    assert done.exit_code == code, done.output
    assert ("buffer_store_dwordx4" in done.output) == bool(code)
