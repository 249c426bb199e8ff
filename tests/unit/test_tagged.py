"""Tests of the signatures and attestations under the tags that cosign reads."""

from __future__ import annotations

import base64
import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_fixtures import Stand, ed25519_signer, small_image
from tests.fake_registry import FakeRegistry, fake_registry
from tests.places import attach_evidence, attach_layers
from tests.refusals import refused
from toolchain.core.digest import canonical, sha256_bytes
from toolchain.core.errors import RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import write_index
from toolchain.oci.layout_place import resolve
from toolchain.oci.reference import LayoutRef, RegistryRef
from toolchain.oci.registry import Registry
from toolchain.oci.tagged import Tagged, about_tag
from toolchain.trust import attest, cosign, sbom
from toolchain.trust.keys import Signer


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.oci.shared_tag.time.sleep", lambda seconds: None)


def connection(server: FakeRegistry) -> Registry:
    return Registry(server.host, login="", backoff=0.001, attempts=2)


def signature(stand: Stand, signer: Signer | None = None) -> Descriptor:
    return cosign.signature_layer(stand.layout, signer or stand.signer, "h.example/ns/thing", stand.index.digest)


def mine(stand: Stand) -> Tagged:
    return Tagged(stand.index.digest, "sig", (signature(stand),))


def test_signature_payload_equals_that_of_cosign() -> None:
    digest = f"sha256:{'1' * 64}"
    assert cosign.payload("h.example:5000/ns/thing", digest) == (
        b'{"critical":{"identity":{"docker-reference":"h.example:5000/ns/thing"},'
        b'"image":{"docker-manifest-digest":"' + digest.encode() + b'"},'
        b'"type":"cosign container image signature"},"optional":null}'
    )


def test_tags_hold_signatures_and_attestations(stand: Stand) -> None:
    with fake_registry() as server, connection(server) as registry:
        ref = RegistryRef(server.host, "ns/thing")
        done, again = (
            attach_evidence(
                stand.image_facts, stand.layout, stand.manifest, stand.index, ref,
                signer=stand.signer, registry=registry, scratch=stand.work,
            )
            for _ in range(2)
        )  # fmt: skip
        assert done.pushed_bytes > 0
        assert again.pushed_bytes == 0
        assert set(done.tags) == {name for name in server.manifests if name.startswith("sha256-")}
        for subject in (stand.manifest, stand.index):
            value = json.loads(server.manifests[about_tag(subject.digest, "sig")][1])
            (layer,) = value["layers"]
            assert layer["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json"
            content = server.blobs[layer["digest"]]
            assert content == cosign.payload(f"{server.host}/ns/thing", subject.digest)
            signed = base64.b64decode(layer["annotations"]["dev.cosignproject.cosign/signature"])
            assert stand.signer.public.verifies(signed, content)
            assert value["config"]["mediaType"] == "application/vnd.oci.image.config.v1+json"
            config = json.loads(server.blobs[value["config"]["digest"]])
            assert config["rootfs"] == {"type": "layers", "diff_ids": [layer["digest"]]}
            said = json.loads(server.manifests[about_tag(subject.digest, "att")][1])["layers"]
            assert [one["annotations"] for one in said] == [
                {"dev.cosignproject.cosign/signature": "", "predicateType": kind}
                for kind in (*(of.predicate for of in sbom.FORMATS), attest.PREDICATE)
            ]
            attached = {json.loads(content)["layers"][0]["digest"] for kind, content in _artifacts(server)}
            assert {one["digest"] for one in said} == attached, "the envelopes are not stored twice"


def _artifacts(server: FakeRegistry) -> list[tuple[str, bytes]]:
    return [one for one in server.manifests.values() if b'"subject"' in one[1]]


def test_foreign_signature_is_kept(stand: Stand) -> None:
    with fake_registry() as server, connection(server) as registry:
        ref, tag = RegistryRef(server.host, "x"), about_tag(stand.index.digest, "sig")
        foreign: dict[str, Any] = {
            "mediaType": media.SIMPLE_SIGNING, "digest": f"sha256:{'5' * 64}", "size": 7, "x": [1],
            "annotations": {"dev.sigstore.cosign/certificate": "…"},
        }  # fmt: skip
        value = {"schemaVersion": 2, "config": foreign, "layers": [foreign]}
        server.manifests[tag] = (media.MANIFEST, canonical(value))
        for _ in range(2):
            attach_layers(stand.layout, [mine(stand)], ref, registry=registry)
        after = json.loads(server.manifests[tag][1])
        assert after["layers"][0] == foreign
        assert len(after["layers"]) == 2
        config = json.loads(server.blobs[after["config"]["digest"]])
        assert config["rootfs"]["diff_ids"] == [one["digest"] for one in after["layers"]]


@pytest.mark.parametrize("folder", [True, False])
def test_foreign_keys_of_a_signature_manifest_are_dropped(stand: Stand, *, folder: bool) -> None:
    """The foreign layers are kept. A foreign subject would list our signatures as referrers of another image."""
    tag = about_tag(stand.index.digest, "sig")
    foreign = signature(stand, ed25519_signer()).as_json()
    value = {
        "schemaVersion": 2, "mediaType": media.MANIFEST, "config": stand.layout.put_bytes(b"{}", media.EMPTY).as_json(),
        "layers": [foreign], "subject": stand.manifest.plain.as_json(), "artifactType": "application/x-strange",
        "annotations": {"org.opencontainers.image.title": "theirs"}, "data": "x",
    }  # fmt: skip
    with fake_registry() as server, connection(server) as registry:
        if folder:
            stand.layout.tag(stand.layout.put_json(value, media.MANIFEST), tag)
            attach_layers(stand.layout, [mine(stand)], stand.ref)
            after = stand.layout.read_json(stand.layout.resolve(tag))
        else:
            server.manifests[tag] = (media.MANIFEST, canonical(value))
            attach_layers(stand.layout, [mine(stand)], RegistryRef(server.host, "x"), registry=registry)
            after = json.loads(server.manifests[tag][1])
    assert after.keys() == {"schemaVersion", "mediaType", "config", "layers"}
    assert after["layers"][0] == foreign
    assert len(after["layers"]) == 2


@pytest.mark.parametrize("index", [True, False])
def test_image_under_a_signature_tag_is_not_overwritten(stand: Stand, index: bool) -> None:
    there = stand.index if index else stand.manifest
    with fake_registry() as server, connection(server) as registry:
        tag = about_tag(stand.index.digest, "sig")
        image = (there.media_type, stand.layout.read(there))
        server.manifests[tag] = image
        ref = RegistryRef(server.host, "x")
        with refused("statements-tag-taken"):
            attach_layers(stand.layout, [mine(stand)], ref, registry=registry)
        assert server.manifests[tag] == image


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    ("limit", "id"),
    [
        ("toolchain.core.strict_json._MOST", "json-too-many-values"),
        ("toolchain.publish.attestations.LARGEST", "json-too-large"),
    ],
)
def test_sbom_above_the_limits_of_verify_is_not_attached(
    stand: Stand, limit: str, id: str, signed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name for path in stand.layout.root.rglob("*")}
    monkeypatch.setattr(limit, 100)
    with refused(id):
        attach_evidence(
            stand.image_facts, stand.layout, stand.manifest, stand.index, stand.ref,
            signer=stand.signer if signed else None, scratch=stand.work,
        )  # fmt: skip
    assert {path.name for path in stand.layout.root.rglob("*")} == before


def test_evidence_in_a_layout_is_tagged_and_repaired(stand: Stand, tmp_path: Path) -> None:
    attach_evidence(
        stand.image_facts, stand.layout, stand.manifest, stand.index, stand.ref, signer=stand.signer, scratch=stand.work
    )
    layout = stand.layout
    names = set(layout.refs())
    assert names == {"thing"} | {about_tag(one.digest, kind) for one in (stand.manifest, stand.index) for kind in KINDS}
    assert list(layout.images()) == ["thing"]
    assert resolve(LayoutRef(layout.root)).digest == stand.index.digest, "one image, not five"
    tag = about_tag(stand.index.digest, "sig")
    (layer,) = layout.children(layout.resolve(tag))[1:]
    named = json.loads(layout.blob(layer.digest).read_bytes())["critical"]["identity"]["docker-reference"]
    assert named == stand.image_facts.record.image, "a folder's path means nothing elsewhere"
    # A damaged manifest and a damaged blob are written again.
    layout.blob(layout.resolve(tag).digest).write_bytes(b"x")
    layout.blob(layer.digest).write_bytes(b"x")
    attach_evidence(
        stand.image_facts, layout, stand.manifest, stand.index, stand.ref, signer=stand.signer, scratch=stand.work
    )
    layout.verify(layer.digest)
    assert layout.children(layout.resolve(tag))[1].digest == layer.digest
    layout.gc()
    assert layout.has(layer.digest)


KINDS: tuple[Any, ...] = ("sig", "att")


def test_image_with_the_name_of_a_signature_tag_is_listed(stand: Stand) -> None:
    name = about_tag(stand.index.digest, "sig")
    other = write_index(stand.layout, [small_image(stand.layout, stand.work, files={"usr/lib64/thing/a": b"b"})])
    stand.layout.tag(other, name)
    assert set(stand.layout.images()) == {"thing", name}
    stand.layout.tag(stand.manifest, name)
    assert set(stand.layout.images()) == {"thing", name}


def test_provenance_bundle_is_published_after_the_sbom_bundle(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of bundles ignores other formats, so an interrupted publication must not lack the SBOM bundle."""
    signer, real = replace(stand.signer, bundles=True), Registry.put_manifest
    seen = []
    for room in range(15):
        left = [room]

        def put(self: Registry, *words: Any, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise RegistryError("test-error", "it breaks off")
            real(self, *words)

        monkeypatch.setattr(Registry, "put_manifest", put)
        with fake_registry() as server, connection(server) as registry:
            with contextlib.suppress(RegistryError):
                attach_evidence(
                    stand.image_facts, stand.layout, stand.manifest, stand.index, RegistryRef(server.host, "x"),
                    signer=signer, registry=registry, scratch=stand.work,
                )  # fmt: skip
            for subject in (stand.manifest, stand.index):
                kinds = {one["annotations"].get(cosign.PREDICATE_TYPE) for one in server.referrers(subject.digest)}
                assert attest.PREDICATE not in kinds or sbom.SPDX.predicate in kinds
                seen.append(kinds - {None})
    assert seen[-1] == {attest.PREDICATE, *(of.predicate for of in sbom.FORMATS), "https://sigstore.dev/cosign/sign/v1"}


def test_a_bundle_has_no_key_id(stand: Stand) -> None:
    from toolchain.trust import dsse  # noqa: PLC0415

    envelope = dsse.sign({"a": 1}, stand.signer)
    value = json.loads(cosign.bundle(envelope, stand.signer.public))
    assert list(value["dsseEnvelope"]["signatures"][0]) == ["sig"]
    hint = base64.b64decode(value["verificationMaterial"]["publicKey"]["hint"])
    assert f"sha256:{hint.hex()}" == stand.signer.public.id
    assert dsse.from_bundle(canonical(value)).signed_by(stand.signer.public)
    assert sha256_bytes(canonical(value)) == sha256_bytes(cosign.bundle(envelope, stand.signer.public))
