"""An LLVM source tree with only the files that plans and locks read."""

from __future__ import annotations

from pathlib import Path

PROJECTS = ("llvm", "mlir", "lld", "clang")


def small_llvm(folder: Path, projects: tuple[str, ...] = PROJECTS, version: str = "22.1.8") -> Path:
    """Write the tree to `folder`, which need not exist, and return it."""
    for name in projects:
        (folder / name).mkdir(parents=True)
        (folder / name / "CMakeLists.txt").write_text("project(x)\n")
    file = folder / "cmake" / "Modules" / "LLVMVersion.cmake"
    file.parent.mkdir(parents=True, exist_ok=True)
    parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    file.write_text("".join(f"set(LLVM_VERSION_{name} {number})\n" for name, number in parts))
    return folder


_SUPPORT = """\
cmake_minimum_required(VERSION 3.20)
project(LLVM C)
add_library(LLVMDemangle STATIC demangle.c)
add_library(LLVMSupport STATIC Twine.cpp.c other.c)
add_custom_target(distribution DEPENDS LLVMDemangle LLVMSupport)
install(TARGETS LLVMDemangle LLVMSupport ARCHIVE DESTINATION lib)
add_custom_target(install-distribution-stripped
  COMMAND ${CMAKE_COMMAND} --install ${CMAKE_BINARY_DIR} DEPENDS distribution)
"""


def support_llvm(folder: Path, says: str) -> Path:
    """Write a tree from which `--only support --no-contract` builds two libraries in seconds.

    Args:
        says: a text in the objects, so that trees differ.
    """
    small_llvm(folder)
    (folder / "llvm" / "CMakeLists.txt").write_text(_SUPPORT)
    for name in ("demangle", "Twine.cpp", "other"):
        # `__FILE__` is in the text, because an object must not depend on the file's folder or the compiler's command.
        text = f'const char *said_{name.partition(".")[0]}(void) {{ return __FILE__ " {says}"; }}\n'
        (folder / "llvm" / f"{name}.c").write_text(text)
    return folder
