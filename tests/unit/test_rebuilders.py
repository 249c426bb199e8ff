"""`verify --rebuilders`: only true statements by different given keys count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.evidence_fixtures import Stand, ed25519_signer, p256_signer
from toolchain.cli.app import app
from toolchain.core.errors import ConfigError, UntrustedError
from toolchain.oci.image import diff_ids_of
from toolchain.oci.layout import Layout
from toolchain.oci.places import open_place
from toolchain.publish.attestations import attach_statement
from toolchain.trust import attest
from toolchain.trust.keys import Signer
from toolchain.trust.rebuilt import PREDICATE, statement


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(Layout(tmp_path / "lay"), tmp_path / "work")


def result(stand: Stand, *, equal: bool = True) -> dict[str, Any]:
    """What `reproduce` came to."""
    layer = diff_ids_of(stand.layout.read_json(stand.layout.children(stand.manifest)[0]))[-1]
    other = "sha256:" + "0" * 64
    return {
        "image": "thing",
        "input_digest": stand.image_facts.record.input_digest,
        "equal": equal,
        "diff_ids": [layer, layer if equal else other],
        "differing": []
        if equal
        else [{"path": "usr/a", "what": "content", "offset": 7, "first": "00", "second": "01"}],
    }


def say(stand: Stand, signer: Signer, *, about: list[str] | None = None, equal: bool = True, **changes: Any) -> int:
    digests = [stand.manifest.digest, stand.index.digest]
    said = statement("thing", about or digests, result(stand, equal=equal))
    said["predicate"].update(changes)
    with open_place(stand.ref) as place:
        return attach_statement(said, digests, place, kind="rebuilt", signer=signer, scratch=stand.work).pushed_bytes


def check(stand: Stand, *signers: Signer, needed: int = 0, code: int = 0) -> dict[str, Any]:
    words = []
    for number, signer in enumerate(signers):
        path = stand.work / f"{number}.pub"
        path.write_bytes(signer.public.pem())
        words += ["--rebuilder-key", str(path)]
    count = str(needed or len(signers))
    done = CliRunner().invoke(app, ["verify", f"oci:{stand.layout.root}", "--rebuilders", count, *words, "--json"])
    assert done.exit_code == code, done.output
    told = json.loads(done.stdout)
    return dict(told["images"][0]) if "images" in told else dict(told)


def test_two_keys_count_and_are_told(stand: Stand) -> None:
    one, two = ed25519_signer(), p256_signer()
    say(stand, one)
    assert check(stand, one, two, needed=1)["checks"]["rebuilders"].startswith("1 of 2 keys")
    assert "2 are needed" in check(stand, one, two, code=UntrustedError.code)["problems"][0]
    say(stand, two)
    assert check(stand, one, two)["checks"]["rebuilders"].startswith("2 of 2 keys")


def test_nothing_private_is_said(stand: Stand) -> None:
    said = statement("thing", [stand.manifest.digest], result(stand))
    assert said["predicateType"] == PREDICATE
    assert said["predicate"].keys() == {
        "result", "inputDigest", "diffId", "rebuiltDiffId", "firstDifference", "machine",
    }  # fmt: skip
    assert said["predicate"]["machine"].keys() == {"architecture", "kernel", "tool"}
    assert said["predicate"]["machine"]["kernel"].count(".") == 1


@pytest.mark.parametrize(
    "lie",
    [
        {"about": ["sha256:" + "1" * 64]},
        {"equal": False},
        {"diffId": "sha256:" + "2" * 64},
        {"rebuiltDiffId": "sha256:" + "2" * 64},
        {"inputDigest": "sha256:" + "3" * 64},
        {"inputDigest": None},
        {"result": "Equal"},
    ],
)
def test_what_is_about_something_else_does_not_count(stand: Stand, lie: dict[str, Any]) -> None:
    signer = ed25519_signer()
    say(stand, signer, **lie)
    told = check(stand, signer, code=UntrustedError.code)
    assert told["problems"][0].startswith("rebuilders: 0 of 1 keys")


def test_a_key_counts_once_whatever_it_says_twice(stand: Stand) -> None:
    one, stranger = ed25519_signer(), ed25519_signer()
    say(stand, one)
    say(stand, one, machine={"architecture": "riscv64"})
    say(stand, stranger)
    two = ed25519_signer()
    assert check(stand, one, two, code=UntrustedError.code)["problems"][0].startswith("rebuilders: 1 of 2")
    # One key in two files cannot be two rebuilders.
    assert check(stand, one, one, code=ConfigError.code)["error"] == "Configuration"


def test_a_key_that_got_other_bytes_is_named(stand: Stand) -> None:
    one, two = ed25519_signer(), ed25519_signer()
    say(stand, one)
    say(stand, two, equal=False)
    assert two.public.id in check(stand, one, two, needed=1)["checks"]["rebuilders"]
    say(stand, two)
    assert "2 of 2" in check(stand, one, two)["checks"]["rebuilders"]


def test_another_statement_by_a_rebuilder_is_none(stand: Stand) -> None:
    signer = ed25519_signer()
    stand.say_all()
    stand.say(attest.provenance(stand.image_facts, stand.subjects()), signer)
    stand.attach(b"no envelope")
    check(stand, signer, code=UntrustedError.code)


@pytest.mark.parametrize("words", [["--rebuilders", "1"], ["--rebuilder-key", "KEY"]])
def test_both_options_belong_together(stand: Stand, words: list[str]) -> None:
    (stand.work / "key.pub").write_bytes(ed25519_signer().public.pem())
    words = [word.replace("KEY", str(stand.work / "key.pub")) for word in words]
    assert CliRunner().invoke(app, ["verify", f"oci:{stand.layout.root}", *words]).exit_code == ConfigError.code


def test_attest_needs_a_reference_and_a_key_before_it_builds(stand: Stand) -> None:
    (stand.work / "key").write_text("no key")
    for image in ("llvm", f"oci:{stand.layout.root}:thing"):
        done = CliRunner().invoke(app, ["reproduce", image, "--attest", str(stand.work / "key")])
        assert done.exit_code == ConfigError.code, done.output
