"""A small Triton source tree whose code generator for AMD's GPUs is a separate library.

The tree has pins, build files and the project of the library, which links LLVMSupport.
"""

from __future__ import annotations

import json
from pathlib import Path

CORE = "b010a18d2b648cab83c83967ff26b8fde11acdc6"
AMD = "6bc4aaf6641c56ee104f6200c96a6a571bc77052"
PROJECT = "third_party/amd/backend/codegen"

CMAKE = """\
cmake_minimum_required(VERSION 3.20)
project(small_codegen LANGUAGES C CXX)
find_package(LLVM REQUIRED CONFIG)
set(TRITON_AMD_LLVM_REVISION "unknown" CACHE STRING "")
add_library(triton_amd_codegen SHARED small.cpp ../../../../lib/Tools/LLVMOptions.cpp)
target_compile_features(triton_amd_codegen PRIVATE cxx_std_17)
target_include_directories(triton_amd_codegen PRIVATE ../../../../include)
target_include_directories(triton_amd_codegen SYSTEM PRIVATE ${LLVM_INCLUDE_DIRS})
target_compile_definitions(triton_amd_codegen PRIVATE REVISION="${TRITON_AMD_LLVM_REVISION}")
target_compile_options(triton_amd_codegen PRIVATE -fno-exceptions -fno-rtti -fvisibility=hidden)
target_link_libraries(triton_amd_codegen PRIVATE LLVMSupport)
file(GENERATE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/amd-codegen.exports" CONTENT
  "{\\n  global:\\n    triton_amdgpu_name;\\n    triton_amdgpu_revision;\\n  local:\\n    *;\\n};\\n")
target_link_options(triton_amd_codegen PRIVATE
  "LINKER:--version-script,${CMAKE_CURRENT_BINARY_DIR}/amd-codegen.exports" "LINKER:--exclude-libs,ALL"
  "LINKER:-z,defs")
"""

SOURCE = """\
#include "triton/Tools/LLVMOptions.h"
#define SEEN __attribute__((visibility("default")))
extern "C" SEEN const char *triton_amdgpu_revision() { return REVISION; }
extern "C" SEEN const char *triton_amdgpu_name() { return small_name(); }
"""

OPTIONS = """\
#include "triton/Tools/LLVMOptions.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/raw_ostream.h"
#include <string>
#ifndef NDEBUG
#error "LLVM's layer was compiled with NDEBUG"
#endif
const char *small_name() {
  static const std::string name = [] {
    std::string text;
    llvm::raw_string_ostream(text) << llvm::StringRef("AMDGPU").lower();
    return text;
  }();
  return name.c_str();
}
"""

SETUP = """\
# TRITON_STABLE_ABI: one wheel for 3.12 and later
from setuptools import setup

setup(name="triton", python_requires=">=3.11,<3.16")
"""

HELPERS = """\
import os

OFFLINE = os.environ.get("TRITON_OFFLINE_BUILD")
CODEGEN = os.environ.get("TRITON_AMD_CODEGEN_PATH")
"""


def codegen_tree(folder: Path, *, llvm: str = CORE, amd: str = AMD, build: int = 1) -> Path:
    """Write the tree to `folder`; no wheel can be built from it."""
    info = {"llvm_hash": llvm, "build_number": 1}
    amd_info = {"llvm_hash": amd, "build_number": build, "sha256sum": {"ubuntu-x64": "0" * 64}}
    files = {
        "cmake/llvm-info.json": json.dumps(info),
        "cmake/llvm-build-info.json": json.dumps({**info, "repository": "llvm/llvm-project"}),
        "cmake/amd-llvm-info.json": json.dumps(amd_info),
        "CMakeLists.txt": "find_package(LLD REQUIRED CONFIG)\n",
        "LICENSE": "MIT\n",
        "pyproject.toml": '[build-system]\nrequires = ["setuptools>=40.8.0", "nanobind==2.10.2"]\n',
        "setup.py": SETUP,
        "python/build_helpers.py": HELPERS,
        "python/triton/__init__.py": '__version__ = "3.9.0"\n',
        "third_party/nvidia/x": "x",
        f"{PROJECT}/CMakeLists.txt": CMAKE,
        f"{PROJECT}/small.cpp": SOURCE,
        "include/triton/Tools/LLVMOptions.h": "#pragma once\nconst char *small_name();\n",
        "lib/Tools/LLVMOptions.cpp": OPTIONS,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
