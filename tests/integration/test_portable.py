"""A portable layer in old and new systems, whose own compilers and two linkers build programs on it."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.debian_systems import a_system, build
from tests.integration.conftest import TOP, toolchain
from toolchain.core.cache import Cache, default_cache
from toolchain.core.recipe import Mount, root
from toolchain.engine.buildah import Buildah
from toolchain.oci.layout import Layout
from toolchain.sources.resolve import fetch_source, locate
from toolchain.sources.spec import parse_source_spec
from toolchain.sources.unpack import unpack_tar

pytestmark = pytest.mark.engine
SPEC = "distro:llvm-toolchain-22"
OPTIONS = ("--source", f"llvm={SPEC}", "--only", "support")
IMAGE = "llvm-triton-support-22.1.8"
PREFIX = "/usr/lib64/llvm-triton-22.1.8"
# The function calls __isoc23_strtol, as code does that was compiled with glibc 2.38 or newer.
PLANTED = 'long __isoc23_strtol(const char *, char **, int); long planted(void) { return __isoc23_strtol("1", 0, 10); }'
CHECKS = ["libraries", "headers", "paths", "symbols", "support"]
# /tmp/farm consists of links, because the layer is read-only. /llvm has LLVM's own headers, because this part has few.
SCRIPT = f"""
check() {{ PART=support LIBRARIES="LLVMDemangle;LLVMSupport" SYSTEM=/ sh /contract/check.sh "$1"; }}
CC=gcc CXX=g++ LINKER=bfd check {PREFIX} | sed "s/^/bfd g++ /"
CC=clang CXX=clang++ LINKER=lld check {PREFIX} | sed "s/^/lld clang++ /"
cp -rs {PREFIX} /tmp/farm
echo '{PLANTED}' >/tmp/planted.c
gcc -c /tmp/planted.c -o /tmp/planted.o && ar rcs /tmp/farm/lib/libLLVMPlanted.a /tmp/planted.o
echo "planted: $(sh /contract/symbols.sh /tmp/farm /)"
for type in Release TritonRelBuildWithAsserts; do
  cmake -G Ninja -S /consumer -B /tmp/$type -DLLVM_DIR={PREFIX}/lib/cmake/llvm -DCMAKE_BUILD_TYPE=$type >/tmp/said 2>&1
  echo "$type: $(tr -s ' \\n' ' ' </tmp/said)"
done
for mode in -DNDEBUG -UNDEBUG; do
  g++ -std=c++17 -fno-rtti $mode -I {PREFIX}/include -I /llvm/include -c /contract/layouts.cpp -o /tmp/layouts.o
  echo "$mode: $(nm -P /tmp/layouts.o | grep MCSchedClassDesc | cut -d ' ' -f 4)"
done
"""


@dataclass(frozen=True)
class Part:
    """The smallest real layer, published and unpacked, and the headers of LLVM's source."""

    out: Path
    manifest: str
    prefix: Path
    headers: Path


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Part:
    """Build, publish and unpack LLVMSupport alone, which takes a minute if the cache has nothing of it."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("NO DEBIAN MACHINE AS ROOT: the base is made from apt's mirrors")
    folder = tmp_path_factory.mktemp("portable")
    built = toolchain("build", "llvm", *OPTIONS, "--json")
    assert built.code == 0, built.err
    published = toolchain("publish", f"oci:{folder / 'out'}", *built.json["publish"])
    assert published.code == 0, published.err
    layout = Layout(folder / "out")
    manifest = layout.children(layout.resolve(IMAGE))[0]
    unpack_tar(layout.blob(layout.children(manifest)[1].digest), folder / "layer", strip=0)
    cache = Cache(default_cache())
    source = fetch_source(locate("llvm", parse_source_spec(SPEC), cache=cache), cache=cache, offline=True)
    assert source.path is not None
    return Part(folder / "out", manifest.digest, folder / "layer" / PREFIX.lstrip("/"), source.path / "llvm")


# Newer systems are marked `full`, because they take longer, and the test of the whole layer covers them too.
@pytest.mark.parametrize("release", ["11", *(pytest.param(newer, marks=pytest.mark.full) for newer in ("12", "13"))])
def test_program_on_the_layer_is_compiled_linked_and_run(
    part: Part, engine: Buildah, release: str, tmp_path: Path
) -> None:
    system = a_system(engine, release, tmp_path)
    layer = engine.ensure_image("portable", part.out, part.manifest)
    dockerfile = TOP / "examples" / f"debian{release}" / "Dockerfile"
    said = build(engine, TOP / "examples", dockerfile, "localhost/consumer", BASE=system, LLVM=layer)
    pairs = re.findall(
        r"^(\S+) and (\S+): llvm::APInt::~APInt\(\) by LLVM 22\.1\.8 for x86_64", "\n".join(said), re.MULTILINE
    )
    assert pairs == [("g++", "bfd"), ("g++", "lld"), ("clang++", "bfd"), ("clang++", "lld")], said[-20:]

    mounts = [
        Mount(root() / "llvm-config/contract", "/contract"),
        Mount(TOP / "examples/consumer", "/consumer"),
        Mount(part.prefix, PREFIX),
        Mount(part.headers, "/llvm"),
    ]
    out = engine.run(system, ["sh", "-c", SCRIPT], mounts=mounts, env={"TMPDIR": "/tmp"}, capture=True).stdout
    engine.forget_image("localhost/consumer")
    engine.forget_image(system)
    passed = re.findall(r"^(\S+) (\S+) @contract (\S+) ok", out, re.MULTILINE)
    # The script checks only two pairs, because the Dockerfile linked with all four.
    wanted = [(*pair, name) for pair in (("bfd", "g++"), ("lld", "clang++")) for name in CHECKS]
    assert passed == wanted, out
    lines = dict(line.split(": ", 1) for line in out.splitlines() if ": " in line)
    # glibc 2.38 introduced __isoc23_strtol, so Debian 13 has it, and a layer that needs it does not work on the others.
    if release == "13":
        assert re.fullmatch(r"\d+ symbols of 3 libraries and programs", lines["planted"])
    else:
        assert lines["planted"] == "libLLVMPlanted.a: __isoc23_strtol in planted.o"
    assert "Warning" not in lines["Release"]
    assert "build type TritonRelBuildWithAsserts compiles without it" in lines["TritonRelBuildWithAsserts"]
    assert "TRITON_APPEND_CMAKE_ARGS=-DCMAKE_BUILD_TYPE=Release" in lines["TritonRelBuildWithAsserts"]
    assert (int(lines["-DNDEBUG"], 16), int(lines["-UNDEBUG"], 16)) == (14, 20), "the types are alike in both modes"
