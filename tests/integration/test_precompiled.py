"""pch.cmake gives each target a precompiled header that clang accepts for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toolchain.core.recipe import Mount
from toolchain.engine.buildah import Buildah

pytestmark = pytest.mark.engine
TOP = Path(__file__).parents[2]
NO_CXX = '" -fno-exceptions -fno-rtti"'
# LLVM 17 to 21 set these flags at a target, or at the sources of a target that also has C sources.
# LLVM 22 sets options.
LISTS = {
    ".": """cmake_minimum_required(VERSION 3.20)
project(LLVM C CXX)
set(LLVM_MAIN_SRC_DIR "${CMAKE_CURRENT_SOURCE_DIR}")
include_directories(include)
add_subdirectory(lib/Target)
add_subdirectory(lib/Sources)
add_subdirectory(lib/Options)
add_subdirectory(../clang clang)
add_subdirectory(../mlir mlir)
""",
    "lib/Target": f"""add_library(Target STATIC one.cpp)
set_property(TARGET Target APPEND_STRING PROPERTY COMPILE_FLAGS {NO_CXX})
""",
    "lib/Sources": f"""add_library(Sources STATIC two.cpp three.c)
set_property(SOURCE two.cpp APPEND_STRING PROPERTY COMPILE_FLAGS {NO_CXX})
""",
    "lib/Options": """add_library(Options STATIC four.cpp)
target_compile_options(Options PRIVATE -fno-exceptions -fno-rtti)
""",
}
SOURCES = ("lib/Target/one.cpp", "lib/Sources/two.cpp", "lib/Sources/three.c", "lib/Options/four.cpp")
# The tier of each target. mlir-pdll generates headers of dialects, so what it links cannot use a PCH with them.
TIERS = {
    "clang/lib/AST/clangAST": "ir",
    "clang/lib/Sema/clangSema": "sema",
    "mlir/lib/IR/MLIRIR": "mlir",
    "mlir/lib/Dialect/Arith/MLIRArith": "dialects",
    "mlir/lib/Dialect/SPIRV/MLIRSPIRV": "devices",
    "mlir/lib/Dialect/PDL/MLIRPDL": "mlir",
    "mlir/lib/MLIRRegisterAllDialects": "devices",
}
TOPS = {
    "clang": "include_directories(include)\n",
    "mlir": "add_executable(mlir-pdll main.cpp)\ntarget_link_libraries(mlir-pdll PRIVATE MLIRPDL)\n",
}
# clang refuses a PCH whose headers were compiled with other definitions.
SEMA = """#pragma once
#ifdef CLANG_EXPORTS
struct Exported {};
#endif
"""
# pch-launcher.sh lists in /build/pch-fallbacks the sources that clang refused to compile with the precompiled header.
BUILD = """
cmake -G Ninja -S /src/llvm -B /build -DCMAKE_PROJECT_LLVM_INCLUDE=/src/llvm-config/pch.cmake -DTOOLCHAIN_PCH=ON \\
  -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \\
  -DCMAKE_CXX_COMPILER_LAUNCHER='sh;/src/llvm-config/pch-launcher.sh' >&2
ninja -C /build >&2
ninja -C /build -t commands >/tmp/commands
sed -nE 's#.* -include-pch .*/toolchain-pch-([a-z]+)-.* -o (lib|clang|mlir)/.* -c /src/(.*)#\\3 \\1#p' /tmp/commands
[ ! -e /build/pch-fallbacks ] || cat /build/pch-fallbacks
"""


def write_tree(folder: Path) -> list[Mount]:
    """Write a small LLVM, clang and MLIR to `folder`, and return the mounts of a build."""
    llvm = folder / "llvm"
    header = llvm / "include/llvm/Config/abi-breaking.h"  # pch-scan.py requires it of a source
    header.parent.mkdir(parents=True)
    header.write_text("#pragma once\n")
    for place, text in LISTS.items():
        (llvm / place).mkdir(parents=True, exist_ok=True)
        (llvm / place / "CMakeLists.txt").write_text(text)
    for source in SOURCES:
        (llvm / source).write_text('#include "llvm/Config/abi-breaking.h"\n')
    lists = dict(TOPS)
    for target in TIERS:
        path = Path(target)
        (folder / path.parent).mkdir(parents=True, exist_ok=True)
        (folder / f"{target}.cpp").write_text('#include "llvm/Config/abi-breaking.h"\n')
        lists[path.parts[0]] += f"add_subdirectory({path.parent.relative_to(path.parts[0])})\n"
        lists[str(path.parent)] = f"add_library({path.name} STATIC {path.name}.cpp)\n"
        if path.parts[0] == "clang":
            lists[str(path.parent)] += f"target_compile_definitions({path.name} PUBLIC CLANG_EXPORTS)\n"
    for place, text in lists.items():
        (folder / place / "CMakeLists.txt").write_text(text)
    (folder / "mlir/main.cpp").write_text("int main() {}\n")
    sema = folder / "clang/include/clang/Sema/Sema.h"
    sema.parent.mkdir(parents=True)
    sema.write_text(SEMA)
    with (folder / "clang/lib/Sema/clangSema.cpp").open("a") as source_file:
        source_file.write('#include "clang/Sema/Sema.h"\nExported exported;\n')
    mounts = [Mount(folder / name, f"/src/{name}") for name in ("llvm", "clang", "mlir")]
    return [*mounts, Mount(TOP / "llvm-config", "/src/llvm-config")]


def test_each_source_is_compiled_with_its_precompiled_header(base: tuple[Buildah, str], tmp_path: Path) -> None:
    engine, image = base
    shown = engine.run(image, ["sh", "-ec", BUILD], mounts=write_tree(tmp_path), capture=True).stdout
    tiers = {"llvm/lib/Target/one.cpp": "codegen", "llvm/lib/Sources/two.cpp": "ir", "llvm/lib/Options/four.cpp": "ir"}
    tiers |= {f"{target}.cpp": tier for target, tier in TIERS.items()}
    # A source that clang refused to compile with its header is a line with one word.
    assert sorted(shown.splitlines()) == sorted(f"{source} {tier}" for source, tier in tiers.items())


def test_header_that_does_not_compile_leaves_its_sources_without_one(base: tuple[Buildah, str], tmp_path: Path) -> None:
    engine, image = base
    mounts = write_tree(tmp_path)
    header = tmp_path / "mlir/include/mlir/Dialect/Tosa/IR/TosaOps.h"
    header.parent.mkdir(parents=True)
    header.write_text("#error it needs another header\n")
    shown = engine.run(image, ["sh", "-ec", BUILD], mounts=mounts, capture=True).stdout
    refused = {line for line in shown.splitlines() if " " not in line}
    sources = {f"/src/{target}.cpp" for target, tier in TIERS.items() if tier == "devices"}
    owner = {
        name
        for name in refused - sources
        if re.search(r"/toolchain-pch-devices-\w+(\.cpp|\.dir/cmake_pch\.hxx\.pch)$", name)
    }
    assert len(owner) == 2
    assert refused == sources | owner
