"""Tests of `verify_layout`, which checks the images of a layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.registry_fixtures import small_index
from tests.unit.test_layout import layout
from toolchain.core.errors import UntrustedError
from toolchain.oci import descriptor as media
from toolchain.oci.check import verify_layout
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layer_files import layer_files
from toolchain.oci.layout import Layout

__all__ = ["layout"]


def test_verify_finds_each_kind_of_damage(layout: Layout, tmp_path: Path) -> None:
    index = small_index(layout, tmp_path, how="zstd")
    assert verify_layout(layout, index) == []
    image = layout.children(index)[0]
    config, layer = layout.children(image)
    path = layout.blob(layer.digest)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert verify_layout(layout, index)[0].id == "content-size"
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert verify_layout(layout, index)[0].id == "content-changed"
    path.unlink()
    assert [(one.id, one.text.split()[0]) for one in verify_layout(layout, index)] == [
        ("content-missing", layer.digest)
    ]
    path.write_bytes(whole)
    layout.blob(config.digest).unlink()
    assert [(one.id, one.text.split()[0]) for one in verify_layout(layout, index)] == [
        ("content-missing", config.digest)
    ]


@pytest.mark.parametrize("how", ["none", "gzip", "zstd"])
def test_verify_unpacks_layers_and_compares_platforms(layout: Layout, tmp_path: Path, how: str) -> None:
    index = small_index(layout, tmp_path, how=how, arches="amd64")  # type: ignore[arg-type]
    assert verify_layout(layout, index) == []
    image = layout.children(index)[0]
    manifest = layout.read_json(image)
    config = layout.read_json(Descriptor.from_json(manifest["config"]))
    config["rootfs"]["diff_ids"] = ["sha256:" + "0" * 64]
    config["architecture"] = "s390x"
    manifest["config"] = layout.put_json(config, media.CONFIG).as_json()
    entry = {**image.as_json(), **layout.put_json(manifest, media.MANIFEST).as_json()}
    bad = layout.put_json({"schemaVersion": 2, "mediaType": media.INDEX, "manifests": [entry]}, media.INDEX)
    unpacked, platform = verify_layout(layout, bad)
    assert (unpacked.id, platform.id) == ("content-diff-id", "content-platform")
    assert platform.text.endswith("linux/s390x")
    config["rootfs"]["diff_ids"] = []
    manifest["config"] = layout.put_json(config, media.CONFIG).as_json()
    assert verify_layout(layout, layout.put_json(manifest, media.MANIFEST))[0].id == "content-layers"


@pytest.mark.parametrize(
    ("system", "arch", "kinds", "faults"),
    [
        ("unknown", "unknown", [media.IN_TOTO, media.IN_TOTO], set()),
        ("unknown", "unknown", [media.IN_TOTO, media.LAYER], {"layer-media-type", "content-diff-id"}),
        ("unknown", "unknown", [media.LAYER], {"content-diff-id"}),
        ("unknown", "amd64", [media.IN_TOTO], {"layer-media-type"}),
        ("linux", "unknown", [media.IN_TOTO], {"layer-media-type"}),
    ],
)
def test_an_attestation_of_buildx_is_not_an_image(
    layout: Layout, tmp_path: Path, system: str, arch: str, kinds: list[str], faults: set[str]
) -> None:
    """buildx lists attestations in the index, but an image must not pass for one: its layers would not be checked."""
    index = layout.read_json(small_index(layout, tmp_path))
    count = len(index["manifests"])
    layers = [layout.put_bytes(b'{"_type":"https://in-toto.io/Statement/v0.1"}', kind).as_json() for kind in kinds]
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{'0' * 64}" for _ in kinds]}
    platform = {"os": system, "architecture": arch}
    config = layout.put_json({**platform, "rootfs": rootfs}, media.CONFIG).as_json()
    value = {"schemaVersion": 2, "mediaType": media.MANIFEST, "config": config, "layers": layers}
    index["manifests"].append({**layout.put_json(value, media.MANIFEST).as_json(), "platform": platform})
    top = layout.put_json(index, media.INDEX)
    assert {found.id for found in verify_layout(layout, top)} == faults
    assert len(layout.images_below(top)) == count + bool(faults)


@pytest.mark.parametrize(
    ("arch", "listed", "faults"), [("arm64", "v8", 0), ("amd64", "v1", 0), ("arm64", "v9", 1), ("amd64", "v3", 1)]
)
def test_default_variant_of_an_architecture_may_be_listed(
    layout: Layout, tmp_path: Path, arch: str, listed: str, faults: int
) -> None:
    """`docker manifest annotate --variant v8` lists a variant that the config of the image does not have."""
    index = layout.read_json(small_index(layout, tmp_path, arches=arch))
    index["manifests"][0]["platform"]["variant"] = listed
    assert len(verify_layout(layout, layout.put_json(index, media.INDEX))) == faults


def test_verify_checks_the_size_in_each_descriptor_of_a_blob(layout: Layout, tmp_path: Path) -> None:
    index = small_index(layout, tmp_path, arches="amd64")
    entry = layout.children(index)[0].as_json()
    twice = {"schemaVersion": 2, "mediaType": media.INDEX, "manifests": [entry, {**entry, "size": 7}]}
    (problem,) = verify_layout(layout, layout.put_json(twice, media.INDEX))
    assert problem.id == "content-size"
    assert str(entry["size"]) in problem.text


def test_verify_unpacks_a_layer_by_each_listed_media_type(layout: Layout, tmp_path: Path) -> None:
    index = small_index(layout, tmp_path, arches="amd64")
    image = layout.children(index)[0]
    manifest = layout.read_json(image)
    manifest["layers"][0]["mediaType"] = media.LAYER
    entries = [image.as_json(), {**image.as_json(), **layout.put_json(manifest, media.MANIFEST).as_json()}]
    both = layout.put_json({"schemaVersion": 2, "mediaType": media.INDEX, "manifests": entries}, media.INDEX)
    (problem,) = verify_layout(layout, both)
    digest = manifest["layers"][0]["digest"]
    assert problem.id == "content-diff-id", "as a tar it is not packed"
    assert problem.text.count(digest) == 2


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_layer_bomb_is_refused(layout: Layout, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = small_index(layout, tmp_path, how=how, arches="amd64")  # type: ignore[arg-type]
    monkeypatch.setattr("toolchain.oci.compressed.FREE", 1000)
    monkeypatch.setattr("toolchain.oci.compressed.RATIO", 0)
    assert verify_layout(layout, index)[0].id == "layer-bomb"
    layer = layout.children(layout.children(index)[0])[1]
    with pytest.raises(UntrustedError):  # listing the files of a layer has the same limit
        layer_files(layout.blob(layer.digest), layer.media_type)


def test_layers_that_together_unpack_above_the_limit_are_a_fault(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer may be small, so the size of all unpacked layers together is limited, too."""
    index = small_index(layout, tmp_path)
    assert verify_layout(layout, index) == []
    monkeypatch.setattr("toolchain.oci.check.FREE", 1000)
    monkeypatch.setattr("toolchain.oci.check.RATIO", 0)
    assert verify_layout(layout, index)[0].id == "image-bomb"
