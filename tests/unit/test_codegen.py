"""A Triton with separate LLVMs for the code of GPUs: its stages, their inputs and sources, and refusals."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.codegen_tree import AMD, CORE, PROJECT, codegen_tree
from tests.git_server import git, served
from tests.refusals import refused
from tests.request_fixtures import specs
from toolchain.catalog.bases import base_recipe
from toolchain.catalog.codegen import codegens
from toolchain.catalog.release_data import triton_releases
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.errors import PinError, SourceError, UnreachableError
from toolchain.pipeline.plan import plan
from toolchain.pipeline.targets import stages_of
from toolchain.request.model import DEFAULT_GLIBC, Request
from toolchain.sources.candidates import first_holder, holder_of
from toolchain.sources.git import git_digest
from toolchain.sources.resolve import fetch_source, part_of
from toolchain.sources.tree import Source
from toolchain.stages import base, codegen_llvm, llvm_choice, triton_origin, unpacked
from toolchain.stages.codegen_library import read_files
from toolchain.stages.codegen_llvm import codegen_source, compare_pins
from toolchain.stages.stage import Planned
from toolchain.stages.triton_tree import bindings_of, check_no_download

pytestmark = pytest.mark.usefixtures("on_amd64")

(RULE,) = (row for row in codegens() if row.target == "AMDGPU")
FORK = "https://github.com/ROCm/llvm-project"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return codegen_tree(tmp_path / "triton")


@pytest.fixture
def request_(tmp_path: Path, tree: Path) -> Request:
    """Return a request for such a Triton as a checkout, on systems that are resolved to one invented package."""
    request = Request(
        cache=Cache(tmp_path / "cache"),
        sources=specs({"triton": str(tree), "llvm-amdgpu": f"{FORK}@{AMD}"}),
        glibc=DEFAULT_GLIBC,
    )
    packages = [{"name": "libc6", "version": "2.41", "architecture": "amd64", "sha256": "5" * 64}]
    recipe, system, all_ = base_recipe("debian13", "amd64"), unpacked.sysroot_of(request), unpacked.pythons_of(request)
    for stage, name, digest in (
        ("base", "debian13", base.recipe_digest(recipe)),
        ("sysroot", system.name, system.digest),
        ("python", all_.name, all_.digest),
    ):
        base.write_packages(request.cache.package_list(stage, name, "amd64"), {"recipe": digest, "packages": packages})
    return request


def planned(request: Request, target: str = "triton") -> dict[str, Planned]:
    return {row.planned.name: row.planned for row in plan(request, target)}


def digests(request: Request) -> dict[str, str | None]:
    return {name: stage.input_digest for name, stage in planned(request).items()}


# --- stages and their inputs ---


def test_checkout_adds_codegen_stages(request_: Request) -> None:
    stages = planned(request_)
    assert list(stages) == ["base", "sysroot", "python", "llvm", "llvm-amdgpu", "codegen-amdgpu", "triton"]
    assert stages["llvm"].sources[0].ref == CORE
    assert stages["llvm-amdgpu"].image == f"llvm-amdgpu-{AMD[:8]}"
    assert [source.name for source in stages["codegen-amdgpu"].sources] == ["triton"]
    assert {"wheel-nanobind", "triton"} <= {source.name for source in stages["triton"].sources}
    assert "wheel-pybind11" not in {source.name for source in stages["triton"].sources}
    assert all(stage.input_digest for stage in stages.values())
    inputs = stages["llvm-amdgpu"].inputs or {}
    assert inputs["targets"] == ["AMDGPU"]
    assert inputs["components"] == ["llvm-headers", "llvm-libraries", "cmake-exports"]
    assert "LLVMAMDGPUCodeGen" in inputs["libraries"]
    assert not [name for name in inputs["libraries"] if name.startswith(("MLIR", "LLVMX86"))]


def test_release_adds_codegen_stages(tmp_path: Path) -> None:
    request = Request(cache=Cache(tmp_path / "other"), triton="3.9.0", glibc=DEFAULT_GLIBC)
    stages = planned(request)
    assert stages["llvm"].sources[0].ref == CORE
    (source,) = stages["llvm-amdgpu"].sources
    assert (source.ref, source.digest, len(source.among)) == (AMD, None, 3)
    assert "wheel-nanobind" in {source.name for source in stages["triton"].sources}
    for older in ("3.8.0", "3.7.1"):
        names = planned(replace(request, triton=older))
        assert list(names) == ["base", "sysroot", "python", "llvm", "triton"]
        assert "wheel-pybind11" in {source.name for source in names["triton"].sources}


def test_default_triton_adds_codegen_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (codegen_llvm, llvm_choice, triton_origin):
        monkeypatch.setattr(module, "DEFAULT_TRITON", "3.9.0")
    stages = planned(Request(cache=Cache(tmp_path / "other"), glibc=DEFAULT_GLIBC))
    assert [source.ref for source in stages["llvm-amdgpu"].sources] == [AMD]


def test_library_digest_depends_on_its_files_and_patches(request_: Request, tree: Path) -> None:
    before = digests(request_)

    def changed() -> set[str]:
        after = digests(request_)
        return {name for name in before if before[name] != after[name]}

    patch = tree.parent / "my.patch"
    patch.write_text("--- a/x\n+++ b/x\n")
    patched = digests(replace(request_, patches={"triton": (patch,)}))
    assert patched["codegen-amdgpu"] != before["codegen-amdgpu"]
    (tree / "lib/Tools/Other.cpp").write_text("// another\n")
    assert changed() == {"triton"}
    (tree / PROJECT / "new.h").write_text("// changed\n")
    assert changed() == {"codegen-amdgpu", "triton"}


def test_patch_may_add_missing_file_of_library(request_: Request, tmp_path: Path, tree: Path) -> None:
    (tree / "lib/Tools/LLVMOptions.cpp").unlink()
    (tmp_path / "my.patch").write_text("--- /dev/null\n+++ b/lib/Tools/LLVMOptions.cpp\n")
    patched = replace(request_, patches={"triton": (tmp_path / "my.patch",)})
    assert digests(patched)["codegen-amdgpu"]
    with refused("codegen-source-missing", "lib/Tools/LLVMOptions.cpp"):
        plan(request_, "triton")


def test_revision_is_from_pin_or_named_llvm(request_: Request, tree: Path) -> None:
    pinned = replace(request_, sources=specs({"triton": str(tree)}))
    assert codegen_source(RULE, pinned)[1] == f"{AMD}-1"
    codegen_tree(tree, build=7)
    assert codegen_source(RULE, pinned)[1] == f"{AMD}-7"
    assert codegen_source(RULE, request_)[1] == f"{AMD}-0"
    of_distro = replace(pinned, sources={**pinned.sources, **specs({"llvm-amdgpu": "distro:llvm-toolchain-22"})})
    assert codegen_source(RULE, of_distro)[1] == "22.1.8-0"


def test_an_llvm_for_a_gpu_can_be_built_alone(request_: Request) -> None:
    alone = replace(request_, sources=specs({"llvm-amdgpu": "distro:llvm-toolchain-22"}))
    assert [stage.name for stage in stages_of("llvm-amdgpu", alone)] == ["base", "sysroot", "llvm-amdgpu"]
    assert planned(alone, "llvm-amdgpu")["llvm-amdgpu"].image == "llvm-amdgpu-22.1.8"
    with refused("triton-without-codegen"):
        plan(replace(request_, sources={}), "llvm-amdgpu")


# --- refusals ---


def test_each_codegen_pin_has_rule() -> None:
    assert {pin.target for row in triton_releases() for pin in row.codegen} <= {rule.target for rule in codegens()}


def test_llvm_for_a_gpu_without_a_rule_is_refused(request_: Request, tree: Path) -> None:
    (tree / "cmake/intel-llvm-build-info.json").write_text("{}")
    with refused("unknown-codegen"):
        plan(request_, "triton")


def test_build_without_glibc_is_refused(request_: Request, tree: Path) -> None:
    for target in ("triton", "codegen-amdgpu"):
        with refused("stage-not-for-base"):
            plan(replace(request_, glibc=""), target)
    (tree / "cmake/amd-llvm-info.json").unlink()
    with refused("stage-not-for-base"):
        plan(replace(request_, glibc="", sources=specs({"triton": str(tree)})), "triton")


def test_llvm_for_a_gpu_that_triton_does_not_use_is_refused(request_: Request, tree: Path) -> None:
    (tree / "cmake/amd-llvm-info.json").unlink()
    with refused("source-unused", "llvm-amdgpu"):
        plan(request_, "triton")


def test_bindings_of_a_tree_that_requires_pybind11_are_not_stable(tree: Path) -> None:
    assert (bindings_of(tree).project, bindings_of(tree).stable) == ("nanobind", True)
    (tree / "pyproject.toml").write_text('requires = ["pybind11>=2.13.1"]  # not nanobind yet\n')
    (tree / "setup.py").write_text("")
    assert (bindings_of(tree).project, bindings_of(tree).stable) == ("pybind11", False)


@pytest.mark.parametrize("name", ["TRITON_AMD_CODEGEN_PATH", "TRITON_OFFLINE_BUILD"])
def test_a_tree_whose_build_would_download_is_refused(request_: Request, tree: Path, name: str) -> None:
    check_no_download(tree, [RULE])
    helpers = tree / "python/build_helpers.py"
    helpers.write_text(helpers.read_text().replace(name, "SOMETHING_ELSE"))
    with refused("build-would-download") as caught:
        plan(request_, "triton")
    assert name in caught.value.why


def test_tree_without_the_files_of_the_library_is_refused(request_: Request, tree: Path) -> None:
    for name in RULE.reads:
        (tree / name).rename(tree / "moved")
        with refused("codegen-source-missing") as caught:
            plan(request_, "triton")
        assert name in caught.value.what
        (tree / "moved").rename(tree / name)


def test_link_among_the_files_of_the_library_is_refused(tree: Path) -> None:
    assert read_files(tree, RULE) == sorted(
        [f"{PROJECT}/CMakeLists.txt", f"{PROJECT}/small.cpp", "LICENSE", "include/triton/Tools/LLVMOptions.h",
         "lib/Tools/LLVMOptions.cpp"]
    )  # fmt: skip
    (tree / PROJECT / "more.h").symlink_to("/etc/hostname")
    with refused("codegen-source-link"):
        read_files(tree, RULE)


def test_tree_that_pins_other_llvms_than_planned_is_refused(tree: Path) -> None:
    compare_pins(tree, {"AMDGPU": f"{AMD}-1"})
    compare_pins(tree, {"AMDGPU": "22.1.8-0"}, named=["AMDGPU"])
    for planned_for in ({}, {"AMDGPU": f"{CORE}-1"}):
        with pytest.raises(PinError) as caught:
            compare_pins(tree, planned_for)
        assert f"{AMD}-1" in caught.value.why
    (tree / "cmake/amd-llvm-info.json").unlink()
    with refused("plan-outdated"):
        compare_pins(tree, {"AMDGPU": "22.1.8-0"}, named=["AMDGPU"])


# --- the repository of a commit ---


def llvm_repository(folder: Path) -> str:
    """Make a repository with one file of LLVM, and return its commit."""
    (folder / "llvm").mkdir(parents=True)
    (folder / "llvm/CMakeLists.txt").write_text("project(LLVM)\n")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "LLVM")
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    return git(folder, "rev-parse", "HEAD").strip()


def test_fetch_by_commit_finds_its_repository(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    git(tmp_path / "one", "init", "--quiet", "--initial-branch=main")
    commit, cache = llvm_repository(tmp_path / "two"), Cache(tmp_path / "cache")
    urls = (f"file://{tmp_path}/one", f"file://{tmp_path}/nothing", f"file://{tmp_path}/two")
    source = Source(
        name="llvm-amdgpu", kind="git", where=urls[0], version=commit, digest=None, path=None, locked=False, among=urls
    )
    assert holder_of(commit, urls, cache, parts=[part_of("llvm-amdgpu").name]) == ""
    got = fetch_source(source, cache=cache, offline=False)
    assert (got.where, got.digest) == (urls[2], git_digest(urls[2], commit))
    assert (got.path / "llvm/CMakeLists.txt").is_file()
    assert holder_of(commit, urls, cache, parts=[part_of("llvm-amdgpu").name]) == urls[2]
    # The holder is still unknown for a list without its repository.
    assert holder_of(commit, urls[:2], cache, parts=[part_of("llvm-amdgpu").name]) == ""
    assert fetch_source(replace(source, among=urls), cache=cache, offline=True).digest == got.digest


@pytest.mark.parametrize(("silent", "kind"), [(False, SourceError), (True, UnreachableError)])
def test_commit_in_no_repository_is_refused(tmp_path: Path, silent: bool, kind: type[Exception]) -> None:
    def fetch(url: str) -> Path:
        if silent and url == "b":
            raise UnreachableError("test-error", "b does not answer")
        raise SourceError("test-error", f"{url} has no such commit")

    with refused("commit-not-found") as caught:
        first_holder("llvm-amdgpu", AMD, ("a", "b", "c"), fetch, cache=Cache(tmp_path))
    assert type(caught.value) is kind


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    """Serve Triton 3.9.0 at its tag, with an LLVM that is in the third repository; yield the options that select it."""
    top = tmp_path / "served"
    for repository in ("llvm/llvm-project", "triton-lang/llvm-project"):
        (top / repository).mkdir(parents=True)
        git(top / repository, "init", "--quiet", "--initial-branch=main")
    commit = llvm_repository(top / "ROCm/llvm-project")
    triton = codegen_tree(top / "triton-lang/triton", amd=commit)
    for words in (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "."),
        ("commit", "--quiet", "-m", "Triton"),
        ("tag", "v3.9.0"),
        ("config", "uploadpack.allowAnySHA1InWant", "true"),
    ):
        git(triton, *words)
    with served(top) as (address, _):
        monkeypatch.setenv("TOOLCHAIN_MIRROR", f"https://github.com/={address}/")
        yield ("--triton", "3.9.0", "--json")


def test_fetch_and_lock_find_tree_and_repository(
    tmp_path: Path, upstream: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Any:
        done = CliRunner().invoke(app, [*words, *upstream])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def llvm() -> Any:
        rows = call("plan", "codegen-amdgpu")["stages"]
        return next(source for row in rows for source in row["sources"] if source["name"] == "llvm-amdgpu")

    # The plan uses the pin in the tool's data, because the tree is not in the cache yet.
    assert (llvm()["ref"], llvm()["digest"]) == (AMD, None)
    (fetched,) = [source for source in call("fetch", "codegen-amdgpu")["sources"] if source["name"] == "llvm-amdgpu"]
    assert fetched["repository"] == FORK
    assert fetched["digest"] == llvm()["digest"] == git_digest(FORK, fetched["ref"])
    assert "llvm-amdgpu" in call("lock", "codegen-amdgpu", "--open-base")["sources"]
    locked = tomllib.loads((tmp_path / "toolchain.lock").read_text())
    (row,) = [source for source in locked["source"] if source["name"] == "llvm-amdgpu"]
    assert (row["repository"], row["ref"]) == (FORK, fetched["ref"])
