"""Tests of the Containerfiles with plain `buildah build`, as people use them without the tool, and without a network.

A stage that needs no other image is built as it is. A Containerfile that starts from an image in a registry is built on
a stand-in: a few programs of the host, and scripts that record their arguments instead of installing or compiling.
The tests show that buildah accepts the files, that mounts and arguments reach the scripts, and that the scripts work;
they do not show that a distribution has the packages.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.enterprise import enterprise_tree, script, with_programs
from tests.plain_buildah import PREFIX, Engine, engine, files
from toolchain.catalog.bases import base_recipe
from toolchain.core import process
from toolchain.core.recipe import root

__all__ = ["engine"]
pytestmark = [pytest.mark.engine, pytest.mark.beside]
BASES = ["ubi9", "almalinux8", "manylinux_2_28"]
# ubi9 has the same commands as the others, except that the others also enable a repository.
TRIED = [BASES[0], *(pytest.param(name, marks=pytest.mark.nightly) for name in BASES[1:])]


# ---- containerfiles/base


@pytest.mark.parametrize("name", TRIED)
def test_recipe_stage_of_a_base_needs_no_other_image(engine: Engine, tmp_path: Path, name: str) -> None:
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
    """Build the image of `tests.enterprise`, and return its name."""
    tree = enterprise_tree(tmp_path_factory.mktemp("el"))
    return engine.image("enterprise", tree)


@pytest.mark.parametrize("name", TRIED)
def test_base_installs_its_packages_and_links_its_programs(
    engine: Engine, enterprise: str, tmp_path: Path, name: str
) -> None:
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
    # The builds' fixed PATH finds the links, and there is no link to the toolset's sudo, which would hide another sudo.
    assert (out / "usr/local/bin/g++").readlink() == Path("/opt/rh/gcc-toolset-14/root/usr/bin/g++")
    assert not (out / "usr/local/bin/sudo").is_symlink()
    assert (out / "usr/local/bin/ninja").readlink() == Path("/usr/bin/ninja-build")
    python = "/opt/python/cp312-cp312/bin/python3" if name == "manylinux_2_28" else "/usr/bin/python3.12"
    assert (out / "usr/local/bin/python3").readlink() == Path(python)
    # The tool derives the base's digest from this file, so its order must not depend on the package manager.
    assert (out / "toolchain-packages").read_text().split() == ["bash:x86_64=0:5-1,aa", "zlib:x86_64=0:1-1,bb"]


def test_base_fails_to_build_without_its_compiler(engine: Engine, enterprise: str, tmp_path: Path) -> None:
    engine.build(
        "containerfiles/base/almalinux8/Containerfile",
        *("--build-arg", f"BASE={enterprise}", "--build-arg", "TOOLSET=gcc-toolset-99"),
        fails=("gcc-toolset-99 did not install", "exit status 42"),
    )


@pytest.mark.full
@pytest.mark.parametrize("name", BASES)
def test_base_builds_on_its_real_image(engine: Engine, tmp_path: Path, name: str) -> None:
    if not os.environ.get("TOOLCHAIN_TEST_PULL"):
        pytest.skip(
            f"BASE {name} IS NOT BUILT FOR REAL: that needs its registry; TOOLCHAIN_TEST_PULL=1 allows to ask it"
        )
    out = tmp_path / "out"
    engine.build(f"containerfiles/base/{name}/Containerfile", "--output", f"type=local,dest={out}", network=True)
    assert "clang:" in (out / "toolchain-packages").read_text()
    assert f'ID="{base_recipe(name).os_release["id"]}"' in (out / "etc/os-release").read_text()


# ---- containerfiles/triton and containerfiles/aotriton: up to where the compilers would start


@pytest.fixture(scope="module")
def layer(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build a stand-in for the LLVM layer, and return its name."""
    tree = tmp_path_factory.mktemp("layer")
    (tree / PREFIX.lstrip("/") / "lib").mkdir(parents=True)
    (tree / PREFIX.lstrip("/") / "lib" / "here").write_text("layer\n")
    return engine.image("stand-in-layer", tree)


@pytest.fixture(scope="module")
def shell(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build a base with a shell, a few programs and one bitcode file, and return its name."""
    tree = with_programs(tmp_path_factory.mktemp("shell"), "sh", "mkdir", "rm", "cp", "cat", "nproc", "tr", "env")
    bitcode = tree / "usr/lib/llvm-17/lib/clang/17/amdgcn/bitcode/ocml.bc"
    bitcode.parent.mkdir(parents=True)
    bitcode.write_text("the base's own\n")
    script(tree / "usr/bin/cmake", 'for word in "$@"; do echo "asked $word"; done; exit 7')
    script(tree / "usr/bin/python3.98", 'cat /build/src/lib/ocml.bc /build/src/lib/gone 2>&1; echo "$PREFIX"; exit 9')
    script(tree / "usr/bin/python3", "echo 3.98")
    script(tree / "usr/bin/python3.97", "exit 9")
    return engine.image("shell", tree)


def triton(
    engine: Engine, shell: str, layer: str, tmp_path: Path, *words: str, fails: Collection[str]
) -> process.Result:
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
        fails=fails,
    )


@pytest.mark.parametrize(
    ("argument", "status"),
    [("PYTHONS=3.99", 42), ("PYTHONS=3.97", 46), ("REPLACE=lib/ocml.bc=/opt/*/ocml.bc", 43)],
    ids=["no such Python", "without the base's own Python", "no such bitcode"],
)
def test_triton_fails_to_build_if_the_base_lacks_an_input(
    engine: Engine, shell: str, layer: str, tmp_path: Path, argument: str, status: int
) -> None:
    """The exit status differs for each missing input."""
    triton(engine, shell, layer, tmp_path, "--build-arg", argument, fails=[f"exit status {status}"])


def test_triton_build_replaces_prebuilt_bitcode_with_that_of_the_base(
    engine: Engine, shell: str, layer: str, tmp_path: Path
) -> None:
    swap = "REPLACE=lib/ocml.bc=/usr/lib/llvm-*/lib/clang/*/amdgcn/bitcode/ocml.bc"
    words = ("--build-arg", swap, "--build-arg", "DROP=lib/gone", "--build-arg", "PYTHONS=3.98")
    failed = triton(engine, shell, layer, tmp_path, *words, fails=("the base's own", "gone: No such file"))
    assert not any("prebuilt" in line for line in failed.tail)
    assert (tmp_path / "triton source/lib/ocml.bc").read_text() == "prebuilt\n", "the source itself was changed"


def test_aotriton_is_configured_to_build_only_its_library(engine: Engine, shell: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "wheels").mkdir()
    wanted = {"-DAOTRITON_NOIMAGE_MODE=ON", "-DAOTRITON_NO_PYTHON=ON", "-DAOTRITON_TARGET_ARCH=gfx942;gfx1100"}
    failed = engine.build(
        "containerfiles/aotriton/Containerfile",
        *("--build-context", f"aotriton={tmp_path / 'source'}", "--build-context", f"wheels={tmp_path / 'wheels'}"),
        *("--build-arg", f"BASE={shell}", "--build-arg", "GPUS=gfx942 gfx1100", "--build-arg", f"SHA1={'a' * 40}"),
        *("--build-arg", f"INPUT_DIGEST={tmp_path.name}"),
        fails={"exit status 7", *(f"asked {word}" for word in wanted)},
    )
    asked = {line.removeprefix("asked ") for line in failed.tail if line.startswith("asked ")}
    assert wanted <= asked, failed.tail
