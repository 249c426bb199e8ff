"""llvm-config/contract/rehearse.sh: what a configured LLVM is asked before hours of compiling, on a small stand-in."""

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
    """A build tree that can install packages with the libraries that the check's own program names."""
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


def test_a_layer_that_will_hold_all_passes_and_leaves_nothing(tree: Path) -> None:
    """AMD's disassembler is one of LLVM's libraries for that GPU, and in no layer that does not reach it."""
    done = rehearse(tree)
    assert done.returncode == 0, done.stderr
    assert not (tree / "toolchain-rehearsal").exists()


def test_a_library_that_the_consumer_names_and_the_packages_lack(tree: Path) -> None:
    done = rehearse(tree, "MLIRPass;MLIRNoSuchThing")
    assert done.returncode != 0
    assert "MLIRNoSuchThing" in done.stderr


def test_a_library_that_is_linked_by_its_name_alone(tree: Path) -> None:
    config = tree / "packages/mlir/MLIRConfig.cmake"
    config.write_text(config.read_text() + "target_link_libraries(MLIRPass INTERFACE LLVMAMDGPUDisassembler)\n")
    done = rehearse(tree)
    assert done.returncode != 0
    assert "-lLLVMAMDGPUDisassembler" in done.stderr


def test_a_package_that_names_the_build(tree: Path) -> None:
    config = tree / "packages/mlir/MLIRConfig.cmake"
    config.write_text(config.read_text() + 'set(MLIR_MAIN_SRC_DIR "/src/llvm/mlir")\n')
    assert rehearse(tree).returncode == 0, "that line is dropped"
    config.write_text(config.read_text() + "include(/build/x.cmake OPTIONAL)\n")
    done = rehearse(tree)
    assert done.returncode == 3
    assert "names a folder of the build" in done.stderr


def test_an_mlir_that_moved_its_functions_is_told_before_anything_is_compiled(tree: Path) -> None:
    """The headers here are empty, so every name is missing, as one would be in an MLIR that renamed it."""
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
