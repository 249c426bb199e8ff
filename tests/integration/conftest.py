"""Fixtures that several integration tests share: a registry, the results of ./quickstart, an engine and a base."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.own_engine import destroy
from tests.registry_fixtures import running_registry
from tests.registry_through_proxy import connect, fresh, layout, proxy, repository
from toolchain.core.cache import Cache, default_cache
from toolchain.engine.buildah import Buildah
from toolchain.pipeline.records import find_image

__all__ = ["connect", "fresh", "layout", "proxy", "repository"]
TOP = Path(__file__).resolve().parents[2]
BASE = "toolchain-base-debian13"


@pytest.fixture(scope="session")
def registry_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the host:port of a docker-registry on loopback."""
    with running_registry(tmp_path_factory.mktemp("registry")) as host:
        yield host


@dataclass(frozen=True)
class Said:
    """The exit code and the output of a call of the tool."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The parsed JSON of standard output."""
        return json.loads(self.out)


def toolchain(*words: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> Said:
    """Run the tool as a user does, and wait until it ends."""
    done = subprocess.run(
        [sys.executable, "-m", "toolchain", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Quickstart:
    """The output of a finished ./quickstart, and the layout to which it published."""

    said: Said
    out: Path
    options: tuple[str, ...] = (
        "--source", "llvm=distro:llvm-toolchain-22", "--source", "triton=pypi:3.7.1", "--only", "mlir-tblgen",
    )  # fmt: skip
    gpus: tuple[str, ...] = ("--gpu", "gfx942,gfx1100")
    allow: tuple[str, ...] = ("--allow-binary", "triton-wheel")


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Quickstart:
    """Run `./quickstart` once for all tests that need its results. Its cache is the user's own."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("NO DEBIAN MACHINE AS ROOT: ./quickstart installs packages and makes a base from apt's mirrors")
    out = tmp_path_factory.mktemp("published") / 'oci out "quoted"'
    venv = str(Path(sys.executable).parent.parent)
    done = subprocess.run(
        [str(TOP / "quickstart")],
        capture_output=True,
        text=True,
        env={**os.environ, "QUICKSTART_OUT": str(out), "TOOLCHAIN_VENV": venv},
        check=False,
    )
    said = Said(done.returncode, done.stdout, done.stderr)
    assert said.code == 0, f"./quickstart failed:\n{said.err[-6000:]}"
    return Quickstart(said, out)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """Yield an engine with its own storage for the tests of a module."""
    found = Buildah(Cache(tmp_path_factory.mktemp("engine") / "cache"))
    yield found
    destroy(found)


@pytest.fixture(scope="module")
def base_layout(request: pytest.FixtureRequest) -> tuple[Cache | None, Path, str]:
    """Return the base in the OCI layout TOOLCHAIN_TEST_BASE, or else that of ./quickstart, with its cache."""
    if named := os.environ.get("TOOLCHAIN_TEST_BASE"):
        layout = Path(named.removeprefix("oci:"))
        return None, layout, _only_manifest(layout)
    request.getfixturevalue("quickstart")
    cache = Cache(default_cache())
    found = find_image(cache, BASE)
    assert found, "the quickstart made no base"
    return cache, cache.images, found[0].manifest


@pytest.fixture(scope="module")
def base(
    base_layout: tuple[Cache | None, Path, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Buildah, str]]:
    """Yield an engine, and the name of the base image in it."""
    for program in ("buildah", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install {program}")
    cache, layout, manifest = base_layout
    engine = Buildah(cache or Cache(tmp_path_factory.mktemp("contract") / "cache"))
    # The image gets the name that stages give it, so that it is unpacked only once.
    yield engine, engine.ensure_image(BASE, layout, manifest)
    if cache is None:
        destroy(engine)


def _only_manifest(layout: Path) -> str:
    content, digest = json.loads((layout / "index.json").read_text()), ""
    while "manifests" in content:
        (entry,) = content["manifests"]
        digest = str(entry["digest"])
        content = json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())
    return digest
