"""Tests of the choice and the checks of Triton's source, and of the report of its lit tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.refusals import refused
from tests.request_fixtures import specs
from toolchain.catalog.aotriton_generations import _stated_version
from toolchain.catalog.components import features_of
from toolchain.catalog.release_data import aotriton_releases, triton_releases
from toolchain.cli.build_options import make_request
from toolchain.core.cache import Cache
from toolchain.core.errors import BuildError, PinError, SourceError
from toolchain.pipeline.plan import plan
from toolchain.pipeline.run import build
from toolchain.request.model import Request
from toolchain.stages import triton_tree
from toolchain.stages.aotriton_library import aotriton_source, commit_of
from toolchain.stages.llvm_choice import llvm_needs, llvm_source
from toolchain.stages.llvm_version import version_of_tree
from toolchain.stages.triton_origin import triton_source
from toolchain.stages.triton_report import lit, lit_totals
from toolchain.stages.triton_tree import head_of, python_requires, submodules_of, version_in

PIN = "0729a74e66aeeb7a9839d80bfd64fc49b2e69f52"
COMMIT = "d8da7c998c75c88691e0ec157fcfd92b49d7060a"


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    return Request(cache=Cache(tmp_path / "cache"))


def test_triton_is_upstream_at_a_commit_or_the_commit_of_an_aotriton_release(request_: Request) -> None:
    source = triton_source(replace(request_, triton=COMMIT))
    assert (source.repository, source.ref) == ("https://github.com/triton-lang/triton", COMMIT)
    source = triton_source(replace(request_, aotriton="0.10b"))
    assert source.ref == "4280ed1150881bab98c4ecb3e5becb1b3c70fabe"


def test_version_is_resolved_to_its_known_commit_or_else_to_its_tag(request_: Request) -> None:
    known = next(row for row in triton_releases() if row.version == "3.7.1")
    for request in (request_, replace(request_, triton="3.7.1"), replace(request_, triton="v3.7")):
        source = triton_source(request)
        assert (source.ref, source.tag) == (known.commit, "")
        assert source.digest == f"git:{known.commit}@https://github.com/triton-lang/triton"
    # A minor version means its newest patch release, even if the LLVM of another patch release is more certain.
    for version, tag in (("3.6.0", "v3.6.0"), ("3.3", "v3.3.1"), ("3.2", "v3.2.0")):
        source = triton_source(replace(request_, triton=version))
        assert (source.ref, source.tag, source.digest) == (tag, tag, None)
        assert source.repository == "https://github.com/triton-lang/triton"
    with refused("triton-source-unknown"):
        triton_source(replace(request_, triton="3.8.0+rhaiv.1"))
    with refused("unknown-triton"):
        triton_source(replace(request_, triton="3.6.7"))


def test_commit_by_url_sets_the_llvm_requirements(request_: Request) -> None:
    """The Triton of AOTriton 0.13b needs clang. Triton 3.7.1 does not, and a requested version takes precedence."""
    (commit,) = [row.triton for row in aotriton_releases() if row.name == "0.13b"]
    url = f"https://github.com/ROCm/triton@{commit}"
    assert llvm_needs(replace(request_, sources=specs({"triton": url}))).clang
    assert not llvm_needs(replace(request_, sources=specs({"triton": url}), triton="3.7.1")).clang


def test_unknown_commit_is_planned_with_the_requested_llvm(request_: Request) -> None:
    llvm = f"https://github.com/llvm/llvm-project@{'1' * 40}"
    by_url = {"triton": f"https://example.org/triton@{'0' * 40}"}
    newest = llvm_needs(replace(request_, triton="3.8.0"))
    assert llvm_needs(replace(request_, sources=specs({**by_url, "llvm": llvm}))) == newest
    assert llvm_needs(replace(request_, triton="0" * 40, sources=specs({"llvm": llvm}))) == newest
    for request in (replace(request_, sources=specs(by_url)), replace(request_, triton="0" * 40)):
        source = llvm_source(request)
        assert (source.ref, source.digest) == ("", None)
        assert "0" * 40 in source.pending


def test_aotriton_with_an_unknown_llvm_is_planned_with_the_requested_llvm(request_: Request) -> None:
    request = replace(request_, aotriton="0.11.1b", glibc="2.31")
    assert "f75e44a96a54495d52fe82b1e684ec4e712c69d3" in llvm_source(request).pending
    named = replace(request, sources=specs({"llvm": f"https://github.com/llvm/llvm-project@{'1' * 40}"}))
    assert llvm_needs(named).lld
    assert aotriton_source(named).ref == "98371989e8a23267e284c94e95156a139e4b33c4"


def test_aotriton_at_the_commit_of_a_release_uses_the_triton_of_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = next(row for row in aotriton_releases() if row.name == "0.11b")
    monkeypatch.setattr("toolchain.pipeline.triton_choice.head_of", lambda _: row.commit)
    (tmp_path / "a").mkdir()
    for where in (f"aotriton={tmp_path / 'a'}", f"aotriton=https://github.com/ROCm/aotriton@{row.commit}"):
        request = make_request(target="aotriton", source=[where], cache=tmp_path / "cache")
        assert (request.aotriton, triton_source(request).version) == ("0.11b", row.triton)
        assert "is at the commit of release 0.11b" in capsys.readouterr().err
    named = make_request(target="aotriton", source=[where], triton="3.7.1", cache=tmp_path / "cache")
    assert named.aotriton is None


def test_source_file_must_be_a_tar_archive(tmp_path: Path, request_: Request) -> None:
    """A tar archive is unpacked when it is fetched. The plan refuses any other file, which cannot be unpacked."""
    tree = old_tree(tmp_path / "triton")
    archive = tmp_path / "triton.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tree, "triton")
    on = {"llvm": "distro:llvm-toolchain-22"}
    row = plan(replace(request_, sources=specs({"triton": str(archive), **on})), "triton")[-1].planned
    assert row.sources[0].ref == "local:triton.tar.gz"
    package = tmp_path / "x.deb"
    package.write_bytes(b"!<arch>")
    for name, what in (("triton", "Triton"), ("llvm", "LLVM")):
        with refused("not-a-source-tree", what):
            plan(replace(request_, sources=specs({**on, name: str(package)})), "triton")
    with refused("not-a-source-tree"):
        plan(replace(request_, glibc="2.31", sources=specs({"llvm-amdgpu": str(package)}), triton="3.9.0"), "triton")
    with refused("not-a-source-tree", "pypi:triton==3.7.1"):
        plan(replace(request_, sources=specs({"llvm": "pypi:triton"})), "llvm")


def test_folder_without_llvm_is_refused_before_its_files_are_read(
    tmp_path: Path, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--source llvm=~`, a digest would read the whole home folder."""

    def read(*_: object) -> str:
        raise AssertionError("read")

    monkeypatch.setattr("toolchain.sources.resolve.tree_digest", read)
    with refused("source-incomplete", "llvm/CMakeLists.txt"):
        plan(replace(request_, sources=specs({"llvm": str(tmp_path)})), "llvm")


def old_tree(folder: Path) -> Path:
    """Write the files that a plan reads of a Triton from before 2025-04-23, whose setup.py is in `python/`."""
    for part in ("python", "third_party/amd/backend", "third_party/nvidia/backend"):
        (folder / part).mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text("#\n")
    (folder / "python/setup.py").write_text('P("PYBIND11_SYSPATH")\nsetup(python_requires=">=3.8")\n')
    (folder / "llvm-hash.txt").write_text(PIN)
    return folder


def test_setup_py_is_at_the_top_or_in_its_old_folder(tmp_path: Path, request_: Request) -> None:
    tree = old_tree(tmp_path / "triton")
    assert python_requires(tree) == ">=3.8"
    request = replace(request_, sources=specs({"triton": str(tree)}))
    assert plan(request, "triton")[-1].planned.name == "triton"
    (tree / "setup.py").write_text('setup(python_requires=">=3.10")\n')
    assert python_requires(tree) == ">=3.10"
    (tree / "setup.py").unlink()
    (tree / "python/setup.py").unlink()
    with refused("source-incomplete") as caught:
        plan(request, "triton")
    assert caught.value.code == 5


@pytest.mark.parametrize("kind", ["link", "huge"])
def test_only_regular_files_of_a_checkout_and_of_bounded_size_are_read(tmp_path: Path, kind: str) -> None:
    """A link could lead to a file of the user, to a pipe or to `/dev/zero`."""
    numbers = "".join(f"set({{name}}_VERSION_{part}{{end}} 1)\n" for part in ("MAJOR", "MINOR", "PATCH"))
    files: dict[str, tuple[str, Callable[[Path], object]]] = {
        "setup.py": ('setup(python_requires=">=3.8")\n', python_requires),
        "python/triton/__init__.py": ("__version__ = '3.4.0'\n", version_in),
        ".gitmodules": ('[submodule "a"]\n\tpath = a\n\turl = https://b\n', submodules_of),
        "CMakeLists.txt": (numbers.format(name="AOTRITON", end="_INT"), _stated_version),
        "lib/CMakeLists.txt": ("find_package(LLD)\n", features_of),
        "llvm/CMakeLists.txt": (numbers.format(name="LLVM", end=""), version_of_tree),
    }
    for number, (name, (text, read)) in enumerate(files.items()):
        tree, outside = tmp_path / str(number), tmp_path / "outside"
        outside.write_text(text)
        file = tree / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
        assert read(tree), name
        if kind == "link":
            file.unlink()
            file.symlink_to(outside)
        else:
            os.truncate(file, 17 << 20)
        found: object = None
        with contextlib.suppress(SourceError):
            found = read(tree)
        assert not found, name


def test_pipe_in_the_repository_of_a_checkout_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git("init", "-q", str(tmp_path))
    git("-C", str(tmp_path), "commit", "-q", "--allow-empty", "-m", "1")
    assert head_of(tmp_path)
    (tmp_path / ".git/HEAD").unlink()
    os.mkfifo(tmp_path / ".git/HEAD")
    monkeypatch.setattr(triton_tree, "_PATIENCE", 1.0)
    assert not head_of(tmp_path)


def test_llvm_too_old_or_too_new_for_the_tree_is_refused(tmp_path: Path, request_: Request) -> None:
    tree = old_tree(tmp_path / "triton")
    (tree / "python/triton").mkdir()
    (tree / "python/triton/__init__.py").write_text("__version__ = '3.0.0'\n")
    on = {
        number: replace(request_, sources=specs({"triton": str(tree), "llvm": f"distro:llvm-toolchain-{number}"}))
        for number in (17, 18, 19, 20, 22)
    }
    for number in (
        18,
        19,
        20,
    ):  # Triton's main branch keeps the version of the last release, so the next newer LLVM is accepted
        assert plan(on[number], "triton")[-1].planned.name == "triton"
    for number, how in ((17, "old"), (22, "new")):
        with refused("llvm-unfit", how, number):
            plan(on[number], "triton")


def test_a_backend_that_is_a_submodule_must_be_checked_out(tmp_path: Path, request_: Request) -> None:
    tree = old_tree(tmp_path / "triton")
    (tree / "third_party/amd/backend").rmdir()
    with refused("submodules-missing", "third_party/amd"):
        plan(replace(request_, sources=specs({"triton": str(tree)})), "triton")
    (tree / "third_party/amd").rmdir()
    with refused("triton-too-old", "third_party/amd"):
        plan(replace(request_, sources=specs({"triton": str(tree)})), "triton")


def test_a_submodule_that_the_build_reads_must_be_checked_out(tmp_path: Path, request_: Request) -> None:
    tree = old_tree(tmp_path / "triton")
    request = replace(request_, sources=specs({"triton": str(tree)}))
    (tree / ".gitmodules").write_text(
        '[submodule "third_party/sleef"]\n\tpath = third_party/sleef\n\turl = https://github.com/shibatch/sleef\n'
        '[submodule "third_party/other"]\n\tpath = third_party/other\n\turl = https://github.com/somebody/other\n'
    )
    plan(request, "triton")
    with (tree / "CMakeLists.txt").open("a") as file:
        file.write("add_subdirectory(third_party/sleef)\n")
    with refused("submodules-missing", "third_party/sleef") as caught:
        plan(request, "triton")
    assert "third_party/other" not in caught.value.what
    (tree / "third_party/sleef").mkdir()
    (tree / "third_party/sleef/CMakeLists.txt").touch()
    plan(request, "triton")


def git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_aotriton_outside_a_release_uses_the_triton_of_its_submodule(tmp_path: Path) -> None:
    tree, commit = tmp_path / "aotriton", "db82b800cd4b73e3fa586e1819b314f53bfbad4c"
    (tree / "third_party/triton").mkdir(parents=True)
    where = [f"aotriton={tree}"]
    with pytest.raises(PinError):
        make_request(target="aotriton", source=where, cache=tmp_path / "cache")
    git("init", "-q", str(tree))
    (tree / ".gitmodules").write_text(
        '[submodule "third_party/triton"]\n\tpath = third_party/triton\n'
        "\turl = https://github.com/ROCmSoftwarePlatform/triton.git\n"
    )
    git("-C", str(tree), "add", ".gitmodules")
    git("-C", str(tree), "update-index", "--add", "--cacheinfo", f"160000,{commit},third_party/triton")
    git("-C", str(tree), "commit", "-qm", "x")
    source = triton_source(make_request(target="aotriton", source=where, cache=tmp_path / "cache"))
    assert (source.version, source.repository) == (commit, "https://github.com/ROCm/triton")
    # If the submodule is checked out, its folder is the source, because the build uses its files.
    (tree / "third_party/triton/setup.py").touch()
    source = triton_source(make_request(target="aotriton", source=where, cache=tmp_path / "cache"))
    assert source.path == tree / "third_party/triton"


@pytest.mark.parametrize(
    ("origin", "url", "expected"),
    [
        ("https://git.example/me/aotriton.git", "../triton.git", "https://git.example/me/triton"),
        ("https://git.example/me/aotriton/", "../../ROCm/./triton", "https://git.example/ROCm/./triton"),
        ("git@git.example:me/aotriton.git", "../triton.git", "ssh://git@git.example/me/triton"),
        ("git.example:aotriton.git", "./../triton", "ssh://git.example/triton"),
        ("/srv/me/aotriton.git", "../triton.git", "file:///srv/me/triton"),
        ("", "git@git.example:me/triton.git", "ssh://git@git.example/me/triton"),
        ("", "/srv/triton", "file:///srv/triton"),
        ("https://git.example/me/aotriton.git", "../../../../triton.git", None),
        ("", "../triton.git", None),
    ],
)
def test_submodule_url_is_resolved_as_by_git(tmp_path: Path, origin: str, url: str, expected: str | None) -> None:
    tree, commit = tmp_path / "aotriton", "db82b800cd4b73e3fa586e1819b314f53bfbad4c"
    (tree / "third_party/triton").mkdir(parents=True)
    git("init", "-q", str(tree))
    if origin:
        git("-C", str(tree), "remote", "add", "origin", origin)
    (tree / ".gitmodules").write_text(f'[submodule "t"]\n\tpath = third_party/triton\n\turl = {url}\n')
    git("-C", str(tree), "add", ".gitmodules")
    git("-C", str(tree), "update-index", "--add", "--cacheinfo", f"160000,{commit},third_party/triton")
    git("-C", str(tree), "commit", "-qm", "x")
    with refused("aotriton-triton-unknown") if expected is None else contextlib.nullcontext():
        source = triton_source(make_request(target="aotriton", source=[f"aotriton={tree}"], cache=tmp_path / "cache"))
        assert (source.version, source.repository) == (commit, expected)


def test_aotriton_commit_outside_the_releases_needs_a_triton(tmp_path: Path) -> None:
    where = [f"aotriton=https://github.com/ROCm/aotriton@{'1' * 40}"]
    with pytest.raises(PinError):
        make_request(target="aotriton", source=where, cache=tmp_path / "cache")
    make_request(target="aotriton", source=where, triton="3.7.1", cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("setup", "names"),
    [
        ('name = "llvm-17.0.0-c5dede880d17-ubuntu"', "LLVM 17.0.0, commit c5dede880d17"),
        ('rev = "b1115f8c"', "LLVM commit b1115f8c"),
    ],
)
def test_incompletely_pinned_llvm_is_planned_but_not_built(
    tmp_path: Path, request_: Request, setup: str, names: str
) -> None:
    (tmp_path / "t/python").mkdir(parents=True)
    (tmp_path / "t/python/setup.py").write_text(setup)
    request = replace(request_, sources=specs({"triton": str(tmp_path / "t")}))
    (row,) = [row for row in plan(request, "llvm") if row.planned.name == "llvm"]
    assert (row.planned.input_digest, row.planned.prefix) == (None, "")
    assert names in row.planned.sources[0].pending
    with pytest.raises(PinError) as caught:
        build(request, "llvm")
    assert names in caught.value.why


def test_setup_py_that_would_download_a_package_is_refused(tmp_path: Path, request_: Request) -> None:
    tree = old_tree(tmp_path / "triton")
    setup = tree / "python/setup.py"
    setup.write_text('Package("json", "JSON_SYSPATH")\nPackage("boost", "BOOST_SYSPATH")\n')
    with refused("build-would-download"):
        plan(replace(request_, sources=specs({"triton": str(tree)})), "triton")


def test_lit_totals_are_read_from_the_report(tmp_path: Path) -> None:
    report = tmp_path / "lit.xml"
    report.write_text(
        '<testsuites><testsuite name="TRITON" tests="4" failures="1" skipped="1">'
        '<testcase classname="TRITON.a" name="one.mlir" time="0.1"/>'
        '<testcase classname="TRITON.a" name="two.mlir"><failure>RUN\nx.mlir:3:4: error: odd\nmore</failure></testcase>'
        '<testcase classname="TRITON.b" name="three.mlir"><skipped message="llc"/></testcase>'
        '<testcase classname="TRITON.b" name="four.mlir"/>'
        "</testsuite></testsuites>"
    )
    assert lit_totals(report) == {
        "tests": 4, "passed": 2, "failed": 1, "skipped": 1,
        "failures": {"TRITON.a/two.mlir": "x.mlir:3:4: error: odd"}, "skips": {"TRITON.b/three.mlir": "llc"},
    }  # fmt: skip
    report.write_text("no xml")
    with pytest.raises(BuildError):
        lit_totals(report)
    report.write_text("<testsuites/>")
    with refused("lit-report-unusable"):
        lit_totals(report)


def test_missing_lit_report_is_an_error_if_it_is_required(tmp_path: Path) -> None:
    assert lit(tmp_path, required=False) == {}
    with refused("lit-report-unusable"):
        lit(tmp_path, required=True)


def test_aotriton_source_comes_from_a_release_or_a_checkout(request_: Request, tmp_path: Path) -> None:
    request_ = replace(request_, glibc="2.31")
    source = aotriton_source(replace(request_, aotriton="0.10b"))
    assert commit_of(source) == "6fca155f4deeb8d9529326f7b69f350aeeb93477"
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "f").write_text("f")
    local = aotriton_source(replace(request_, sources=specs({"aotriton": str(tmp_path / "checkout")})))
    assert len(commit_of(local)) == 40
    with refused("aotriton-not-named"):
        aotriton_source(request_)
    with refused("base-without-hip"):
        aotriton_source(replace(request_, aotriton="0.10b", glibc=""))


def test_a_release_older_than_the_two_backends_is_refused_by_the_plan(request_: Request) -> None:
    request = replace(request_, triton="2.1.0", sources=specs({"llvm": "distro:llvm-toolchain-17"}))
    with refused("triton-too-old"):
        plan(request, "triton")
    assert plan(request, "llvm"), "its LLVM alone can be built"
