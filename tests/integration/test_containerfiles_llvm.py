"""Tests of LLVM's Containerfiles with plain `buildah build`, up to the point at which the compilers would start.

The bases are stand-ins, as test_containerfiles.py explains.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.enterprise import script, with_programs
from tests.plain_buildah import PREFIX, Engine, engine, files

__all__ = ["engine"]
pytestmark = [pytest.mark.engine, pytest.mark.beside]


# ---- containerfiles/llvm


@pytest.fixture(scope="module")
def compilerless(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build an image with only a shell and mkdir, and return its name."""
    return engine.image("compilerless", with_programs(tmp_path_factory.mktemp("sh"), "sh", "mkdir"))


def test_llvm_source_without_mlir_is_refused_by_the_script(engine: Engine, compilerless: str, tmp_path: Path) -> None:
    (tmp_path / "llvm").mkdir()
    engine.build(
        "containerfiles/llvm/Containerfile",
        *("--build-context", f"llvm={tmp_path}", "--build-arg", f"BASE={compilerless}"),
        fails=("toolchain: the LLVM source has no mlir/ folder", "exit status 41"),
    )


def llvm_source(folder: Path) -> Path:
    """Write the files of an LLVM tree that the recipe itself reads."""
    for project in ("llvm", "mlir", "lld", "clang"):
        (folder / project).mkdir(parents=True)
        (folder / project / "CMakeLists.txt").write_text("")
        (folder / project / "LICENSE.TXT").write_text(f"licence of {project}\n")
    return folder


def workshop(tree: Path, *compilers: str) -> Path:
    """Write a base with compilers, whose fake cmake records its arguments and whose fake ninja installs the record."""
    with_programs(tree, "sh", "mkdir", "rm", "cat", "install", "uname", "tail", "find")
    script(tree / "usr/bin/python3", ":")
    for name in compilers:
        script(tree / "usr/bin" / name, ":")
    script(tree / "usr/bin/cmake", 'for word in "$@"; do echo "$word"; done >/build/asked; : >/build/build.ninja')
    script(
        tree / "usr/bin/ninja",
        'case "$*" in *install-distribution*)\n'
        '  mkdir -p "$DESTDIR$PREFIX/lib"; cat /build/asked >"$DESTDIR$PREFIX/lib/asked" ;;\n'
        "esac",
    )
    return tree


@pytest.mark.parametrize(
    ("compilers", "asked", "not_asked"),
    [
        (("gcc", "g++"), {"-DCMAKE_CXX_COMPILER=g++", "-DCMAKE_C_COMPILER=gcc"}, "-DLLVM_USE_LINKER=lld"),
        (
            ("gcc", "g++", "clang", "clang++", "ld.lld"),
            {"-DCMAKE_CXX_COMPILER=clang++", "-DLLVM_USE_LINKER=lld"},
            "-DCMAKE_CXX_COMPILER=g++",
        ),
    ],
    ids=["gcc", "clang"],
)
def test_llvm_is_configured_for_the_compilers_of_the_base(
    engine: Engine, tmp_path: Path, compilers: tuple[str, ...], asked: set[str], not_asked: str
) -> None:
    base = engine.image(f"workshop-{'-'.join(compilers).replace('+', 'p')}", workshop(tmp_path / "base", *compilers))
    out = tmp_path / "a layer"
    engine.build(
        "containerfiles/llvm/Containerfile",
        *("--build-context", f"llvm={llvm_source(tmp_path / 'llvm source')}", "--build-arg", f"BASE={base}"),
        *("--build-arg", f"PREFIX={PREFIX}", "--build-arg", f"INPUT_DIGEST={tmp_path.name}"),
        *("--output", f"type=local,dest={out}"),
    )
    dependencies = PREFIX.lstrip("/")
    assert files(out) == {
        f"{dependencies}/lib/asked",
        *(f"{dependencies}/share/licenses/{project}/LICENSE.TXT" for project in ("llvm", "mlir", "lld")),
    }
    words = set((out / dependencies / "lib/asked").read_text().splitlines())
    assert asked <= words
    assert not_asked not in words
    assert f"-DCMAKE_INSTALL_PREFIX={PREFIX}" in words
    assert "-DLLVM_ENABLE_PROJECTS=mlir;lld" in words
    assert "/recipe/llvm-config/common.cmake" in words


def test_each_build_is_configured_with_its_own_prefix(engine: Engine, tmp_path: Path) -> None:
    """Without the tool, all builds share one build tree, which must not keep the options of an earlier build."""
    base = engine.image("workshop-again", workshop(tmp_path / "base", "gcc", "g++"))
    source = llvm_source(tmp_path / "llvm")
    for prefix in ("/usr/lib64/llvm-triton-aaaaaaaa", "/usr/lib64/llvm-triton-bbbbbbbb"):
        out = tmp_path / prefix[-8:]
        engine.build(
            "containerfiles/llvm/Containerfile",
            *("--build-context", f"llvm={source}", "--build-arg", f"BASE={base}"),
            *("--build-arg", f"PREFIX={prefix}", "--output", f"type=local,dest={out}"),
        )
        asked = (out / prefix.lstrip("/") / "lib/asked").read_text().splitlines()
        assert f"-DCMAKE_INSTALL_PREFIX={prefix}" in asked


# ---- containerfiles/llvm-portable


def old_system(folder: Path, minor: int) -> Path:
    """Write the headers of an old system that the recipe itself reads."""
    (folder / "usr/include").mkdir(parents=True)
    (folder / "usr/include/stdlib.h").touch()
    (folder / "usr/include/features.h").write_text(
        f"#define\t__GLIBC__\t2\n#define __GLIBC_MINOR__ {minor}\n#define __GLIBC_PREREQ(maj, min) 1\n"
    )
    return folder


@pytest.fixture(scope="module")
def clang_workshop(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build a base with clang and lld, whose fake ninja installs a CMake package, and return its name."""
    tree = workshop(tmp_path_factory.mktemp("clang"), "gcc", "g++", "clang", "clang++", "ld.lld")
    with_programs(tree, "sed", "tr", "chmod")
    ninja = tree / "usr/bin/ninja"
    ninja.write_text(
        ninja.read_text().replace(
            'mkdir -p "$DESTDIR$PREFIX/lib";',
            'at="$DESTDIR$PREFIX/lib/cmake/llvm"; mkdir -p "$at"; echo "# of LLVM" >"$at/LLVMConfig.cmake";',
        )
    )
    return engine.image("workshop-portable", tree)


def test_portable_llvm_is_configured_with_its_toolchain_file_and_glibc(
    engine: Engine, clang_workshop: str, tmp_path: Path
) -> None:
    out = tmp_path / "a layer"
    engine.build(
        "containerfiles/llvm-portable/Containerfile",
        *("--build-context", f"llvm={llvm_source(tmp_path / 'llvm')}", "--build-arg", f"BASE={clang_workshop}"),
        *("--build-context", f"sysroot={old_system(tmp_path / 'old', 31)}", "--build-arg", "GLIBC=2.31"),
        *("--build-arg", f"PREFIX={PREFIX}", "--build-arg", f"INPUT_DIGEST={tmp_path.name}"),
        *("--output", f"type=local,dest={out}"),
    )
    package = out / PREFIX.lstrip("/") / "lib/cmake/llvm"
    words = (package.parent.parent / "asked").read_text().splitlines()
    assert "-DCMAKE_TOOLCHAIN_FILE=/recipe/llvm-config/portable.cmake" in words
    assert {"-DCMAKE_CXX_COMPILER=clang++", "-DLLVM_USE_LINKER=lld"} <= set(words)
    config = (package / "LLVMConfig.cmake").read_text()
    assert config == '# of LLVM\n\ninclude("${CMAKE_CURRENT_LIST_DIR}/LayerConsumer.cmake")\n'
    consumer = (package / "LayerConsumer.cmake").read_text()
    assert 'set(LLVM_LAYER_GLIBC "2.31")' in consumer
    assert "@" not in consumer


@pytest.mark.parametrize(
    "glibc", ["2.31", pytest.param("", marks=pytest.mark.nightly)], ids=["portable", "for-its-base"]
)
def test_build_of_programs_uses_its_own_precompiled_header(
    engine: Engine, clang_workshop: str, tmp_path: Path, glibc: str
) -> None:
    out = tmp_path / "a layer"
    old = ("--build-context", f"sysroot={old_system(tmp_path / 'old', 31)}", "--build-arg", f"GLIBC={glibc}")
    engine.build(
        "containerfiles/llvm-programs/Containerfile",
        *("--build-context", f"llvm={llvm_source(tmp_path / 'llvm')}", "--build-arg", f"BASE={clang_workshop}"),
        *(old if glibc else ()),
        # The stand-in compiles no program, but it installs a file with the arguments of cmake.
        *("--build-arg", "GOAL=distribution", "--build-arg", f"PREFIX={PREFIX}"),
        *("--build-arg", f"INPUT_DIGEST={tmp_path.name}", "--output", f"type=local,dest={out}"),
    )
    words = (out / PREFIX.lstrip("/") / "lib/asked").read_text().splitlines()
    header = "-DCMAKE_PROJECT_LLVM_INCLUDE=/recipe/llvm-config/pch-programs.cmake"
    last = [word for word in words if word.startswith(header.partition("=")[0])][-1]
    assert (last, words.index(header) > words.index("/recipe/llvm-config/common.cmake")) == (header, True)
    assert ("-DCMAKE_TOOLCHAIN_FILE=/recipe/llvm-config/portable.cmake" in words) == bool(glibc)


@pytest.mark.parametrize(
    ("minor", "glibc", "says"),
    [
        (36, "2.31", "/sysroot holds glibc 2.36, and the layer would be called one for 2.31"),
        (None, "2.31", "built with clang and lld against an old system in /sysroot"),
    ],
    ids=["another-system", "no-system"],
)
def test_wrong_or_missing_old_system_is_refused_by_the_script(
    engine: Engine, clang_workshop: str, tmp_path: Path, minor: int | None, glibc: str, says: str
) -> None:
    system = ("--build-context", f"sysroot={old_system(tmp_path / 'old', minor)}") if minor is not None else ()
    failed = engine.build(
        "containerfiles/llvm-portable/Containerfile",
        *("--build-context", f"llvm={llvm_source(tmp_path / 'llvm')}", "--build-arg", f"BASE={clang_workshop}"),
        *(*system, "--build-arg", f"GLIBC={glibc}", "--build-arg", f"PREFIX={PREFIX}"),
        fails=[says],
    )
    assert not any("@step" in line for line in failed.tail)
