"""Wheels above Triton, built by the real recipe in the base. Tests with real PyTorch take minutes, and are `full`."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Said, toolchain
from toolchain.catalog.wheel_rows import wheel_row
from toolchain.core import recipe
from toolchain.core.cache import Cache, default_cache
from toolchain.core.digest import sha256_file
from toolchain.core.recipe import Recipe
from toolchain.engine.buildah import Buildah
from toolchain.oci.image import ImageSpec, add_layer, write_image
from toolchain.oci.layer import compress, write_layer
from toolchain.oci.layout import Layout
from toolchain.sources.pypi import fetch_pypi, pypi_row
from toolchain.sources.store import Store

pytestmark = pytest.mark.engine
TORCH = {"usr/lib/python3/dist-packages/torch/__init__.py": "__version__ = '2.6.0'\n"}
TRITON = {
    "usr/lib/toolchain/triton/triton/__init__.py": "",
    "usr/lib/toolchain/triton/triton-3.7.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: triton\nVersion: 3.7.1\n",
}
SETUP = "from setuptools import setup\nsetup(name='small', version='1', py_modules=['small'], {more})\n"


def image(engine: Buildah, folder: Path, key: str, files: Mapping[str, str]) -> str:
    """Load an image of one layer with these files into the engine, and return its name."""
    for name, text in files.items():
        path = folder / key / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    layout = Layout(folder / "images").ensure()
    layer = compress(write_layer(folder / key, folder / f"{key}.tar"), folder / f"{key}.blob", "none")
    manifest = write_image(layout, ImageSpec(arch="amd64", layers=(add_layer(layout, layer),)))
    return engine.ensure_image(f"wheels-{key}", layout.root, manifest.digest)


def built(
    base: tuple[Buildah, str],
    folder: Path,
    setup: str,
    *,
    pep517: bool = True,
    triton: Mapping[str, str] = TRITON,
    torch: Mapping[str, str] = TORCH,
) -> tuple[dict[str, Any], list[str]]:
    """Build a small project by the recipe, and return the recipe's result and the names of the wheels."""
    row = {**asdict(wheel_row("flash-attn")), "build": {}, "needs": ["setup.py"], "drop": [], "pep517": pep517}
    source = folder / "source"
    source.mkdir()
    (source / "setup.py").write_text(setup, encoding="utf-8")
    (source / "small.py").write_text("", encoding="utf-8")
    return built_from(base, folder, source, row, triton=triton, torch=torch)


def built_from(
    base: tuple[Buildah, str],
    folder: Path,
    source: Path,
    row: Mapping[str, Any],
    *,
    triton: Mapping[str, str] = TRITON,
    torch: Mapping[str, str] = TORCH,
) -> tuple[dict[str, Any], list[str]]:
    """Build a source by the recipe, and return the recipe's result and the names of the wheels."""
    engine, reference = base
    for name in ("wheels", "row"):
        (folder / name).mkdir()
    (folder / "row" / "row.json").write_text(json.dumps(row), encoding="utf-8")
    for project in ("packaging", "setuptools", "wheel"):
        file = pypi_row(project, "")
        store = Store(Cache(default_cache()).store)
        path = fetch_pypi(file.project, file.version, file.file, file.sha256, store, offline=False)
        (folder / "wheels" / file.file).write_bytes(path.read_bytes())
    out = folder / "out"
    asked = Recipe(
        name="wheel",
        containerfile="containerfiles/wheel/Containerfile",
        base=reference,
        images={"TORCH": image(engine, folder, "torch", torch), "TRITON": image(engine, folder, "triton", triton)},
        contexts={"source": source, "wheels": folder / "wheels", "row": folder / "row"},
    )
    engine.build(asked, root=recipe.root(), out=out, log=folder / "log")
    return json.loads((out / "result.json").read_text()), sorted(path.name for path in (out / "wheel").iterdir())


# This is the part of PyTorch that flash-attn's setup.py imports if it builds nothing for CUDA.
NO_CUDA = {
    **TORCH,
    "usr/lib/python3/dist-packages/torch/utils/__init__.py": "",
    "usr/lib/python3/dist-packages/torch/utils/cpp_extension.py": (
        "from setuptools.command.build_ext import build_ext as BuildExtension\n"
        "CUDA_HOME = ROCM_HOME = CppExtension = CUDAExtension = None\n"
        "IS_HIP_EXTENSION = False\n"
    ),
}
# The wheel has this digest with Debian's PyTorch 2.6.0, both with Triton 3.7.1 and with one from source.
FLASH_ATTN = "sha256:b97593871fd0a39abada0508b7080e69e4d8d2ef66e4de3b9b55628f0e6f666b"


def test_flash_attn_has_the_same_bytes_as_with_a_whole_pytorch(base: tuple[Buildah, str], tmp_path: Path) -> None:
    row = wheel_row("flash-attn")
    file = pypi_row(row.project, "")
    store = Store(Cache(default_cache()).store)
    path = fetch_pypi(file.project, file.version, file.file, file.sha256, store, offline=False)
    with tarfile.open(path) as tar:
        tar.extractall(tmp_path / "sdist", filter="data")
    (source,) = (tmp_path / "sdist").iterdir()
    result, wheels = built_from(base, tmp_path, source, {**asdict(row), "drop": []}, torch=NO_CUDA)
    assert (wheels, result["network"]) == (["flash_attn-2.8.3.post2-py3-none-any.whl"], [])
    assert sha256_file(tmp_path / "out" / "wheel" / wheels[0]) == FLASH_ATTN


def test_project_that_tries_the_network_is_built_and_reported(base: tuple[Buildah, str], tmp_path: Path) -> None:
    reach = "import socket\ntry:\n    socket.create_connection(('203.0.113.7', 80), 1)\nexcept OSError:\n    pass\n"
    result, wheels = built(base, tmp_path, reach + SETUP.format(more=""))
    assert wheels == ["small-1-py3-none-any.whl"]
    assert "failed" not in result
    assert (result["torch"], result["triton"]["files"]) == ("2.6.0", 2)
    assert {address for _, address in result["network"]} == {"203.0.113.7:80"}
    assert {where for where, _ in result["network"]} == {"<string>:3"}, "setuptools runs setup.py as a text"


def test_setup_that_needs_the_network_is_refused(base: tuple[Buildah, str], tmp_path: Path) -> None:
    """flash-attn's setup.py needs the network unless pip gets the option --use-pep517."""
    result, wheels = built(base, tmp_path, SETUP.format(more="setup_requires=['ninja']"), pep517=False)
    assert wheels == []
    assert result["failed"][:2] == ["network", "the build would fetch ninja"]


def test_a_build_that_changes_triton_is_refused(base: tuple[Buildah, str], tmp_path: Path) -> None:
    remove = "import os, triton\nos.remove(triton.__file__)\n"
    result, wheels = built(base, tmp_path, remove + SETUP.format(more=""))
    assert wheels == []
    assert result["failed"] == ["changed", "the build changed 1 files of Triton", "triton/__init__.py"]


def test_a_triton_without_dist_info_is_refused_before_the_build(base: tuple[Buildah, str], tmp_path: Path) -> None:
    triton = {name: text for name, text in TRITON.items() if "dist-info" not in name}
    result, wheels = built(base, tmp_path, "raise SystemExit('not asked')", triton=triton)
    assert (wheels, result["failed"][0]) == ([], "triton")


def test_a_torch_that_cannot_be_imported_is_refused_before_the_build(base: tuple[Buildah, str], tmp_path: Path) -> None:
    torch = dict.fromkeys(TORCH, "raise OSError('libopenblas.so.0: cannot open shared object file')\n")
    result, wheels = built(base, tmp_path, "raise SystemExit('not asked')", torch=torch)
    assert (wheels, result["failed"][:2]) == ([], ["torch", "PyTorch cannot be imported"])
    assert "libopenblas.so.0" in result["failed"][2]


TRITON_OPTIONS = ("--base", "debian13", "--source", "triton=pypi:3.7.1", "--allow-binary", "triton-wheel")


@pytest.fixture(scope="module")
def flash() -> Said:
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        pytest.skip("NO DEBIAN MACHINE AS ROOT: base and PyTorch come from apt's mirrors by mmdebstrap")
    said = toolchain("build", "flash-attn", *TRITON_OPTIONS, "--json")
    assert said.code == 0, said.err
    return said


def full_name(stage: Mapping[str, Any]) -> str:
    """Return an image's unique name, because caches of other calls have the same short name."""
    return f"{stage['image']}.{stage['input_digest'].removeprefix('sha256:')[:12]}"


@pytest.mark.timeout(7200)
@pytest.mark.full  # the test fetches PyTorch's packages, a hundred megabytes
def test_flash_attn_is_built_imported_and_reproduced(flash: Said) -> None:
    row, name = wheel_row("flash-attn"), flash.json["stages"][-1]["image"]
    (record,) = [
        json.loads(path.read_text())
        for path in Cache(default_cache()).records.glob("*.json")
        if json.loads(path.read_text())["input_digest"] == flash.json["stages"][-1]["input_digest"]
    ]
    facts = record["facts"]
    assert (facts["tag"], facts["packages"], facts["network"]) == (row.tag, ["flash_attn", "hopper"], [])
    assert set(row.imports) <= set(facts["imports"]["imported"])
    again = toolchain("reproduce", name, "--json")
    assert (again.code, again.json["equal"]) == (0, True), again.err


@pytest.mark.timeout(7200)
@pytest.mark.full  # the test also compiles 24 calls for each of two GPUs
def test_the_kernels_of_flash_attn_are_compiled_ahead_of_time(flash: Said, tmp_path: Path) -> None:
    built = toolchain("build", "triton-cache", *TRITON_OPTIONS, "--gpu", "gfx942,gfx1151", "--json")
    assert built.code == 0, built.err
    name, wheel = built.json["stages"][-1]["image"], flash.json["stages"][-1]["image"]
    facts = built.json["stages"][-1]["facts"]
    assert [row["kernels"] for row in facts["by_gpu"]] == [44, 44]
    sent = toolchain("publish", f"oci:{tmp_path}/out", full_name(built.json["stages"][-1]))
    assert sent.code == 0, sent.err
    cached = ("kernels", "cached", f"oci:{tmp_path}/out:{name}", "--in", wheel, "--env")
    at = ("TRITON_CACHE_DIR=/opt/triton-cache",)
    assert toolchain(*cached, *at).code == 0
    assert toolchain(*cached, *at, "--env", "AMDGCN_USE_BUFFER_OPS=1").code == 3
    assert toolchain(*cached, "TRITON_CACHE_DIR=/tmp/cache").code == 3


FOUR = """
[[call]]
direction = "forward"
dtype = ["bf16", "fp16"]
head = 64
heads = [[4, 4]]
batch = 1
seq = 128
causal = [true, false]
"""


@pytest.mark.timeout(7200)
@pytest.mark.full  # the test also compiles four kernels of one shape three times
def test_merged_shards_of_a_cache_equal_one_machine_s_cache(flash: Said, tmp_path: Path) -> None:
    (tmp_path / "calls.toml").write_text(FOUR)
    calls = ("--calls", tmp_path / "calls.toml", "--gpu", "gfx942", *TRITON_OPTIONS)
    run = ("kernels", "run", "triton-cache", *calls, "--kernel-store", tmp_path / "store", "--shard")
    merge = ("kernels", "merge", "triton-cache", tmp_path / "store", *calls)
    last = toolchain("plan", "triton-cache", *calls, "--json").json["stages"][-1]
    name = full_name(last)
    if last["reused"]:  # by an earlier run of this test
        assert toolchain("cache", "prune", name).code == 0
    assert toolchain(*run, "1/2").code == 0
    early = toolchain(*merge)
    assert (early.code, "2/2" in early.err) == (12, True), early.err
    assert toolchain(*run, "2/2").code == 0
    joined = toolchain(*merge, "--json")
    assert joined.code == 0, joined.err
    (row,) = joined.json["stages"][-1]["facts"]["by_gpu"]
    assert (row["calls"], row["kernels"]) == (4, 4)
    again = toolchain("reproduce", name, "--json")
    assert (again.code, again.json["equal"]) == (0, True), again.err
