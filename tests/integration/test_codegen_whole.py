"""Tests, marked `full`, of the whole LLVM for AMD's GPUs, and of the library of Triton 3.9.0's project on this LLVM.

    TOOLCHAIN_TEST_TRITON=/path/to/python pytest -m full -s tests/integration/test_codegen_whole.py

TOOLCHAIN_TEST_LLVM     the LLVM, 22.1.8 (default) or 23.1.1
TOOLCHAIN_TEST_TRITON   a Python with a Triton from source on that LLVM, whose own backend must make the same assembly

The project comes from the package index's wheel of 3.9.0, which has all sources of the library except one file.
`tests/standin/LLVMOptions.cpp` replaces this file, and for LLVM 22 two calls are adapted. Both changes are in a patch,
which the records name: the tests show that the recipe works, but they do not build the library of 3.9.0.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.codegen_tree import PROJECT, codegen_tree
from tests.integration.conftest import toolchain
from tests.integration.test_triton_portable import unpacked
from toolchain.catalog.codegen import codegens
from toolchain.core import process
from toolchain.core.cache import Cache, default_cache
from toolchain.core.recipe import root
from toolchain.engine.buildah import Buildah
from toolchain.pipeline.records import known_record, records
from toolchain.sources.pypi import known_files
from toolchain.sources.store import Store
from toolchain.stages.codegen_library import library_recipe, take_files

pytestmark = [pytest.mark.engine, pytest.mark.full]
(RULE,) = codegens()
TOP = Path(__file__).resolve().parents[2]
VERSION = os.environ.get("TOOLCHAIN_TEST_LLVM", "22.1.8").partition("=")[0]
PACKAGE = f"distro:llvm-toolchain-{VERSION.partition('.')[0]}"
LLVM = ("--source", f"llvm-amdgpu={PACKAGE}")
MISSING = "lib/Tools/LLVMOptions.cpp"
SYMBOLS = ["triton_amdgpu_assemble", "triton_amdgpu_compile", "triton_amdgpu_free", "triton_amdgpu_revision"]
# These are paths of files in the wheel, and the paths of the same files in Triton's tree.
FILES = {
    "triton/backends/amd/codegen/CMakeLists.txt": f"{PROJECT}/CMakeLists.txt",
    "triton/backends/amd/codegen/amdgpu_codegen.cc": f"{PROJECT}/amdgpu_codegen.cc",
    "triton/include/triton/Tools/LLVMOptions.h": "include/triton/Tools/LLVMOptions.h",
    "triton-3.9.0.dist-info/licenses/LICENSE": "LICENSE",
}
# LLVM 23 takes references where 22 takes pointers, and one argument fewer.
EDITS = {
    "*asmInfo, *registers, *subtarget": "asmInfo.get(), registers.get(), subtarget.get()",
    "*parser, *instructions)": "*parser, *instructions, options)",
}


def test_whole_llvm_for_amd_gpus_passes_its_contract() -> None:
    """The build of LLVM with AMDGPU alone has 1,900 steps and takes less than an hour on two idle cores."""
    done = toolchain("build", "llvm-amdgpu", *LLVM, "--json")
    assert done.code == 0, done.err
    stage = done.json["stages"][-1]
    assert stage["image"] == f"llvm-amdgpu-{VERSION}"
    assert [one["ok"] for one in stage["facts"]["contract"]["checks"]] == [True] * 5


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tree with the library's sources in the wheel, and with pins and build files like those of 3.9.0."""
    folder = tmp_path_factory.mktemp("whole")
    (wheel,) = (row for row in known_files() if row.project == "triton" and row.version == "3.9.0")
    (folder / "wanted.txt").write_text(f"triton==3.9.0 --hash=sha256:{wheel.sha256}\n")
    words = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    system = ["--python-version", "3.12", "--platform", "manylinux_2_27_x86_64", "--platform", "manylinux_2_28_x86_64"]
    process.run([sys.executable, "-m", "pip", *words, *system, "-r", folder / "wanted.txt", "-d", folder])
    made = codegen_tree(folder / "triton")
    for name in (f"{PROJECT}/small.cpp", MISSING):
        (made / name).unlink()
    with zipfile.ZipFile(folder / wheel.file) as packed:
        for inside, name in FILES.items():
            (made / name).write_bytes(packed.read(inside))
    (folder / wheel.file).unlink()
    return made


@pytest.fixture(scope="module")
def patch(tree: Path) -> Path:
    """Return a patch with the stand-in, and with the two adapted calls if the LLVM is an LLVM 22."""
    old = (tree / PROJECT / "amdgpu_codegen.cc").read_text()
    new = old
    for before, after in (EDITS if VERSION.startswith("22.") else {}).items():
        assert new.count(before) == 1
        new = new.replace(before, after)
    standin = (TOP / "tests/standin/LLVMOptions.cpp").read_text()
    lines: list[str] = []
    for name, one, other in ((f"{PROJECT}/amdgpu_codegen.cc", old, new), (MISSING, "", standin)):
        before = f"a/{name}" if one else "/dev/null"
        lines += difflib.unified_diff(one.splitlines(True), other.splitlines(True), before, f"b/{name}")
    path = tree.parent / "standin.patch"
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def library(tree: Path, patch: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the library, check its facts and its record, and return the file from its layer."""
    options = ("--source", f"triton={tree}", "--patch", f"triton={patch}", *LLVM)
    done = toolchain("build", RULE.stage, *options, "--json")
    assert done.code == 0, done.err
    stage = done.json["stages"][-1]
    facts = stage["facts"]["codegen"]
    assert facts["symbols"] == SYMBOLS
    assert facts["revision"] == f"{VERSION}-0"
    assert stage["facts"]["contract"]["answers"] == facts["revision"]
    cache = Cache(default_cache())
    record = known_record(cache, stage["input_digest"])
    assert record is not None
    # The record names the patch, and SBOM and provenance are made from the record.
    (source,) = record.sources
    assert [one.name for one in source.patches or ()] == [patch.name]
    (found,) = unpacked(cache, record.manifest, tmp_path_factory.mktemp("library") / "tree").rglob(RULE.library)
    return found


@pytest.fixture(scope="module")
def on_the_core(tree: Path, patch: Path, engine: Buildah, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the library by the stage's recipe on the LLVM layer that Triton itself links, and return the file."""
    folder, cache, manifests = tmp_path_factory.mktemp("core"), Cache(default_cache()), {}
    for row in toolchain("plan", "llvm", "--source", f"llvm={PACKAGE}", "--json").json["stages"]:
        record = known_record(cache, row["input_digest"])
        if record is None:
            pytest.skip(f"NO {row['image']}: `toolchain build llvm --source llvm={PACKAGE}` takes hours")
        manifests[row["name"]] = record.manifest
    shutil.copytree(tree, folder / "triton")
    process.run(["patch", "--quiet", "-p1", "-d", folder / "triton", "-i", patch])
    recipe = library_recipe(
        RULE,
        base=engine.ensure_image("base", cache.images, manifests["base"]),
        llvm=engine.ensure_image("llvm", cache.images, manifests["llvm"]),
        prefix=f"/usr/lib64/llvm-triton-{VERSION}",
        revision=f"{VERSION}-0",
        files=take_files(folder / "triton", RULE, folder / "files"),
        sysroot=unpacked(cache, manifests["sysroot"], folder / "sysroot"),
        cache_key="core",
    )
    engine.build(recipe, root=root(), out=folder / "out", log=folder / "log")
    return folder / "out" / RULE.library


@pytest.mark.parametrize("llvm", ["library", "on_the_core"])
def test_library_makes_the_same_assembly_as_the_core(llvm: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    library = request.getfixturevalue(llvm)
    python = os.environ.get("TOOLCHAIN_TEST_TRITON")
    if not python:
        pytest.skip("NO TRITON: name the Python of one from source in TOOLCHAIN_TEST_TRITON")
    cache = Cache(default_cache())
    used = (record.sources[0] for record in reversed(records(cache)) if record.stage == "kernels")
    kernels = next((tree for one in used if (tree := Store(cache.store).stored_tree(str(one.digest)))), None)
    if kernels is None:
        pytest.skip("NO KERNELS: `toolchain build kernels` fetches their source")
    done = subprocess.run(
        [python, TOP / "scripts/codegen_same.py", library, "--source", kernels, "--json", tmp_path / "f"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(json.loads((tmp_path / "f").read_text())["kernels"]) == 100
