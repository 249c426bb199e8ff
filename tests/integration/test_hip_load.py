"""AOTriton's libraries, loaded by programs on several systems, with Debian's own HIP and with the stub library.

    TOOLCHAIN_TEST_ROCM_IMAGE=aotriton-… pytest -m full -s tests/integration/test_hip_load.py

TOOLCHAIN_TEST_ROCM_IMAGE names an image for several ROCms that is finished in the cache. TOOLCHAIN_TEST_ROOTS names a
folder that keeps the systems between runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cached_images import laid, the_record
from toolchain.catalog.rocm import rocm_of
from toolchain.core import recipe
from toolchain.core.cache import Cache, default_cache
from toolchain.core.recipe import Mount
from toolchain.engine.buildah import Buildah
from toolchain.sources.mirrors import apt_mirrors
from toolchain.stages.hip import PLACE

pytestmark = pytest.mark.full


@dataclass(frozen=True)
class System:
    """A Debian system that loads the libraries.

    Args:
        suites: the suites of its packages.
        hip: the package with HIP's library; empty if the system uses the stub library.
    """

    name: str
    suites: tuple[str, ...]
    hip: str = ""


SYSTEMS = (
    System("Debian 11", ("bullseye",)),
    System("Debian 12", ("bookworm",)),
    System("Debian 13", ("trixie",), "libamdhip64-5"),
    System("Debian forky", ("forky",), "libamdhip64-6"),
    System("Debian experimental", ("sid", "experimental"), "libamdhip64-7"),
)
PROGRAM = """
set -e
cp -r /contract /examples /tmp/
for what in contract examples; do
  cmake -G Ninja -S /tmp/$what -B /tmp/build-$what -DCMAKE_TOOLCHAIN_FILE=/recipe/llvm-config/portable.cmake \
    -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Release \
    -Dhip_DIR=$2/lib/cmake/hip -Daotriton_DIR=$1/lib/cmake/aotriton -DCMAKE_BUILD_RPATH='$ORIGIN' \
    -DLIBLZMA_INCLUDE_DIR=$2/../liblzma/include -DLIBLZMA_LIBRARY=/usr/lib/x86_64-linux-gnu/liblzma.so \
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
  cmake --build /tmp/build-$what >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
done
cp /tmp/build-contract/version /tmp/build-examples/list_images /out/
"""


def a_root(system: System, roots: Path) -> Path:
    """Return the root of a system whose packages are unpacked, but not configured."""
    root = roots / system.name.replace(" ", "-")
    if not root.exists():
        mirror = next(one for one in apt_mirrors() if not one.security)
        signed = f"[signed-by={mirror.keyring}] " if mirror.keyring else ""
        packages = ["base-files", "coreutils", "dash", "libc6", "liblzma5", "libstdc++6", *filter(None, [system.hip])]
        words = [
            "mmdebstrap",
            "--mode=auto",
            "--variant=extract",
            "--format=directory",
            f"--include={','.join(packages)}",
        ]
        # A mirror may keep an old snapshot of a suite that is not a release, so this test accepts expired metadata.
        words += [f'--aptopt=APT::Default-Release "{system.suites[-1]}"']
        words += ['--aptopt=Acquire::Check-Valid-Until "false"', system.suites[0], os.fspath(root)]
        subprocess.run([*words, *(f"deb {signed}{mirror.site} {one} main" for one in system.suites)], check=True)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for the systems and programs."""
    if os.geteuid() != 0:
        pytest.skip("NO ROOT: the program is started in systems of its own")
    kept = os.environ.get("TOOLCHAIN_TEST_ROOTS")
    return Path(kept) if kept else tmp_path_factory.mktemp("systems")


def test_programs_report_no_device_with_each_hip(folder: Path) -> None:
    cache = Cache(default_cache())
    made = the_record(cache, os.environ.get("TOOLCHAIN_TEST_ROCM_IMAGE", "aotriton"))
    majors, prefix = list(made.facts["rocm"]), str(made.facts["prefix"])
    tree = laid(cache, made, folder / f"image-{made.manifest[7:19]}")
    hip = laid(cache, the_record(cache, f"toolchain-hip-{'-'.join(majors)}"), folder / f"hip-{'-'.join(majors)}")
    sysroot = laid(cache, the_record(cache, f"toolchain-sysroot-glibc-{made.inputs['glibc']}"), folder / "sysroot")
    base, engine = the_record(cache, "toolchain-base-debian13"), Buildah(cache)
    image = engine.ensure_image("base-debian13", cache.images, base.manifest)
    for major in majors:
        out = folder / f"programs-{made.manifest[7:19]}-{major}"
        if not (out / "list_images").exists():
            out.mkdir(parents=True, exist_ok=True)
            mounts = [
                Mount(tree / prefix[1:], prefix), Mount(hip / PLACE[1:], PLACE), Mount(sysroot, "/sysroot"),
                Mount(recipe.root(), "/recipe"), Mount(recipe.root() / "aotriton/contract", "/contract"),
                Mount(recipe.root() / "examples/aotriton", "/examples"), Mount(out, "/out", read_only=False),
            ]  # fmt: skip
            engine.run(image, ["sh", "-c", PROGRAM, "sh", prefix, f"{PLACE}/rocm{major}"], mounts=mounts)
        for system in SYSTEMS:
            if system.hip and not system.hip.endswith(f"-{major}"):
                continue
            at = (a_root(system, folder), out, tree / prefix[1:], hip / PLACE[1:])
            told = started(system, major, *at, objects=made.facts["kernels"]["done"])
            sys.stdout.write(f"ROCm {major} on {system.name}, {system.hip or 'the library to link with'}: {told}\n")


def started(system: System, major: str, root: Path, programs: Path, prefix: Path, hip: Path, *, objects: int) -> str:
    """Run the programs in a system with its HIP or the stub library, check their output, and return it.

    Args:
        objects: the number of code objects that `list_images` must print.
    """
    at, stub = "/aotriton", f"/hip/rocm{major}/lib"
    (root / "aotriton").mkdir(exist_ok=True)
    (root / "hip").mkdir(exist_ok=True)
    (root / "programs").mkdir(exist_ok=True)
    path = f"{at}/rocm{major}/lib" + ("" if system.hip else f":{stub}")
    shown = (
        f"mount --bind {prefix} {root}{at} && mount --bind {hip} {root}/hip && mount --bind {programs} {root}/programs"
    )
    asked = f"export LD_LIBRARY_PATH={path} LD_BIND_NOW=1; /programs/list_images | tail -n 1; /programs/version"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{shown} && exec chroot {root} /bin/sh -c "$0"', asked],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{system.name}: {done.stdout}{done.stderr}"
    assert re.search(rf"[1-9]\d* archives or folders, [1-9]\d* \.aks2, {objects} code objects", done.stdout), (
        done.stdout
    )
    # Error 100 is HIP's own hipErrorNoDevice, which AOTriton's library turns into another error.
    # All symbols were bound at the start, because LD_BIND_NOW is set.
    assert "HIP: error 100" in done.stdout, done.stdout
    assert "aotriton 0." in done.stdout
    if not system.hip:
        asked = f"LD_LIBRARY_PATH={at}/rocm{major}/lib /programs/version"
        lacking = subprocess.run(
            ["unshare", "--mount", "sh", "-c", f'{shown} && exec chroot {root} /bin/sh -c "$0"', asked],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert f"{rocm_of(major).soname}: cannot open shared object file" in lacking.stderr
    return " | ".join(done.stdout.splitlines())
