"""Tests of the parts of LLVM that each Triton needs, and of the check that an installed LLVM contains them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.catalog import release_data as pins
from toolchain.catalog.components import LlvmRequirements, check_files, features_of, missing_in, needs_for
from toolchain.core.errors import PinError, UnsupportedError

GSAN = "db82b800cd4b73e3fa586e1819b314f53bfbad4c"
VERSIONS = ["2.1", "2.3.1", "3.0", "3.1.0", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7.0", "3.7.1", "3.8.0", "3.9.0"]
BASE = {
    "llvm-headers",
    "llvm-libraries",
    "cmake-exports",
    "mlir-headers",
    "mlir-libraries",
    "mlir-cmake-exports",
    "mlir-tblgen",
}
LLD = {"lld-headers", "lld-libraries", "lld-cmake-exports"}
CLANG = {"clang", "clang-resource-headers"}


def test_every_triton_in_the_data_has_requirements() -> None:
    for row in pins.triton_releases():
        if not row.codegen:  # needs_for refuses releases with their own LLVMs for GPUs
            needs_for(row.version or row.commit)
    for release in pins.aotriton_releases():
        if release.triton and release.llvm:
            needs_for(release.triton)


@pytest.mark.parametrize(
    ("version", "filecheck", "lld", "clang"),
    [("3.4", True, False, False), ("3.5", True, True, False), ("v3.8.0", True, True, True), (GSAN, True, True, True)],
)
def test_version_determines_filecheck_lld_and_clang(version: str, filecheck: bool, lld: bool, clang: bool) -> None:
    needs = needs_for(version)
    assert (needs.filecheck, needs.lld, needs.clang) == (filecheck, lld, clang)
    assert set(needs.components) == BASE | ({"FileCheck"} if filecheck else set()) | (LLD if lld else set()) | (
        CLANG if clang else set()
    )
    assert needs.projects == ("mlir", *(["lld"] if lld else []), *(["clang"] if clang else []))
    assert needs.tools == ("mlir-tblgen", *(["FileCheck"] if filecheck else []), *(["clang++"] if clang else []))
    assert ("lldELF" in needs.libtriton) == lld


def test_required_libraries_depend_on_the_version() -> None:
    def versions_with(library: str) -> list[str]:
        return [v for v in VERSIONS if library in {*needs_for(v).libtriton, *needs_for(v).bin_tools}]

    assert versions_with("lldCommon") == VERSIONS[VERSIONS.index("3.5") :]
    assert versions_with("MLIRPluginsLib") == ["3.7.0", "3.7.1"]


@pytest.mark.parametrize(
    ("version", "arch", "target"), [("3.7", "amd64", "X86"), ("3.2", "ppc64le", "PowerPC"), ("3.0", "ppc64le", "")]
)
def test_required_host_backend_depends_on_version_and_architecture(version: str, arch: str, target: str) -> None:
    hosts = {f"LLVM{name}CodeGen" for name in ("X86", "AArch64", "PowerPC", "SystemZ")}
    assert hosts & set(needs_for(version, arch).libtriton) == ({f"LLVM{target}CodeGen"} if target else set())


@pytest.mark.parametrize("version", ["3.99", "2.0", "0" * 40])
def test_unknown_triton_branch_and_architecture_are_refused(version: str) -> None:
    with pytest.raises(UnsupportedError):
        needs_for(version)
    with pytest.raises(PinError):
        needs_for("main")
    with refused("unknown-architecture"):
        needs_for("3.7", "riscv64")


def installed(prefix: Path) -> frozenset[str]:
    """Return the files of an installed LLVM, as paths below `prefix`."""
    return frozenset(path.relative_to(prefix).as_posix() for path in prefix.rglob("*") if path.is_file())


def install(prefix: Path, needs: LlvmRequirements) -> None:
    """Create an empty file below `prefix` for each file in `needs`."""
    for low, name in (("llvm", "LLVM"), ("mlir", "MLIR"), ("lld", "LLD")):
        if low != "lld" or needs.lld:
            touch(prefix / "include" / low / f"{name}.h")
            touch(prefix / "lib" / "cmake" / low / f"{name}Config.cmake")
    for library in {*needs.libtriton, *needs.bin_tools}:
        touch(prefix / "lib" / f"lib{library}.a")
    for tool in needs.tools:
        touch(prefix / "bin" / tool)
    if needs.clang:
        touch(prefix / "lib" / "clang" / "23" / "include" / "stddef.h")


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_each_missing_file_is_reported(tmp_path: Path) -> None:
    needs = needs_for("3.8.0")
    install(tmp_path, needs)
    files = [path for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    assert len(files) > 35
    for file in files:
        file.unlink()
        missing = missing_in(installed(tmp_path), needs)
        assert len(missing) == 1, file
        name = file.relative_to(tmp_path).as_posix()
        assert missing[0].replace("*", "23") == (
            name.rpartition("/")[0] if name.endswith(("LLVM.h", "LLD.h", "MLIR.h")) else name
        )
        file.touch()
    assert missing_in(installed(tmp_path), needs) == []
    check_files(installed(tmp_path), needs, where="here", consumer="Triton")


def test_llvm_without_lld_is_refused_for_a_triton_that_needs_it(tmp_path: Path) -> None:
    install(tmp_path, needs_for("3.4"))
    with refused("llvm-layer-unfit"):
        check_files(installed(tmp_path), needs_for("3.5"), where="here", consumer="Triton 3.5.0")


def test_features_of_a_checkout_are_read_from_its_cmake_files(tmp_path: Path) -> None:
    (tmp_path / "third party" / "deep").mkdir(parents=True)
    assert features_of(tmp_path) == frozenset()
    (tmp_path / "CMakeLists.txt").write_text("find_package(\n  LLD CONFIG)\nset(CMAKE_CXX_COMPILER clang++)\n")
    assert features_of(tmp_path) == {"lld"}
    deep = tmp_path / "third party" / "deep" / "CMakeLists.txt"
    deep.write_text('find_program(GSAN\n  NAMES clang++ PATHS "${LLVM_DIR}" REQUIRED)\n')
    assert features_of(tmp_path) == {"lld", "clang"}
    needs = needs_for("3.6", features=features_of(tmp_path))
    assert "clang" in needs.projects
    assert "clang++" in needs.tools
    assert needs.libtriton == needs_for("3.6").libtriton
