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
INCLUDE = '#include "llvm/Config/abi-breaking.h"\n'  # pch-scan.py requires it of a source

# The folders of each project, with their CMakeLists.txt. LLVM 17 to 21 set the flags of NO_CXX at a target, or at the
# sources of a target that also has C sources. LLVM 22 sets options. From 23 on, a target has precompiled headers of its
# own, or reuses those of another target. {own} is replaced where a test adds a target that has its own.
LISTS = {
    "llvm": """cmake_minimum_required(VERSION 3.20)
project(LLVM C CXX)
set(LLVM_MAIN_SRC_DIR "${CMAKE_CURRENT_SOURCE_DIR}")
include_directories(include)
add_subdirectory(lib/Target)
add_subdirectory(lib/Sources)
add_subdirectory(lib/Options)
add_subdirectory(lib/Support)
add_subdirectory(../clang clang)
add_subdirectory(../mlir mlir)
""",
    "llvm/lib/Target": f"""add_library(Target STATIC Target.cpp)
set_property(TARGET Target APPEND_STRING PROPERTY COMPILE_FLAGS {NO_CXX})
""",
    "llvm/lib/Sources": f"""add_library(Sources STATIC Sources.cpp c.c)
set_property(SOURCE Sources.cpp APPEND_STRING PROPERTY COMPILE_FLAGS {NO_CXX})
""",
    "llvm/lib/Options": """add_library(Options STATIC Options.cpp)
target_compile_options(Options PRIVATE -fno-exceptions -fno-rtti)
""",
    "llvm/lib/Support": """add_library(Support STATIC Support.cpp)
target_precompile_headers(Support PRIVATE <cassert>)
""",
    "clang": """include_directories(include)
foreach(name IN ITEMS AST Basic Index Parse Sema)
  add_subdirectory(lib/${name})
endforeach()
""",
    "clang/lib/AST": """add_library(AST STATIC AST.cpp)
target_precompile_headers(AST PRIVATE <cassert>)
""",
    "clang/lib/Basic": "add_library(Basic STATIC Basic.cpp)\n",
    "clang/lib/Index": """add_library(Index STATIC Index.cpp)
target_precompile_headers(Index REUSE_FROM AST)
""",
    "clang/lib/Parse": """add_library(Parse STATIC Parse.cpp)
target_compile_definitions(Parse PUBLIC CLANG_EXPORTS)
target_precompile_headers(Parse REUSE_FROM AST)
""",
    "clang/lib/Sema": """add_library(Sema STATIC Sema.cpp)
target_compile_definitions(Sema PUBLIC CLANG_EXPORTS)
{own}""",
    # Generating a header takes a while, so that a precompiled header that does not depend on it cannot be compiled.
    "mlir": """include_directories(include ${CMAKE_BINARY_DIR}/tools/mlir/include)
set(generated ${CMAKE_BINARY_DIR}/tools/mlir/include/generated.inc)
add_custom_command(OUTPUT ${generated} COMMAND sleep 5 COMMAND cmake -E touch ${generated})
add_custom_target(mlir-headers DEPENDS ${generated})
foreach(folder IN ITEMS lib lib/IR lib/Dialect/Arith lib/Dialect/SPIRV)
  add_subdirectory(${folder})
endforeach()
""",
    "mlir/lib": "add_library(RegisterAllDialects STATIC RegisterAllDialects.cpp)\n",
    "mlir/lib/IR": """add_library(IR STATIC IR.cpp)
target_precompile_headers(IR REUSE_FROM Support)
""",
    "mlir/lib/Dialect/Arith": "add_library(Arith STATIC Arith.cpp)\n{own}",
    "mlir/lib/Dialect/SPIRV": "add_library(SPIRV STATIC SPIRV.cpp)\n",
}
FILES = {
    "llvm/include/llvm/Config/abi-breaking.h": "#pragma once\n",
    "llvm/lib/Sources/c.c": INCLUDE,
    "mlir/include/mlir/Dialect/Arith/IR/Arith.h": '#include "generated.inc"\n',
    # clang refuses a PCH whose headers were compiled with other definitions.
    "clang/include/clang/Sema/Sema.h": "#pragma once\n#ifdef CLANG_EXPORTS\nstruct Exported {};\n#endif\n",
    "clang/lib/Sema/Sema.cpp": f'{INCLUDE}#include "clang/Sema/Sema.h"\nExported exported;\n',
}
# The precompiled header of each target: a tier of ours, or the target that declares its own.
HEADERS = {
    "Target": "codegen",
    "Sources": "ir",
    "Options": "ir",
    "Support": "Support",
    "AST": "AST",
    "Basic": "ir",
    "Index": "AST",
    "Parse": "sema",
    "Sema": "sema",
    "RegisterAllDialects": "devices",
    "IR": "mlir",
    "Arith": "dialects",
    "SPIRV": "devices",
}
# pch-launcher.sh lists in /build/pch-fallbacks the sources that clang refused to compile with the precompiled header.
BUILD = """
cmake -G Ninja -S /src/llvm -B /build -DCMAKE_PROJECT_LLVM_INCLUDE=/src/llvm-config/pch.cmake -DTOOLCHAIN_PCH=ON \\
  -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \\
  -DCMAKE_CXX_COMPILER_LAUNCHER='sh;/src/llvm-config/pch-launcher.sh' >&2
ninja -C /build >&2
ninja -C /build -t commands
[ ! -e /build/pch-fallbacks ] || sed 's/^/refused /' /build/pch-fallbacks
"""


def build(base: tuple[Buildah, str], folder: Path, own: str = "", **files: str) -> tuple[dict[str, str], set[str]]:
    """Build a small LLVM, clang and MLIR.

    Args:
        own: a target that declares a precompiled header of its own.
        files: the content of further files, by path.

    Returns:
        The precompiled header of each target, and what the launcher lists as refused.
    """
    engine, image = base
    for place, text in LISTS.items():
        name = Path(place).name
        (folder / place).mkdir(parents=True, exist_ok=True)
        declared = f"target_precompile_headers({name} PRIVATE <cassert>)\n" if name == own else ""
        (folder / place / "CMakeLists.txt").write_text(text.replace("{own}", declared))
        for source in re.findall(r"\w+\.cpp", text):
            (folder / place / source).write_text(INCLUDE)
    for path, text in (FILES | files).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    mounts = [Mount(folder / name, f"/src/{name}") for name in ("llvm", "clang", "mlir")]
    mounts.append(Mount(TOP / "llvm-config", "/src/llvm-config"))
    lines = engine.run(image, ["sh", "-ec", BUILD], mounts=mounts, capture=True).stdout.splitlines()
    used = {}
    for line in lines:
        if found := re.search(
            r" -include-pch .*/([\w-]+)\.dir/cmake_pch.* -o (?:lib|clang|mlir)/.*/(\w+)\.cpp\.o ", line
        ):
            tier = re.fullmatch(r"toolchain-pch-([a-z]+)-\w+", found[1])
            used[found[2]] = tier[1] if tier else found[1]
    return used, {line.removeprefix("refused ") for line in lines if line.startswith("refused ")}


def test_each_source_is_compiled_with_its_precompiled_header(base: tuple[Buildah, str], tmp_path: Path) -> None:
    assert build(base, tmp_path) == (HEADERS, set())


@pytest.mark.parametrize(
    ("own", "kept"), [("Sema", {"Sema": "Sema", "Parse": "AST"}), ("Arith", {"Arith": "Arith", "IR": "Support"})]
)
def test_headers_that_llvm_declares_are_kept(
    base: tuple[Buildah, str], tmp_path: Path, own: str, kept: dict[str, str]
) -> None:
    assert build(base, tmp_path, own) == (HEADERS | kept, set())


def test_header_that_does_not_compile_leaves_its_sources_without_one(base: tuple[Buildah, str], tmp_path: Path) -> None:
    broken = {"mlir/include/mlir/Dialect/Tosa/IR/TosaOps.h": "#error it needs another header\n"}
    used, refused = build(base, tmp_path, **broken)
    assert used == HEADERS
    sources = {"/src/mlir/lib/Dialect/SPIRV/SPIRV.cpp", "/src/mlir/lib/RegisterAllDialects.cpp"}
    owner = r"/toolchain-pch-devices-\w+(\.cpp|\.dir/cmake_pch\.hxx\.pch)$"
    assert len(refused) == 4
    assert all(name in sources or re.search(owner, name) for name in refused)
