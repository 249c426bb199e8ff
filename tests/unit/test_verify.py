"""Tests of `verify` on the signatures of an image, the subjects of its statements, and its own bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_fixtures import (
    FILES,
    LLVM,
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
from tests.places import attach, fetch_image, publish, referrers, verify
from toolchain.core.digest import canonical
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import write_index
from toolchain.oci.layout import Layout
from toolchain.oci.reference import RegistryRef
from toolchain.oci.registry import Registry
from toolchain.trust import dsse, sbom


def test_signed_image_is_trusted(stand: Stand) -> None:
    stand.say_all()
    verdict = look(stand, source_repos=(LLVM,), source_only=True, max_age=30)
    assert (verdict.verdict, verdict.problems) == ("trusted", [])
    assert list(verdict.checks) == [
        "digests", "signature", "provenance", "source-repo", "age", "sbom", "policy",
    ]  # fmt: skip
    assert str(len(FILES) + 1) in verdict.checks["sbom"]


def test_verdict_without_a_key_is_intact(stand: Stand) -> None:
    assert look(stand, None).verdict == "intact"
    stand.say_all()
    verdict = look(stand, None)
    assert verdict.verdict == "intact"
    assert "no signature was checked" in verdict.checks["sbom"]


def test_unsigned_image_is_untrusted(stand: Stand) -> None:
    assert wrong(look(stand)) == "signature-missing"
    stand.attach(canonical(stand.sbom()), sbom.SPDX.media_type)
    assert wrong(look(stand)) == "signature-missing"
    assert look(stand, None).verdict == "intact"


def test_image_signed_by_another_key_is_untrusted(stand: Stand) -> None:
    stand.say_all()
    assert wrong(look(stand, ed25519_signer().public)) == "signature-other-key"


def test_envelope_with_a_changed_payload_is_untrusted(stand: Stand) -> None:
    value = json.loads(dsse.sign(stand.provenance(), stand.signer).as_bytes())
    other = dsse.sign({**stand.provenance(), "predicateType": "x"}, stand.signer)
    value["payload"] = json.loads(other.as_bytes())["payload"]
    stand.attach(canonical(value))
    assert wrong(look(stand)) == "signature-other-key"


def test_image_without_a_signed_sbom_or_provenance_is_untrusted(stand: Stand, tmp_path: Path) -> None:
    stand.say(stand.sbom_statement())
    assert wrong(look(stand), "provenance") == "statement-other-key"
    other = Stand(Layout(tmp_path / "other"), tmp_path / "w", stand.image_facts, stand.signer)
    other.say(other.provenance())
    assert wrong(look(other), "sbom") == "statement-other-key"


def test_statements_about_another_image_are_refused(stand: Stand, tmp_path: Path) -> None:
    """The statements are true and signed by the key, but their subject is another image."""
    other = Stand(Layout(tmp_path / "other"), tmp_path / "w", image_facts(image="other", partial="x"), stand.signer)
    changed = small_image(other.layout, other.work, files={TOOL: b"other"}, label=other.image_facts.record.input_digest)
    other.manifest, other.index = changed, write_index(other.layout, [changed])
    stand.say(other.provenance())
    stand.say(other.sbom_statement())
    assert wrong(look(stand), "provenance") == "statement-other-image"


def test_index_that_no_statement_names_is_untrusted(stand: Stand) -> None:
    stand.say_all()
    again = write_index(stand.layout, [stand.manifest], {"somebody": "else"})
    verdict = verify(stand.ref, stand.layout, again, key=stand.signer.public, now=NOW)
    assert wrong(verdict, "provenance", again.digest) == "statement-other-image"


def test_changed_layer_is_reported_before_other_faults(stand: Stand) -> None:
    """The image is also unsigned."""
    layer = stand.layout.children(stand.manifest)[1]
    content = bytearray(stand.layout.blob(layer.digest).read_bytes())
    content[-20] ^= 1
    stand.layout.blob(layer.digest).write_bytes(content)
    verdict = look(stand)
    assert wrong(verdict, layer.digest) == "content-changed"
    assert verdict.checks == {}


def test_image_listed_also_with_another_media_type_is_checked(stand: Stand) -> None:
    """A program that skips the first entry, because of its media type, takes the second one."""
    other = small_image(stand.layout, stand.work, files=FILES | {"usr/other": b"1"}, arch="arm64")
    stand.say_all(sbom=lie(stand, drop_file))
    listed = [replace(stand.manifest, media_type="application/octet-stream"), stand.manifest, other]
    value = {"schemaVersion": 2, "mediaType": media.INDEX, "manifests": [entry.as_json() for entry in listed]}
    index = stand.layout.put_json(value, media.INDEX)
    assert wrong(verify(stand.ref, stand.layout, index, now=NOW), "sbom") == "sbom-lacks-file"


@pytest.mark.parametrize("value", [None, 1, "x", [1], {"Labels": [1]}, {"Labels": {"toolchain.input-digest": 5}}])
def test_malformed_config_does_not_break_verify(stand: Stand, value: Any) -> None:
    """Anyone who may push can push such a config."""
    config = stand.layout.children(stand.manifest)[0]
    other = stand.layout.put_json({**stand.layout.read_json(config), "config": value}, media.CONFIG)
    manifest = {**stand.layout.read_json(stand.manifest), "config": other.as_json()}
    bad = stand.layout.put_json(manifest, media.MANIFEST)
    assert verify(stand.ref, stand.layout, bad, key=stand.signer.public, now=NOW).verdict == "untrusted"
    assert verify(stand.ref, stand.layout, bad, now=NOW).verdict == "intact"


def test_both_images_of_an_index_must_be_signed(stand: Stand) -> None:
    other = small_image(stand.layout, stand.work, arch="arm64", label=stand.image_facts.record.input_digest)
    stand.index = write_index(stand.layout, [stand.manifest, other])
    stand.say_all()
    assert wrong(look(stand)) in {"statement-other-image", "signature-missing"}


def test_tag_that_moves_during_a_pull_is_resolved_once(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image is pulled and verified by the resolved digest; the next pull gets the other image."""
    stand.say_all()
    other = write_index(stand.layout, [small_image(stand.layout, stand.work, files={"usr/lib64/thing/x": b"evil"})])
    with fake_registry() as server, Registry(server.host, login="") as registry:
        ref = RegistryRef(server.host, "x", "t")
        publish(stand.layout, other, ref.at(tag="other"), registry=registry)
        publish(stand.layout, stand.index, ref, registry=registry)
        attach(stand.layout, referrers(stand.ref, stand.manifest.digest), ref, registry=registry)
        read = registry.get_manifest

        def moved(repository: str, reference: str) -> tuple[Descriptor, bytes]:
            found = read(repository, reference)
            server.manifests["t"] = server.manifests["other"]
            return found

        monkeypatch.setattr(registry, "get_manifest", moved)
        for name, expected, verdict in (("a", stand.index, "trusted"), ("b", other, "untrusted")):
            own = Layout(tmp_path / name).ensure()
            top = fetch_image(ref, own, registry=registry)
            assert top.digest == expected.digest
            assert verify(ref, own, top, key=stand.signer.public, registry=registry, now=NOW).verdict == verdict


def test_referrers_of_a_subject_are_requested_once(stand: Stand) -> None:
    """The registry of this test returns the referrers of a subject only for the first request."""
    stand.say_all()
    with fake_registry() as server, Registry(server.host, login="") as registry:
        ref = RegistryRef(server.host, "x", "t")
        publish(stand.layout, stand.index, ref, registry=registry)
        attach(stand.layout, referrers(stand.ref, stand.manifest.digest), ref, registry=registry)
        whole = server.referrers
        answers: list[str] = []

        def once(subject: str) -> list[dict[str, Any]]:
            found = [] if subject in answers else whole(subject)
            answers.append(subject)
            return found

        server.referrers = once  # type: ignore[method-assign]
        verdict = verify(ref, stand.layout, stand.index, key=stand.signer.public, registry=registry, now=NOW)
        assert verdict.verdict == "trusted"
        assert len(answers) == len(set(answers))
        verdict = verify(ref, stand.layout, stand.index, key=stand.signer.public, registry=registry, now=NOW)
        assert wrong(verdict) == "signature-missing"
