from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.places import fetch_image, publish
from tests.refusals import refused
from tests.registry_fixtures import small_index
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import DigestError, ToolchainError
from toolchain.oci import descriptor as media
from toolchain.oci.check import verify_layout
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.layout_place import LayoutPlace, resolve
from toolchain.oci.reference import LayoutRef


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "out put's").ensure()


def stray(layout: Layout) -> list[str]:
    return [path.name for path in (layout.root / "blobs" / "sha256").iterdir() if path.name.startswith(".")]


def test_new_layout_follows_the_specification_and_other_versions_are_refused(layout: Layout) -> None:
    assert json.loads((layout.root / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((layout.root / "index.json").read_text())
    assert (index["schemaVersion"], index["manifests"]) == (2, [])
    (layout.root / "oci-layout").write_text('{"imageLayoutVersion":"9"}')
    with refused("layout-version"):
        layout.ensure()


def test_file_and_folder_without_a_layout_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with refused("layout-unusable"):
        Layout(tmp_path / "file").ensure()
    with refused("not-a-layout"):
        Layout(tmp_path).refs()


def test_files_are_stored_by_digest(layout: Layout, tmp_path: Path) -> None:
    source = tmp_path / "a file"
    source.write_bytes(b"content")
    digest = sha256_bytes(b"content")
    assert layout.put_file(source) == Descriptor("application/vnd.oci.image.layer.v1.tar", digest, 7)
    assert source.exists()
    assert layout.blob(digest).read_bytes() == b"content"
    assert layout.blob(digest).stat().st_mode & 0o777 == 0o644
    moved = tmp_path / "moved"
    moved.write_bytes(b"other")
    stored = layout.put_file(moved, digest=sha256_bytes(b"other"), move=True, media_type=media.LAYER_ZSTD)
    assert not moved.exists()
    assert layout.blob(stored.digest).read_bytes() == b"other"
    assert layout.put_file(source, digest=digest, move=True).digest == digest
    assert not source.exists()
    assert stray(layout) == []


@pytest.mark.parametrize("move", [True, False])
def test_a_file_with_another_digest_is_not_stored(layout: Layout, tmp_path: Path, move: bool) -> None:
    source = tmp_path / "file"
    source.write_bytes(b"bad")
    promised = sha256_bytes(b"good")
    with pytest.raises(DigestError):
        layout.put_file(source, digest=promised, move=move)
    assert source.exists()
    assert not layout.has(promised)
    assert list((layout.root / "blobs" / "sha256").iterdir()) == []


@pytest.mark.parametrize(("harm", "move"), [(b"contenX", True), (b"cut", False), (b"", True)])
def test_damaged_blob_is_stored_again(layout: Layout, tmp_path: Path, harm: bytes, move: bool) -> None:
    """Damage is found even if the damaged blob has the right size."""
    source = tmp_path / "file"
    source.write_bytes(b"content")
    stored = layout.put_bytes(b"content", media.CONFIG)
    layout.blob(stored.digest).write_bytes(harm)
    assert layout.put_file(source, digest=stored.digest, move=move).plain.size == 7
    assert layout.blob(stored.digest).read_bytes() == b"content"
    layout.blob(stored.digest).write_bytes(harm)
    assert layout.put_bytes(b"content", media.CONFIG) == stored
    assert layout.blob(stored.digest).read_bytes() == b"content"
    assert stray(layout) == []


@pytest.mark.parametrize("move", [True, False])
def test_put_file_accepts_the_path_of_the_blob_itself(layout: Layout, move: bool) -> None:
    """put_file gets such a path if a base is an image in the cache to which it is copied."""
    stored = layout.put_bytes(b"content", media.CONFIG)
    path = layout.blob(stored.digest)
    assert layout.put_file(path, digest=stored.digest, move=move).digest == stored.digest
    assert path.read_bytes() == b"content"
    path.write_bytes(b"contenX")
    with pytest.raises(DigestError):
        layout.put_file(path, digest=stored.digest, move=move)
    assert path.exists(), "what was read last may be all that is left"


@pytest.mark.parametrize("bad", ["sha256:..", "sha256:" + "g" * 64, "../../etc/passwd", "sha512:" + "a" * 128, ""])
def test_invalid_digest_does_not_become_a_path(layout: Layout, bad: str) -> None:
    with refused("not-a-digest"):
        layout.blob(bad)


def test_missing_or_damaged_blob_is_refused(layout: Layout) -> None:
    with refused("blob-missing"):
        layout.blob("sha256:" + "0" * 64)
    stored = layout.put_bytes(b"{}", media.CONFIG)
    layout.verify(stored.digest)
    layout.blob(stored.digest).write_bytes(b"[]")
    with pytest.raises(DigestError):
        layout.verify(stored.digest)
    with pytest.raises(DigestError):
        layout.read(stored)


def test_tags_move_and_foreign_entries_are_kept(layout: Layout) -> None:
    index = json.loads((layout.root / "index.json").read_text())
    foreign = {"mediaType": media.MANIFEST, "digest": "sha256:" + "1" * 64, "size": 9, "x-else": {"kept": True}}
    index["manifests"].append(foreign)
    index["annotations"] = {"whose": "theirs"}
    (layout.root / "index.json").write_text(json.dumps(index))
    one, two = layout.put_json({"manifests": []}, media.INDEX), layout.put_json({"manifests": [], "n": 2}, media.INDEX)
    layout.tag(one, "latest")
    layout.tag(two, "llvm-triton-10dc3a8e-ubi9")
    layout.tag(two, "latest")
    now = json.loads((layout.root / "index.json").read_text())
    assert foreign in now["manifests"]
    assert now["annotations"] == {"whose": "theirs"}
    assert {name: found.digest for name, found in layout.refs().items()} == {
        "latest": two.digest,
        "llvm-triton-10dc3a8e-ubi9": two.digest,
    }
    assert layout.resolve("latest") == two
    layout.untag("latest")
    assert list(layout.refs()) == ["llvm-triton-10dc3a8e-ubi9"]
    with refused("layout-image-missing"):
        layout.resolve("latest")


def test_tag_with_two_targets_is_refused(layout: Layout) -> None:
    """Programs could choose different targets, so neither target is used."""
    one, two = layout.put_json({"manifests": []}, media.INDEX), layout.put_json({"manifests": [], "n": 2}, media.INDEX)
    layout.tag(one, "good")
    layout.tag(two, "evil")
    index = (layout.root / "index.json").read_text()
    (layout.root / "index.json").write_text(index.replace('"evil"', '"good"'))
    for name in ("good", "other"):
        with refused("layout-tag-twice"):
            layout.resolve(name)
    assert layout.resolve(one.digest) == one
    layout.tag(one, "good")
    assert layout.resolve("good") == one, "whoever publishes it again says what it is"


@pytest.mark.parametrize("kind", [[], None, media.MANIFEST])
def test_index_of_another_media_type_is_refused(layout: Layout, kind: Any) -> None:
    (layout.root / "index.json").write_text(json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": []}))
    with refused("not-an-index"):
        layout.refs()


def test_tag_needs_a_valid_name_and_an_existing_blob(layout: Layout) -> None:
    one = layout.put_json({}, media.INDEX)
    for bad in ("", "a b", "-x", "x\n", "x_"):
        with refused("not-a-tag"):
            layout.tag(one, bad)
    with refused("blob-missing"):
        layout.tag(Descriptor(media.INDEX, "sha256:" + "0" * 64, 1), "x")
    assert layout.refs() == {}


def test_concurrent_tags_are_all_kept(layout: Layout) -> None:
    one = layout.put_json({}, media.INDEX)
    threads = [threading.Thread(target=layout.tag, args=(one, f"t{n}")) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(layout.refs()) == 16


def test_nested_indexes_are_visited_once_each(layout: Layout, tmp_path: Path) -> None:
    """Seven nested indexes of 60 equal entries have 60^7 paths but few blobs; earlier, every path was walked."""
    item = small_index(layout, tmp_path, size=100)
    for _ in range(7):
        named = {**item.as_json(), "platform": {"os": "linux", "architecture": "amd64"}}
        content = {"schemaVersion": 2, "mediaType": media.INDEX, "manifests": [named] * 60}
        item = layout.put_bytes(json.dumps(content).encode(), media.INDEX)
    layout.tag(item, "x")
    verify_layout(layout, item)
    place, taken = LayoutPlace(LayoutRef(layout.root, "x")), Layout(tmp_path / "taken").ensure()
    found, content_ = place.manifest()
    place.fetch_below(found, content_, taken)
    assert len(list(taken.walk(item))) == 7 + 7


def test_tag_is_not_written_if_the_content_is_damaged(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = small_index(layout, tmp_path, size=100)
    there = Layout(tmp_path / "there").ensure()

    def broken(place: LayoutPlace, source: Layout, blob: Descriptor) -> int:
        there.put_file(source.blob(blob.digest), digest=blob.digest)
        if blob.digest == item.digest:
            there.blob(blob.digest).write_bytes(b" " * blob.size)
        return blob.size

    monkeypatch.setattr(LayoutPlace, "_copy", broken)
    with pytest.raises(DigestError):
        publish(layout, item, LayoutRef(there.root, "x"))
    assert there.refs() == {}


def test_gc_keeps_reachable_blobs_and_recent_partial_files(layout: Layout, tmp_path: Path) -> None:
    kept = small_index(layout, tmp_path, size=1000, seed=1)
    named = small_index(layout, tmp_path, size=1000, seed=2)
    lost = small_index(layout, tmp_path, size=1000, seed=3)
    layout.tag(named, "x")
    blobs = layout.root / "blobs" / "sha256"
    (blobs / ".new.1.partial").write_bytes(b"x")
    (blobs / ".old.1.partial").write_bytes(b"xy")
    os.utime(blobs / ".old.1.partial", (time.time() - 2 * 86400,) * 2)
    expected = sum(item.size for item in layout.walk(lost)) + 2
    assert layout.gc([kept.digest]) == expected
    assert verify_layout(layout, kept) == verify_layout(layout, named) == []
    assert not layout.has(lost.digest)
    assert stray(layout) == [".new.1.partial"]
    assert layout.gc([kept.digest]) == 0


def test_gc_keeps_the_other_images_of_an_index_with_a_damaged_one(layout: Layout, tmp_path: Path) -> None:
    image = layout.children(small_index(layout, tmp_path, size=1000, seed=1))[0]
    lost = layout.put_json({}, media.MANIFEST)
    both = [lost.as_json(), image.as_json()]
    index = layout.put_json({"schemaVersion": 2, "mediaType": media.INDEX, "manifests": both}, media.INDEX)
    layout.tag(index, "x")
    layout.blob(lost.digest).write_bytes(b"[]")
    layout.gc()
    assert all(layout.has(item.digest) for item in (index, lost, *layout.walk(image)))


def test_tagging_removes_partial_files_older_than_a_day(layout: Layout, tmp_path: Path) -> None:
    item = small_index(layout, tmp_path, size=1000, seed=1)
    new, old = (layout.root / "blobs" / "sha256" / f".x.{number}.partial" for number in (1, 2))
    for path in (new, old):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    layout.tag(item, "x")
    assert stray(layout) == [new.name]
    assert verify_layout(layout, item) == []


def test_untagged_images_are_listed_by_digest(layout: Layout, tmp_path: Path) -> None:
    """`skopeo copy … oci:DIR` writes images without a tag, but a signature by cosign has a tag."""
    image = layout.children(small_index(layout, tmp_path, arches="amd64"))[0]
    layout.add(image)
    signatures = {"schemaVersion": 2, "config": layout.put_json({}, media.CONFIG).as_json(), "layers": []}
    layout.tag(layout.put_json(signatures, media.MANIFEST), f"{image.digest.replace(':', '-')}.sig")
    place = LayoutPlace(LayoutRef(layout.root))
    (found,) = place.images(tmp_path)[1]
    assert (found.name, found.image.digest, found.ref) == (
        image.digest,
        image.digest,
        place.ref.at(digest=image.digest),
    )
    assert resolve(place.ref).digest == image.digest
    layout.tag(image, "named")
    assert [found.name for found in place.images(tmp_path)[1]] == ["named"]


def test_referrers_in_an_index_under_their_tag_are_found_and_are_no_image(layout: Layout, tmp_path: Path) -> None:
    """regctl lists the referrers of an image so, as in a registry without the referrers API."""
    image = layout.children(small_index(layout, tmp_path, arches="amd64"))[0]
    layout.tag(image, "thing")
    made = layout.put_artifact("text/x", [layout.put_bytes(b"x", "text/x")], subject=image.plain.as_json())
    other = layout.put_artifact("text/x", [layout.put_bytes(b"y", "text/x")], subject=made.plain.as_json())
    place, tag = LayoutPlace(LayoutRef(layout.root)), image.digest.replace(":", "-")
    for listed, images in (([made], {"thing"}), ([made, other, image], {"thing", tag})):
        value = {"schemaVersion": 2, "mediaType": media.INDEX, "manifests": [one.plain.as_json() for one in listed]}
        layout.tag(layout.put_json(value, media.INDEX), tag)
        assert (list(place.referrers(image.digest)), set(layout.images())) == ([made], images)
    layout.blob(layout.tagged(tag)[0].digest).write_text("{")
    assert place.referrers(image.digest) == ()


def test_digest_takes_precedence_over_tag(layout: Layout, tmp_path: Path) -> None:
    one, two = layout.children(small_index(layout, tmp_path))
    layout.tag(one, "x")
    place = LayoutPlace(LayoutRef(layout.root, "x", two.digest))
    assert {image.image.digest for image in place.images(tmp_path)[1]} == {two.digest} == {place.manifest()[0].digest}


def test_file_that_cannot_be_linked_is_copied_whole_or_not_at_all(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", elsewhere)
    (tmp_path / "file").write_bytes(b"content")
    digest = sha256_bytes(b"content")
    planted = layout.root / "blobs" / "sha256" / digest.removeprefix("sha256:")
    (tmp_path / "other").write_bytes(b"kept")
    planted.symlink_to(tmp_path / "other")
    assert layout.link(tmp_path / "file", digest).read_bytes() == b"content"
    assert ((tmp_path / "other").read_bytes(), planted.is_symlink()) == (b"kept", False)
    with pytest.raises(DigestError):
        layout.link(tmp_path / "other", "sha256:" + "1" * 64)
    assert not layout.has("sha256:" + "1" * 64)


def test_published_image_is_fetched_back_unchanged(layout: Layout, tmp_path: Path) -> None:
    index = small_index(layout, tmp_path)
    dest = LayoutRef(tmp_path / "dest dir")
    first = publish(layout, index, dest, ["latest", "abc"])
    total = sum(item.size for item in layout.walk(index))
    assert (first.pushed_bytes, first.skipped_bytes) == (total, 0)
    assert first.ref == f"oci:{tmp_path / 'dest dir'}@{index.digest}"
    second = publish(layout, index, dest, ["latest"])
    assert (second.pushed_bytes, second.skipped_bytes) == (0, total)
    there = Layout(tmp_path / "dest dir")
    assert set(there.refs()) == {"latest", "abc"}
    assert verify_layout(there, resolve(dest)) == []
    back = Layout(tmp_path / "back").ensure()
    assert fetch_image(dest.at(tag="abc"), back) == index
    assert verify_layout(back, index) == []
    amd64 = layout.children(index)[0]
    alone = Layout(tmp_path / "alone").ensure()
    assert fetch_image(dest, alone, platform=amd64.platform) == amd64
    assert not alone.has(index.digest)


def test_publish_replaces_damaged_blobs_in_a_layout(layout: Layout, tmp_path: Path) -> None:
    index = small_index(layout, tmp_path)
    dest = LayoutRef(tmp_path / "dest")
    publish(layout, index, dest, ["latest"])
    there = Layout(tmp_path / "dest")
    image = layout.children(index)[0]
    for item in (layout.children(image)[1], image):
        path = there.blob(item.digest)
        path.write_bytes(b"x" * item.size)
        assert publish(layout, index, dest, ["latest"]).pushed_bytes == item.size
        assert verify_layout(there, index) == []


def test_publish_refuses_damaged_content(layout: Layout, tmp_path: Path) -> None:
    index = small_index(layout, tmp_path)
    image = layout.children(index)[1]
    layer = layout.children(image)[1]
    path = layout.blob(layer.digest)
    path.write_bytes(b"x" * layer.size)
    with pytest.raises(DigestError):
        publish(layout, index, LayoutRef(tmp_path / "dest"), ["latest"])
    there = Layout(tmp_path / "dest")
    assert there.refs() == {}
    assert not there.has(index.digest)
    assert not there.has(image.digest)


def test_reference_without_a_name_needs_exactly_one_image(layout: Layout, tmp_path: Path) -> None:
    ref = LayoutRef(layout.root)
    with refused("place-ambiguous"):
        resolve(ref)
    layout.tag(small_index(layout, tmp_path, size=10, seed=1), "a")
    assert resolve(ref) == layout.resolve("a")
    layout.tag(small_index(layout, tmp_path, size=10, seed=2), "b")
    with refused("place-ambiguous"):
        resolve(ref)


@pytest.mark.parametrize("size", [-1, 1.0, True, 1 << 63, 10**400])
def test_descriptor_with_an_impossible_size_is_refused(size: Any) -> None:
    with refused("descriptor-malformed"):
        Descriptor.from_json({"mediaType": media.LAYER, "digest": "sha256:" + "0" * 64, "size": size})


@pytest.mark.parametrize(
    "value",
    [
        [],
        "x",
        {"manifests": 3},
        {"manifests": [{"digest": "x"}]},
        *({"manifests": [], "annotations": notes} for notes in (["abc"], 5, {"a": 1})),
    ],
)
def test_malformed_index_is_refused(layout: Layout, value: object) -> None:
    stored = layout.put_json(value, media.INDEX)
    with pytest.raises(ToolchainError):
        list(layout.walk(stored))


def test_the_deepest_image_that_can_be_read_can_be_written(layout: Layout, tmp_path: Path) -> None:
    top = small_index(layout, tmp_path)
    for _ in range(media.DEEPEST - 1):
        value = {"schemaVersion": 2, "mediaType": media.INDEX, "manifests": [top.plain.as_json()]}
        top = layout.put_json(value, media.INDEX)
    assert list(verify_layout(layout, top)) == []
    published = LayoutPlace(LayoutRef(tmp_path / "there")).put(layout, top, ["deep"])
    assert published.digest == top.digest


def test_unreadable_blob_is_treated_as_missing(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = layout.put_bytes(b"content", media.CONFIG)

    def unreadable(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr("toolchain.oci.blobs.open_regular", unreadable)
    assert not layout.holds(blob.digest)
