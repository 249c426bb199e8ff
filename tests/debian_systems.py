"""Images of Debian 11, 12 and 13 with their own compilers; packages are unpacked from apt's mirror, not installed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from toolchain.core import process
from toolchain.core.digest import sha256_file
from toolchain.core.recipe import Mount
from toolchain.engine.buildah import Buildah
from toolchain.engine.isolation import arguments
from toolchain.sources.mirrors import apt_mirrors

TOP = Path(__file__).parent.parent
SUITES = {"11": "bullseye", "12": "bookworm", "13": "trixie"}
# These packages are only unpacked, which takes seconds. Without the maintainer scripts, only the name `awk` is missing.
TOOLS = [
    "base-files",
    "bash",
    "binutils",
    "clang",
    "cmake",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "g++",
    "grep",
    "lld",
    "mawk",
    "ninja-build",
    "sed",
    "tar",
]


def build(engine: Buildah, folder: Path, containerfile: Path, tag: str, **args: str) -> list[str]:
    """Run plain `buildah build` without a network, and return the lines of its output."""
    # The build runs with other user ids, which cannot enter a folder of pytest.
    folder.chmod(0o755)
    said: list[str] = []
    words = ["build", "--no-cache", "--layers=false", "--force-rm", "--pull=never"]
    words += arguments("build")
    words += [word for name, value in args.items() for word in ("--build-arg", f"{name}={value}")]
    words += ["--file", "/call/Containerfile", "--tag", tag, "/context"]
    show = [Mount(folder, "/context"), Mount(containerfile, "/call/Containerfile")]
    process.run(engine.command(*words, show=show), on_line=said.append)
    return said


def cmake_wheel(folder: Path) -> None:
    """Download the CMake that examples/ installs where a system's CMake is too old, with the same hash."""
    wanted = TOP / "examples/consumer/cmake.txt"
    words = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", os.fspath(wanted)]
    process.run([sys.executable, "-m", "pip", *words, "-d", folder / "wheel"])
    (wheel,) = (folder / "wheel").iterdir()
    assert sha256_file(wheel).removeprefix("sha256:") in wanted.read_text()
    shutil.unpack_archive(wheel, folder / "cmake", "zip")
    for program in (folder / "cmake/cmake/data/bin").iterdir():
        program.chmod(0o755)


def a_system(engine: Buildah, release: str, folder: Path, *, tools: Sequence[str] = TOOLS) -> str:
    """Build an image of a Debian release with the packages in `tools`, and return the name of the image."""
    mirror = next((one for one in apt_mirrors() if not one.security), None)
    if mirror is None:
        pytest.skip("NO MIRROR: apt has none configured")
    suite, tar = SUITES[release], folder / "rootfs.tar"
    (folder / "mirror.sources").write_text(replace(mirror, suite=suite, components=("main",)).stanza("deb", login=True))
    process.run(
        ["mmdebstrap", "--mode=auto", "--variant=extract", f"--include={','.join(tools)}", "--format=tar",
         "--dpkgopt=path-exclude=/usr/share/doc/*", suite, tar, folder / "mirror.sources"]
    )  # fmt: skip
    (folder / "cmake").mkdir()
    if release == "11" and "cmake" in tools:
        cmake_wheel(folder)
    (folder / "Containerfile").write_text(
        "FROM scratch\nADD rootfs.tar /\nCOPY cmake /opt/cmake\n"
        "ENV PATH=/opt/cmake/cmake/data/bin:/usr/local/bin:/usr/bin:/bin\nRUN ln -sf mawk /usr/bin/awk\n"
    )
    build(engine, folder, folder / "Containerfile", f"localhost/debian{release}")
    tar.unlink()
    return f"localhost/debian{release}"
