"""The Containerfiles as people use them without the tool: plain `buildah build`, here without any network.

What needs no other image is built as it is. What starts from an image of a registry is built on a stand-in: a few
programs of this machine, and scripts that record what they were asked where the real thing would install or compile.
That shows that buildah takes the files, that mounts and arguments reach the scripts and that these do what they say;
it does not show that a distribution has the packages.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.enterprise import enterprise_tree, script, with_programs
from toolchain import process
from toolchain.catalog.bases import base_recipe
from toolchain.recipe import root

pytestmark = pytest.mark.engine

BASES = ["ubi9", "almalinux8", "manylinux_2_28"]
PREFIX = "/usr/lib64/llvm-triton-0a1b2c3d"


@dataclass(frozen=True)
class Engine:
    """buildah with a storage of the test's own."""

    folder: Path
    runroot: Path

    def __call__(self, *words: str | os.PathLike[str], check: bool = True, network: bool = False) -> process.Result:
        """One buildah command, without a network unless asked."""
        scratch = self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        argv = ["buildah", "--root", os.fspath(self.folder / "storage"), "--runroot", os.fspath(self.runroot)]
        argv += ["--storage-driver", os.environ.get("STORAGE_DRIVER", "overlay"), *(os.fspath(word) for word in words)]
        return process.run(
            process.contained(argv, network=network),
            env={"TMPDIR": os.fspath(scratch)},
            check=check,
            capture=True,
            timeout=1200 if network else 300,
        )

    def image(self, name: str, tree: Path) -> str:
        """An image that holds `tree` and nothing else."""
        (self.folder / "Containerfile").write_text("FROM scratch\nCOPY . /\nENV PATH=/usr/local/bin:/usr/bin:/bin\n")
        self("build", "--layers=false", "--file", self.folder / "Containerfile", "--tag", f"localhost/{name}", tree)
        return f"localhost/{name}"

    def build(
        self, containerfile: str, *words: str | os.PathLike[str], check: bool = True, network: bool = False
    ) -> process.Result:
        """`buildah build` of a Containerfile of the repository, with the repository as context."""
        file = root() / containerfile
        options = ("--isolation", "chroot", "--layers=false", "--file", file)
        return self("build", *options, *words, root(), check=check, network=network)


def roomy_memory() -> Path | None:
    """A file system in memory with half a gigabyte to spare: storage there spares every image its flush to disk."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 29:
        return memory
    return None


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """buildah, or a skip that says what is missing."""
    for program in ("buildah", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"NO CONTAINERFILE IS BUILT: {program} is not installed (apt-get install buildah util-linux)")
    # Short, because overlay's mount options have a limit.
    folder = Path(tempfile.mkdtemp(prefix="tc", dir=roomy_memory()))
    made = Engine(folder, folder / "run")
    probe = made("from", "--quiet", "scratch", check=False)
    if probe.returncode != 0 and folder.parent == Path("/dev/shm"):
        shutil.rmtree(folder, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix="tc"))
        made = Engine(folder, folder / "run")
        probe = made("from", "--quiet", "scratch", check=False)
    if probe.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"NO CONTAINERFILE IS BUILT: buildah does not work here: {' '.join(probe.tail)}")
    yield made
    shutil.rmtree(folder, ignore_errors=True)


def files(tree: Path) -> set[str]:
    """Every file below `tree`, by path."""
    return {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}


# ---- containerfiles/base


@pytest.mark.parametrize("name", BASES)
def test_recipe_stage_of_a_base_builds_from_nothing(engine: Engine, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    engine.build(
        f"containerfiles/base/{name}/Containerfile", "--target", "recipe", "--output", f"type=local,dest={out}"
    )
    assert files(out) == {"install.sh", "packages"}
    there = root() / "containerfiles/base"
    assert (out / "install.sh").read_bytes() == (there / "install.sh").read_bytes()
    assert (out / "packages").read_bytes() == (there / name / "packages").read_bytes()


@pytest.fixture(scope="module")
def enterprise(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """See `tests.enterprise`."""
    tree = enterprise_tree(tmp_path_factory.mktemp("el"))
    return engine.image("enterprise", tree)


@pytest.mark.parametrize("name", BASES)
def test_base_on_a_stand_in_image(engine: Engine, enterprise: str, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    engine.build(
        f"containerfiles/base/{name}/Containerfile",
        *("--build-arg", f"BASE={enterprise}", "--output", f"type=local,dest={out}"),
    )
    calls = (out / "dnf-calls").read_text().splitlines()
    wanted = (root() / "containerfiles/base" / name / "packages").read_text().split()
    main = calls[0 if name == "ubi9" else 1]
    assert main.split(" install ")[1].split() == wanted
    assert ("--enablerepo=powertools" in main) == (name != "ubi9")
    assert calls[-1] == "clean all"
    # What the builds' fixed PATH must find is found there, and the toolset's sudo hides no other.
    assert (out / "usr/local/bin/g++").readlink() == Path("/opt/rh/gcc-toolset-14/root/usr/bin/g++")
    assert not (out / "usr/local/bin/sudo").is_symlink()
    assert (out / "usr/local/bin/ninja").readlink() == Path("/usr/bin/ninja-build")
    python = "/opt/python/cp312-cp312/bin/python3" if name == "manylinux_2_28" else "/usr/bin/python3.12"
    assert (out / "usr/local/bin/python3").readlink() == Path(python)
    # The tool reads the base's digest from here, so the order must not be the package manager's.
    assert (out / "toolchain-packages").read_text().split() == ["bash:x86_64=0:5-1,aa", "zlib:x86_64=0:1-1,bb"]


def test_base_without_its_compiler_is_no_base(engine: Engine, enterprise: str, tmp_path: Path) -> None:
    failed = engine.build(
        "containerfiles/base/almalinux8/Containerfile",
        *("--build-arg", f"BASE={enterprise}", "--build-arg", "TOOLSET=gcc-toolset-99"),
        check=False,
    )
    assert failed.returncode != 0
    assert any("gcc-toolset-99 did not install" in line for line in failed.tail)
    assert any("exit status 42" in line for line in failed.tail)


@pytest.mark.full
@pytest.mark.parametrize("name", BASES)
def test_base_on_its_real_image(engine: Engine, tmp_path: Path, name: str) -> None:
    if not os.environ.get("TOOLCHAIN_TEST_PULL"):
        pytest.skip(
            f"BASE {name} IS NOT BUILT FOR REAL: that needs its registry; TOOLCHAIN_TEST_PULL=1 allows to ask it"
        )
    out = tmp_path / "out"
    engine.build(f"containerfiles/base/{name}/Containerfile", "--output", f"type=local,dest={out}", network=True)
    assert "clang:" in (out / "toolchain-packages").read_text()
    assert f'ID="{base_recipe(name).os_release["id"]}"' in (out / "etc/os-release").read_text()


# ---- containerfiles/llvm


@pytest.fixture(scope="module")
def compilerless(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with a shell alone."""
    return engine.image("compilerless", with_programs(tmp_path_factory.mktemp("sh"), "sh", "mkdir"))


def test_llvm_source_without_mlir_is_refused_by_the_script(engine: Engine, compilerless: str, tmp_path: Path) -> None:
    (tmp_path / "llvm").mkdir()
    failed = engine.build(
        "containerfiles/llvm/Containerfile",
        *("--build-context", f"llvm={tmp_path}", "--build-arg", f"BASE={compilerless}"),
        check=False,
    )
    assert failed.returncode != 0
    assert any("toolchain: the LLVM source has no mlir/ folder" in line for line in failed.tail)
    assert any("exit status 41" in line for line in failed.tail)


def test_llvm_source_must_be_given(engine: Engine, compilerless: str) -> None:
    failed = engine.build("containerfiles/llvm/Containerfile", "--build-arg", f"BASE={compilerless}", check=False)
    assert failed.returncode != 0
    assert not any("@step" in line for line in failed.tail)


def llvm_source(folder: Path) -> Path:
    """As much of an LLVM tree as the recipe itself looks at."""
    for project in ("llvm", "mlir", "lld", "clang"):
        (folder / project).mkdir(parents=True)
        (folder / project / "CMakeLists.txt").write_text("")
        (folder / project / "LICENSE.TXT").write_text(f"licence of {project}\n")
    return folder


def workshop(tree: Path, *compilers: str) -> Path:
    """A stand-in for a base with compilers: its cmake and ninja write down what they are asked."""
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
        (("gcc", "g++", "ld.lld"), {"-DCMAKE_CXX_COMPILER=g++"}, "-DLLVM_USE_LINKER=lld"),
        (
            ("gcc", "g++", "clang", "clang++", "ld.lld"),
            {"-DCMAKE_CXX_COMPILER=clang++", "-DLLVM_USE_LINKER=lld"},
            "-DCMAKE_CXX_COMPILER=g++",
        ),
    ],
    ids=["gcc", "gcc-and-lld", "clang"],
)
def test_llvm_layer_on_a_stand_in_base(
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


def test_another_prefix_is_another_configuration(engine: Engine, tmp_path: Path) -> None:
    """Without the tool every build shares one tree; it must not keep what an earlier build asked for."""
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
    """As much of an old system as the recipe itself looks at."""
    (folder / "usr/include").mkdir(parents=True)
    (folder / "usr/include/stdlib.h").touch()
    (folder / "usr/include/features.h").write_text(
        f"#define\t__GLIBC__\t2\n#define __GLIBC_MINOR__ {minor}\n#define __GLIBC_PREREQ(maj, min) 1\n"
    )
    return folder


@pytest.fixture(scope="module")
def clang_workshop(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A stand-in for a base with clang and lld, whose ninja installs a CMake package."""
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


def test_a_portable_layer_on_a_stand_in_base(engine: Engine, clang_workshop: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("glibc", ["2.31", ""], ids=["portable", "for-its-base"])
def test_a_program_alone_has_its_own_precompiled_header(
    engine: Engine, clang_workshop: str, tmp_path: Path, glibc: str
) -> None:
    out = tmp_path / "a layer"
    old = ("--build-context", f"sysroot={old_system(tmp_path / 'old', 31)}", "--build-arg", f"GLIBC={glibc}")
    engine.build(
        "containerfiles/llvm-programs/Containerfile",
        *("--build-context", f"llvm={llvm_source(tmp_path / 'llvm')}", "--build-arg", f"BASE={clang_workshop}"),
        *(old if glibc else ()),
        # The stand-in compiles no program; what it was asked lies in what it installs.
        *("--build-arg", "GOAL=distribution", "--build-arg", f"PREFIX={PREFIX}"),
        *("--build-arg", f"INPUT_DIGEST={tmp_path.name}", "--output", f"type=local,dest={out}"),
    )
    words = (out / PREFIX.lstrip("/") / "lib/asked").read_text().splitlines()
    header = "-DCMAKE_PROJECT_LLVM_INCLUDE=/recipe/llvm-config/pch-programs.cmake"
    # The file named later wins.
    assert words.index(header) > words.index("/recipe/llvm-config/common.cmake")
    assert ("-DCMAKE_TOOLCHAIN_FILE=/recipe/llvm-config/portable.cmake" in words) == bool(glibc)


@pytest.mark.parametrize(
    ("minor", "glibc", "says"),
    [
        (36, "2.31", "/sysroot holds glibc 2.36, and the layer would be called one for 2.31"),
        (31, "", "GLIBC must name the version of the glibc in /sysroot"),
        (None, "2.31", "built with clang and lld against an old system in /sysroot"),
    ],
    ids=["another-system", "no-name", "no-system"],
)
def test_what_is_no_floor_is_refused_by_the_script(
    engine: Engine, clang_workshop: str, tmp_path: Path, minor: int | None, glibc: str, says: str
) -> None:
    system = ("--build-context", f"sysroot={old_system(tmp_path / 'old', minor)}") if minor is not None else ()
    failed = engine.build(
        "containerfiles/llvm-portable/Containerfile",
        *("--build-context", f"llvm={llvm_source(tmp_path / 'llvm')}", "--build-arg", f"BASE={clang_workshop}"),
        *(*system, "--build-arg", f"GLIBC={glibc}", "--build-arg", f"PREFIX={PREFIX}"),
        check=False,
    )
    assert failed.returncode != 0
    assert any(says in line for line in failed.tail), failed.tail
    assert not any("@step" in line for line in failed.tail)


# ---- containerfiles/triton and containerfiles/aotriton: up to where the compilers would start


@pytest.fixture(scope="module")
def layer(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A stand-in for the LLVM layer."""
    tree = tmp_path_factory.mktemp("layer")
    (tree / PREFIX.lstrip("/") / "lib").mkdir(parents=True)
    (tree / PREFIX.lstrip("/") / "lib" / "here").write_text("layer\n")
    return engine.image("stand-in-layer", tree)


@pytest.fixture(scope="module")
def shell(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A base with a shell, a few programs and one bitcode file."""
    tree = with_programs(tmp_path_factory.mktemp("shell"), "sh", "mkdir", "rm", "cp", "cat", "nproc", "tr", "env")
    bitcode = tree / "usr/lib/llvm-17/lib/clang/17/amdgcn/bitcode/ocml.bc"
    bitcode.parent.mkdir(parents=True)
    bitcode.write_text("the base's own\n")
    script(tree / "usr/bin/cmake", 'for word in "$@"; do echo "asked $word"; done; exit 7')
    script(tree / "usr/bin/python3.98", 'cat /build/src/lib/ocml.bc /build/src/lib/gone 2>&1; echo "$PREFIX"; exit 9')
    script(tree / "usr/bin/python3", "echo 3.98")
    script(tree / "usr/bin/python3.97", "exit 9")
    return engine.image("shell", tree)


def triton(engine: Engine, shell: str, layer: str, tmp_path: Path, *words: str) -> process.Result:
    source, wheels = tmp_path / "triton source", tmp_path / "wheels"
    (source / "lib").mkdir(parents=True)
    (source / "lib/ocml.bc").write_text("prebuilt\n")
    (source / "lib/gone").write_text("dropped\n")
    wheels.mkdir()
    return engine.build(
        "containerfiles/triton/Containerfile",
        *("--build-context", f"triton={source}", "--build-context", f"wheels={wheels}"),
        *("--build-arg", f"BASE={shell}", "--build-arg", f"LLVM={layer}", "--build-arg", f"PREFIX={PREFIX}"),
        *("--build-arg", f"INPUT_DIGEST={tmp_path.name}", *words),
        check=False,
    )


def test_triton_for_a_python_that_the_base_lacks(engine: Engine, shell: str, layer: str, tmp_path: Path) -> None:
    failed = triton(engine, shell, layer, tmp_path, "--build-arg", "PYTHONS=3.99")
    assert any("toolchain: the base has no python3.99" in line for line in failed.tail)
    assert any("exit status 42" in line for line in failed.tail)


def test_triton_for_all_pythons_but_the_bases_own(engine: Engine, shell: str, layer: str, tmp_path: Path) -> None:
    """The image of base and wheel could not import it; that is told before anything is compiled."""
    failed = triton(engine, shell, layer, tmp_path, "--build-arg", "PYTHONS=3.97")
    assert any("toolchain: the base runs Python 3.98, which --python (3.97) leaves out" in line for line in failed.tail)
    assert any("exit status 46" in line for line in failed.tail)


def test_triton_takes_the_bases_bitcode_in_place_of_a_prebuilt_one(
    engine: Engine, shell: str, layer: str, tmp_path: Path
) -> None:
    swap = "REPLACE=lib/ocml.bc=/usr/lib/llvm-*/lib/clang/*/amdgcn/bitcode/ocml.bc"
    words = ("--build-arg", swap, "--build-arg", "DROP=lib/gone", "--build-arg", "PYTHONS=3.98")
    failed = triton(engine, shell, layer, tmp_path, *words)
    assert any("the base's own" in line for line in failed.tail)
    assert not any("prebuilt" in line for line in failed.tail)
    assert any("gone: No such file" in line for line in failed.tail)
    assert (tmp_path / "triton source/lib/ocml.bc").read_text() == "prebuilt\n", "the source itself was changed"


def test_triton_on_a_base_without_that_bitcode(engine: Engine, shell: str, layer: str, tmp_path: Path) -> None:
    failed = triton(engine, shell, layer, tmp_path, "--build-arg", "REPLACE=lib/ocml.bc=/opt/*/ocml.bc")
    assert any("toolchain: the base has nothing to put in place of lib/ocml.bc" in line for line in failed.tail)
    assert any("exit status 43" in line for line in failed.tail)


def test_aotriton_is_asked_for_its_library_alone(engine: Engine, shell: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "wheels").mkdir()
    failed = engine.build(
        "containerfiles/aotriton/Containerfile",
        *("--build-context", f"aotriton={tmp_path / 'source'}", "--build-context", f"wheels={tmp_path / 'wheels'}"),
        *("--build-arg", f"BASE={shell}", "--build-arg", "GPUS=gfx942 gfx1100", "--build-arg", f"SHA1={'a' * 40}"),
        *("--build-arg", f"INPUT_DIGEST={tmp_path.name}"),
        check=False,
    )
    asked = {line.removeprefix("asked ") for line in failed.tail if line.startswith("asked ")}
    assert {"-DAOTRITON_NOIMAGE_MODE=ON", "-DAOTRITON_NO_PYTHON=ON", "-DAOTRITON_TARGET_ARCH=gfx942;gfx1100"} <= asked
    assert any("exit status 7" in line for line in failed.tail)
