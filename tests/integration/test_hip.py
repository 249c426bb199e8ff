"""HIP's stub libraries, built by the recipe: libraries linked for two ROCms are loaded in one process.

AOTriton's CMake package chooses between its ROCms by the HIP that CMake finds.
"""

from __future__ import annotations

from pathlib import Path

from tests.refusals import refused
from toolchain.catalog.floors import load_floors
from toolchain.catalog.rocm import rocm_of, stubs_of
from toolchain.core import recipe
from toolchain.core.recipe import Mount, Recipe
from toolchain.engine.buildah import Buildah
from toolchain.stages.binary_checks import check_linked, check_stub, holds_on
from toolchain.stages.elf import read_linked
from toolchain.stages.hip import _write_package, write_stubs

CALLS = """
int hipGetDevice(int *); int hipStreamGetDevice(void *, int *); int hipGetDevicePropertiesR0600(void *, int);
int ask(void) { int one; return hipGetDevice(&one) + hipStreamGetDevice(0, &one) + hipGetDevicePropertiesR0600(0, 0); }
"""
PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words) {
  for (int index = 1; index < count; ++index) {
    void *library = dlopen(words[index], RTLD_NOW | RTLD_LOCAL);
    if (!library) { printf("%s\\n", dlerror()); continue; }
    printf("%d\\n", ((int (*)(void))dlsym(library, "ask"))());
  }
}
"""
LINK = """
set -e
cd /made
clang -O1 -fPIC -c calls.c
for major in 6 7; do
  clang -shared -fuse-ld=lld -Wl,-z,defs -o libone-$major.so calls.o $major/lib/libamdhip64.so.$major
done
clang -o program program.c
LD_LIBRARY_PATH=6/lib:7/lib ./program ./libone-6.so ./libone-7.so
LD_LIBRARY_PATH=7/lib ./program ./libone-6.so
if clang -shared -fuse-ld=lld -Wl,-z,defs -o other.so other.c 6/lib/libamdhip64.so.6 2>said; then echo linked; fi
grep -c 'undefined symbol: hipMalloc' said
for hip in 6 7; do
  cmake -G Ninja -S project -B /tmp/$hip -DCMAKE_PREFIX_PATH="/made/$hip;/made/prefix" >said 2>&1 || true
  tr '\\n' ' ' <said | tr -s ' ' | grep -o 'this AOTriton was linked.*--rocm [0-9]' || echo configured
done
"""
CHOICE = "name another HIP by hip_DIR, or build it with --rocm 6"
PROJECT = """
cmake_minimum_required(VERSION 3.18)
project(choice CXX)
find_package(hip REQUIRED)
find_package(aotriton REQUIRED)
"""


def test_libraries_linked_for_two_rocms_load_in_one_process(base: tuple[Buildah, str], tmp_path: Path) -> None:
    engine, image = base
    stubs, work, out = stubs_of(["6", "7"]), tmp_path / "work", tmp_path / "out"
    asked = Recipe(
        name="hip",
        containerfile="containerfiles/hip/Containerfile",
        base=image,
        contexts={"stubs": write_stubs(stubs, tmp_path / "stubs")},
    )
    engine.build(asked, root=recipe.root(), out=out, log=tmp_path / "log")
    for stub in stubs:
        check_stub(out / stub.name / stub.soname, stub)
    for stub in stubs[:2]:
        major = stub.name.removeprefix("rocm")
        (work / major / "lib").mkdir(parents=True)
        library = work / major / "lib" / stub.soname
        library.write_bytes((out / stub.name / stub.soname).read_bytes())
        _write_package(work / major, stub.soname, "hip6", f"{major}.0.0")
        with refused("hip-stub-wrong", "toolchain/data/hip"):
            check_stub(library, stubs_of(["5"])[0])
    for name, text in (
        ("calls.c", CALLS),
        ("program.c", PROGRAM),
        ("other.c", "int hipMalloc(void); int ask(void) { return hipMalloc(); }\n"),
        ("project/CMakeLists.txt", PROJECT),
        ("prefix/rocm7/lib/cmake/aotriton/aotriton-config.cmake", "set(aotriton_FOUND TRUE)\n"),
        (
            "prefix/lib/cmake/aotriton/aotriton-config.cmake",
            (recipe.root() / "containerfiles/aotriton/aotriton-config.cmake").read_text(),
        ),
    ):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    said = engine.run(image, ["sh", "-c", LINK], mounts=[Mount(work, "/made", read_only=False)], capture=True).stdout
    lines = said.splitlines()
    assert lines[:2] == ["300", "300"], "each asks its own HIP, which says three times that there is no device"
    assert "libamdhip64.so.6: cannot open shared object file" in lines[2]
    assert lines[3] == "1", "what no row names does not link"
    assert lines[4:] == [
        f"this AOTriton was linked for rocm7, and HIP here is 6.0.0, of ROCm 6: {CHOICE}",
        "configured",
    ]
    check_libraries(work)


def check_libraries(work: Path) -> None:
    floors = load_floors()
    by_soname = {one.soname: one for one in stubs_of(["6", "7"])}
    for major in ("6", "7"):
        library, soname = work / f"libone-{major}.so", rocm_of(major).soname
        told = check_linked(library, by_soname, soname=soname, floor=floors["2.31"])
        assert told["functions"] == ["hipGetDevice", "hipGetDevicePropertiesR0600", "hipStreamGetDevice"]
        assert read_linked(library).asks_of(soname)["hipGetDevicePropertiesR0600"] == "hip_6.0"
    with refused("library-unfit", "libamdhip64.so.6") as caught:
        check_linked(work / "libone-7.so", by_soname, soname="libamdhip64.so.6", floor=floors["2.31"])
    assert "it needs libamdhip64.so.7, not libamdhip64.so.6" in caught.value.why
    # The program was linked with the base's own C library, which is newer than the floor.
    assert not holds_on(read_linked(work / "program"), floors["2.31"])
