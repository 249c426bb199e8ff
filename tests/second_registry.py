"""A second real registry: `crane registry serve` of go-containerregistry, from Debian's package pool."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.registry_fixtures import free_port, wait_for_registry
from toolchain.core import process
from toolchain.core.errors import ToolchainError
from toolchain.sources.mirrors import apt_mirrors

_HELPER = Path("/usr/lib/apt/apt-helper")


@dataclass(frozen=True)
class Package:
    """A Debian package: its path below a mirror's `pool`, its SHA-256, and the path of the program in it."""

    path: str
    sha256: str
    program: str


# Debian has neither zot nor docker-registry 3, but crane has another code base than docker-registry. It needs glibc
# 2.34.
CRANE = Package(
    path="main/g/go-containerregistry/crane_0.20.7+ds1-5_amd64.deb",
    sha256="2d4bdb12724eda42214bb8957aecc472e561317938da3c95402a9ee30c73fa3b",
    program="usr/bin/crane",
)


def fetched(package: Package, folder: Path) -> Path:
    """Return the program of a package, unpacked below `folder`. Skip the test if the package is not available."""
    if platform.machine() != "x86_64" or not _HELPER.exists():
        pytest.skip("the second registry is NOT TESTED: its package is for Debian on amd64")
    archive, root = folder / "package.deb", folder / "root"
    try:
        site = apt_mirrors()[0].site.rstrip("/")
        uri = f"{site}/pool/{package.path}"
        process.run(
            [os.fspath(_HELPER), "download-file", uri, os.fspath(archive), f"SHA256:{package.sha256}"], capture=True
        )
        process.run(["dpkg", "-x", os.fspath(archive), os.fspath(root)], capture=True)
    except ToolchainError:
        pytest.skip(f"the second registry is NOT TESTED: no mirror of apt has {package.path} any more")
    return root / package.program


@contextlib.contextmanager
def running_crane(folder: Path) -> Iterator[str]:
    """Run crane's registry with its data below `folder`, and yield host:port."""
    folder.mkdir(parents=True, exist_ok=True)
    program = fetched(CRANE, folder)
    data = folder / "data"
    data.mkdir()
    host = f"127.0.0.1:{free_port()}"
    argv = [os.fspath(program), "registry", "serve", "--address", host, "--disk", os.fspath(data)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            wait_for_registry(host, server, folder / "log")
            yield host
        finally:
            server.kill()
            server.wait(60)
