"""Tests of fetching a part of a large source tree: LLVM without its tests, from a folder, an archive or git."""

from __future__ import annotations

import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from toolchain.core.cache import Cache
from toolchain.pipeline.fetching import fetch_for
from toolchain.pipeline.locking import locked_source
from toolchain.request.model import Request
from toolchain.sources.part import Part
from toolchain.sources.resolve import fetch_source, locate
from toolchain.sources.spec import SourceSpec, parse_source_spec
from toolchain.sources.tree import Source, tree_digest

LEAN = {"llvm/CMakeLists.txt", "llvm/lib/test/a.cpp", "mlir/CMakeLists.txt", "LICENSE.TXT"}
TESTS = {"llvm/test/a.ll", "mlir/test/b/c.mlir"}
OTHERS = {"flang/CMakeLists.txt", "test/x"}
PATCH = "--- a/llvm/test/a.ll\n+++ b/llvm/test/a.ll\n@@ -1 +1 @@\n-llvm/test/a.ll\n+mended\n"


def files(tree: Path) -> set[str]:
    return {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    top = tmp_path / "llvm-project"
    for name in LEAN | TESTS | OTHERS:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n", encoding="utf-8")
    return top


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    return Request(cache=Cache(tmp_path / "cache"))


def located(way: str, checkout: Path, request: Request) -> Source:
    if way == "folder":
        return locate("llvm", parse_source_spec(str(checkout)), cache=request.cache)
    if way == "file":
        archive = checkout.with_suffix(".tar.gz")
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(checkout, arcname="llvm-project-1")
        return locate("llvm", parse_source_spec(str(archive)), cache=request.cache)
    words = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(checkout)]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run(["git", *words, *command], check=True)
    sha = subprocess.run(["git", *words, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    return locate("llvm", parse_source_spec(f"file://{checkout}@{sha.strip()}"), cache=request.cache)


def test_part_holds_the_listed_paths_without_tests() -> None:
    part = Part(("llvm", "LICENSE.TXT", "!test"))
    assert [
        one for one in ("llvm", "LICENSE.TXT", "llvm/lib/test", "test", "llvm/test", "llvm/test/a") if part.holds(one)
    ] == [
        "llvm",
        "LICENSE.TXT",
        "llvm/lib/test",
    ]
    assert Part().holds("anything/test/x")


@pytest.mark.parametrize("way", ["folder", "file", "git"])
def test_tests_are_left_out_unless_the_source_is_patched(
    way: str, checkout: Path, request_: Request, tmp_path: Path
) -> None:
    source = located(way, checkout, request_)
    tree = fetch_for(request_, source).path
    assert files(tree) == LEAN
    assert fetch_for(replace(request_, offline=True), source, verify=True).path == tree
    assert locked_source(request_, source).tree == tree_digest(tree)
    # A patched source contains the tests, because a patch from upstream nearly always changes a test, too.
    patch = tmp_path / "fix.patch"
    patch.write_text(PATCH, encoding="utf-8")
    patched = replace(request_, patches={"llvm": (patch,)})
    whole = fetch_for(patched, source, patched=True).path
    assert files(whole) == LEAN | TESTS
    assert (whole / "llvm/test/a.ll").read_text(encoding="utf-8") == "mended\n"
    assert "!test" not in locked_source(patched, source).parts
    assert files(fetch_for(request_, source).path) == LEAN


def test_stored_source_with_tests_is_used_unchanged(checkout: Path, request_: Request) -> None:
    source = located("git", checkout, request_)
    whole = fetch_source(source, cache=request_.cache, offline=False, tests=True).path
    spec = SourceSpec(kind="stored", where="llvm", version=str(source.digest))
    brought = locate("llvm", spec, cache=request_.cache)
    assert brought.path == whole
    assert fetch_for(replace(request_, offline=True), brought).path == whole
