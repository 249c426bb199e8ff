"""`verify --rebuilders`: provenance counts once for each operator that the policy lists."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.evidence_fixtures import Stand, ed25519_signer, p256_signer, small_image
from tests.refusals import refused
from toolchain.cli.app import app
from toolchain.core.errors import ConfigError, UntrustedError
from toolchain.core.record import LOCAL_BUILDER
from toolchain.oci import descriptor as media
from toolchain.oci.places import open_place
from toolchain.publish.attestations import attach_statement
from toolchain.trust.keyless import Identity
from toolchain.trust.keys import Signer
from toolchain.trust.rebuilt import Builder, granted_level, provenance, read_builders

ALICE, BOB = "https://alice.example/builder", "https://bob.example/builder"


def say(stand: Stand, signer: Signer, builder: str = ALICE, **changes: Any) -> None:
    digests = [stand.manifest.digest, stand.index.digest]
    said = provenance(
        "thing", changes.pop("about", digests), builder=builder, parameters={"stage": "thing"},
        input_digest=changes.pop("input_digest", stand.image_facts.record.input_digest),
    )  # fmt: skip
    said["predicate"]["buildDefinition"].update(changes)
    with open_place(stand.ref) as place:
        attach_statement(said, digests, place, kind="provenance", signer=signer, scratch=stand.work)


def check(stand: Stand, *rows: tuple[str, Signer, str], needed: int, code: int = 0) -> dict[str, Any]:
    text = ""
    for builder, signer, operator in rows:
        name = f"{signer.public.id[-8:]}.pub"
        (stand.work / name).write_bytes(signer.public.pem())
        text += f'[[builder]]\nid = "{builder}"\nkey = "{name}"\noperator = "{operator}"\n'
    (stand.work / "builders.toml").write_text(text)
    words = ["--rebuilders", str(needed), "--builders", str(stand.work / "builders.toml")]
    words += ["--vsa", str(stand.work / "vsa.json")]
    done = CliRunner().invoke(app, ["verify", f"oci:{stand.layout.root}", *words, "--json"])
    assert done.exit_code == code, done.output
    told = json.loads(done.stdout)
    return dict(told["images"][0]) if "images" in told else dict(told)


def test_two_operators_satisfy_two_rebuilders(stand: Stand) -> None:
    one, two = ed25519_signer(), p256_signer()
    rows = ((ALICE, one, "alice"), (BOB, two, "bob"))
    say(stand, one)
    check(stand, *rows, needed=1)
    check(stand, *rows, needed=2, code=UntrustedError.code)
    say(stand, two, BOB)
    assert "alice, bob" in check(stand, *rows, needed=2)["checks"]["rebuilders"]


@pytest.mark.parametrize("kind", ["manifest", "config"])
def test_an_index_that_hides_an_image_behind_another_type_is_refused(stand: Stand, kind: str) -> None:
    """Rebuilders do not sign the index, and some programs select an entry of an index only by its platform."""
    signer, layout = ed25519_signer(), stand.layout
    say(stand, signer)
    rows = ((ALICE, signer, "alice"),)
    other = small_image(layout, stand.work, files={"usr/lib64/thing/bin/tool": b"another program"})
    if kind == "config":
        value = layout.read_json(other)
        value["config"]["mediaType"] = media.EMPTY
        other = replace(layout.put_json(value, media.MANIFEST), platform=other.platform)
    listed = [replace(other, media_type="application/x") if kind == "manifest" else other, stand.manifest]
    index = {"schemaVersion": 2, "mediaType": media.INDEX, "manifests": [each.as_json() for each in listed]}
    check(stand, *rows, needed=1)
    layout.tag(layout.put_json(index, media.INDEX), "thing")
    told = check(stand, *rows, needed=1, code=UntrustedError.code)
    assert told["id"] == "rebuilders-too-few"


def summary(stand: Stand) -> tuple[str, list[str]]:
    text = json.loads((stand.work / "vsa.json").read_text())
    assert text["predicateType"] == "https://slsa.dev/verification_summary/v1"
    assert [row["digest"]["sha256"] for row in text["subject"]] == [stand.index.digest.removeprefix("sha256:")]
    return text["predicate"]["verificationResult"], text["predicate"]["verifiedLevels"]


def test_summary_has_reproduced_level_only_with_two_operators(stand: Stand) -> None:
    one, two = ed25519_signer(), p256_signer()
    rows = ((ALICE, one, "alice"), (BOB, two, "bob"))
    say(stand, one)
    check(stand, *rows, needed=1)
    assert summary(stand) == ("PASSED", ["SLSA_BUILD_LEVEL_0"])
    check(stand, *rows, needed=2, code=UntrustedError.code)
    assert summary(stand) == ("FAILED", ["FAILED"])
    say(stand, two, BOB)
    check(stand, *rows, needed=2)
    assert summary(stand) == ("PASSED", ["SLSA_BUILD_LEVEL_0", "SLSA_BUILD_REPRODUCED"])
    words = ["verify", f"oci:{stand.layout.root}", "--vsa", str(stand.work / "vsa.json")]
    assert CliRunner().invoke(app, words).exit_code == ConfigError.code


@pytest.mark.parametrize(
    "lie",
    [
        {"about": ["sha256:" + "1" * 64]},
        {"input_digest": "sha256:" + "3" * 64},
        {"internalParameters": None},
        {"buildType": "https://example.org/other"},
        {"builder": BOB},
        {"internalParameters": {"image": "thing", "inputDigest": 10**400}},
    ],
)
def test_malformed_or_mismatched_provenance_satisfies_no_rebuilder(stand: Stand, lie: dict[str, Any]) -> None:
    signer = ed25519_signer()
    say(stand, signer, **lie)
    told = check(stand, (ALICE, signer, "alice"), needed=1, code=UntrustedError.code)
    assert told["problems"][0].startswith("rebuilders: 0 ")


def test_operator_is_counted_once(stand: Stand) -> None:
    one, two, other, stranger = (ed25519_signer() for _ in range(4))
    rows = ((ALICE, one, "alice"), (BOB, two, "alice"), ("urn:x:c", other, "carol"))
    say(stand, one)
    say(stand, two, BOB)
    say(stand, stranger, "urn:x:c")
    assert check(stand, *rows, needed=2, code=UntrustedError.code)["problems"][0].startswith("rebuilders: 1 ")
    assert check(stand, *rows, needed=3, code=ConfigError.code)["error"] == "Configuration"


def level(stand: Stand, *listed: tuple[str, Signer, int], signer: Signer | None = None) -> str:
    """Return the build level in the summary, with builders listed as hosted."""
    (stand.work / "release.pub").write_bytes((signer or stand.signer).public.pem())
    words = ["--public-key", str(stand.work / "release.pub"), "--vsa", str(stand.work / "vsa.json")]
    text = ""
    for number, (builder, by, granted) in enumerate(listed):
        (stand.work / f"{number}.pub").write_bytes(by.public.pem())
        text += f'[[builder]]\nid = "{builder}"\nkey = "{number}.pub"\noperator = "ci"\nlevel = {granted}\n'
    if text:
        (stand.work / "builders.toml").write_text(text)
        words += ["--builders", str(stand.work / "builders.toml")]
    done = CliRunner().invoke(app, ["verify", f"oci:{stand.layout.root}", *words])
    assert done.exit_code == 0, done.output
    (said,) = summary(stand)[1]
    return said.removeprefix("SLSA_BUILD_LEVEL_")


def test_only_builder_listed_as_hosted_has_a_higher_level(stand: Stand) -> None:
    said = stand.provenance()
    said["predicate"]["runDetails"]["builder"]["id"] = ALICE
    stand.say_all(provenance=said)
    assert level(stand) == "1"
    assert level(stand, (BOB, stand.signer, 3)) == "1"
    assert level(stand, (ALICE, ed25519_signer(), 3)) == "1"
    assert level(stand, (ALICE, stand.signer, 2)) == "2"
    assert level(stand, (BOB, stand.signer, 2), (ALICE, ed25519_signer(), 2), (ALICE, stand.signer, 3)) == "3"
    # The listed key has also signed the image, but the verifier asked for another signer.
    other = ed25519_signer()
    for statement in (stand.sbom_statement(), said):
        stand.say(statement, other)
    assert level(stand, (ALICE, stand.signer, 3), signer=other) == "1"


def test_lowest_level_of_several_provenances_is_granted() -> None:
    one, ci = ed25519_signer().public, Identity("ci@example.org", "https://issuer.example")

    def by(id_: str) -> dict[str, Any]:
        return {"predicate": {"runDetails": {"builder": {"id": id_}}}}

    listed = [Builder(ALICE, one, "alice", 3), Builder(BOB, ci, "bob", 2)]
    assert granted_level(listed, one, [by(ALICE)]) == 3
    assert granted_level(listed, one, [by(ALICE), by(BOB)]) == 1
    assert granted_level(listed, ci, [by(BOB)]) == 2
    assert granted_level(listed, Identity("ci@example.org", "https://other.example"), [by(BOB)]) == 1
    assert granted_level(listed, one, []) == 1


def test_a_builder_is_listed_by_a_key_or_an_identity(stand: Stand) -> None:
    path = stand.work / "builders.toml"
    path.write_text(
        '[[builder]]\nid = "a:b"\noperator = "o"\nidentity = "ci@example.org"\nissuer = "https://i.example"'
    )
    assert read_builders(path) == (Builder("a:b", Identity("ci@example.org", "https://i.example"), "o"),)


@pytest.mark.parametrize(
    ("builder", "signer", "operator"),
    [(BOB, 0, "bob"), (ALICE, 1, "bob"), (BOB, 1, " ALICE"), (ALICE, 0, "alice")],
    ids=["signer of two", "id of two", "operator in another case", "twice"],
)
def test_a_builder_has_one_operator(stand: Stand, builder: str, signer: int, operator: str) -> None:
    signers = [ed25519_signer(), ed25519_signer(), ed25519_signer()]
    say(stand, signers[0])
    say(stand, signers[1], builder)
    rows = ((ALICE, signers[0], "alice"), (builder, signers[signer], operator), ("urn:x:c", signers[2], "carol"))
    told = check(stand, *rows, needed=1, code=ConfigError.code)
    assert told["id"] == "builders-not-distinct"


def test_id_of_local_builds_may_be_shared_but_not_hosted(stand: Stand) -> None:
    one, two = ed25519_signer(), ed25519_signer()
    for signer in (one, two):
        say(stand, signer, LOCAL_BUILDER)
    check(stand, (LOCAL_BUILDER, one, "alice"), (LOCAL_BUILDER, two, "bob"), needed=2)
    path = stand.work / "builders.toml"
    path.write_text(path.read_text() + "level = 3\n")
    with refused("builder-not-hosted"):
        read_builders(path)


def test_failure_deletes_earlier_summary(stand: Stand) -> None:
    signer, vsa = ed25519_signer(), stand.work / "vsa.json"
    say(stand, signer)
    check(stand, (ALICE, signer, "alice"), needed=1)
    assert summary(stand)[0] == "PASSED"
    key = str(next(stand.work.glob("*.pub")))
    (stand.layout.root / "index.json").write_text("{")
    for words in (
        ["--public-key", key],
        ["--public-key", key, "--policy", "x"],
        ["--public-key", str(stand.work / "no")],
    ):
        vsa.write_text("PASSED")
        result = CliRunner().invoke(app, ["verify", f"oci:{stand.layout.root}", *words, "--vsa", str(vsa)])
        assert result.exit_code != 0
        assert not vsa.exists(), words


def test_policy_digest_in_summary_depends_on_signer_and_level(stand: Stand) -> None:
    said, other = stand.provenance(), ed25519_signer()
    stand.say_all(provenance=said)
    for statement in (stand.sbom_statement(), said):
        stand.say(statement, other)

    def policy() -> str:
        return str(json.loads((stand.work / "vsa.json").read_text())["predicate"]["policy"]["digest"]["sha256"])

    seen = set()
    for listed, signer in (((), stand.signer), ((), other), (((BOB, other, 2),), other), (((BOB, other, 3),), other),
                           (((BOB, stand.signer, 3),), other)):  # fmt: skip
        level(stand, *listed, signer=signer)
        seen.add(policy())
    assert len(seen) == 5


@pytest.mark.parametrize("text", ["", "builder = 3", "[[builder]]\nid = 'a'", "[[builder]\n", "builder = [3]",
     "[[builder]]\nid = 'a'\noperator = 'o'\nidentity = 'i'\nissuer = 's'\nlevel = 4",
     "[[builder]]\nid = 'a'\noperator = 'o'\nidentity = 'i'\nissuer = 's'\nlevel = true",
     "[[builder]]\nid = 'a'\noperator = 'o'\nidentity = 'i'\nissuer = 's'\nhosted = 'yes'",
     "builder = " + "[" * 3000 + "]" * 3000, "\ufeff[[builder]]"],
)  # fmt: skip
def test_malformed_list_of_builders_is_refused(stand: Stand, text: str) -> None:
    path = stand.work / "builders.toml"
    path.write_text(text)
    words = ["verify", f"oci:{stand.layout.root}", "--rebuilders", "1", "--builders", str(path)]
    assert CliRunner().invoke(app, words).exit_code == ConfigError.code
    assert CliRunner().invoke(app, words[:4]).exit_code == ConfigError.code
    assert CliRunner().invoke(app, [*words[:2], *words[4:]]).exit_code == ConfigError.code


def test_attest_needs_a_reference_a_key_and_a_builder_before_it_builds(stand: Stand) -> None:
    (stand.work / "key").write_text("no key")
    attest = ["--attest", str(stand.work / "key")]
    for image, *more in (("llvm", "--builder-id", ALICE), (f"oci:{stand.layout.root}:thing", "--builder-id", ALICE),
                         ("llvm",), ("llvm", "--builder-id", "no uri")):  # fmt: skip
        done = CliRunner().invoke(app, ["reproduce", image, *attest, *more])
        assert done.exit_code == ConfigError.code, done.output
