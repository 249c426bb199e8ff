"""Tests of which LLVM fits which Triton, of the parts that an LLVM gets, and of the fixes to its packages."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.refusals import refused
from tests.request_fixtures import specs
from tests.small_llvm import small_llvm
from toolchain.catalog.bases import base_recipe
from toolchain.catalog.components import check_generation, needs_for, newest_triton_on
from toolchain.catalog.release_data import triton_releases
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.errors import SourceError, UnsupportedError
from toolchain.request.model import Request
from toolchain.sources.tree import Source
from toolchain.stages.llvm import LlvmStage, refined, unknown_to_edits
from toolchain.stages.llvm_choice import llvm_needs
from toolchain.stages.llvm_version import major_of, version_of_tree
from toolchain.stages.stage import Planned

TOP = Path(__file__).resolve().parents[2]
PACKAGES = TOP / "llvm-config" / "packages.py"
BASE = base_recipe("debian13", "amd64")
UNDER = {name: Planned(name=name, image=name, inputs={}, details=BASE) for name in ("base", "sysroot")}


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    return Request(cache=Cache(tmp_path / "cache"))


def plan(request: Request, llvm: str | Path, **more: object) -> Planned:
    sources = {**request.sources, **specs({"llvm": str(llvm)})}
    return LlvmStage().plan(replace(request, sources=sources, **more), UNDER)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("llvm", "triton", "projects"),
    [
        (17, "2.1", ("mlir",)),
        (21, "3.5", ("mlir", "lld")),
        (23, "3.9", ("mlir", "lld", "clang")),
    ],
)
def test_llvm_without_a_triton_has_the_parts_for_the_newest_triton_that_fits(
    llvm: int, triton: str, projects: tuple[str, ...], request_: Request, tmp_path: Path
) -> None:
    tree = small_llvm(tmp_path / "llvm", version=f"{llvm}.1.0")
    request = replace(request_, sources=specs({"llvm": str(tree)}))
    needs = llvm_needs(request, llvm)
    assert (needs.serves, needs.projects) == (triton, projects)
    assert needs == replace(needs_for(triton), serves=triton)
    check_generation(needs, llvm, where="it")
    plan(request_, tree)


@pytest.mark.parametrize("row", [row.version for row in triton_releases() if row.version])
def test_release_fits_at_most_two_llvm_versions(row: str) -> None:
    needs = needs_for(row)
    near = {needs.llvm - 1, needs.llvm} - set(range(needs.since))
    for llvm in range(15, 27):
        if llvm in near:
            check_generation(needs, llvm, where="it")
        else:
            with refused("llvm-unfit", llvm):
                check_generation(needs, llvm, where="it")
    assert needs.llvm in near


@pytest.mark.parametrize(
    ("triton", "version", "word"),
    [("3.1.0", "22.1.8", "new"), ("3.7.1", "19.1.7", "old")],
)
def test_refusal_of_another_generation_names_both_versions(
    triton: str, version: str, word: str, request_: Request, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        plan(request_, small_llvm(tmp_path / "llvm", version=version), triton=triton)
    assert f"too {word} for Triton {triton}" in refusal.value.what
    assert f"LLVM {version.partition('.')[0]}," in refusal.value.what


def test_llvm_of_a_release_has_the_version_that_was_read_from_the_wheel_of_the_index() -> None:
    page = (TOP / "docs/measurements/triton.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+\.\d+\.\d+(?:, [\d.]+)*) \| .*?\b(\d+)\.0\.0git", page, re.MULTILINE)
    read = {version: int(llvm) for versions, llvm in rows for version in versions.split(", ")}
    known = {row.version: needs_for(row.version).llvm for row in triton_releases() if row.version in read}
    assert len(known) > 15
    assert known == {version: read[version] for version in known}


def test_pins_list_the_distributions_llvms_with_the_tritons_that_plan_accepts_on_them() -> None:
    listed = CliRunner().invoke(app, ["pins", "--distro", "--json"])
    rows = {row["llvm"]: row["tritons"] for row in json.loads(listed.stdout)["distro"]}
    for version in (row.version for row in triton_releases() if row.version and "+" not in row.version):
        for llvm, tritons in rows.items():
            with contextlib.nullcontext() if version in tritons else refused("llvm-unfit"):
                check_generation(needs_for(version), llvm, where="it")


def test_refusal_names_only_llvms_that_are_accepted() -> None:
    needs = needs_for("3.6.0")  # it links libraries that LLVM 21 lacks
    with refused("llvm-unfit") as refusal:
        check_generation(needs, 19, where="it")
    assert "21" not in refusal.value.fix
    check_generation(needs, 22, where="it")


@pytest.mark.parametrize("llvm", [16, 25])
def test_llvm_that_fits_no_triton_is_refused(llvm: int, request_: Request, tmp_path: Path) -> None:
    with refused("llvm-unfit", llvm):
        newest_triton_on(llvm)
    with refused("llvm-unfit", llvm):
        plan(request_, small_llvm(tmp_path / "llvm", version=f"{llvm}.0.0"))
    plan(replace(request_, only="support"), small_llvm(tmp_path / "other", version="22.1.8"), triton="3.1.0")


def test_lld_is_refused_if_the_llvm_cannot_install_it_alone() -> None:
    needs = needs_for("3.4", features=("lld",))
    with refused("llvm-unfit", "20", "21") as refusal:
        check_generation(needs, 20, where="it")
    # 22 would be refused as too new.
    assert refusal.value.fix == "use LLVM 21"
    check_generation(needs, 21, where="it")


def test_llvm_for_a_given_triton_does_not_depend_on_the_version_of_aotriton(request_: Request, tmp_path: Path) -> None:
    llvm, triton = small_llvm(tmp_path / "llvm", version="21.1.8"), tmp_path / "triton"
    triton.mkdir()
    (triton / "llvm-hash.txt").write_text("0" * 40)
    alone = replace(request_, sources=specs({"triton": str(triton)}))
    below = replace(alone, aotriton="0.10b")  # AOTriton 0.10b contains Triton 3.4
    assert plan(alone, llvm).input_digest == plan(below, llvm).input_digest is not None
    assert llvm_needs(replace(below, sources=specs({"llvm": str(llvm)})), 21).serves != llvm_needs(below, 21).serves


def test_llvm_must_provide_lld_for_a_triton_checkout_that_requires_it(request_: Request, tmp_path: Path) -> None:
    triton = tmp_path / "triton"
    triton.mkdir()
    (triton / "CMakeLists.txt").write_text("find_package(LLD REQUIRED)\n")
    request = replace(request_, sources=specs({"triton": str(triton), "llvm": "distro:llvm-toolchain-19"}))
    assert llvm_needs(request, 19).lld
    with refused("llvm-unfit", "19", "21"):
        plan(request, "distro:llvm-toolchain-19")
    plan(request, "distro:llvm-toolchain-22")


@pytest.mark.parametrize(
    ("pin", "parts"),
    [
        ("f6ded0be897e2878612dd903f7e8bb85448269e5", "3.6.0"),
        ("570885128351868c1308bb22e8ca351d318bc4a1", "b59fb1f66f021ccb57ef555f3651cc705af91163"),
        ("4713bd4ccc0c0d568f92916e7851d993291742c0", ""),
    ],
)
def test_triton_checkout_gets_the_parts_for_the_llvm_that_it_pins(
    pin: str, parts: str, request_: Request, tmp_path: Path
) -> None:
    triton = tmp_path / "triton"
    (triton / "cmake").mkdir(parents=True)
    (triton / "cmake/llvm-hash.txt").write_text(f"{pin}\n")
    request = replace(request_, sources=specs({"triton": str(triton)}))
    planned = LlvmStage().plan(request, UNDER)
    assert planned.serves == parts
    details = refined(planned.details, "19.0.0", request)
    assert details.needs.serves == (parts or "3.1")
    if not parts:
        details.check(planned.sources[0])


@pytest.mark.parametrize(
    ("kind", "where", "version", "major"),
    [
        ("distro", "llvm-toolchain-19", "19.1.7", 19),
        ("distro", "llvm-toolchain-snapshot", "24~++20261025103442+7e3c57157096", 24),
        ("distro", "llvm-toolchain-snapshot", "", None),
        ("git", "https://example.org/llvm", "0" * 40, None),
    ],
)
def test_major_version_before_a_fetch_is_known_only_from_a_package(
    kind: str, where: str, version: str, major: int | None
) -> None:
    source = Source(name="llvm", kind=kind, where=where, version=version, digest=None, path=None, locked=True)  # type: ignore[arg-type]
    assert major_of(source) == major


def test_version_of_a_tree_is_read_from_either_cmake_file(tmp_path: Path) -> None:
    tree = small_llvm(tmp_path / "llvm", version="19.1.7")
    assert version_of_tree(tree) == "19.1.7"
    # Before LLVM 19, the version is in llvm/CMakeLists.txt.
    old = (tree / "cmake/Modules/LLVMVersion.cmake").read_text()
    (tree / "cmake/Modules/LLVMVersion.cmake").unlink()
    with pytest.raises(SourceError):
        version_of_tree(tree)
    (tree / "llvm/CMakeLists.txt").write_text("if(NOT DEFINED LLVM_VERSION_MAJOR)\n  " + old.replace("19", "18"))
    assert version_of_tree(tree) == "18.1.7"


def test_inputs_of_a_commit_have_needs_by_version_unless_a_triton_is_named(request_: Request) -> None:
    url = f"https://example.org/llvm@{'a' * 40}"
    ready = {name: replace(planned, inputs={"a": name}) for name, planned in UNDER.items()}
    sources = specs({"llvm": url})
    unnamed = LlvmStage().plan(replace(request_, sources=sources), ready)
    named = LlvmStage().plan(replace(request_, sources=sources, triton="3.8.0"), ready)
    assert unnamed.inputs is not None
    assert named.inputs is not None
    assert "by_version" in unnamed.inputs
    assert "by_version" not in named.inputs


def cleaned(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PACKAGES), str(folder), "/build", "/src/llvm"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_folders_of_the_build_are_removed_from_cmake_packages(tmp_path: Path) -> None:
    file = tmp_path / "mlir" / "MLIRConfig.cmake"
    file.parent.mkdir()
    kept = 'set(MLIR_INCLUDE_DIRS "${MLIR_INSTALL_PREFIX}/include")\nset(A "/builder/x")\nset(B "utils/build/y")\n'
    file.write_text(
        kept + 'set(MLIR_INCLUDE_DIR "/build/tools/mlir/include")\nset(MLIR_MAIN_SRC_DIR "/src/llvm/mlir")\n'
    )
    assert cleaned(tmp_path).returncode == 0
    assert file.read_text() == kept + 'set(MLIR_INCLUDE_DIR "${MLIR_INCLUDE_DIRS}")\n'
    assert cleaned(tmp_path).stdout == ""


def test_unknown_use_of_a_build_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.cmake").write_text("include(/build/x.cmake)\n")
    done = cleaned(tmp_path)
    assert done.returncode == 3
    assert re.search(r"a\.cmake .*include\(/build/x\.cmake\)", done.stderr)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("std::set<const Record *> ProcItinList;", True),  # LLVM 19 to 22
        ("std::set<Record *> ProcItinList;", True),  # LLVM 17 and 18
        ("std::set<const Record *, LessRecord> ProcItinList;", True),  # LLVM 23
        ("std::set<Record const *> ProcItinList;", False),
        (None, True),
    ],
)
def test_generator_that_the_edits_do_not_match_is_listed(tmp_path: Path, text: str | None, known: bool) -> None:
    file = "llvm/utils/TableGen/DFAPacketizerEmitter.cpp"
    if text is not None:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(f"int a; {text}\n")
    assert unknown_to_edits(tmp_path) == ([] if known else [file])
