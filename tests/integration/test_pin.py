"""LLVM at the commit in llvm-hash.txt is fetched by git, built, published and copied by `COPY --from`.

The tests can reach no git host, so a server on loopback serves a project of one program, or the tree of a whole LLVM,
under a commit of its own. The whole LLVM is 22.1.8, or the version in TOOLCHAIN_TEST_LLVM, such as 19.1.7=3.1. Its
source must have been fetched; its compiler cache is shared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.git_server import git, served
from tests.hostile_llvm import hostile_llvm
from tests.integration.conftest import Said, toolchain
from toolchain.core.cache import Cache, default_cache
from toolchain.pipeline.fetching import fetch_for
from toolchain.request.model import Request
from toolchain.sources.distro import known_distro

pytestmark = [pytest.mark.engine, pytest.mark.registry]


@dataclass(frozen=True)
class Pinned:
    """A folder that contains only a pin, and the git host that has its commit."""

    folder: Path
    commit: str
    url: str
    asked: list[str]

    def call(self, *words: str) -> Said:
        """Run the tool in the folder, with the git host as the mirror of github.com."""
        mirror = {"TOOLCHAIN_MIRROR": f"https://github.com/={self.url}/"}
        return toolchain(*words, cwd=self.folder, env=mirror)


@pytest.fixture
def pinned(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pinned]:
    """Serve the small or the whole tree as a commit of `llvm/llvm-project`, and yield the pin."""
    tree = small_tree(tmp_path) if request.param == "small" else whole_tree(request)
    hosted = tmp_path / "host"
    repository = hosted / "llvm" / "llvm-project"
    repository.mkdir(parents=True)
    git(repository, "init", "--quiet", "--bare")
    # The attributes keep the bytes, because LLVM's own attributes may convert line ends.
    (repository / "info/attributes").write_text("* -text -ident -filter\n")
    git(repository, "--work-tree", str(tree), "-c", "core.compression=1", "add", "--all", "--force")
    commit = git(repository, "commit-tree", git(repository, "write-tree"), "-m", "A pin")
    # The pack is made in advance, because a client may time out while the server makes it.
    git(repository, "update-ref", "refs/heads/main", commit)
    git(repository, "repack", "-q", "-a", "-d", "--window=0")
    folder = tmp_path / "triton"
    folder.mkdir()
    (folder / "llvm-hash.txt").write_text(commit)
    try:
        with served(hosted) as (url, asked):
            yield Pinned(folder, commit, url, asked)
    finally:
        shutil.rmtree(hosted)


def small_tree(folder: Path) -> Path:
    """Make a project of one program, with the license files of LLVM's projects."""
    tree = hostile_llvm(folder / "a tree", says=f"pinned {os.getpid()}")
    for project in ("llvm", "mlir", "lld"):
        (tree / project / "LICENSE.TXT").write_text(f"licence of {project}\n")
    return tree


def whole_version() -> tuple[str, str]:
    """Return the major version and the version of the LLVM that is built whole."""
    version = os.environ.get("TOOLCHAIN_TEST_LLVM", "22.1.8").partition("=")[0]
    return version.partition(".")[0], version


def whole_tree(request: pytest.FixtureRequest) -> Path:
    """Return the folder of the distribution's LLVM, which the quickstart or an earlier build fetched."""
    major, version = whole_version()
    if "TOOLCHAIN_TEST_LLVM" not in os.environ:
        assert request.getfixturevalue("quickstart").said.code == 0
    cache = Cache(default_cache())
    source = known_distro("llvm", f"llvm-toolchain-{major}", version, cache=cache)
    return fetch_for(Request(cache=cache, offline=True), source).path


def copied(dest: str, image: str, prefix: str, folder: Path) -> Path:
    """Copy a prefix out of a published image by a Containerfile and plain buildah, and return its folder."""
    folder.mkdir()
    (folder / "Containerfile").write_text(f"FROM scratch\nCOPY --from={dest}/{image}:latest {prefix} {prefix}\n")
    run = Path("/run") / f"tc-pin-{os.getpid()}"
    words = ["buildah", "--root", str(folder / "storage"), "--runroot", str(run), "--storage-driver", "vfs"]
    words += ["build", "--isolation", "chroot", "--tls-verify=false", "--output", "type=local,dest=tree", "."]
    try:
        env = {**os.environ, "TMPDIR": str(folder)}
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(run, ignore_errors=True)
    return folder / "tree" / prefix.lstrip("/")


@pytest.mark.parametrize(
    ("pinned", "only", "stem", "files"),
    [
        ("small", "mlir-tblgen", "llvm-triton-mlir-tblgen", ("bin/mlir-tblgen", "share/licenses/llvm/LICENSE.TXT")),
        pytest.param(
            "whole",
            "distribution",
            "llvm-triton",
            ("bin/mlir-tblgen", "bin/FileCheck", "lib/libLLVMAMDGPUCodeGen.a", "lib/cmake/mlir/MLIRConfig.cmake"),
            marks=[pytest.mark.full, pytest.mark.timeout(0)],
        ),
    ],
    indirect=["pinned"],
)
def test_pinned_llvm_is_built_published_and_copied(
    pinned: Pinned, registry_host: str, tmp_path: Path, only: str, stem: str, files: tuple[str, ...]
) -> None:
    short, dest = pinned.commit[:8], f"{registry_host}/pins"
    image, prefix = f"{stem}-{short}", f"/usr/lib64/llvm-triton-{short}"
    words = ("llvm", "--triton", "llvm-hash.txt", "--only", only)
    row = pinned.call("plan", *words, "--json").json["stages"][-1]
    assert (row["image"], row["sources"][0]["ref"]) == (image, pinned.commit)
    assert row["sources"][0]["repository"] == "https://github.com/llvm/llvm-project"
    made = pinned.call("build", *words)
    assert made.code == 0, made.err[-4000:]
    assert pinned.commit in made.err
    assert any("llvm/llvm-project" in request for request in pinned.asked)
    published = pinned.call("publish", dest, image, "--json")
    assert published.code == 0, published.err
    assert image in {row["image"] for row in published.json["published"]}
    tree = copied(dest, image, prefix, tmp_path / "consumer")
    for name in files:
        assert (tree / name).is_file(), name
    program = [str(tree / "bin/mlir-tblgen"), "--version"]
    said = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert (f"LLVM version {whole_version()[1]}" if only == "distribution" else f"pinned {os.getpid()}") in said
