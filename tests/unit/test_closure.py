"""llvm-config/closure.py: the libraries that a consumer of LLVM reaches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "llvm-config" / "closure.py"


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """Write a build tree with two packages, as CMake does."""

    def library(name: str, *links: str) -> str:
        text = f"# Create imported target {name}\nadd_library({name} STATIC IMPORTED)\n\n"
        if links:
            joined = ";".join(links)
            text += f'set_target_properties({name} PROPERTIES\n  INTERFACE_LINK_LIBRARIES "{joined}"\n)\n'
        return text

    llvm, mlir = tmp_path / "lib/cmake/llvm", tmp_path / "lib/cmake/mlir"
    llvm.mkdir(parents=True)
    mlir.mkdir()
    (llvm / "LLVMExports.cmake").write_text(
        library("LLVMDemangle")
        + library("LLVMSupport", "LLVMDemangle", "\\$<LINK_ONLY:rt>", "\\$<LINK_ONLY:dl>", "m")
        + library("LLVMCore", "LLVMSupport")
        + library("LLVMOrcJIT", "LLVMCore")
        + library("LLVMLoopA", "LLVMLoopB")
        + library("LLVMLoopB", "LLVMLoopA")
    )
    (mlir / "MLIRTargets.cmake").write_text(
        library("MLIRSupport", "LLVMSupport")
        + library("MLIRIR", "\\$<LINK_ONLY:MLIRSupport>")
        + library("MLIRCAPIIR", "MLIRIR")
    )
    return tmp_path


def closure(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "libraries"),
    [
        # The root reaches libraries in both packages.
        (("", "", "MLIRIR"), "LLVMDemangle;LLVMSupport;MLIRIR;MLIRSupport"),
        # Globs add and remove libraries, but remove none that a root reaches.
        (("MLIR*", "MLIRCAPI*", "LLVMCore"), "LLVMCore;LLVMDemangle;LLVMSupport;MLIRIR;MLIRSupport"),
        (("MLIR*", "MLIRI*", "MLIRCAPIIR"), "LLVMDemangle;LLVMSupport;MLIRCAPIIR;MLIRIR;MLIRSupport"),
        (("", "", "LLVMLoopA"), "LLVMLoopA;LLVMLoopB"),
    ],
)
def test_closure_lists_libraries_that_roots_reach(build: Path, words: tuple[str, ...], libraries: str) -> None:
    said = closure(build, *words)
    assert (said.returncode, said.stdout.strip()) == (0, libraries), said.stderr


def test_missing_root_is_reported_by_name(build: Path) -> None:
    said = closure(build, "", "", "MLIRIR", "MLIRRegisterAllPasses")
    assert said.returncode == 3
    assert "MLIRRegisterAllPasses" in said.stderr
    assert not said.stdout
