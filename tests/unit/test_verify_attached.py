"""Tests that foreign attachments, and evidence for other verifiers, do not change the verdict of `verify`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_fixtures import (
    NOW,
    TOOL,
    Stand,
    drop_file,
    ed25519_signer,
    image_facts,
    lie,
    look,
    small_image,
    wrong,
)
from tests.fake_registry import fake_registry
from tests.places import attach, attach_layers, fetch_image, gather, publish, referrers, verify
from tests.refusals import refused
from toolchain.core.digest import canonical
from toolchain.oci import descriptor as media
from toolchain.oci.image import write_index
from toolchain.oci.layout import Layout
from toolchain.oci.reference import RegistryRef
from toolchain.oci.referrers import fallback_tag, write_artifact
from toolchain.oci.registry import Registry
from toolchain.oci.tagged import Tagged
from toolchain.trust import cosign, dsse, keyless, sbom
from toolchain.trust.keys import Signer


def test_foreign_attachments_do_not_change_the_verdict(stand: Stand) -> None:
    stranger = ed25519_signer()
    stand.say({"_type": "nonsense"}, stranger)
    stand.attach(b"no envelope at all")
    stand.attach(b"{}", sbom.SPDX.media_type)
    stand.attach(b"anything", "text/plain")
    stand.say(stand.provenance(), stranger)
    stand.say_all(sbom=lie(stand, drop_file))  # a false SBOM that the key signed
    stand.say(stand.sbom_statement())
    assert look(stand).verdict == "trusted"
    assert look(stand, None).verdict == "intact"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'{"payloadType":"\\ud800","payload":"","signatures":[{"keyid":"x","sig":""}]}', dsse.MEDIA_TYPE),
        (b'{"dsseEnvelope":"\\ud800"}', keyless.MEDIA_TYPE),
        (b'{"dsseEnvelope":' + b"[" * 900 + b"]" * 900 + b"}", keyless.MEDIA_TYPE),
        (b'{"dsseEnvelope":' + b"[" * 50_000 + b"]" * 50_000 + b"}", keyless.MEDIA_TYPE),
    ],
    ids=["half a surrogate", "half a surrogate in a bundle", "deep", "deeper"],
)
def test_attachment_with_ambiguous_or_deep_json_is_skipped(stand: Stand, content: bytes, kind: str) -> None:
    stand.say_all()
    stand.attach(content, kind)
    assert look(stand).verdict == "trusted"
    assert look(stand, None).verdict == "intact"


def test_broken_entries_of_a_layout_do_not_hide_evidence(stand: Stand) -> None:
    """Other programs may write to the same layout."""
    stand.say_all()
    stand.layout.add(stand.layout.put_bytes(b"no json", media.MANIFEST))
    damaged = stand.layout.put_json({"schemaVersion": 2, "config": {}}, media.MANIFEST)
    stand.layout.add(damaged)
    stand.layout.blob(damaged.digest).write_bytes(b"x" * damaged.size)
    assert look(stand).verdict == "trusted"


def test_broken_entries_of_a_fallback_tag_do_not_hide_evidence(stand: Stand) -> None:
    stand.say_all()
    with fake_registry(api=False) as server:
        dest = RegistryRef(server.host, "n/thing")
        publish(stand.layout, stand.index, dest, ["t"])
        attach(stand.layout, referrers(stand.ref, stand.manifest.digest), dest)
        with Registry(server.host) as registry:
            tag = fallback_tag(stand.manifest.digest)
            value = json.loads(registry.get_manifest("n/thing", tag)[1])
            good = value["manifests"][0]
            bad = [{**good, "size": -1}, {**good, "platform": {"architecture": "amd64"}}, 5, {**good, "digest": "x"}]
            registry.put_manifest(
                "n/thing", tag, canonical({**value, "manifests": bad + value["manifests"]}), media.INDEX
            )
            verdict = verify(dest, stand.layout, stand.manifest, key=stand.signer.public, now=NOW, registry=registry)
    assert verdict.verdict == "trusted"


def test_blob_shorter_than_its_descriptor_is_skipped(stand: Stand) -> None:
    """A registry that ignores Range sends the whole blob at each attempt, which is not a network error."""
    stand.say_all()
    short = stand.layout.put_bytes(b"abc", sbom.SPDX.media_type)
    with fake_registry() as server:
        dest = RegistryRef(server.host, "n/thing")
        publish(stand.layout, stand.index, dest, ["t"])
        attach(stand.layout, referrers(stand.ref, stand.manifest.digest), dest)
        with Registry(server.host, backoff=0.01) as registry:
            registry.push_blob("n/thing", short, stand.layout.blob(short.digest))
            lie = write_artifact(
                stand.layout, stand.manifest, dataclasses.replace(short, size=5000), artifact_type=sbom.SPDX.media_type
            )
            registry.put_manifest("n/thing", lie.digest, stand.layout.read(lie), media.MANIFEST)
            fresh = Layout(stand.work / "fresh").ensure()
            fetch_image(dest.at(tag="t"), fresh, registry=registry)
            verdict = verify(dest, fresh, stand.index, key=stand.signer.public, now=NOW, registry=registry)
    assert verdict.verdict == "trusted"


def test_deeply_nested_indexes_are_refused(stand: Stand, tmp_path: Path) -> None:
    top = stand.index
    for _ in range(1500):
        value = {"schemaVersion": 2, "mediaType": media.INDEX, "manifests": [top.plain.as_json()]}
        top = stand.layout.put_json(value, media.INDEX)
    assert wrong(verify(stand.ref, stand.layout, top, now=NOW)) == "content-too-deep"
    stand.layout.tag(top, "deep")
    with refused("index-too-deep"):
        fetch_image(stand.ref.at(tag="deep"), Layout(tmp_path / "there").ensure())


def test_damaged_evidence_is_ignored(stand: Stand) -> None:
    stand.say(stand.provenance())
    blob = stand.attach(dsse.sign(stand.sbom_statement(), stand.signer).as_bytes())
    path = stand.layout.blob(blob.digest)
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert wrong(look(stand), "sbom") == "statement-other-key"


def test_attachments_above_the_memory_limit_are_skipped(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A few attachments of half a gigabyte each could fill the memory. The limit also holds for a false size."""
    stand.say_all()
    monkeypatch.setattr("toolchain.trust.statements._MOST_BYTES", 20_000)
    for number in range(40):
        stand.attach(b"%d" % number + b"x" * 3000)
    kept = gather(stand.ref, [stand.manifest.digest], stand.layout)
    assert 0 < sum(len(one.content) for one in kept) <= 20_000
    assert caplog.text
    big = stand.attach(b"y" * 30_000, "application/spdx+json")
    blob = dataclasses.replace(big, size=10)
    made = write_artifact(stand.layout, stand.manifest, blob, artifact_type="application/spdx+json")
    attach(stand.layout, [made], stand.ref)
    kept = gather(stand.ref, [stand.manifest.digest], stand.layout)
    assert all(len(one.content) < 30_000 for one in kept)


def test_artifact_with_several_envelopes_is_read(stand: Stand) -> None:
    """Other tools put all statements about an image into one artifact."""
    said = [dsse.sign(one, stand.signer).as_bytes() for one in (stand.sbom_statement(), stand.provenance())]
    blobs = [stand.layout.put_bytes(content, dsse.MEDIA_TYPE) for content in said]
    about = {"subject": stand.manifest.plain.as_json()}
    attach(stand.layout, [stand.layout.put_artifact(dsse.MEDIA_TYPE, blobs, **about)], stand.ref)
    assert look(stand).verdict == "trusted"


# Evidence for other verifiers


def _tagged(stand: Stand, signer: Signer, digest: str, *envelopes: dsse.Envelope) -> None:
    """Store a signature of `digest`, and envelopes, under the tags of the image and of its index."""
    for subject in (stand.manifest, stand.index):
        signed = cosign.signature_layer(stand.layout, signer, "h.example/x", digest)
        layers = [cosign.attestation_layer(stand.layout, one.as_bytes(), "x") for one in envelopes]
        said = [Tagged(subject.digest, "sig", (signed,)), Tagged(subject.digest, "att", tuple(layers))]
        attach_layers(stand.layout, said, stand.ref)


def _truths(stand: Stand, signer: Signer) -> list[dsse.Envelope]:
    said = (stand.sbom_statement(), stand.provenance())
    return [dsse.sign(one, signer) for one in said]


def _elsewhere(stand: Stand, tmp_path: Path) -> list[dsse.Envelope]:
    """Return true statements about another image, signed by the key of `stand`."""
    other = Stand(Layout(tmp_path / "other"), tmp_path / "w", image_facts(image="other", partial="x"), stand.signer)
    other.manifest = small_image(
        other.layout, other.work, files={TOOL: b"x"}, label=other.image_facts.record.input_digest
    )
    other.index = write_index(other.layout, [other.manifest])
    return _truths(other, stand.signer)


def test_evidence_under_cosign_tags_is_ignored(stand: Stand) -> None:
    """The signatures and statements are valid and made by the key, but `verify` does not read cosign's tags."""
    for digest in (stand.manifest.digest, stand.index.digest):
        _tagged(stand, stand.signer, digest, *_truths(stand, stand.signer))
    assert wrong(look(stand)) == "signature-missing"
    assert look(stand, None).verdict == "intact"
    assert "sbom" not in look(stand, None).checks


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("whose", ["a stranger's", "about another image"])
@pytest.mark.parametrize("form", ["tags", "bundles"])
def test_planted_evidence_does_not_change_the_verdict(
    stand: Stand, tmp_path: Path, signed: bool, whose: str, form: str
) -> None:
    if signed:
        stand.say_all()
    stranger = ed25519_signer()
    signer = stranger if whose == "a stranger's" else stand.signer
    planted = _truths(stand, stranger) if whose == "a stranger's" else _elsewhere(stand, tmp_path)
    if form == "tags":
        _tagged(stand, signer, stand.index.digest, *planted)
    for one in planted if form == "bundles" else ():
        # The bundle names the trusted key, which anyone can write into a bundle.
        stand.attach(cosign.bundle(one, stand.signer.public), keyless.MEDIA_TYPE)
    verdict = look(stand)
    if signed:
        assert (verdict.verdict, verdict.problems) == ("trusted", [])
    else:
        said = {
            "tags": "signature-missing",
            "a stranger's": "signature-other-key",
            "about another image": "statement-other-image",
        }
        assert wrong(verdict) == said["tags" if form == "tags" else whose]


def test_bundle_signed_by_the_key_is_trusted(stand: Stand) -> None:
    for one in _truths(stand, stand.signer):
        # The key and the log entry in the bundle are false, but `verify` checks only the signature, by the given key.
        value = json.loads(cosign.bundle(one, ed25519_signer().public))
        value["verificationMaterial"] |= {"publicKey": {"hint": "else"}, "tlogEntries": [{"logIndex": "1"}]}
        stand.attach(canonical(value), keyless.MEDIA_TYPE)
    assert look(stand).verdict == "trusted"
    assert wrong(look(stand, ed25519_signer().public)) == "signature-other-key"
    assert look(stand, None).checks["sbom"].endswith("no signature was checked")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"dsseEnvelope":7}', b"[" * 100_000, b'{"dsseEnvelope":{}}'])
def test_malformed_bundle_is_skipped(stand: Stand, content: bytes) -> None:
    stand.say_all()
    stand.attach(content, keyless.MEDIA_TYPE)
    assert look(stand).verdict == "trusted"
    assert look(stand, None).verdict == "intact"


@pytest.mark.parametrize(
    "change",
    [
        {"_type": "https://in-toto.io/Statement/v0.1"},
        {"predicate": []},
        {"predicate": None},
        {"subject": 7},
    ],
)
def test_malformed_statement_of_the_same_key_is_skipped(stand: Stand, change: dict[str, Any]) -> None:
    """Anyone who may push can attach a statement that the key signed for another purpose."""
    stand.say_all()
    stand.say({**stand.provenance(), **change})
    assert look(stand).verdict == "trusted"


def test_envelope_with_too_many_signatures_is_skipped(stand: Stand) -> None:
    stand.say_all()
    signed = json.loads(dsse.sign(stand.provenance(), stand.signer).as_bytes())
    signed["signatures"] *= dsse.MOST_SIGNATURES + 1
    with refused("envelope-too-many-signatures", "16"):
        dsse.read(canonical(signed))
    stand.attach(canonical(signed))
    assert look(stand).verdict == "trusted"
