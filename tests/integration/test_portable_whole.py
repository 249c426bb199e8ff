"""The whole portable layer in Debian 11, 12 and 13: the contract check passes with their compilers and both linkers.

The test is marked `full`: run it after `toolchain build llvm --source llvm=distro:llvm-toolchain-22` with the same
cache. TOOLCHAIN_TEST_LLVM names another LLVM in the cache, and the Triton whose parts it has, such as 19.1.7=3.1.
"""

# ruff: noqa: T201
from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from tests.debian_systems import SUITES, a_system, build
from tests.integration.conftest import TOP, toolchain
from toolchain.catalog.components import needs_for
from toolchain.core.cache import Cache, default_cache
from toolchain.core.recipe import Mount, root
from toolchain.engine.buildah import Buildah
from toolchain.oci.layout import Layout
from toolchain.pipeline.records import find_image
from toolchain.sources.unpack import unpack_tar
from toolchain.stages.contract import check_names

pytestmark = [pytest.mark.engine, pytest.mark.full, pytest.mark.timeout(0)]
VERSION, _, TRITON = os.environ.get("TOOLCHAIN_TEST_LLVM", "22.1.8=3.7").partition("=")
IMAGE = f"llvm-triton-{VERSION}"
PREFIX = f"/usr/lib64/{IMAGE}"
COMPILERS = (("gcc", "g++"), ("clang", "clang++"))
LINKERS = ("bfd", "lld")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Path]:
    """Publish and unpack the layer, and return the layout, the manifest's digest and the prefix."""
    found = find_image(Cache(default_cache()), IMAGE)
    if not found:
        pytest.skip(f"NOT BUILT: {default_cache()} has no {IMAGE}; run toolchain build llvm")
    folder = tmp_path_factory.mktemp("whole")
    published = toolchain("publish", f"oci:{folder / 'out'}", found[0].input_digest)
    assert published.code == 0, published.err
    layout = Layout(folder / "out")
    manifest = layout.children(layout.resolve(IMAGE))[0]
    unpack_tar(layout.blob(layout.children(manifest)[1].digest), folder / "layer", strip=0)
    return folder / "out", manifest.digest, folder / "layer" / PREFIX.lstrip("/")


@pytest.mark.parametrize("release", SUITES)
def test_contract_holds_in_each_debian(
    whole: tuple[Path, str, Path], engine: Buildah, release: str, tmp_path: Path
) -> None:
    out, manifest, prefix = whole
    system = a_system(engine, release, tmp_path)
    layer = engine.ensure_image("whole", out, manifest)
    dockerfile = TOP / "examples" / f"debian{release}" / "Dockerfile"
    said = "\n".join(
        build(engine, TOP / "examples", dockerfile, "localhost/consumer", BASE=system, LLVM=layer, PREFIX=PREFIX)
    )
    line = rf"^(\S+) and (\S+): llvm::APInt::~APInt\(\) by LLVM {re.escape(VERSION)} for x86_64"
    pairs = re.findall(line, said, re.MULTILINE)
    assert pairs == [("g++", "bfd"), ("g++", "lld"), ("clang++", "bfd"), ("clang++", "lld")], said[-2000:]
    engine.forget_image("localhost/consumer")

    needs = needs_for(TRITON)
    settings = {
        "LIBRARIES": ";".join(dict.fromkeys([*needs.libtriton, *needs.bin_tools])),
        "LLD": "ON" if needs.lld else "OFF",
        "FILECHECK": "ON" if needs.filecheck else "OFF",
        "CLANG": "ON" if needs.clang else "OFF",
        "SYSTEM": "/",
    }
    mounts = [Mount(root() / "llvm-config/contract", "/contract"), Mount(prefix, PREFIX)]
    for cc, cxx in COMPILERS:
        for linker in LINKERS:
            began = time.monotonic()
            env = {**settings, "CC": cc, "CXX": cxx, "LINKER": linker, "TMPDIR": "/tmp"}
            command = ["sh", "/contract/check.sh", PREFIX]
            done = engine.run(system, command, mounts=mounts, env=env, capture=True, check=False)
            passed = re.findall(r"^@contract (\S+) ok", done.stdout, re.MULTILINE)
            print(f"\nDebian {release}, {cxx}, {linker}: {len(passed)} checks, {time.monotonic() - began:.0f} s")
            assert tuple(passed) == check_names(needs, portable=True), done.stdout + os.linesep.join(done.tail)
            assert done.returncode == 0
    engine.forget_image(system)
