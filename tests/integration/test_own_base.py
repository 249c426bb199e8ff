"""A user's own base: the tool names the missing parts before it builds, and probes each image once."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.refusals import refused
from tests.request_fixtures import specs
from tests.small_llvm import small_llvm
from toolchain.catalog.base_ref import parse_base
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import UnsupportedError
from toolchain.engine.buildah import Buildah
from toolchain.oci.image import ImageSpec, LayerBlob, read_layers, write_image
from toolchain.oci.layout import Layout
from toolchain.pipeline import own_base as ownbase
from toolchain.pipeline import run as pipeline
from toolchain.pipeline.records import records
from toolchain.request.model import Request
from toolchain.stages.stage import Planned
from toolchain.stages.wheels import place

pytestmark = pytest.mark.engine
Based = tuple[Buildah, str]


def without(layout: Layout, manifest: str, work: Path, *paths: str) -> str:
    """Write an image of the base with one more layer, which deletes files, and return its manifest's digest."""
    raw = work / "whiteouts.tar"
    with tarfile.open(raw, "w") as tar:
        for path in paths:
            tar.addfile(tarfile.TarInfo(str(Path(path).with_name(f".wh.{Path(path).name}"))))
    top = LayerBlob(layout.put_file(raw), sha256_bytes(raw.read_bytes()))
    lower = read_layers(layout, layout.resolve(manifest))
    return write_image(layout, ImageSpec(arch="amd64", layers=(*lower, top))).digest


@pytest.fixture
def own(base: Based, base_layout: tuple[Cache | None, Path, str], tmp_path: Path) -> Iterator[tuple[Layout, str]]:
    """Yield a layout of the test's own with the base's blobs, and the digest of the base's manifest."""
    _, there, manifest = base_layout
    layout = Layout(tmp_path / "own base").ensure()
    source = Layout(there)
    for part in source.walk(source.resolve(manifest)):
        # The blobs are hard links or copies, because the tool follows no symbolic link.
        place(source.blob(part.digest), layout.root / "blobs" / part.digest.replace(":", "/"))
    yield layout, manifest
    # These entries and images are removed, because the cache may be the user's own.
    for entry in base[0].cache.probed("", "x").parent.glob("*.json"):
        if layout.has(f"sha256:{entry.name[:64]}"):
            entry.unlink()
    for digest in (
        path.name for path in (layout.root / "blobs/sha256").iterdir() if not source.has(f"sha256:{path.name}")
    ):
        base[0].forget_image(f"localhost/toolchain/toolchain-base-local-{digest[:8]}:{digest[:12]}")


def stages(*names: str, wheel: bool = False) -> list[Planned]:
    binaries = ("triton-wheel",) if wheel else ()
    return [Planned(name=name, image=name, inputs=None, engine=True, binaries=binaries) for name in names]


def asked(base: Based, layout: Layout, manifest: str) -> Request:
    return Request(cache=base[0].cache, base=parse_base(f"oci:{layout.root}@{manifest}"))


def test_base_passes_the_check_for_the_stages_that_it_can_build(base: Based, own: tuple[Layout, str]) -> None:
    layout, manifest = own
    request = asked(base, layout, manifest)
    ownbase.check(request, stages("llvm", "triton", "kernels", wheel=True))
    with refused("base-incomplete", "libamdhip64-dev"):  # This base has everything for AOTriton but HIP.
        ownbase.check(request, stages("llvm", "triton", "aotriton"))


def test_missing_parts_are_reported_before_a_build_and_probed_once(
    base: Based, own: tuple[Layout, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, manifest = own
    checkout = small_llvm(tmp_path / "llvm")
    lame = without(layout, manifest, tmp_path, "usr/bin/ninja", "usr/include/python3.13/Python.h")
    request = replace(
        asked(base, layout, lame),
        sources=specs({"llvm": str(checkout)}),
        triton="3.7.1",
        only="mlir-tblgen",
        pythons=("3.12",),
    )
    with pytest.raises(UnsupportedError) as caught:
        pipeline.build(request, "llvm")
    assert caught.value.what == f"the base {request.base} lacks Ninja"
    assert "Ninja: not found (for llvm: " in caught.value.why
    assert caught.value.fix == (
        "on Debian and Ubuntu: apt-get install ninja-build\ndocs/bases.md lists what a base must contain"
    )
    assert not [one for one in records(request.cache) if f"-local-{lame[7:15]}" in one.image]
    # The tool stores the result of the probe, so it needs no container for other stages.
    monkeypatch.setattr(Buildah, "run", None)
    monkeypatch.setattr(Buildah, "ensure_image", None)
    with pytest.raises(UnsupportedError) as again:
        ownbase.check(request, stages("llvm", "triton"))
    assert again.value.what.endswith("lacks Ninja, Python headers (Python.h), Python 3.12, Python 3.12 headers")
    ownbase.check(request, stages("base"))


def test_base_without_a_shell_is_refused(base: Based, own: tuple[Layout, str], tmp_path: Path) -> None:
    layout, _ = own
    raw = tmp_path / "layer.tar"
    with tarfile.open(raw, "w") as tar:
        tar.addfile(tarfile.TarInfo("file"))
    top = LayerBlob(layout.put_file(raw), sha256_bytes(raw.read_bytes()))
    empty = write_image(layout, ImageSpec(arch="amd64", layers=(top,))).digest
    with refused("base-without-shell"):
        ownbase.check(asked(base, layout, empty), stages("llvm"))
