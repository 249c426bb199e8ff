"""Tests of portable LLVM: the known floors, plans, links inside a floor, the SBOM and locks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_fixtures import finished_sysroot, image_facts, record
from tests.places import verify
from tests.refusals import refused
from tests.request_fixtures import specs
from toolchain.catalog.bases import base_recipe
from toolchain.catalog.floors import floor_of, load_floors
from toolchain.core.cache import Cache
from toolchain.core.errors import LockedError
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import ImageSpec, write_image, write_index
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef
from toolchain.pipeline import lockfile, locking
from toolchain.pipeline.plan import plan
from toolchain.pipeline.records import read_record
from toolchain.publish import attestations as evidence
from toolchain.request.model import DEFAULT_GLIBC, Request
from toolchain.stages import base, unpacked
from toolchain.trust.image_facts import Package
from toolchain.trust.spdx import spdx

pytestmark = pytest.mark.usefixtures("on_amd64")
DIGEST = "5" * 64
NAMES = ("libc6-dev", "libstdc++-10-dev")


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    """Return a request for a portable LLVM whose base and floor are resolved."""
    request = Request(
        cache=Cache(tmp_path / "cache"), sources=specs({"llvm": "distro:llvm-toolchain-22"}), glibc=DEFAULT_GLIBC
    )
    rows = [{"name": "libc6", "version": "2.41", "architecture": "amd64", "sha256": DIGEST}]
    recipe = base_recipe("debian13", "amd64")
    base.write_packages(
        request.cache.package_list("base", "debian13", "amd64"),
        {"recipe": base.recipe_digest(recipe), "packages": rows},
    )
    resolve(request, NAMES)
    return request


def resolve(request: Request, names: tuple[str, ...]) -> None:
    """Write package lists as if the floor's packages were unpacked."""
    for arch in ("amd64", "arm64"):
        system = unpacked.sysroot_of(replace(request, arch=(arch,)))
        rows = [{"name": name, "version": "1", "architecture": arch, "sha256": DIGEST} for name in names]
        lock = {"recipe": system.digest, "packages": rows}
        base.write_packages(request.cache.package_list("sysroot", system.name, arch), lock)


def inputs_of(request: Request) -> Mapping[str, Any]:
    """Return the inputs of the LLVM layer."""
    found = plan(request, "llvm")[-1].planned.inputs
    assert found is not None
    return found


def test_default_floor_is_buildable_and_floors_without_packages_are_refused() -> None:
    floors = load_floors()
    default = floor_of(DEFAULT_GLIBC)
    assert (default.suite, default.tested, default.libstdcxx) == ("bullseye", True, "10")
    for name, floor in floors.items():
        if floor.packages:
            assert floor.suite
            continue
        assert all("@sha256:" in image for image in (floor.images or {}).values())
        with refused("glibc-not-buildable", name, floor.system):
            floor_of(name)
    with refused("unknown-glibc", "2.17"):
        floor_of("2.17")


def test_name_of_a_portable_layer_contains_no_base(request_: Request) -> None:
    rows = plan(request_, "llvm")
    assert [row.planned.image for row in rows] == [
        "toolchain-base-debian13",
        "toolchain-sysroot-glibc-2.31",
        "llvm-triton-22.1.8",
    ]
    inputs = inputs_of(request_)
    assert inputs["glibc"] == "2.31"
    assert inputs["sysroot"] == rows[1].planned.input_digest
    assert {"containerfiles/llvm-portable/build.sh", "llvm-config/portable.cmake"} <= set(inputs["recipe"])
    assert "native" not in inputs


def test_absolute_links_in_a_floor_become_relative(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "usr/lib/x").mkdir(parents=True)
    (tree / "lib").mkdir()
    (tree / "lib/libdl.so.2").write_text("the old one")
    (tree / "usr/lib/x/libdl.so").symlink_to("/lib/libdl.so.2")
    (tree / "usr/lib/near").symlink_to("x/libdl.so")
    (tree / "lib64").symlink_to("/lib")
    unpacked.make_links_relative(tree)
    assert (tree / "usr/lib/x/libdl.so").read_text() == "the old one"
    assert str((tree / "usr/lib/x/libdl.so").readlink()) == "../../../lib/libdl.so.2"
    assert str((tree / "usr/lib/near").readlink()) == "x/libdl.so"
    assert (tree / "lib64").resolve() == (tree / "lib").resolve()


def test_sbom_lists_the_packages_of_the_base_and_of_the_floor(tmp_path: Path) -> None:
    """Both have libc6-dev, and the SBOM lists each with its distribution."""
    cache = Cache(tmp_path / "cache")
    built = finished_sysroot(cache, tmp_path / "work", "amd64", glibc="2.31")
    (old,) = evidence._compiled_against(cache, read_record(cache, built.input_digest))
    assert (old.name, old.system) == ("libc6-dev", "debian11")
    inputs = {**record().inputs, "glibc": "2.31"}
    of_base = Package("libc6-dev", "2.41-12", "amd64")
    found = replace(image_facts(inputs=inputs), packages=(of_base, old))
    document = spdx(found, manifest=b"{}", diff_id="sha256:0", files=[])
    rows = [one for one in document["packages"] if one["name"] == "libc6-dev"]
    assert {row["externalRefs"][0]["referenceLocator"].partition("?")[2] for row in rows} == {
        "arch=amd64&distro=debian-13",
        "arch=amd64&distro=debian-11",
    }
    assert len({row["SPDXID"] for row in rows}) == 2
    assert "glibc 2.31" in document["packages"][0]["comment"]


def an_index(folder: Path, *floors: str) -> tuple[Layout, Descriptor]:
    """Write an index of one image for each floor; an empty floor is for a layer that is bound to its base."""
    layout = Layout(folder).ensure()
    images = []
    for arch, floor in zip(("amd64", "arm64"), floors, strict=False):
        labels = {"toolchain.glibc": floor} if floor else {}
        images.append(write_image(layout, ImageSpec(arch=arch, layers=(), labels=labels)))
    return layout, write_index(layout, images, {})


@pytest.mark.parametrize("other", ["2.28", "", "2.31"])
def test_index_of_layers_with_different_floors_is_untrusted(tmp_path: Path, other: str) -> None:
    layout, index = an_index(tmp_path, "2.31", other)
    found = verify(LayoutRef(tmp_path), layout, index)
    if other == "2.31":
        assert (found.verdict, found.checks["floor"]) == ("intact", "links with glibc 2.31 and later")
    else:
        assert found.verdict == "untrusted"
        assert found.id == "floor-mismatch"


def held(request: Request) -> lockfile.Lock:
    """Return the lock of a plan after it was written and read again."""
    lock = locking.resolve(request, [row.planned for row in plan(request, "llvm")], "llvm")
    # The images of the bases do not exist, so the test only names them.
    bases = tuple(replace(one, image=f"sha256:{DIGEST}") for one in lock.bases)
    return lockfile.parse(lockfile.render(replace(lock, bases=bases)), "a lock")


def test_lock_contains_the_package_digests_of_the_floor(request_: Request) -> None:
    lock = held(request_)
    assert [str(one) for one in lock.bases] == ["base debian13 (amd64)", "sysroot glibc-2.31 (amd64)"]
    assert [(one.name, one.sha256) for one in lock.bases[1].packages] == [(name, DIGEST) for name in NAMES]
    assert lockfile.options(lock)[:2] == ["--arch", "amd64"]
    assert "--base" not in lockfile.options(lock), "a base that is named makes another layer"
    assert lockfile.options(lock)[2:4] == ["--glibc", "2.31"]


def test_floor_that_lacks_a_locked_package_is_refused(request_: Request) -> None:
    lock = held(request_)
    resolve(request_, NAMES[:1])
    with pytest.raises(LockedError) as caught:
        locking.check(replace(request_, lock=lock), [row.planned for row in plan(request_, "llvm")])
    assert "sysroot glibc-2.31 (amd64)" in caught.value.why
    assert "libstdc++-10-dev" in caught.value.why
