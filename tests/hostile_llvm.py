"""An LLVM source tree whose CMake files run a script of the test inside the build."""

from __future__ import annotations

from pathlib import Path

from tests.small_llvm import small_llvm

_CMAKE = """\
cmake_minimum_required(VERSION 3.20)
project(LLVM C)
execute_process(COMMAND sh ${CMAKE_SOURCE_DIR}/probe.sh)
add_executable(mlir-tblgen main.c)
set_target_properties(mlir-tblgen PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
"""
_MAIN = """\
#include <stdio.h>
#ifndef SAYS
#define SAYS "WORDS"
#endif
int main(void) { return puts(SAYS) < 0; }
"""


def hostile_llvm(folder: Path, *, probe: str = "", says: str = "hello") -> Path:
    """Make the tree in `folder`; `toolchain build llvm --only mlir-tblgen` builds it in seconds.

    Args:
        probe: a shell script that runs while CMake configures, with the rights of the build.
        says: the text that the program prints, so that trees differ; a macro SAYS replaces it.
    """
    small_llvm(folder)
    (folder / "llvm" / "CMakeLists.txt").write_text(_CMAKE)
    (folder / "llvm" / "probe.sh").write_text(probe)
    (folder / "llvm" / "main.c").write_text(_MAIN.replace("WORDS", says))
    return folder
