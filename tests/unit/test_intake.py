"""Tests of stages.prebuilt: a build stops unless every binary of a source is allowed, dropped or replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.cli.build_options import make_request
from toolchain.core.cache import Cache
from toolchain.core.errors import PolicyError
from toolchain.core.record import Fate
from toolchain.request.model import Request
from toolchain.stages.prebuilt import choices, names_allowed, take_in

BITCODE = b"BC\xc0\xde" + bytes(40)
AMD = "third_party/amd/backend/lib"
NVIDIA = "third_party/nvidia/backend/lib/libdevice.10.bc"


@pytest.fixture
def triton(tmp_path: Path) -> Path:
    for name in (f"{AMD}/ocml.bc", f"{AMD}/ockl.bc", NVIDIA):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(BITCODE)
    (tmp_path / "setup.py").write_text("print()\n")
    return tmp_path


def request(tmp_path: Path, *, allow: tuple[str, ...] = (), drop: tuple[str, ...] = ()) -> Request:
    return Request(cache=Cache(tmp_path / "cache"), allow_binary=allow, drop_binary=drop)


def test_binary_without_a_decision_is_refused_by_name(triton: Path, tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        take_in("triton", triton, request(tmp_path))
    assert NVIDIA in caught.value.why
    assert "--allow-binary libdevice" in caught.value.fix
    assert caught.value.code == 15


def test_libdevice_is_allowed_by_name_and_amd_bitcode_replaced_by_default(triton: Path, tmp_path: Path) -> None:
    intake, findings = take_in("triton", triton, request(tmp_path, allow=("libdevice",)))
    assert [row.path for row in intake.allowed] == [NVIDIA]
    assert sorted(intake.replaced) == [f"{AMD}/ockl.bc", f"{AMD}/ocml.bc"]
    assert {row["path"]: row["fate"] for row in intake.rows(findings)} == {
        f"{AMD}/ockl.bc": Fate.REPLACED,
        f"{AMD}/ocml.bc": Fate.REPLACED,
        NVIDIA: Fate.ALLOWED,
    }


def test_unknown_binary_is_allowed_by_its_path(triton: Path, tmp_path: Path) -> None:
    (triton / "kernel.co").write_bytes(b"\x7fELF" + bytes(40))
    with refused("prebuilt-not-allowed"):
        take_in("triton", triton, request(tmp_path))
    intake, _ = take_in("triton", triton, request(tmp_path, drop=("libdevice",), allow=("kernel.co",)))
    assert [row.path for row in intake.allowed] == ["kernel.co"]


def test_names_of_binaries_apply_only_to_their_own_source(triton: Path, tmp_path: Path) -> None:
    with refused("prebuilt-not-allowed"):
        take_in("aotriton", triton, request(tmp_path, allow=("libdevice", "ocml", "ockl")))


def test_one_name_covers_many_files(triton: Path, tmp_path: Path) -> None:
    for name in ("oclc_isa_version_942.bc", "oclc_daz_opt_on.bc", "cuda2gcn.bc"):
        (triton / AMD / name).write_bytes(BITCODE)
    with refused("prebuilt-not-allowed") as caught:
        take_in("triton", triton, request(tmp_path))
    assert "--allow-binary cuda2gcn --allow-binary libdevice" in caught.value.fix
    intake, _ = take_in("triton", triton, request(tmp_path, allow=("libdevice",), drop=("cuda2gcn",)))
    assert intake.replaced[f"{AMD}/oclc_isa_version_942.bc"].endswith("/bitcode/oclc_isa_version_942.bc")
    assert intake.dropped == (f"{AMD}/cuda2gcn.bc",)
    intake, _ = take_in("triton", triton, request(tmp_path, allow=("libdevice", "oclc", "cuda2gcn")))
    assert intake.binaries(()) == ("cuda2gcn", "libdevice", "oclc")


def test_decisions_about_binaries_are_inputs(tmp_path: Path) -> None:
    plain, allowed = request(tmp_path), request(tmp_path, allow=("libdevice", "triton-wheel"))
    assert choices("triton", plain) != choices("triton", allowed)
    assert (names_allowed("triton", allowed), names_allowed("aotriton", allowed)) == (("libdevice",), ())


@pytest.mark.parametrize("name", ["a;b.co", "a[1].co", "a*.co"])
def test_dropped_name_with_special_characters_is_refused(triton: Path, tmp_path: Path, name: str) -> None:
    (triton / name).write_bytes(b"\x7fELF" + bytes(40))
    with refused("prebuilt-names-unsafe"):
        take_in("triton", triton, request(tmp_path, allow=("libdevice",), drop=(name,)))


def test_binaries_of_upstreams_tests_are_listed_separately(triton: Path, tmp_path: Path) -> None:
    for name in ("llvm/test/Object/Inputs/a.elf", "llvm/unittests/b.bc", "llvm/lib/test.bc"):
        path = triton / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(BITCODE)
    allowing = request(tmp_path, allow=("libdevice", "llvm/lib/test.bc"))
    intake, findings = take_in("triton", triton, allowing, tests=("test", "unittests"))
    assert intake.tests == ("llvm/test/Object/Inputs/a.elf", "llvm/unittests/b.bc")
    fates = {row["path"]: row["fate"] for row in intake.rows(findings)}
    assert fates["llvm/unittests/b.bc"] == Fate.OF_TESTS
    assert fates["llvm/lib/test.bc"] == Fate.ALLOWED
    with refused("prebuilt-not-allowed"):  # a file called test is not a folder of tests
        take_in("triton", triton, request(tmp_path), tests=("test", "unittests"))


def test_binary_cannot_be_both_allowed_and_dropped(tmp_path: Path) -> None:
    with refused("options-exclude"):
        make_request(allow_binary=["libdevice"], drop_binary=["libdevice", "ocml"], cache=tmp_path / "cache")
