"""Tests of HIP: the data about ROCm versions, the stub libraries, and the choice and checks of headers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.refusals import refused
from tests.request_fixtures import specs
from toolchain.catalog import rocm as catalog
from toolchain.core.cache import Cache
from toolchain.core.errors import SourceError, UnsupportedError
from toolchain.request.model import Request
from toolchain.sources.distro import known_packages
from toolchain.stages.hip import check_headers, hip_stage, source_of, version_in, write_stubs

HIP5, HIP6 = catalog.headers()


def a_hip(folder: Path, version: str = "6.4.43484", *, without: str = "") -> Path:
    """Create headers that only declare names, in the layout of an installed HIP."""
    include = folder / "include" / "hip"
    (include / "amd_detail").mkdir(parents=True)
    (include / "hip_runtime.h").write_text("#include <hip/hip_runtime_api.h>\n")
    names = {name for stub in catalog.stubs_of(["5", "6"])[:2] for name in stub.symbols} - {without}
    (include / "hip_runtime_api.h").write_text("".join(f"hipError_t {name}();\n" for name in sorted(names)))
    parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    (include / "hip_version.h").write_text("".join(f"#define HIP_VERSION_{part} {text}\n" for part, text in parts))
    return folder


def test_rows_agree_with_each_other_and_with_the_known_packages() -> None:
    known = {(package.name, package.version): package for package in known_packages()}
    of_headers = [(row.package, row.version) for row in catalog.headers()]
    for name, version in (*of_headers, *((row.package, row.version) for row in catalog.libraries())):
        assert known[name, version].pool.startswith("pool/main/")
        assert known[name, version].file == f"{name}_{version}_amd64.deb"
    assert [row.soname for row in catalog.rocms()] == [f"libamdhip64.so.{row.major}" for row in catalog.rocms()]
    assert {row.headers for row in catalog.rocms()} == {row.name for row in catalog.headers()}
    assert {int(row.major) for row in catalog.rocms()} == {major for row in catalog.headers() for major in row.hip}


def test_stub_library_is_written_from_its_row(tmp_path: Path) -> None:
    stub = catalog.Stub(name="rocm9", soname="libamdhip64.so.9", nodes=(("hip_4.2", ("b", "a")), ("hip_6.0", ("c",))))
    folder = write_stubs([stub], tmp_path / "stubs") / "rocm9"
    assert (folder / "soname").read_text() == "libamdhip64.so.9"
    assert (folder / "stub.map").read_text() == (
        "hip_4.2 { global: a; b; local: *; };\nhip_6.0 { global: c; };\n"
    )  # fmt: skip
    assert (folder / "stub.c").read_text().splitlines()[0] == "int a(void) { return 100; }"


def test_unknown_rocm_is_refused() -> None:
    for text in ("8", "6,8.1", "rocm", "-"):
        with refused("unknown-rocm"):
            catalog.parse_rocms(text)
    with refused("option-empty"):
        catalog.parse_rocms(" , ")


def test_option_rocm_is_refused_with_a_base(tmp_path: Path) -> None:
    request = Request(cache=Cache(tmp_path), rocm=("6",))
    with refused("rocm-with-base"):
        hip_stage("hip", request)


def test_distribution_is_the_default_source_of_headers(tmp_path: Path) -> None:
    request = Request(cache=Cache(tmp_path), sources=specs({"hip6": str(a_hip(tmp_path / "own"))}))
    assert source_of(HIP5, request).ref == "distro:libamdhip64-dev=5.7.1-6+deb13u1"
    assert source_of(HIP5, request).digest is not None, "a plan knows it"
    assert source_of(HIP6, request).ref == "local:own"


def test_headers_of_a_triton_checkout_are_used_if_they_are_suitable(tmp_path: Path) -> None:
    checkout, included = tmp_path / "triton", "third_party/amd/backend/include"
    a_hip(checkout / "third_party/amd/backend", "7.1.25424")
    request = Request(cache=Cache(tmp_path), sources=specs({"triton": str(checkout)}))
    assert source_of(HIP6, request).path == checkout / included
    assert source_of(HIP5, request).kind == "distro", "they are of another HIP"
    (checkout / included / "hip/hip_runtime.h").unlink()
    assert source_of(HIP6, request).kind == "distro"
    named = Request(
        cache=Cache(tmp_path), sources=specs({"triton": str(checkout), "hip6": str(a_hip(tmp_path / "own"))})
    )
    assert source_of(HIP6, named).ref == "local:own"


@pytest.mark.parametrize("where", [".", "usr", "third_party/amd/backend"])
def test_headers_are_found_in_every_kind_of_tree(tmp_path: Path, where: str) -> None:
    a_hip(tmp_path / where)
    assert version_in(check_headers(tmp_path, HIP6), tmp_path) == "6.4.43484"
    assert version_in(check_headers(tmp_path / where / "include", HIP6), tmp_path) == "6.4.43484"


BAD: list[tuple[Callable[[Path], object], type[Exception], str]] = [
    (lambda at: at.mkdir(), SourceError, "contains no HIP headers"),
    (lambda at: a_hip(at, without="hipStreamGetDevice"), UnsupportedError, "has no hipStreamGetDevice"),
    (lambda at: a_hip(at, "5.7.31921"), UnsupportedError, "is HIP 5.7.31921"),
    (lambda at: a_hip(at, "8.0.0"), UnsupportedError, "is HIP 8.0.0"),
    (lambda at: (a_hip(at) / "include/hip/hip_runtime.h").unlink(), SourceError, "are incomplete"),
    (lambda at: (a_hip(at) / "include/hip/hip_version.h").write_text("\n"), SourceError, "defines no version"),
]


@pytest.mark.parametrize(("make", "kind", "what"), BAD)
def test_unsuitable_headers_are_refused(
    tmp_path: Path, make: Callable[[Path], object], kind: type[Exception], what: str
) -> None:
    make(tmp_path / "hip")
    with pytest.raises(kind, match=what):
        check_headers(tmp_path / "hip", HIP6)
