"""`publish DEST REF`: an image is copied with everything that is attached to it, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.evidence_fixtures import finished_base, finished_llvm, small_image
from tests.fake_registry import FakeRegistry, fake_registry
from tests.places import publish, referrers, verify
from tests.refusals import refused
from tests.request_fixtures import specs
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_json
from toolchain.core.errors import DigestError
from toolchain.oci import descriptor as media
from toolchain.oci.image import write_index
from toolchain.oci.layout import Layout
from toolchain.oci.place import Place
from toolchain.oci.places import open_place
from toolchain.oci.reference import LayoutRef, RegistryRef, Target, parse
from toolchain.oci.tagged import about_tag
from toolchain.pipeline.records import read_record
from toolchain.publish.copying import Copied, copy_images
from toolchain.publish.images import Delivered, deliver
from toolchain.request.model import Request
from toolchain.trust.keys import Signer, load_signer, new_key


@dataclass
class Published:
    """A signed image with its files in a folder, and its key."""

    delivered: Delivered
    signer: Signer
    folder: Path
    name: str
    cache: Cache
    input_digest: str


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.oci.shared_tag.time.sleep", lambda seconds: None)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    tmp_path = tmp_path_factory.mktemp("published")
    cache = Cache(tmp_path / "cache")
    finished_base(cache, tmp_path / "base")
    request = Request(cache=cache, sources=specs({"llvm": f"https://github.com/llvm/llvm-project@{'1' * 40}"}))
    built = finished_llvm(
        request, tmp_path / "llvm", {"usr/lib64/x/lib/libx.a": b"x" * 1000}, {"prefix": "/usr/lib64/x"}
    )
    new_key(tmp_path / "key")
    signer = load_signer(tmp_path / "key")
    folder = tmp_path / "source"
    (done,) = deliver(cache, [read_record(cache, built.input_digest)], LayoutRef(folder), signer=signer, files=True)
    return Published(done, signer, folder, done.image, cache, built.input_digest)


def copy(source: Target, dest: Target, tmp_path: Path) -> Copied:
    (copied,) = copy_images(source, dest, tmp_path / "scratch")
    assert not list((tmp_path / "scratch").iterdir())
    return copied


def tags_of(registry: FakeRegistry) -> list[str]:
    """Return the tags, without digests and without tags that are named after digests."""
    return [name for name in registry.manifests if ":" not in name and not name.startswith("sha256-")]


def trusted(ref: str, published: Published, tmp_path: Path) -> bool:
    layout = Layout(tmp_path / "looked at").ensure()
    with open_place(parse(ref)) as place:
        top = place.fetch(layout)
    return verify(parse(ref), layout, top, key=published.signer.public).verdict == "trusted"


@pytest.fixture
def registries() -> Iterator[tuple[FakeRegistry, FakeRegistry]]:
    """Start a registry without the referrers API and one with it."""
    with fake_registry(api=False) as first, fake_registry(api=True) as second:
        yield first, second


def test_copy_through_two_registries_preserves_the_image_and_its_attachments(
    published: Published, registries: tuple[FakeRegistry, FakeRegistry], tmp_path: Path
) -> None:
    first, second = (RegistryRef(registry.host, "ns") for registry in registries)
    up = copy(LayoutRef(published.folder), first, tmp_path)
    assert (up.image, up.digest, up.platforms) == (published.name, published.delivered.digest, 1)
    assert trusted(str(first.image(published.name)), published, tmp_path)
    across = copy(first.image(published.name), second, tmp_path)
    down = copy(second.image(published.name), LayoutRef(tmp_path / "down"), tmp_path)
    assert up.attached == across.attached == down.attached > 4
    assert set(up.refs) >= {str(first.image(published.name))}
    assert down.pushed_bytes == sum(blob.stat().st_size for blob in (tmp_path / "down/blobs/sha256").iterdir())
    there, here = Layout(tmp_path / "down"), Layout(published.folder)
    assert {name: ref.digest for name, ref in there.refs().items()} == {
        name: ref.digest for name, ref in here.refs().items()
    }
    assert {root.digest for root in there.roots()} == {root.digest for root in here.roots()}
    assert trusted(f"oci:{tmp_path}/down:{published.name}", published, tmp_path)
    again = copy(LayoutRef(published.folder), first, tmp_path)
    assert again.pushed_bytes == 0


def test_a_registry_that_cannot_hold_attachments_gets_no_tag(published: Published, tmp_path: Path) -> None:
    with fake_registry(api=False, digest_tags=True) as registry:
        with refused("registry-tag-for-digest"):
            copy(LayoutRef(published.folder), RegistryRef(registry.host, "ns"), tmp_path)
        assert tags_of(registry) == []


def test_damaged_attachment_in_the_source_ends_the_copy_before_a_tag_is_set(
    published: Published, tmp_path: Path
) -> None:
    layout = Layout(shutil.copytree(published.folder, tmp_path / "source"))
    att = layout.resolve(about_tag(published.delivered.digest, "att"))
    layout.blob(layout.children(att)[1].digest).write_bytes(b"{}")
    with fake_registry() as registry:
        with pytest.raises(DigestError):
            copy(LayoutRef(layout.root), RegistryRef(registry.host, "ns"), tmp_path)
        assert tags_of(registry) == []


def test_attachment_that_the_source_registry_deleted_is_named_in_the_error(
    published: Published, tmp_path: Path
) -> None:
    with fake_registry(api=False) as registry:
        copy(LayoutRef(published.folder), RegistryRef(registry.host, "ns"), tmp_path)
        source = RegistryRef(registry.host, "ns").image(published.name)
        subject, lost = next(
            (json.loads(content)["subject"]["digest"], name)
            for name, (_, content) in registry.manifests.items()
            if b'"subject"' in content
        )
        del registry.manifests[lost]
        with refused("registry-refused", lost, subject) as caught:
            copy(source, LayoutRef(tmp_path / "to"), tmp_path)
        assert caught.value.code == 13
        assert "skopeo login" not in caught.value.fix
        assert not (tmp_path / "to").exists()
        copy(LayoutRef(published.folder), RegistryRef(registry.host, "ns"), tmp_path)
        copy(source, LayoutRef(tmp_path / "to"), tmp_path)


def test_changed_layer_is_refused_before_a_manifest_is_sent(published: Published, tmp_path: Path) -> None:
    layout = Layout(shutil.copytree(published.folder, tmp_path / "source"))
    index = layout.read_json(layout.resolve(published.name))
    manifest = layout.read_json(layout.resolve(index["manifests"][0]["digest"]))
    blob = layout.blob(manifest["layers"][-1]["digest"])
    blob.write_bytes(bytes(blob.stat().st_size))
    with fake_registry() as registry:
        with pytest.raises(DigestError):
            copy(LayoutRef(layout.root), RegistryRef(registry.host, "ns"), tmp_path)
        assert not registry.manifests


def test_folder_without_a_tag_is_refused(published: Published, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    layout = Layout(bare).ensure()
    layout.add(layout.put_json({"schemaVersion": 2, "manifests": []}, "application/vnd.oci.image.index.v1+json"))
    with refused("copy-without-tag", f"skopeo copy oci:{bare} "):
        copy_images(LayoutRef(bare), LayoutRef(tmp_path / "to"), tmp_path / "scratch")


def test_attached_index_is_copied_with_its_blobs(
    published: Published, registries: tuple[FakeRegistry, FakeRegistry], tmp_path: Path
) -> None:
    layout = Layout(shutil.copytree(published.folder, tmp_path / "source"))
    top = layout.resolve(published.name)
    blob = layout.put_bytes(b"foreign", "text/plain")
    inner = layout.put_artifact("application/x-test", [blob])
    subject, manifests = top.plain.as_json(), [inner.as_json()]
    value = {"artifactType": "application/x-test", "subject": subject, "manifests": manifests}
    index = layout.put_json({"schemaVersion": 2, "mediaType": media.INDEX, **value}, media.INDEX)
    layout.add(index)
    first, second = (RegistryRef(registry.host, "ns") for registry in registries)
    copy(LayoutRef(layout.root), first, tmp_path)
    copy(first.image(published.name), second, tmp_path)
    copy(second.image(published.name), LayoutRef(tmp_path / "down"), tmp_path)
    down = LayoutRef(tmp_path / "down")
    assert index.digest in {found.digest for found in referrers(down, top.digest)}
    assert Layout(down.path).holds(blob.digest)
    assert [registry.manifests[index.digest][0] for registry in registries] == [media.INDEX] * 2


def test_the_joint_tag_of_two_architectures_is_copied(tmp_path: Path) -> None:
    layout, works = Layout(tmp_path / "layout").ensure(), {arch: sha256_json(arch) for arch in ("amd64", "arm64")}
    made = [small_image(layout, tmp_path / "work", label=label, arch=arch) for arch, label in works.items()]
    index = write_index(layout, made, {})
    tags = {"latest", *(digest[7:19] for digest in (*works.values(), sha256_json(works)))}
    with fake_registry() as first, fake_registry() as second:
        source = RegistryRef(first.host, "ns").image("thing")
        publish(layout, index, source, sorted(tags))
        copy(source, RegistryRef(second.host, "ns"), tmp_path)
        assert set(tags_of(second)) == tags


@pytest.mark.parametrize("api", [True, False])
def test_tags_of_image_and_files_are_written_last(published: Published, api: bool) -> None:
    record = read_record(published.cache, published.input_digest)
    with fake_registry(api=api) as registry:
        dest = RegistryRef(registry.host, "ns")
        (done,) = deliver(published.cache, [record], dest, signer=published.signer, files=True)
        puts = [line.rpartition("/manifests/")[2] for line in registry.seen if line.startswith("PUT ")]
    assert done.files is not None
    named = [str(parse(ref).tag) for ref in (*done.files.refs, *done.refs)]
    assert len(named) == 4
    assert puts[-4:] == named


def test_source_tag_that_moves_during_the_copy_is_left_out(published: Published, tmp_path: Path) -> None:
    """The tool reads the tag a second time, when the tag names another manifest."""
    with fake_registry() as first, fake_registry() as second:
        copy(LayoutRef(published.folder), RegistryRef(first.host, "ns"), tmp_path)
        content = first.manifests["latest"][1]
        other = content.replace(b"{", b"{ ", 1)
        first.instead["GET latest"] = [content, other, other]
        source = RegistryRef(first.host, "ns").image(published.name)
        copied = copy(source, RegistryRef(second.host, "ns"), tmp_path)
        assert len(first.instead["GET latest"]) < 2, "the tag was asked for again"
        assert copied.digest == published.delivered.digest
        assert "latest" not in second.manifests
        assert other not in [value for _, value in second.manifests.values()]


def test_destination_whose_tag_differs_between_head_and_get_is_refused(published: Published, tmp_path: Path) -> None:
    """HEAD names the digest of the new image, while the tag still gives an older one."""
    with fake_registry() as registry:
        dest = RegistryRef(registry.host, "ns")
        copy(LayoutRef(published.folder), dest, tmp_path)
        kind, content = registry.manifests["latest"]
        older = content.replace(b"{", b"{ ", 1)
        registry.manifests["latest"] = (kind, older)
        registry.instead["HEAD latest"] = [content]
        with refused("publish-changed"):
            copy(LayoutRef(published.folder), dest, tmp_path)
        assert registry.instead["HEAD latest"] == []


def test_image_with_two_names_is_copied_with_all_its_tags(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "carried").ensure()
    image = small_image(layout, tmp_path / "image")
    names = {"one", "one.1", "other", "other.1"}
    for name in names:
        layout.tag(image, name)
    copied = copy_images(LayoutRef(layout.root), LayoutRef(tmp_path / "inside"), tmp_path / "scratch")
    assert sorted(row.image for row in copied) == ["one", "other"]
    assert set(Layout(tmp_path / "inside").refs()) == names


def test_image_whose_tag_no_registry_accepts_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    """podman and skopeo write whole names of images into index.json."""
    layout = Layout(tmp_path / "carried").ensure()
    layout.tag(small_image(layout, tmp_path / "image"), "docker.io/library/alpine:3.18")
    with fake_registry() as registry:
        with refused("not-a-tag"):
            copy_images(LayoutRef(layout.root), RegistryRef(registry.host, "ns"), tmp_path / "scratch")
        assert not registry.blobs


def test_copy_of_a_folder_stores_one_image_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path / "carried").ensure()
    for name in ("a", "b", "c"):
        layout.tag(small_image(layout, tmp_path / name, files={"usr/lib64/thing/bin/tool": name.encode()}), name)
    scratch, most = tmp_path / "scratch", []
    open_ = open_place

    def opened(ref: Target) -> AbstractContextManager[Place]:
        most.append(len(list(scratch.glob("copy-*/*"))))
        return open_(ref)

    monkeypatch.setattr("toolchain.publish.copying.open_place", opened)
    assert len(copy_images(LayoutRef(layout.root), LayoutRef(tmp_path / "inside"), scratch)) == 3
    assert max(most) == 1


def test_bundle_in_the_folder_is_not_copied(published: Published, tmp_path: Path) -> None:
    layout = Layout(shutil.copytree(published.folder, tmp_path / "carried"))
    bundle = layout.put_artifact("application/vnd.toolchain.bundle.v1", [layout.put_bytes(b"{}", media.LAYER)])
    layout.tag(bundle, "bundle-llvm")
    layout.tag(bundle.plain, "as-skopeo-writes-it")
    copied = copy(LayoutRef(layout.root), LayoutRef(tmp_path / "inside"), tmp_path)
    assert (copied.image, copied.digest) == (published.name, published.delivered.digest)
    assert not Layout(tmp_path / "inside").has(bundle.digest)


def test_a_bundle_in_the_folder_is_not_verified(published: Published, tmp_path: Path) -> None:
    layout = Layout(shutil.copytree(published.folder, tmp_path / "carried"))
    bundle = layout.put_artifact("application/vnd.toolchain.bundle.v1", [layout.put_bytes(b"{}", media.LAYER)])
    layout.tag(bundle, "bundle-llvm")
    layout.tag(bundle.plain, "as-skopeo-writes-it")
    (tmp_path / "key.pub").write_bytes(published.signer.public.pem())

    def verified(ref: str) -> Result:
        return CliRunner().invoke(app, ["verify", ref, "--public-key", str(tmp_path / "key.pub")])

    done = verified(f"oci:{layout.root}")
    assert done.exit_code == 0, done.output
    assert {line.split("\t")[2] for line in done.stdout.splitlines()} == {"trusted"}
    assert f"not verified, because it is not an image: oci:{layout.root}:bundle-llvm" in done.stderr
    assert verified(f"oci:{layout.root}:bundle-llvm").exit_code == 17
    image = layout.read_json(small_image(layout, tmp_path))
    image["config"]["mediaType"] = media.EMPTY
    layout.tag(layout.put_json(image, media.MANIFEST), "image")
    assert verified(f"oci:{layout.root}").exit_code == 17


def test_copy_with_more_attachments_than_the_limit_is_refused(
    published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = copy(LayoutRef(published.folder), LayoutRef(tmp_path / "whole"), tmp_path)
    monkeypatch.setattr("toolchain.publish.copying._MOST_ARTIFACTS", copied.attached)
    copy(LayoutRef(published.folder), LayoutRef(tmp_path / "as many"), tmp_path)
    monkeypatch.setattr("toolchain.publish.copying._MOST_ARTIFACTS", copied.attached - 1)
    with refused("too-many-attached"):
        copy(LayoutRef(published.folder), LayoutRef(tmp_path / "one more"), tmp_path)
