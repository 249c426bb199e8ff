"""Tests of the images of Triton caches, which follow the format of MCV, Red Hat's Model Cache Vault."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.refusals import refused
from tests.triton_cache_fixtures import Cache, cache, image
from toolchain.core.errors import ContractError, DigestError
from toolchain.kernels.cache_entries import dummy_key, key_label, write_manifest
from toolchain.kernels.cache_image import read_cache
from toolchain.oci import labels as names

__all__ = ["cache"]  # the fixture
pytest.importorskip("triton")


def test_dummy_key_equals_that_of_mcv() -> None:
    """The expected key was computed with sha256sum from the parts that the source of MCV names."""
    metadata = {"target": {"backend": "hip", "arch": "gfx942", "warp_size": 64}, "num_stages": 1, "num_warps": 4}
    assert (
        dummy_key(metadata, "unknown-triton-key") == "bf30a07105e04b07961aa66e0afc0ac3f1ee6155acf33e3c928166de4bafd2fd"
    )


def test_cache_of_an_old_triton_needs_a_label_with_its_key(cache: Cache, tmp_path: Path) -> None:
    tree = Path(shutil.copytree(cache.tree, tmp_path / "tree"))
    shutil.rmtree(tree / "io.triton.manifest")
    write_manifest(cache.entries, tree, "3.4.0-abc")
    old = {**cache.labels(), **key_label("3.4.0-abc")}
    assert read_cache(*image(tmp_path / "image", tree, old)).entries == len(cache.entries)
    assert key_label(cache.about["mcv_key"]) == {}
    for other in ({}, key_label("3.4.0-other")):
        with refused("cache-mcv-unfit"):
            read_cache(*image(tmp_path / f"image{len(other)}", tree, cache.labels() | other))


Damage = Callable[[Path, dict[str, str]], object]


def append(name: str, text: str) -> Damage:
    return lambda tree, _: next(tree.rglob(name)).write_text(next(tree.rglob(name)).read_text() + text)


def swap(name: str, old: str, new: str) -> Damage:
    return lambda tree, _: next(tree.rglob(name)).write_text(next(tree.rglob(name)).read_text().replace(old, new))


def no_paths(group: Path) -> None:
    """Write a group of the same size whose paths are a number."""
    group.write_text(f'{{"child_paths":5{" " * (group.stat().st_size - 17)}}}')


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (append("scale.source", " "), "cache-size-bytes is wrong"),
        (lambda _, labels: labels.update({"cache.triton.image/entry-count": "5"}), "entry-count is wrong"),
        (lambda _, labels: labels.pop("cache.triton.image/entry-count"), "this image is not a Triton cache"),
        (swap("manifest.json", "gfx942", "gfx950"), "its manifest does not match"),
        (swap("manifest.json", '"dummy_key":"', '"dummy_key":"0'), "its manifest does not match"),
        (swap("delta.json", '"gfx942"', '"gfx940"'), "names other GPUs"),
        (swap("__grp__delta.json", "/mount/", "/other/"), "is not for"),
        (swap("__grp__delta.json", "delta.source", "delta.others"), "names other files"),
        (lambda tree, _: next(tree.rglob("scale.json")).parent.rename(tree / "io.triton.cache/ABC"), "does not look"),
        (lambda tree, _: (tree / "README").write_text("here"), "that MCV does not extract"),
        (lambda tree, _: (tree / "io.triton.cache/link").symlink_to("/etc/passwd"), "does not extract"),
        (lambda tree, _: (tree / "io.triton.manifest/manifest.json").write_text("{"), "cannot be read"),
        (lambda tree, _: (tree / "io.triton.manifest/manifest.json").write_text('{"triton":5}'), "cannot be read"),
        (lambda tree, _: no_paths(next(tree.rglob("__grp__delta.json"))), "__grp__delta.json cannot be read"),
        (lambda _, labels: labels.update({names.CACHE_CALLS: "junk"}), "list of calls cannot be read"),
        (lambda _, labels: labels.update({names.CACHE_CALLS: "[5]"}), "list of calls cannot be read"),
        (lambda _, labels: labels.update({names.CACHE_CALLS: '["gfx1151/a"]'}), "list of calls cannot be read"),
    ],
)
def test_error_names_the_broken_rule_of_an_image(cache: Cache, tmp_path: Path, damage: Damage, what: str) -> None:
    tree = Path(shutil.copytree(cache.tree, tmp_path / "tree"))
    labels = cache.labels()
    damage(tree, labels)
    with pytest.raises(ContractError) as raised:
        read_cache(*image(tmp_path / "image", tree, labels))
    assert what in str(raised.value)


@pytest.mark.parametrize("packed", ["none", "zstd"])
def test_layer_with_another_compression_is_refused(cache: Cache, tmp_path: Path, packed: str) -> None:
    if packed == "zstd" and shutil.which("zstd") is None:
        pytest.skip("zstd is not installed: apt-get install zstd")
    with refused("cache-mcv-unfit"):
        read_cache(*image(tmp_path, cache.tree, cache.labels(), packed=packed))


def test_a_layer_with_other_bytes_than_its_digest_is_refused(cache: Cache, tmp_path: Path) -> None:
    layout, manifest = image(tmp_path / "image", cache.tree, cache.labels())
    _, layer = layout.children(manifest)
    blob = layout.blob(layer.digest)
    content = bytearray(blob.read_bytes())
    content[9] ^= 1  # the OS byte of gzip's header, which does not change the unpacked bytes
    blob.write_bytes(content)
    with pytest.raises(DigestError):
        read_cache(layout, manifest)
