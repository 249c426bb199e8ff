"""pch.cmake gives each target a precompiled header that clang accepts for it."""

from __future__ import annotations

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
# The tier of each target of MLIR. mlir-pdll generates headers of dialects, so what it links cannot use a PCH with them.
MLIR = {
    "lib/IR/MLIRIR": "mlir",
    "lib/Dialect/Arith/MLIRArith": "dialects",
    "lib/Dialect/SPIRV/MLIRSPIRV": "devices",
    "lib/Dialect/PDL/MLIRPDL": "mlir",
    "lib/MLIRRegisterAllDialects": "devices",
}
MLIR_TOP = """add_executable(mlir-pdll main.cpp)
target_link_libraries(mlir-pdll PRIVATE MLIRPDL)
"""
# pch-launcher.sh lists in /build/pch-fallbacks the sources that clang refused to compile with the precompiled header.
BUILD = """
cmake -G Ninja -S /src/llvm -B /build -DCMAKE_PROJECT_LLVM_INCLUDE=/src/llvm-config/pch.cmake -DTOOLCHAIN_PCH=ON \\
  -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \\
  -DCMAKE_CXX_COMPILER_LAUNCHER='sh;/src/llvm-config/pch-launcher.sh' >&2
ninja -C /build >&2
commands="$(ninja -C /build -t commands)"
echo "$commands" | sed -nE 's#.* -include-pch .*/toolchain-pch-([a-z]+)-.* -o (lib|mlir)/.* -c /src/(.*)#\\3 \\1#p'
[ ! -e /build/pch-fallbacks ] || cat /build/pch-fallbacks
"""


def test_each_source_is_compiled_with_its_precompiled_header(base: tuple[Buildah, str], tmp_path: Path) -> None:
    engine, image = base
    llvm = tmp_path / "llvm"
    header = llvm / "include/llvm/Config/abi-breaking.h"  # pch-scan.py requires it of a source
    header.parent.mkdir(parents=True)
    header.write_text("#pragma once\n")
    for folder, text in LISTS.items():
        (llvm / folder).mkdir(parents=True, exist_ok=True)
        (llvm / folder / "CMakeLists.txt").write_text(text)
    for source in SOURCES:
        (llvm / source).write_text('#include "llvm/Config/abi-breaking.h"\n')
    mlir = tmp_path / "mlir"
    lists = {"": MLIR_TOP + "".join(f"add_subdirectory({Path(target).parent})\n" for target in MLIR)}
    for target in MLIR:
        name = Path(target).name
        (mlir / target).parent.mkdir(parents=True, exist_ok=True)
        (mlir / f"{target}.cpp").write_text('#include "llvm/Config/abi-breaking.h"\n')
        lists[str(Path(target).parent)] = f"add_library({name} STATIC {name}.cpp)\n"
    for folder, text in lists.items():
        (mlir / folder / "CMakeLists.txt").write_text(text)
    (mlir / "main.cpp").write_text("int main() {}\n")
    mounts = [Mount(llvm, "/src/llvm"), Mount(mlir, "/src/mlir"), Mount(TOP / "llvm-config", "/src/llvm-config")]
    shown = engine.run(image, ["sh", "-ec", BUILD], mounts=mounts, capture=True).stdout
    tiers = {"llvm/lib/Target/one.cpp": "codegen", "llvm/lib/Sources/two.cpp": "ir", "llvm/lib/Options/four.cpp": "ir"}
    tiers |= {f"mlir/{target}.cpp": tier for target, tier in MLIR.items()}
    # A source that clang refused to compile with its header is a line with one word.
    assert sorted(shown.splitlines()) == sorted(f"{source} {tier}" for source, tier in tiers.items())
