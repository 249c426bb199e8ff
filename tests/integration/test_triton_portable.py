"""The recipe of portable wheels with a real portable LLVM and a small Triton, for two Pythons and two architectures."""

from __future__ import annotations

import functools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.conftest import toolchain
from tests.refusals import refused
from tests.small_triton import small_triton
from toolchain.catalog.architectures import emulator
from toolchain.core import process
from toolchain.core.cache import Cache, default_cache
from toolchain.core.errors import BuildError, ContractError
from toolchain.core.recipe import Mount, Recipe, root
from toolchain.engine.buildah import Buildah
from toolchain.oci.layout import Layout
from toolchain.sources.pypi import pypi_row
from toolchain.sources.resolve import fetch_source
from toolchain.stages.binary_checks import check_wheel
from toolchain.stages.triton_source import for_python
from toolchain.stages.wheels import TRITON, place, wheel_sources

pytestmark = pytest.mark.engine
OPTIONS = ("--source", "llvm=distro:llvm-toolchain-22", "--only", "support", "--python", "3.11,3.13")
PREFIX = "/usr/lib64/llvm-triton-22.1.8"
ASK = "import triton; print(triton.made_for, triton.asserts, triton.demangle('_ZN4llvm5APIntD1Ev'))"


@dataclass(frozen=True)
class Made:
    """The wheels of one architecture, and the files that their tests need."""

    arch: str
    out: Path
    pythons: Path
    emulator: Path | None
    base: str


def unpacked(cache: Cache, manifest: str, folder: Path) -> Path:
    """Unpack a stage's own layer, and return the folder."""
    layout = Layout(cache.images)
    folder.mkdir(parents=True)
    top = layout.children(layout.resolve(manifest))[-1]
    process.run(["tar", "--extract", "--no-same-owner", "--file", layout.blob(top.digest), "--directory", folder])
    return folder


@pytest.fixture(scope="module")
def engine() -> Buildah:
    """Return an engine with the user's own cache, which has the base already."""
    return Buildah(Cache(default_cache()))


@functools.cache
def finished(arch: str) -> dict[str, dict[str, str]]:
    """Build the stages that the recipe needs, and return their rows of `build --json` by name."""
    rows: dict[str, dict[str, str]] = {}
    for stage in ("python", "llvm"):
        built = toolchain("build", stage, *OPTIONS, "--arch", arch, "--json")
        assert built.code == 0, built.err
        rows |= {row["name"]: row for row in built.json["stages"]}
    return rows


def image(engine: Buildah, stage: str, arch: str) -> str:
    """Return a finished stage's image; load it again if the engine dropped it after a build."""
    row = finished(arch)[stage]
    return engine.ensure_image(row["image"], engine.cache.images, row["manifest"])


def build(engine: Buildah, recipe: Recipe, out: Path) -> None:
    """Build from an empty tree, and delete the tree afterwards, because the cache is the user's."""
    log = out.with_suffix(".log")
    try:
        engine.build(recipe, root=root(), out=out, log=log)
    except BuildError:
        print(log.read_text()[-8000:])  # noqa: T201
        raise
    finally:
        engine.drop_cache(recipe.name, recipe.cache_key)


def recipe_of(engine: Buildah, folder: Path, arch: str) -> Recipe:
    """Return the recipe with the inputs that the stage gives it, but with a small Triton and a part of LLVM."""
    cache, manifests = engine.cache, {name: row["manifest"] for name, row in finished(arch).items()}
    wheels = folder / "wheels"
    wheels.mkdir()
    for source in wheel_sources(TRITON):
        place(
            fetch_source(source, cache=cache, offline=False).path, wheels / pypi_row(source.where, source.version).file
        )
    contexts = {
        "triton": small_triton(folder / "small triton"),
        "wheels": wheels,
        "sysroot": unpacked(cache, manifests["sysroot"], folder / "sysroot"),
        "pythons": unpacked(cache, manifests["python"], folder / "pythons"),
    }
    if arch == "arm64":
        (folder / "emulator").mkdir()
        shutil.copy(emulator(arch), folder / "emulator/emulator")
        contexts["emulator"] = folder / "emulator"
    return Recipe(
        name="triton",
        containerfile="containerfiles/triton-portable/Containerfile",
        base=image(engine, "base", arch),
        images={"LLVM": image(engine, "llvm", arch)},
        args={"PREFIX": PREFIX, "ARCH": arch, "PYTHONS": "3.11 3.13", "LIT": "OFF", "INPUT_DIGEST": str(folder)},
        contexts=contexts,
        cache_key=f"small-{os.getpid()}",
    )


@pytest.fixture(scope="module", params=["amd64", pytest.param("arm64", marks=pytest.mark.nightly)])
def made(request: pytest.FixtureRequest, engine: Buildah, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Build both wheels for an architecture."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("NO DEBIAN MACHINE AS ROOT: the base is made from apt's mirrors")
    folder = tmp_path_factory.mktemp(request.param)
    recipe = recipe_of(engine, folder, request.param)
    build(engine, recipe, folder / "out")
    return Made(request.param, folder / "out", recipe.contexts["pythons"], recipe.contexts.get("emulator"), recipe.base)


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_wheel_is_for_its_python_architecture_and_an_old_glibc(made: Made, python: str) -> None:
    wheel = for_python(sorted((made.out / "wheel").iterdir()), python)
    found = check_wheel(wheel, python=python, arch=made.arch, glibc="2.31")
    assert found["tag"].startswith("manylinux_2_")
    assert "libz.so.1" not in found["libraries"], "what is named and not used came in"
    assert {"libc.so.6", "libstdc++.so.6"} <= set(found["libraries"])
    other = "3.13" if python == "3.11" else "3.11"
    with refused("wheel-contents-wrong"):
        check_wheel(wheel, python=other, arch=made.arch, glibc="2.31")
    with pytest.raises(ContractError) as refusal:
        check_wheel(wheel, python=python, arch="arm64" if made.arch == "amd64" else "amd64", glibc="2.31")
    assert "triton/_C/libtriton.so: " in refusal.value.why
    with pytest.raises(ContractError) as refusal:
        check_wheel(wheel, python=python, arch=made.arch, glibc="2.2")
    assert "triton/_C/libtriton.so: " in refusal.value.why


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_wheel_is_imported_by_its_python(made: Made, engine: Buildah, python: str, tmp_path: Path) -> None:
    shutil.unpack_archive(for_python(sorted((made.out / "wheel").iterdir()), python), tmp_path / "wheel", "zip")
    mounts = [
        Mount(root() / "containerfiles/triton-portable", "/recipe/python"),
        Mount(made.pythons, "/pythons"),
        Mount(tmp_path / "wheel", "/wheel"),
        *([Mount(made.emulator, "/emulator")] if made.emulator else []),
    ]
    env = {"PYTHONPATH": "/wheel", "LD_BIND_NOW": "1", **({"EMULATOR": "/emulator/emulator"} if made.emulator else {})}
    words = ["sh", "/recipe/python/python.sh", python, "-c", ASK]
    done = engine.run(made.base, words, mounts=mounts, env=env, capture=True)
    version, asserts, name = done.stdout.split(" ", 2)
    assert version.startswith(f"{python}.")
    assert asserts == "False"
    assert name.strip() == "llvm::APInt::~APInt()"


def test_source_without_python_headers_is_compiled_once(made: Made) -> None:
    steps = {
        python: [line.split("\t")[3] for line in (made.out / f"ninja-{python}.log").read_text().splitlines()
                 if line.count("\t") >= 4]
        for python in ("3.11", "3.13")
    }  # fmt: skip
    assert any(step.endswith("plain.cpp.o") for step in steps["3.11"])
    assert any(step.endswith("module.cpp.o") for step in steps["3.13"])
    assert not any(step.endswith("plain.cpp.o") for step in steps["3.13"]), steps["3.13"]
