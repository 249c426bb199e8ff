"""Tests of scripts/new_pins.py, which finds upstream pins that are not on record."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.new_pins import Finding, findings, gather, main
from toolchain.catalog.codegen import codegens
from toolchain.catalog.release_data import triton_releases

# These facts were read from AOTriton's repository in November 2026. Each ref has its commit, the commit of its Triton,
# and the pin file of that Triton.
AOTRITON = json.loads((Path(__file__).resolve().parents[1] / "recorded" / "aotriton-refs.json").read_bytes())
HASH = "cmake/llvm-hash.txt"
AMD, AMD_NEXT = "cmake/amd-llvm-info.json", "cmake/amd-llvm-build-info.json"
NEW, OTHER = "5" * 40, "6" * 40
(RECORDED,) = next(row.codegen for row in triton_releases() if row.version == "3.9.0")


def as_recorded() -> dict[str, Any]:
    """Return the recorded facts of AOTriton, and those of a Triton whose tags pin the LLVMs that are on record."""
    tritons = [
        {
            "ref": f"refs/tags/v{row.version}",
            "commit": NEW,
            "files": ({HASH: f"{row.llvm}\n"} if row.llvm else {})
            | {
                rule.pin_file: pinned(pin.llvm, pin.build)
                for pin in row.codegen
                for rule in codegens()
                if rule.target == pin.target
            },
        }
        for row in triton_releases()
        if row.version and "+" not in row.version
    ]
    return {"triton": tritons, "aotriton": copy.deepcopy(AOTRITON)}


def pinned(llvm: str, build: object = 1, **more: str) -> str:
    return json.dumps({"llvm_hash": llvm, "build_number": build, "sha256sum": {}, **more})


def found_with(**more: Any) -> list[Finding]:
    facts = as_recorded()
    return findings({name: [*rows, *more.get(name, ())] for name, rows in facts.items()})


def triton(ref: str, **files: str) -> dict[str, Any]:
    return {"ref": ref, "commit": OTHER, "files": {name.replace("__", "/"): text for name, text in files.items()}}


def test_recorded_facts_give_no_findings() -> None:
    assert len(AOTRITON) >= 25
    assert found_with() == []


def test_new_release_of_triton_is_found() -> None:
    (one,) = found_with(triton=[triton("refs/tags/v3.7.2", **{HASH: NEW})])
    assert one.title == "Triton 3.7.2 is not on record"
    assert one.build == {"source": f"llvm=https://github.com/llvm/llvm-project@{NEW}", "triton": "3.7.2"}


def test_build_uses_the_repository_that_a_triton_names() -> None:
    build = json.dumps({"llvm_hash": NEW, "build_number": 1, "repository": "triton-lang/llvm-project"})
    info = json.dumps({"llvm_hash": NEW, "build_number": 1})
    files = {"cmake/llvm-info.json": info, "cmake/llvm-build-info.json": build}
    (one,) = found_with(triton=[triton("refs/heads/release/3.8.x", **files)])
    assert one.build == {"source": f"llvm=https://github.com/triton-lang/llvm-project@{NEW}", "triton": ""}


def test_triton_with_two_llvms_is_found_but_not_built() -> None:
    files = {HASH: NEW, AMD: pinned(OTHER, 3), AMD_NEXT: pinned(OTHER, 4, repository="ROCm/llvm-project")}
    (one,) = found_with(triton=[triton("refs/tags/v3.99.0", **files)])
    assert (one.title, one.build) == ("Triton 3.99.0 is not on record", None)
    assert f"for AMDGPU {OTHER}-3 of ROCm/llvm-project" in one.why
    one, other = found_with(triton=[triton("refs/heads/main", **files)])
    assert (one.title, one.build) == (f"LLVM {OTHER[:12]}-3 for AMDGPU of Triton main", None)
    assert (other.title, other.build) == (f"LLVM {NEW[:12]} of Triton main", None)


@pytest.mark.parametrize(
    ("files", "title"),
    [
        ({AMD: pinned(RECORDED.llvm, 2)}, "Triton 3.9.0 has another LLVM for AMDGPU than on record"),
        ({}, "Triton 3.9.0 has another LLVM for AMDGPU than on record"),
        (
            {AMD: pinned(RECORDED.llvm), AMD_NEXT: pinned(RECORDED.llvm, 2, repository="ROCm/llvm-project")},
            "Triton 3.9.0: the repository of its LLVM for AMDGPU is not on record",
        ),
        ({AMD: pinned(RECORDED.llvm), AMD_NEXT: pinned(OTHER, 2, repository="ROCm/llvm-project")}, ""),
        (
            {AMD: pinned(RECORDED.llvm), "cmake/nvidia-llvm-info.json": pinned(NEW)},
            "Triton 3.9.0 has another LLVM for NVPTX than on record",
        ),
        (
            {AMD: pinned(RECORDED.llvm), "cmake/nvidia-llvm-build-info.json": pinned(NEW)},
            "Triton 3.9.0 has an LLVM for NVPTX: upstream builds it, but does not pin it yet",
        ),
        (
            {AMD: pinned(RECORDED.llvm), "cmake/intel-llvm-info.json": pinned(NEW)},
            "Triton 3.9.0 has an LLVM for intel: this tool does not know the target",
        ),
        *(({AMD: text}, "Triton 3.9.0 has an LLVM for AMDGPU: its pin cannot be read")
          for text in ("[]", "{", pinned("$(id)"), pinned(OTHER, -1))),
    ],
)  # fmt: skip
def test_changed_llvm_for_a_gpu_is_found(files: dict[str, str], title: str) -> None:
    facts = as_recorded()
    entry = next(one for one in facts["triton"] if one["ref"].endswith("v3.9.0"))
    entry["files"] = {HASH: entry["files"][HASH], **files}
    assert [one.title for one in findings(facts)] == ([title] if title else [])


def test_branch_is_found_only_if_its_llvm_is_new() -> None:
    known = next(row.llvm for row in triton_releases() if row.version == "3.7.1")
    assert found_with(triton=[triton("refs/heads/main", **{HASH: known})]) == []
    (one,) = found_with(triton=[triton("refs/heads/main", **{HASH: NEW})])
    assert (one.title, one.build is None) == (f"LLVM {NEW[:12]} of Triton main", False)


def test_tag_with_another_llvm_than_on_record_is_found() -> None:
    facts = as_recorded()
    entry = next(one for one in facts["triton"] if one["ref"].endswith("v3.6.0"))
    entry["files"] = {HASH: NEW}
    (one,) = findings(facts)
    assert one.title == "Triton 3.6.0 has another LLVM than on record"
    assert "f6ded0be" in one.why


def test_llvm_of_a_release_on_record_without_an_llvm_is_found() -> None:
    unknown = next(row for row in triton_releases() if row.version and not row.llvm)
    facts = as_recorded()
    next(one for one in facts["triton"] if one["ref"].endswith(f"v{unknown.version}"))["files"] = {HASH: NEW}
    (one,) = findings(facts)
    assert one.title == f"Triton {unknown.version} is on record without its LLVM"


def change(name: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    def apply(facts: dict[str, Any]) -> None:
        next(one for one in facts["aotriton"] if one["ref"] == name).update(values)

    return apply


@pytest.mark.parametrize(
    ("alter", "title"),
    [
        (change("refs/tags/0.13b", triton=NEW), "AOTriton 0.13b differs from the record"),
        (change("refs/tags/0.8b", files={HASH: NEW}), "AOTriton 0.8b differs from the record"),
        (change("refs/tags/0.11.2b", files={HASH: NEW}), "AOTriton 0.11.2b is on record without its LLVM"),
        (change("refs/tags/0.13b", ref="refs/tags/0.15b"), "AOTriton 0.15b is not on record"),
        (change("refs/tags/0.13b", ref="refs/tags/0.14b"), "AOTriton 0.14b is on record without its Triton"),
        (change("refs/heads/main", triton=NEW), f"Triton {NEW[:12]} of AOTriton main"),
    ],
)
def test_changes_of_aotriton_are_found(alter: Callable[[dict[str, Any]], None], title: str) -> None:
    facts = as_recorded()
    alter(facts)
    (one,) = findings(facts)
    assert one.title == title


@pytest.mark.parametrize(
    "entry",
    [
        triton("refs/tags/v3.7.2$(id)", **{HASH: NEW}),
        triton("refs/heads/main\n::set-output", **{HASH: NEW}),
        {**triton("refs/tags/v3.7.2", **{HASH: NEW}), "commit": "$(id)"},
    ],
)
def test_malformed_ref_or_commit_gives_no_finding(entry: dict[str, Any]) -> None:
    assert found_with(triton=[entry]) == []


def test_malformed_pin_is_found_but_not_built() -> None:
    """A person must look at the pin, so there is a finding, but no content of the pin may get into a build."""
    (one,) = found_with(triton=[triton("refs/tags/v3.7.2", **{HASH: "$(curl example.org) @everyone `x`"})])
    assert one.build is None
    assert "commit" in one.why
    assert not set(one.why) & set("$@`<")
    build = json.dumps({"llvm_hash": NEW, "repository": "a/b; echo"})
    info = json.dumps({"llvm_hash": NEW})
    files = {"cmake/llvm-info.json": info, "cmake/llvm-build-info.json": build}
    (other,) = found_with(triton=[triton("refs/tags/v3.7.2", **files)])
    assert other.build is None


def git(folder: Path, *words: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for who in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{who}_NAME": "x", f"GIT_{who}_EMAIL": "x@example.org"}
    done = subprocess.run(["git", "-C", str(folder), *words], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def upstream(tmp_path: Path) -> tuple[Path, Path]:
    """Return two repositories: a Triton with tags, and an AOTriton with this Triton as a submodule."""
    one, other = tmp_path / "the triton", tmp_path / "aotriton"
    for folder in (one, other):
        folder.mkdir()
        git(folder, "init", "--quiet", "--initial-branch=main")
        git(folder, "config", "uploadpack.allowFilter", "true")
        git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    (one / "cmake").mkdir()
    (one / HASH).write_text(f"{NEW}\n")
    git(one, "add", ".")
    git(one, "commit", "--quiet", "-m", "x")
    git(one, "tag", "-a", "-m", "x", "v3.7.2")
    git(one, "tag", "v3.7.2-rc1")
    git(one, "tag", "v1.0.0")
    (one / HASH).write_text(OTHER)
    (one / AMD).write_text("{}")
    (one / "cmake" / "FindLLVM.cmake").write_text("")
    git(one, "add", ".")
    git(one, "commit", "--quiet", "-m", "y")
    carried = git(one, "rev-parse", "v3.7.2^{commit}")
    git(other, "update-index", "--add", "--cacheinfo", f"160000,{carried},third_party/triton")
    git(other, "commit", "--quiet", "-m", "x")
    git(other, "tag", "0.15b")
    git(other, "tag", "0.7preview1")
    return one, other


def test_gather_reads_refs_and_pin_files_with_git(
    upstream: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = upstream
    facts = gather(str(one), str(other))
    assert [entry["ref"] for entry in facts["triton"]] == ["refs/heads/main", "refs/tags/v3.7.2"]
    tag = facts["triton"][1]
    assert tag["commit"] == git(one, "rev-parse", "v3.7.2^{commit}"), "not the tag's own object"
    assert tag["files"] == {HASH: f"{NEW}\n"}
    assert facts["triton"][0]["files"] == {HASH: OTHER, AMD: "{}"}
    assert [entry["ref"] for entry in facts["aotriton"]] == ["refs/heads/main", "refs/tags/0.15b"]
    assert facts["aotriton"][1]["triton"] == tag["commit"]
    assert facts["aotriton"][1]["files"] == {HASH: f"{NEW}\n"}
    # The findings are the same for the recorded facts and for the repositories.
    record = tmp_path / "facts.json"
    assert main(["--triton", str(one), "--aotriton", str(other), "--record", str(record)]) == 0
    said = capsys.readouterr().out
    assert main(["--facts", str(record)]) == 0
    assert capsys.readouterr().out == said
    titles = [row["title"] for row in json.loads(said)["findings"]]
    assert "Triton 3.7.2 is not on record" in titles
    assert "AOTriton 0.15b is not on record" in titles


def test_gather_reads_only_the_newest_refs(upstream: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = upstream
    for version in ("3.0.0", "3.9.0", "3.10.0"):
        git(one, "tag", f"v{version}", "v3.7.2^{commit}")
    monkeypatch.setattr("scripts.new_pins._LIMIT", 3)
    refs = [entry["ref"] for entry in gather(str(one), str(other))["triton"]]
    assert refs == ["refs/heads/main", "refs/tags/v3.10.0", "refs/tags/v3.9.0"]


def test_unreachable_repository_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--triton", str(tmp_path / "none"), "--aotriton", str(tmp_path / "none")]) == 18
    assert "answer" in capsys.readouterr().err


def test_script_runs_as_a_command(tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps(as_recorded()))
    top = Path(__file__).resolve().parents[2]
    summary = tmp_path / "summary"
    done = subprocess.run(
        [sys.executable, str(top / "scripts" / "new_pins.py"), "--facts", str(facts)],
        capture_output=True,
        text=True,
        env={**os.environ, "GITHUB_STEP_SUMMARY": str(summary), "PYTHONPATH": str(top)},
        check=False,
    )
    assert (done.returncode, json.loads(done.stdout)) == (0, {"findings": []})
    assert summary.read_text() == "nothing new\n"
