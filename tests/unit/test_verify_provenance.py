"""Tests of `verify` on provenance that is malformed, contradicts the image, or does not meet a policy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_fixtures import (
    COMMIT,
    FINISHED,
    LLVM,
    Stand,
    image_facts,
    look,
    wrong,
)
from tests.places import verify
from tests.refusals import refused
from toolchain.core.record import STORED_KERNELS
from toolchain.oci.layout import Layout
from toolchain.trust import attest, policy
from toolchain.trust.policy import Policy, make_policy, normal_repository


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


def test_older_signed_image_is_refused_by_its_age_or_inputs(stand: Stand, tmp_path: Path) -> None:
    """A registry can serve an older image that the key signed, whose name is the same as that of the newer image."""
    stand.say_all()
    older = stand.image_facts.record
    newer = image_facts(inputs={**older.inputs, "base": f"sha256:{'e' * 64}"}, finished=FINISHED + 9 * 86400)
    other = Stand(Layout(tmp_path / "newer"), tmp_path / "w", newer, stand.signer)
    other.say_all()
    assert look(other, max_age=5, input_digest=newer.record.input_digest).verdict == "trusted"
    assert look(stand).verdict == "trusted", "the key signed this image, and no option limits its age"
    assert wrong(look(stand, max_age=5)) == "build-too-old"
    assert wrong(look(stand, input_digest=newer.record.input_digest)) == "provenance-other-inputs"
    assert look(stand, image=newer.record.image).verdict == "trusted", "two builds of one name differ in their inputs"
