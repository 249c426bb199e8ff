"""llvm-config/contract/rehearse.sh: the check of a configured LLVM before hours of compiling, on a small fake."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CONTRACT = Path(__file__).resolve().parents[2] / "llvm-config" / "contract"
INSTALL = """
set(name_cmake-exports llvm)
set(name_mlir-cmake-exports mlir)
if(name_${CMAKE_INSTALL_COMPONENT})
  file(INSTALL DESTINATION /prefix/lib/cmake TYPE DIRECTORY
    FILES "${CMAKE_CURRENT_LIST_DIR}/packages/${name_${CMAKE_INSTALL_COMPONENT}}")
endif()
"""
LLVM = """
set(LLVM_PACKAGE_VERSION 19.1.7)
macro(llvm_map_components_to_libnames out)
  set(${out} LLVMSupport LLVMAMDGPUDisassembler)
endmacro()
"""

MLIR = 'find_package(LLVM REQUIRED CONFIG PATHS "${MLIR_DIR}/../llvm" NO_DEFAULT_PATH)\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a build tree that can install packages with the libraries that the program of the check names."""
    if not all(shutil.which(program) for program in ("cmake", "ninja", "c++")):
        pytest.skip("CMAKE, NINJA OR C++ IS NOT INSTALLED: the rehearsal is NOT tested")
    used = re.search(r"contract-code PUBLIC\n(.*?)\)", (CONTRACT / "CMakeLists.txt").read_text(), re.DOTALL)
    assert used
    packages = tmp_path / "packages"
    for name, config, libraries in (("llvm", LLVM, ["LLVMSupport"]), ("mlir", MLIR, used[1].split())):
        (packages / name).mkdir(parents=True)
        text = config
        text += 'get_filename_component(_IMPORT_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)\n'
        for library in libraries:
            text += f"add_library({library} STATIC IMPORTED)\nset_target_properties({library} PROPERTIES\n"
            text += f'  IMPORTED_LOCATION "${{_IMPORT_PREFIX}}/lib/lib{library}.a")\n'
        (packages / name / f"{name.upper()}Config.cmake").write_text(text)
    (tmp_path / "cmake_install.cmake").write_text(INSTALL)
    return tmp_path


def rehearse(tree: Path, libraries: str = "MLIRPass;LLVMSupport") -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "LIBRARIES": libraries, "FORBIDDEN": "/build /src/llvm"}
    command = ["sh", str(CONTRACT / "rehearse.sh"), str(tree), "/prefix"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def test_complete_packages_pass_and_leave_no_files(tree: Path) -> None:
    """LLVM's component map names AMD's disassembler, but a layer that does not reach this library lacks it."""
    done = rehearse(tree)
    assert done.returncode == 0, done.stderr
    assert not (tree / "toolchain-rehearsal").exists()


def test_consumer_library_missing_from_the_packages_is_refused(tree: Path) -> None:
    done = rehearse(tree, "MLIRPass;MLIRNoSuchThing")
    assert done.returncode != 0
    assert "MLIRNoSuchThing" in done.stderr


def test_library_linked_only_by_name_is_refused(tree: Path) -> None:
    config = tree / "packages/mlir/MLIRConfig.cmake"
    config.write_text(config.read_text() + "target_link_libraries(MLIRPass INTERFACE LLVMAMDGPUDisassembler)\n")
    done = rehearse(tree)
    assert done.returncode != 0
    assert "-lLLVMAMDGPUDisassembler" in done.stderr


def test_package_that_names_a_build_folder_is_refused(tree: Path) -> None:
    config = tree / "packages/mlir/MLIRConfig.cmake"
    config.write_text(config.read_text() + 'set(MLIR_MAIN_SRC_DIR "/src/llvm/mlir")\n')
    assert rehearse(tree).returncode == 0, "that line is dropped"
    config.write_text(config.read_text() + "include(/build/x.cmake OPTIONAL)\n")
    done = rehearse(tree)
    assert done.returncode == 3
    assert "names a folder of the build" in done.stderr


def test_incompatible_mlir_headers_are_refused(tree: Path) -> None:
    """The headers are empty, so each name is missing, as a renamed function would be in another MLIR."""
    source = tree / "source"
    for folder in ("llvm/include", "mlir/include", "lld/include"):
        (source / folder).mkdir(parents=True)
    text = (CONTRACT / "use.cpp").read_text(encoding="utf-8")
    for header in re.findall(r'#include "((?:mlir|llvm|llvm-c|lld)/[^"]+)"', text):
        path = source / ("mlir" if header.startswith("mlir/") else "llvm") / "include" / header
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tree / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={source / 'llvm'}\n", encoding="utf-8")
    (tree / "build.ninja").write_text("build mlir-headers: phony\n", encoding="utf-8")
    done = rehearse(tree)
    assert done.returncode == 1
    assert "does not compile against this MLIR" in done.stderr
    assert "use.cpp:" in done.stderr, "the first error has its place"
