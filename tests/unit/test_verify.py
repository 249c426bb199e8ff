"""Tests of `verify` on true and false evidence."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_fixtures import (
    COMMIT,
    FILES,
    FINISHED,
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
from tests.refusals import refused
from toolchain.core.digest import canonical
from toolchain.core.record import STORED_KERNELS
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import write_index
from toolchain.oci.layout import Layout
from toolchain.oci.reference import RegistryRef
from toolchain.oci.registry import Registry
from toolchain.trust import attest, dsse, policy, sbom
from toolchain.trust.policy import Policy, make_policy, normal_repository


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


def _add(files: list[dict[str, Any]]) -> None:
    files.append({**files[0], "fileName": "./usr/lib64/thing/more", "SPDXID": "SPDXRef-File-more"})


def _change(files: list[dict[str, Any]]) -> None:
    one = next(one for one in files if TOOL in one["fileName"])
    one["checksums"][1]["checksumValue"] = "0" * 64


def _twice(files: list[dict[str, Any]]) -> None:
    files.append(files[0])


def _broken(files: list[dict[str, Any]]) -> None:
    del files[0]["checksums"]


@pytest.mark.parametrize(
    ("change", "file", "id"),
    [
        (drop_file, TOOL, "sbom-lacks-file"),
        (_add, "/usr/lib64/thing/more", "sbom-extra-file"),
        (_change, TOOL, "sbom-other-content"),
        (_twice, "", "sbom-file-twice"),
        (_broken, "", "sbom-malformed"),
    ],
)
@pytest.mark.parametrize("signed", [True, False])
def test_sbom_that_differs_from_the_layer_is_refused(
    stand: Stand, change: Any, file: str, id: str, signed: bool
) -> None:
    document = lie(stand, change)
    if signed:
        stand.say_all(sbom=document)
    else:
        stand.attach(canonical(document), sbom.SPDX.media_type)
    assert wrong(look(stand) if signed else look(stand, None), file) == id


@pytest.mark.parametrize("signed", [True, False])
def test_false_cyclonedx_is_refused_despite_a_true_spdx(stand: Stand, signed: bool) -> None:
    """Scanners read the CycloneDX document, so it must list every file of the layer."""
    document = stand.cyclonedx()
    files = document["metadata"]["component"]["components"]
    files[:] = [row for row in files if row["name"] != TOOL]
    if signed:
        stand.say_all()
        stand.say(attest.statement(stand.subjects(), sbom.CYCLONEDX.predicate, document))
    else:
        stand.attach(canonical(document), sbom.CYCLONEDX.media_type)
    assert wrong(look(stand) if signed else look(stand, None), TOOL) == "sbom-lacks-file"
    # One true document is enough, because a false one may come from anyone.
    true = canonical(stand.cyclonedx())
    if signed:
        stand.say(attest.statement(stand.subjects(), sbom.CYCLONEDX.predicate, stand.cyclonedx()))
    else:
        stand.attach(true, sbom.CYCLONEDX.media_type)
    assert (look(stand) if signed else look(stand, None)).problems == []


def test_a_cyclonedx_that_hides_a_prebuilt_input_is_refused(tmp_path: Path) -> None:
    stand = Stand(Layout(tmp_path / "l"), tmp_path / "w", image_facts(binaries=["triton-wheel"]))
    stand.say_all()
    document = stand.cyclonedx()
    for row in document["components"]:
        row.pop("properties", None)
    stand.say(attest.statement(stand.subjects(), sbom.CYCLONEDX.predicate, document))
    assert wrong(look(stand)) == "prebuilt-lists-differ"


def test_sbom_of_another_image_is_refused(stand: Stand) -> None:
    document = stand.sbom()
    document["packages"][0]["checksums"][0]["checksumValue"] = "3" * 64
    stand.say_all(sbom=document)
    assert wrong(look(stand), f"sha256:{'3' * 64}", stand.manifest.digest) == "sbom-other-image"


def test_sbom_of_another_layer_is_refused(stand: Stand) -> None:
    document = stand.sbom()
    document["packages"][0]["sourceInfo"] = f"files are those of the layer with diff_id sha256:{'3' * 64}"
    stand.say_all(sbom=document)
    assert wrong(look(stand)) == "sbom-other-layer"


def test_source_outside_the_policy_is_refused(stand: Stand) -> None:
    stand.say_all()
    for good in ("llvm/llvm-project", "LLVM/llvm-project", f"{LLVM}.git", f"{LLVM}/"):
        assert look(stand, source_repos=(normal_repository(good),)).verdict == "trusted"
    for bad in (
        "llvm/llvm-project-evil", "evil/llvm-project", "https://github.com.evil/llvm/llvm-project",
        "https://evil/github.com/llvm/llvm-project", "debian", "http://github.com/llvm/llvm-project",
    ):  # fmt: skip
        assert wrong(look(stand, source_repos=(normal_repository(bad),)), "llvm", LLVM) == "source-other-repository"


def test_source_policy_applies_to_every_source(stand: Stand) -> None:
    statement = stand.provenance()
    rows = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    rows.insert(0, {**rows[0], "name": "more", "annotations": {**rows[0]["annotations"], "repository": "local"}})
    stand.say_all(provenance=statement)
    assert wrong(look(stand, source_repos=(LLVM,)), "more", "local") == "source-other-repository"


def test_source_policy_ignores_build_tools(stand: Stand) -> None:
    statement = stand.provenance()
    rows = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    about = {**rows[0]["annotations"], "repository": "pypi", "role": "tool"}
    rows.append({**rows[0], "name": "wheel-numpy", "annotations": about})
    stand.say_all(provenance=statement)
    assert look(stand, source_repos=(LLVM,)).verdict == "trusted"


def inner(stand: Stand, **changes: Any) -> dict[str, Any]:
    statement = stand.provenance()
    statement["predicate"]["buildDefinition"]["internalParameters"].update(changes)
    return statement


def test_provenance_whose_inputs_differ_from_their_digest_is_refused(stand: Stand) -> None:
    stand.say_all(provenance=inner(stand, inputs={"stage": "other"}))
    assert wrong(look(stand)) == "provenance-digest-mismatch"


def test_provenance_whose_inputs_differ_from_the_label_is_refused(stand: Stand, tmp_path: Path) -> None:
    other = Stand(Layout(tmp_path / "o"), tmp_path / "w", image_facts(inputs={"stage": "llvm", "sources": []}))
    said = other.provenance()["predicate"]["buildDefinition"]["internalParameters"]
    stand.say_all(provenance=inner(stand, inputs=said["inputs"], inputDigest=said["inputDigest"]))
    assert wrong(look(stand)) == "provenance-label-mismatch"


def test_provenance_with_another_build_type_is_refused(stand: Stand) -> None:
    statement = stand.provenance()
    statement["predicate"]["buildDefinition"]["buildType"] = "https://else.example/build"
    stand.say_all(provenance=statement)
    assert wrong(look(stand)) == "provenance-build-type"


@pytest.mark.parametrize(
    "gone",
    [
        ("buildDefinition",),
        ("runDetails",),
        ("runDetails", "builder"),
        ("buildDefinition", "resolvedDependencies", 0, "annotations", "ref"),
    ],
)
def test_malformed_provenance_is_refused(stand: Stand, gone: tuple[str | int, ...]) -> None:
    statement = stand.provenance()
    part: Any = statement["predicate"]
    for key in gone[:-1]:
        part = part[key]
    del part[gone[-1]]
    stand.say_all(provenance=statement)
    assert wrong(look(stand)) == "statement-malformed"


def test_image_too_old_or_from_the_future_is_refused(stand: Stand) -> None:
    stand.say_all()
    assert look(stand, max_age=11).verdict == "trusted"
    assert wrong(look(stand, max_age=9)) == "build-too-old"
    assert look(stand, max_age=1e9).verdict == look(stand, max_age=float("inf")).verdict == "trusted"
    early = datetime.fromtimestamp(FINISHED, UTC) - timedelta(days=1)
    verdict = verify(stand.ref, stand.layout, stand.index, key=stand.signer.public, now=early)
    assert wrong(verdict) == "build-in-future"


def test_source_only_refuses_prebuilt_inputs_that_are_not_allowed(tmp_path: Path) -> None:
    stand = Stand(Layout(tmp_path / "l"), tmp_path / "w", image_facts(binaries=["triton-wheel"]))
    stand.say_all()
    assert look(stand).verdict == "trusted"
    assert look(stand, source_only=True, allow=("triton-wheel",)).verdict == "trusted"
    assert wrong(look(stand, source_only=True, allow=("other",)), "triton-wheel") == "prebuilt-forbidden"


def test_prebuilt_lists_of_sbom_and_provenance_must_agree(tmp_path: Path) -> None:
    stand = Stand(Layout(tmp_path / "l"), tmp_path / "w", image_facts(binaries=["triton-wheel"]))
    stand.say_all(provenance=inner(stand, binaries=[]))
    assert wrong(look(stand, source_only=True)) == "prebuilt-lists-differ"


def test_sbom_of_an_image_without_layers_is_refused(stand: Stand) -> None:
    value = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}
    config = stand.layout.put_json(value, media.CONFIG)
    manifest = {"schemaVersion": 2, "mediaType": media.MANIFEST, "config": config.as_json(), "layers": []}
    empty = stand.layout.put_json(manifest, media.MANIFEST)
    checksum = {"algorithm": "SHA256", "checksumValue": empty.digest.removeprefix("sha256:")}
    document = {"packages": [{"SPDXID": "SPDXRef-Image", "checksums": [checksum], "sourceInfo": ""}], "files": []}
    stand.attach(canonical(document), sbom.SPDX.media_type, to=empty)
    assert wrong(verify(stand.ref, stand.layout, empty, now=NOW)) == "sbom-without-layer"


def test_image_name_can_be_required(stand: Stand) -> None:
    """Anyone who may push can move a tag, so a caller can require the name that the provenance contains."""
    stand.say_all()
    name = stand.image_facts.record.image
    said = look(stand, image=name).as_json()["provenance"]
    assert said == {
        "image": name, "stage": "llvm", "partial": "", "contract": True,
        "input_digest": stand.image_facts.record.input_digest,
        "isolation": f"chroot sha256:{'4' * 12}", "compiler_cache": "none",
        "triton": None, "llvm": {"version": None, "commit": COMMIT, "tree": None}, "gpus": [], "pythons": [],
        "kernel_stores": [], "command": "toolchain build llvm --base debian13",
    }  # fmt: skip
    other = stand.provenance()
    del other["predicate"]["buildDefinition"]["externalParameters"]  # as in the provenance of another tool
    assert said == {**policy.summary(other), "contract": True, "command": said["command"]}
    assert policy.summary(other)["command"] == ""
    assert wrong(look(stand, image="aotriton-gfx942"), name, "aotriton-gfx942") == "provenance-other-image"
    assert "provenance" not in look(stand, image="aotriton-gfx942").as_json()


def test_isolation_and_an_empty_compiler_cache_can_be_required(tmp_path: Path) -> None:
    for number, (facts, isolation, wanted) in enumerate((
        ({}, {"mode": "chroot", "measures": "sha256:1"}, ""),
        ({"compiler_cache": "0123456789abcdef"}, {"mode": "chroot"}, "0123456789abcdef"),
        ({}, None, "isolated"),
    )):  # fmt: skip
        stand = Stand(
            Layout(tmp_path / f"{number}"), tmp_path / f"w{number}", image_facts(facts=facts, isolation=isolation)
        )
        stand.say_all()
        verdict = look(stand, isolated=True, fresh=True)
        assert (verdict.verdict == "trusted") == (not wanted), verdict.problems
        assert wanted in (verdict.problems or [""])[0]
        assert look(stand).verdict == "trusted"


STORED = {"store": "registry.example/kernels", "signer": "sha256:" + "c" * 64, "kernels": 3}


@pytest.mark.parametrize("row", [STORED, {**STORED, "store": "folder", "signer": ""}])
def test_kernels_from_a_store_can_be_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    stand = Stand(Layout(tmp_path / "l"), tmp_path / "w", image_facts(facts={STORED_KERNELS: [row]}))
    stand.say_all()
    assert wrong(look(stand, no_kernel_store=True), "3", row["store"], row["signer"]) == "kernel-store-used"
    trusted = look(stand, fresh=True)
    assert trusted.verdict == "trusted"
    assert trusted.as_json()["provenance"]["kernel_stores"] == [row]


@pytest.mark.parametrize("rows", [[{}], ["x"], 5, [{**STORED, "kernels": "many"}]])
def test_malformed_kernel_stores_are_refused(stand: Stand, rows: Any) -> None:
    other = stand.provenance()
    other["predicate"]["buildDefinition"]["internalParameters"]["kernelStores"] = rows
    stand.say_all(provenance=other)
    assert wrong(look(stand), "provenance") == "statement-malformed"


def test_one_provenance_that_meets_the_policy_is_enough(tmp_path: Path) -> None:
    """If a rebuild gives the same bytes, the digest is the same, so the image has the provenances of both builds."""
    isolated = image_facts(facts={"compiler_cache": "0123456789abcdef"})
    stand = Stand(Layout(tmp_path / "l"), tmp_path / "w", isolated)
    stand.say_all()
    assert wrong(look(stand, fresh=True), "0123456789abcdef") == "compiler-cache-used"
    stand.say(attest.provenance(image_facts(isolation=None), stand.subjects()))
    assert [look(stand, **demand).verdict for demand in ({"fresh": True}, {"isolated": True}, {})] == ["trusted"] * 3
    # Neither build meets both demands. The fault of the first provenance is reported, and either can be the first,
    # because the layout sorts referrers by digest, and their signatures are random.
    assert wrong(look(stand, fresh=True, isolated=True), "policy") in {"isolation-unproved", "compiler-cache-used"}


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


def test_policy_is_made_from_options() -> None:
    several = make_policy("source-only, isolated,fresh")
    assert (several.source_only, several.isolated, several.fresh) == (True, True, True)
    made = make_policy("source-only", allow=["a"], source_repos=["triton-lang/triton"], max_age=1)
    assert made == Policy(
        source_only=True, allow=("a",), source_repos=("https://github.com/triton-lang/triton",), max_age=1
    )
    assert make_policy(None).empty
    with refused("unknown-policy"):
        make_policy("everything")
    assert make_policy(None, allow=["a"]).empty
    assert not make_policy(None, image="a").empty
    assert normal_repository("ssh://git@GitHub.com/A/B.git") == normal_repository("ssh://git@github.com/a/b")
    assert normal_repository("https://h/cgi?p=a.git") != normal_repository("https://h/cgi?p=b.git")
    with refused("not-a-repository"):
        normal_repository("https://h/a#b")
    for bad in ("", "a b", "../x", "https://", "ftp://h/x", "file:///x", "a/b/c", "https://[x"):
        with refused("not-a-repository"):
            normal_repository(bad)


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


def test_older_signed_image_is_refused_by_its_age_or_inputs(stand: Stand, tmp_path: Path) -> None:
    """A registry can serve an older image that the key signed, whose name is the same as that of the newer image."""
    stand.say_all()
    older = stand.image_facts.record
    newer = image_facts(inputs={**older.inputs, "base": f"sha256:{'e' * 64}"}, finished=FINISHED + 9 * 86400)
    other = Stand(Layout(tmp_path / "newer"), tmp_path / "w", newer, stand.signer)
    other.say_all()
    assert look(other, max_age=5, input_digest=newer.record.input_digest).verdict == "trusted"
    assert look(stand).verdict == "trusted", "it is what the key says that it is"
    assert wrong(look(stand, max_age=5)) == "build-too-old"
    assert wrong(look(stand, input_digest=newer.record.input_digest)) == "provenance-other-inputs"
    assert look(stand, image=newer.record.image).verdict == "trusted", "two builds of one name differ in their inputs"


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
