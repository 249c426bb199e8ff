"""A cache with a base that was used today and an image that was not, and functions that age and prune its entries."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.evidence_fixtures import finished_base, record
from toolchain.core.cache import Cache
from toolchain.oci.image import ImageSpec, add_layer, write_image
from toolchain.oci.layer import compress, write_layer
from toolchain.oci.layout import Layout
from toolchain.pipeline.cache_usage import DAY, Item, prune
from toolchain.pipeline.records import image_tag, write_record

OTHER = "sha256:" + "cd" * 32


def age(path: Path, days: float) -> None:
    then = time.time() - days * DAY
    os.utime(path, (then, then))


def pruned(cache: Cache, *, dry: bool = False, later: float = 0) -> list[Item]:
    """Prune the entries that were not used for 30 days, and return them; nothing may fail."""
    done = prune(cache, unused_for=30 * DAY, now=time.time() + later * DAY, dry=dry)
    assert done.failed == ()
    return list(done.gone)


def kind(cache: Cache, item: Item) -> str:
    """Return `image` for an image, `source` for an entry of the store, and `other` for the rest."""
    if item.tag:
        return "image"
    return "source" if cache.store in item.paths[-1].parents else "other"


def add_image(cache: Cache, name: str, digest: str, content: str) -> str:
    """Add a finished image of one layer, and return the digest of the layer's blob."""
    tree = cache.root / "made" / name
    tree.mkdir(parents=True)
    (tree / "file").write_text(content)
    layout = Layout(cache.images).ensure()
    blob = compress(write_layer(tree, cache.root / "made" / "raw.tar"), cache.root / "made" / "blob")
    layer = add_layer(layout, blob)
    manifest = write_image(layout, ImageSpec(arch="amd64", layers=(layer,)))
    layout.tag(manifest, image_tag(name, digest))
    write_record(cache, record(image=name, input_digest=digest, manifest=manifest.digest, inputs={}))
    for path in (cache.images / "blobs" / "sha256").iterdir():
        age(path, 90)
    return layer.descriptor.digest


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return a cache with a base that was used today, and an image that was not used for two months."""
    cache = Cache(tmp_path / "a cache")
    cache.make()
    finished_base(cache, tmp_path / "base")
    add_image(cache, "llvm-triton-old-debian13", OTHER, "old")
    age(cache.record(OTHER), 60)
    return cache
