"""Referrers of an image: in a layout folder, and in registries with and without the referrers API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_registry import FakeRegistry, fake_registry
from tests.places import attach, referrers
from tests.refusals import refused
from toolchain.core.digest import canonical
from toolchain.core.errors import RegistryError, UnreachableError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef, RegistryRef
from toolchain.oci.referrers import fallback_tag, readable, write_artifact
from toolchain.oci.registry import Registry

KIND = "application/x-test"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "lay out").ensure()


@pytest.fixture
def subject(layout: Layout) -> Descriptor:
    config = layout.put_json({"architecture": "amd64"}, media.CONFIG)
    value = {"schemaVersion": 2, "mediaType": media.MANIFEST, "config": config.as_json(), "layers": []}
    return layout.put_json(value, media.MANIFEST)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.oci.shared_tag.time.sleep", lambda seconds: None)


def about(layout: Layout, subject: Descriptor, text: str) -> Descriptor:
    blob = layout.put_bytes(text.encode(), "text/plain")
    return write_artifact(layout, subject, blob, artifact_type=KIND, annotations={"says": text})


def connection(registry: FakeRegistry, **options: object) -> Registry:
    return Registry(registry.host, **{"login": "", "backoff": 0.001, "attempts": 2, **options})  # type: ignore[arg-type]


def digests(found: tuple[Descriptor, ...]) -> set[str]:
    return {one.digest for one in found}


def test_artifact_manifest_follows_the_oci_spec(layout: Layout, subject: Descriptor) -> None:
    value = layout.read_json(about(layout, subject, "hello"))
    assert value["subject"] == subject.plain.as_json()
    assert value["artifactType"] == KIND
    assert value["config"]["mediaType"] == "application/vnd.oci.empty.v1+json"
    assert value["config"]["digest"] == "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_layout_lists_attached_artifacts(layout: Layout, subject: Descriptor, tmp_path: Path) -> None:
    one, other = about(layout, subject, "one"), about(layout, subject, "other")
    layout.tag(subject, "image")
    ref = LayoutRef(layout.root)
    assert referrers(ref, subject.digest) == ()
    attach(layout, [one, other], ref)
    attach(layout, [one], ref)
    assert digests(referrers(ref, subject.digest)) == {one.digest, other.digest}
    assert len(referrers(ref, subject.digest)) == 2
    assert list(layout.refs()) == ["image"], "an artifact has no name and is no image"
    layout.gc()
    assert layout.has(one.digest), "listed, so it is not garbage"
    there = Layout(tmp_path / "there").ensure()
    with refused("blob-missing"):
        attach(layout, [one], LayoutRef(there.root))
    assert referrers(ref, one.digest) == ()


def test_corrupt_blob_in_layout_is_replaced_by_attach(layout: Layout, subject: Descriptor, tmp_path: Path) -> None:
    one = about(layout, subject, "one")
    there = Layout(tmp_path / "there").ensure()
    there.put_file(layout.blob(subject.digest))
    attach(layout, [one], LayoutRef(there.root))
    for item in (layout.children(one)[1], one):
        there.blob(item.digest).write_bytes(b"x" * item.size)
        assert attach(layout, [one], LayoutRef(there.root)).pushed_bytes == item.size
        there.verify(item.digest)


@pytest.fixture(params=[1, 1000])
def with_api(request: pytest.FixtureRequest) -> Iterator[FakeRegistry]:
    with fake_registry(page=request.param) as registry:
        yield registry


@pytest.fixture
def without_api() -> Iterator[FakeRegistry]:
    with fake_registry(api=False) as registry:
        yield registry


def test_registry_with_api_lists_attached_artifacts(
    with_api: FakeRegistry, layout: Layout, subject: Descriptor
) -> None:
    made = [about(layout, subject, text) for text in "abc"]
    ref = RegistryRef(with_api.host, "ns/thing")
    with connection(with_api) as registry:
        done = attach(layout, made, ref, registry=registry)
        assert done.how == "api"
        assert fallback_tag(subject.digest) not in with_api.manifests
        found = referrers(ref, subject.digest, registry=registry)
        assert digests(found) == digests(tuple(made))
        assert {one.artifact_type for one in found} == {KIND}
        again = attach(layout, made, ref, registry=registry)
    assert (again.how, again.pushed_bytes) == ("none", 0)
    assert with_api.blobs[layout.children(made[0])[1].digest] == b"a"


def test_registry_without_api_lists_artifacts_by_fallback_tag(
    without_api: FakeRegistry, layout: Layout, subject: Descriptor
) -> None:
    made = [about(layout, subject, text) for text in "ab"]
    ref = RegistryRef(without_api.host, "ns/thing")
    with connection(without_api) as registry:
        assert referrers(ref, subject.digest, registry=registry) == ()
        assert attach(layout, made[:1], ref, registry=registry).how == "tag"
        assert attach(layout, made, ref, registry=registry).pushed_bytes > 0
        assert digests(referrers(ref, subject.digest, registry=registry)) == digests(tuple(made))
        assert attach(layout, made, ref, registry=registry).pushed_bytes == 0
    kind, content = without_api.manifests[f"sha256-{subject.digest[7:]}"]
    index = json.loads(content)
    assert kind == index["mediaType"] == media.INDEX
    # By the spec, the index repeats the type and annotations, so that a client can select without each manifest.
    assert index["manifests"][0] == made[0].as_json()
    assert index["manifests"][0]["artifactType"] == KIND
    assert index["manifests"][0]["annotations"] == {"says": "a"}


def test_deleted_manifest_of_listed_artifact_is_pushed_again(
    without_api: FakeRegistry, layout: Layout, subject: Descriptor
) -> None:
    made, ref = [about(layout, subject, text) for text in "ab"], RegistryRef(without_api.host, "ns/thing")
    with connection(without_api) as registry:
        attach(layout, made, ref, registry=registry)
        del without_api.manifests[made[0].digest]
        without_api.seen.clear()
        attach(layout, made, ref, registry=registry)
        assert without_api.manifests[made[0].digest] == (media.MANIFEST, layout.read(made[0]))
    assert [line.rpartition("/")[2] for line in without_api.seen if line.startswith("PUT ")] == [made[0].digest]


def test_registry_that_lists_no_referrers_gets_the_fallback_tag(layout: Layout, subject: Descriptor) -> None:
    with fake_registry(blind=True) as server, connection(server) as registry:
        made, ref = about(layout, subject, "a"), RegistryRef(server.host, "x")
        assert attach(layout, [made], ref, registry=registry).how == "tag"
        assert fallback_tag(subject.digest) in server.manifests
        assert digests(referrers(ref, subject.digest, registry=registry)) == {made.digest}
        assert attach(layout, [made], ref, registry=registry).how == "none"


def test_registry_that_lists_referrers_without_header_needs_no_tag(layout: Layout, subject: Descriptor) -> None:
    with fake_registry(silent=True) as server, connection(server) as registry:
        made, ref = about(layout, subject, "a"), RegistryRef(server.host, "x")
        assert attach(layout, [made], ref, registry=registry).how == "api"
        assert fallback_tag(subject.digest) not in server.manifests
        assert digests(referrers(ref, subject.digest, registry=registry)) == {made.digest}


def test_foreign_entries_and_fields_of_fallback_index_are_kept(
    without_api: FakeRegistry, layout: Layout, subject: Descriptor
) -> None:
    foreign = {"mediaType": media.MANIFEST, "digest": f"sha256:{'5' * 64}", "size": 7, "data": "kept", "x": [1]}
    index = {"schemaVersion": 2, "mediaType": media.INDEX, "manifests": [foreign], "annotations": {"kept": "too"}}
    without_api.manifests[fallback_tag(subject.digest)] = (media.INDEX, canonical(index))
    with connection(without_api) as registry:
        attach(layout, [about(layout, subject, "a")], RegistryRef(without_api.host, "x"), registry=registry)
    after = json.loads(without_api.manifests[fallback_tag(subject.digest)][1])
    assert after["manifests"][0] == foreign
    assert len(after["manifests"]) == 2
    assert after["annotations"] == {"kept": "too"}


def test_deleted_manifest_is_dropped_from_a_refused_fallback_index(
    without_api: FakeRegistry, layout: Layout, subject: Descriptor
) -> None:
    """docker-registry accepts an index only if it has all manifests that the index lists."""
    made, ref = [about(layout, subject, text) for text in "abc"], RegistryRef(without_api.host, "ns/thing")
    with connection(without_api) as registry:
        attach(layout, made[:2], ref, registry=registry)
        del without_api.manifests[made[0].digest]
        without_api.statuses[f"^PUT .*/manifests/{fallback_tag(subject.digest)}$"] = [400] * 3
        attach(layout, made[2:], ref, registry=registry)
        assert digests(referrers(ref, subject.digest, registry=registry)) == digests(tuple(made[1:]))


def test_image_under_the_fallback_tag_is_not_overwritten(
    without_api: FakeRegistry, layout: Layout, subject: Descriptor
) -> None:
    image = (media.MANIFEST, layout.read(about(layout, subject, "another image")))
    without_api.manifests[fallback_tag(subject.digest)] = image
    with connection(without_api) as registry, refused("not-an-index"):
        attach(layout, [about(layout, subject, "a")], RegistryRef(without_api.host, "x"), registry=registry)
    assert without_api.manifests[fallback_tag(subject.digest)] == image


def test_null_is_an_empty_list_of_referrers(without_api: FakeRegistry, layout: Layout, subject: Descriptor) -> None:
    """Programs in Go write an empty list as null."""
    tag, ref = fallback_tag(subject.digest), RegistryRef(without_api.host, "x")
    without_api.manifests[tag] = (media.INDEX, b'{"schemaVersion": 2, "manifests": null}')
    made = about(layout, subject, "a")
    with connection(without_api) as registry:
        assert referrers(ref, subject.digest, registry=registry) == ()
        attach(layout, [made], ref, registry=registry)
        assert digests(referrers(ref, subject.digest, registry=registry)) == {made.digest}


def test_registry_that_takes_fallback_tag_for_digest_has_no_referrers(layout: Layout, subject: Descriptor) -> None:
    """GitLab's registry takes the fallback tag for a digest, so a list can neither exist there nor be written."""
    with fake_registry(api=False, digest_tags=True) as server, connection(server) as registry:
        server.manifests[subject.digest] = (media.MANIFEST, layout.read(subject))
        ref = RegistryRef(server.host, "x")
        assert referrers(ref, subject.digest, registry=registry) == ()
        with refused("registry-tag-for-digest"):
            attach(layout, [about(layout, subject, "a")], ref, registry=registry)


def test_artifact_is_listed_again_after_a_concurrent_write(
    without_api: FakeRegistry, layout: Layout, subject: Descriptor
) -> None:
    """Another client replaces the list after the tool's write; the tool notices the lost entry and adds it again."""
    mine, tag = about(layout, subject, "mine"), fallback_tag(subject.digest)
    other = about(layout, subject, "other").as_json()
    puts = []
    real = without_api.lock

    def replaced(name: str) -> None:
        if name == tag:
            puts.append(name)

    without_api.before_put = replaced
    state = {"done": False}
    answer = Registry.get_manifest

    def meddling(self: Registry, repository: str, reference: str) -> tuple[Descriptor, bytes]:
        if reference == tag and puts and not state["done"]:
            state["done"] = True
            index = {"schemaVersion": 2, "mediaType": media.INDEX, "manifests": [other]}
            with real:
                without_api.manifests[tag] = (media.INDEX, canonical(index))
        return answer(self, repository, reference)

    with pytest.MonkeyPatch.context() as patch, connection(without_api) as registry:
        patch.setattr(Registry, "get_manifest", meddling)
        attach(layout, [mine], RegistryRef(without_api.host, "x"), registry=registry)
    assert len(puts) == 2
    listed = json.loads(without_api.manifests[tag][1])["manifests"]
    assert {one["digest"] for one in listed} == {mine.digest, other["digest"]}


def test_constantly_changing_fallback_tag_is_refused(
    without_api: FakeRegistry, layout: Layout, subject: Descriptor
) -> None:
    tag = fallback_tag(subject.digest)
    answer = Registry.manifest_digest

    def thief(self: Registry, repository: str, reference: str) -> str | None:
        without_api.manifests.pop(tag, None)
        return answer(self, repository, reference)

    with pytest.MonkeyPatch.context() as patch, connection(without_api) as registry:
        patch.setattr(Registry, "manifest_digest", thief)
        with refused("tag-keeps-changing"):
            attach(layout, [about(layout, subject, "a")], RegistryRef(without_api.host, "x"), registry=registry)


def test_refused_write_of_fallback_index_is_retried_after_a_read(
    without_api: FakeRegistry, layout: Layout, subject: Descriptor
) -> None:
    made, ref = about(layout, subject, "a"), RegistryRef(without_api.host, "x")
    without_api.statuses[r"PUT .*/sha256-"] = [503, 429]
    with connection(without_api) as registry:
        assert attach(layout, [made], ref, registry=registry).how == "tag"
    # The index is read again before it is written again.
    told = [line.split()[0] for line in without_api.seen if fallback_tag(subject.digest) in line]
    first = told.index("PUT")
    assert "HEAD" in told[first + 1 : told.index("PUT", first + 1)]
    without_api.manifests.clear()
    without_api.statuses[r"PUT .*/sha256-"] = [403]
    with connection(without_api) as registry, pytest.raises(RegistryError):
        attach(layout, [made], ref, registry=registry)


@pytest.mark.parametrize("status", [404, 501])
def test_missing_referrers_api_is_an_empty_list(without_api: FakeRegistry, subject: Descriptor, status: int) -> None:
    without_api.statuses["/referrers/"] = [status]
    with connection(without_api) as registry:
        assert referrers(RegistryRef(without_api.host, "x"), subject.digest, registry=registry) == ()


def test_failed_request_is_not_an_empty_list(without_api: FakeRegistry, subject: Descriptor) -> None:
    """Otherwise an attacker who breaks the connection could make a signed image look unsigned."""
    without_api.statuses["/referrers/"] = [500] * 10
    with connection(without_api) as registry, refused("registry-refused"):
        referrers(RegistryRef(without_api.host, "x"), subject.digest, registry=registry)
    with Registry("127.0.0.1:1", login="", attempts=0) as registry, pytest.raises(UnreachableError):
        referrers(RegistryRef("127.0.0.1:1", "x"), subject.digest, registry=registry)


def test_list_over_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.oci.registry.MANIFEST_LIMIT", 50)
    with (
        fake_registry() as server,
        Registry(server.host, login="") as registry,
        refused("registry-list-too-long"),
    ):
        referrers(RegistryRef(server.host, "x"), f"sha256:{'1' * 64}", registry=registry)


@pytest.mark.parametrize(
    ("bounded", "limit"),
    [("repository_place._MOST_REFERRERS", 5), ("registry._PAGES", 2), ("registry.MANIFEST_LIMIT", 1200)],
)
def test_limits_of_list_apply_to_all_pages_together(
    layout: Layout, subject: Descriptor, monkeypatch: pytest.MonkeyPatch, bounded: str, limit: int
) -> None:
    with fake_registry() as server, connection(server) as registry:
        server.page = 2
        ref = RegistryRef(server.host, "x")
        attach(layout, [about(layout, subject, f"{at}") for at in range(6)], ref, registry=registry)
        assert len(referrers(ref, subject.digest, registry=registry)) == 6
        monkeypatch.setattr(f"toolchain.oci.{bounded}", limit)
        with refused("registry-list-too-long", limit):
            referrers(ref, subject.digest, registry=registry)


def test_warnings_about_invalid_entries_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    assert list(readable([{}] * 1000)) == []
    assert len(caplog.records) == 11
    assert "990 more" in caplog.text


def test_redirect_without_encryption_is_upgraded_or_refused() -> None:
    with Registry("registry.example", login="x") as registry:
        assert registry.url("http://registry.example/v2/up?a=b") == "https://registry.example/v2/up?a=b"
        assert registry.url("/v2/up") == "https://registry.example/v2/up"
        for elsewhere in ("http://other.example/up", "http://registry.example:80/up"):
            with refused("redirect-unencrypted"):
                registry.url(elsewhere)
        own = {
            "https://registry.example:443/x": True,
            "https://Registry.Example/x": True,
            "http://registry.example/": False,
        }
        own |= {"https://registry.example:444/x": False, "https://a@registry.example/": False}
        assert {url: registry._is_own(url) for url in own} == own
    with Registry("127.0.0.1:5", login="x") as registry:
        assert registry.url("http://127.0.0.1:5/v2/up") == "http://127.0.0.1:5/v2/up"
