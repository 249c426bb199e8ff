"""containerfiles/llvm-programs/build.sh on a small project with LLVM's names."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolchain.core import recipe
from toolchain.core.process import CommandError
from toolchain.core.recipe import Mount
from toolchain.engine.buildah import Buildah

pytestmark = pytest.mark.engine
PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(LLVM C CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_library(LLVMDemangle STATIC Unknown.cpp)
add_library(LLVMSupport STATIC StringRef.cpp FileCollector.cpp)
add_library(obj.LLVMTableGenBasic OBJECT TableGen.cpp ARMTargetDefEmitter.cpp)
add_executable(llvm-min-tblgen $<TARGET_OBJECTS:obj.LLVMTableGenBasic>)
add_executable(mlir-tblgen mlir-tblgen.cpp)
add_dependencies(mlir-tblgen llvm-min-tblgen)
target_link_libraries(mlir-tblgen PRIVATE LLVMSupport LLVMDemangle)
"""
SOURCES = {
    "StringRef.cpp": 'const char *text() { return "linked"; }',
    "FileCollector.cpp": 'const char *other() { return "all"; }',
    "TableGen.cpp": "int main() {}",
    "ARMTargetDefEmitter.cpp": "int emitter;",
    "Unknown.cpp": "int unknown;",
    "mlir-tblgen.cpp": "#include <cstdio>\nconst char *CALLED();\nint main() { std::puts(CALLED()); }",
}
SCRIPT = """
sh /recipe/containerfiles/llvm-programs/build.sh >&2
/out/layer/bin/mlir-tblgen
find /build -path /build/CMakeFiles/3* -prune -o -name '*.o' -print | sed 's,.*/,,' | sort
"""
COMPILED_ALL = "this LLVM may need more sources than linked-sources.cmake names, so all are compiled now"


def built(base: tuple[Buildah, str], folder: Path, called: str, *more: str) -> tuple[list[str], str]:
    """Build an mlir-tblgen that calls a function; return its line and the names of all objects, and the build's log.

    Args:
        more: further variables for build.sh.
    """
    engine, image = base
    for name in ("llvm", "mlir"):
        (folder / name).mkdir()
        (folder / name / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
    for name, text in SOURCES.items():
        (folder / "llvm" / name).write_text(text.replace("CALLED", called) + "\n", encoding="utf-8")
    parts = [Mount(recipe.root() / name, f"/recipe/{name}") for name in ("containerfiles", "llvm-config")]
    settings = ["PREFIX=/layer", "ARCH=amd64", "PROJECTS=mlir", "COMPONENTS=", "GOAL=mlir-tblgen", "PCH=OFF"]
    command = ["env", *settings, *more, "sh", "-ec", SCRIPT]
    log = folder / "log"
    done = engine.run(image, command, mounts=[Mount(folder, "/src/llvm"), *parts], log=log, capture=True)
    return done.stdout.split(), log.read_text(encoding="utf-8")


def test_only_the_named_sources_are_compiled(base: tuple[Buildah, str], tmp_path: Path) -> None:
    shown, log = built(base, tmp_path, "text")
    # A library whose sources are all unknown keeps them.
    assert shown == ["linked", "StringRef.cpp.o", "TableGen.cpp.o", "Unknown.cpp.o", "mlir-tblgen.cpp.o"]
    assert COMPILED_ALL not in log


def test_program_that_links_another_source_is_built_from_all_sources(base: tuple[Buildah, str], tmp_path: Path) -> None:
    (printed, *objects), log = built(base, tmp_path, "other")
    assert (printed, len(objects)) == ("all", len(SOURCES))
    assert log.count(COMPILED_ALL) == 1


def test_build_for_another_machine_compiles_all_sources(base: tuple[Buildah, str], tmp_path: Path) -> None:
    (printed, *objects), log = built(base, tmp_path, "text", "NATIVE=llvm-min-tblgen")
    assert (printed, len(objects)) == ("linked", len(SOURCES))
    assert COMPILED_ALL not in log


def test_failed_configuration_is_not_repeated(base: tuple[Buildah, str], tmp_path: Path) -> None:
    with pytest.raises(CommandError):
        built(base, tmp_path, "text", "CMAKE_EXTRA=-DCMAKE_CXX_STANDARD=no")
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert (log.count("Configuring incomplete"), COMPILED_ALL in log) == (1, False)


def test_failure_with_all_sources_is_reported(base: tuple[Buildah, str], tmp_path: Path) -> None:
    with pytest.raises(CommandError):
        built(base, tmp_path, "missing")
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert log.count(COMPILED_ALL) == 1
    assert "missing()" in log.partition(COMPILED_ALL)[2]
