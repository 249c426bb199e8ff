from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor, Platform
from toolchain.oci.image import ImageSpec, LayerBlob, read_layers, write_image, write_index
from toolchain.oci.layout import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "layout").ensure()


@pytest.fixture
def layer(layout: Layout) -> LayerBlob:
    return LayerBlob(layout.put_bytes(b"tar", media.LAYER), "sha256:" + "d" * 64, "one layer")


def test_config_and_manifest_contain_the_given_values(layout: Layout, layer: LayerBlob) -> None:
    layers = (replace(layer, created_by="first"), replace(layer, created_by="second"))
    spec = ImageSpec(arch="arm64", layers=layers, labels={"l": "1"}, annotations={"k": "v"})
    found = write_image(layout, spec)
    content = layout.blob(found.digest).read_bytes()
    assert content == json.dumps(json.loads(content), sort_keys=True, separators=(",", ":")).encode()
    assert found.platform == Platform("linux", "arm64")
    manifest = layout.read_json(found)
    assert manifest["annotations"] == {"k": "v"}
    assert [entry["digest"] for entry in manifest["layers"]] == [layer.descriptor.digest] * 2
    config = layout.read_json(Descriptor.from_json(manifest["config"]))
    created = "2026-01-01T00:00:00Z"
    history = [{"created": created, "created_by": name} for name in ("first", "second")]
    rootfs = {"type": "layers", "diff_ids": [layer.diff_id] * 2}
    assert config == {
        "architecture": "arm64", "os": "linux", "created": created, "config": {"Labels": {"l": "1"}},
        "rootfs": rootfs, "history": history,
    }  # fmt: skip
    assert read_layers(layout, found) == (replace(layer, created_by=""),) * 2


def test_index_does_not_depend_on_the_order_of_its_images(layout: Layout, layer: LayerBlob) -> None:
    platforms = [("arm64", ""), ("amd64", ""), ("arm", "v7"), ("arm", "v6")]
    images = [
        replace(write_image(layout, ImageSpec(arch=a, layers=(layer,))), platform=Platform("linux", a, v))
        for a, v in platforms
    ]
    digests = {write_index(layout, list(order), {"a": "b"}).digest for order in itertools.permutations(images)}
    assert len(digests) == 1
    value = layout.read_json(Descriptor(media.INDEX, digests.pop(), 0))
    assert [(e["platform"]["architecture"], e["platform"].get("variant")) for e in value["manifests"]] == [
        ("amd64", None),
        ("arm", "v6"),
        ("arm", "v7"),
        ("arm64", None),
    ]
    assert value["mediaType"] == media.INDEX
    assert value["annotations"] == {"a": "b"}


def test_invalid_index_and_missing_blobs_are_refused(layout: Layout, layer: LayerBlob) -> None:
    one = write_image(layout, ImageSpec(arch="amd64", layers=(layer,)))
    two = write_image(layout, ImageSpec(arch="amd64", layers=(layer,), labels={"x": "1"}))
    assert write_index(layout, [one, one]) == write_index(layout, [one])
    with refused("platform-twice", "linux/amd64"):
        write_index(layout, [one, two])
    with refused("index-empty"):
        write_index(layout, [])
    with refused("image-without-platform"):
        write_index(layout, [one.plain])
    layout.blob(one.digest).unlink()
    with refused("blob-missing"):
        write_index(layout, [one])
    layout.blob(layer.descriptor.digest).unlink()
    with refused("blob-missing"):
        write_image(layout, ImageSpec(arch="amd64", layers=(layer,)))
