"""Tests of signing and verification by identity, with a fake Sigstore."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.evidence_fixtures import Stand, finished_base
from tests.fake_registry import fake_registry
from tests.fake_sigstore import FakeSigstore, fake_sigstore, token
from tests.places import attach_evidence, referrers, verify
from tests.refusals import refused
from tests.registry_fixtures import free_port
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError, UnreachableError, UntrustedError
from toolchain.oci.layout import Layout
from toolchain.trust import keyless
from toolchain.trust.attest import PREDICATE
from toolchain.trust.keyless import Identity, Keyless
from toolchain.trust.policy import Policy
from toolchain.trust.sbom import CYCLONEDX, SPDX
from toolchain.trust.verify import Verdict

WHO = "https://github.example/me/it/.github/workflows/publish.yml@refs/tags/v1"
ISSUER = "https://token.example"


@dataclass
class Place:
    stand: Stand
    server: FakeSigstore
    config: Path

    @property
    def identity(self) -> Identity:
        return Identity(WHO, ISSUER, self.config)

    def publish(self) -> int:
        """Sign and attach the evidence, and return the number of entries in the log."""
        stand = self.stand
        signer = Keyless(self.config)
        done = attach_evidence(
            stand.image_facts, stand.layout, stand.manifest, stand.index, stand.ref,
            signer=signer, scratch=stand.work,
        )  # fmt: skip
        assert done.signed_by == f"{WHO} (vouched for by {ISSUER})"
        return len(self.server.entries)

    def look(self, identity: Identity | None = None, **demands: Any) -> Verdict:
        stand = self.stand
        return verify(stand.ref, stand.layout, stand.index, key=identity or self.identity, demands=Policy(**demands))


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of CI systems and the token from the environment."""
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", keyless.TOKEN):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: None) -> Iterator[Place]:
    pytest.importorskip("sigstore", reason="sigstore is NOT INSTALLED: signing by identity is not tested")
    monkeypatch.setenv(keyless.TOKEN, token(WHO, ISSUER))
    with fake_sigstore() as server:
        stand = Stand(Layout(tmp_path / "lay out"), tmp_path / "work")
        yield Place(stand, server, server.write_config(tmp_path / "trust config.json"))


def test_image_signed_by_identity_is_trusted_by_identity_but_not_by_key(place: Place) -> None:
    assert place.publish() == 3, "two SBOMs and the provenance"
    verdict = place.look(source_only=True)
    assert (verdict.verdict, verdict.problems) == ("trusted", [])
    assert verdict.checks["signature"] == f"by {WHO} (vouched for by {ISSUER})"
    assert verdict.provenance is not None
    for subject in (place.stand.manifest, place.stand.index):
        noted = [
            one.annotations["dev.sigstore.bundle.predicateType"] for one in referrers(place.stand.ref, subject.digest)
        ]
        assert set(noted) == {SPDX.predicate, CYCLONEDX.predicate, PREDICATE}
    # Verification by key does not accept a signature by identity.
    key = place.stand.signer.public
    assert verify(place.stand.ref, place.stand.layout, place.stand.index, key=key).verdict == "untrusted"


def test_unchanged_statement_is_not_signed_again(place: Place) -> None:
    assert (place.publish(), place.publish()) == (3, 3)
    place.stand.image_facts = replace(place.stand.image_facts, finished=1.0)
    changed = replace(place.stand.image_facts.record, finished=1767229999.0)
    place.stand.image_facts = replace(place.stand.image_facts, record=changed)
    assert place.publish() == 4, "the provenance alone says something new"


def test_signature_of_another_identity_issuer_or_sigstore_is_untrusted(place: Place, tmp_path: Path) -> None:
    place.publish()
    for name, issuer in ((WHO.replace("v1", "v2"), ISSUER), (WHO, "https://other.example"), ("", ISSUER)):
        verdict = place.look(Identity(name, issuer, place.config))
        assert (verdict.verdict, verdict.id) == ("untrusted", "signature-other-key")
    with fake_sigstore() as other:
        verdict = place.look(Identity(WHO, ISSUER, other.write_config(tmp_path / "other.json")))
        assert verdict.verdict == "untrusted", "another Sigstore vouched for it"


def _flip(text: str) -> str:
    content = bytearray(base64.b64decode(text))
    content[-1] ^= 1
    return base64.b64encode(content).decode()


@pytest.mark.parametrize(
    "path",
    [
        ("dsseEnvelope", "payload"),
        ("dsseEnvelope", "payloadType"),
        ("dsseEnvelope", "signatures", 0, "sig"),
        ("verificationMaterial", "certificate", "rawBytes"),
        ("verificationMaterial", "tlogEntries", 0, "canonicalizedBody"),
        ("verificationMaterial", "tlogEntries", 0, "inclusionPromise", "signedEntryTimestamp"),
        ("verificationMaterial", "tlogEntries", 0, "inclusionProof", "rootHash"),
        ("verificationMaterial", "tlogEntries", 0, "inclusionProof", "checkpoint", "envelope"),
        ("verificationMaterial", "tlogEntries"),
    ],
    ids=lambda path: ".".join(str(part) for part in path),
)
def test_changed_bundle_is_refused(place: Place, path: tuple[str | int, ...]) -> None:
    statement = place.stand.sbom_statement()
    content = Keyless(place.config).sign(statement)
    assert json.loads(place.identity.opened(content).payload) == statement
    value = json.loads(content)
    at = value
    for part in path[:-1]:
        at = at[part]
    old = at[path[-1]]
    match path[-1]:
        case "payloadType":
            at[path[-1]] = "text/plain"
        case "envelope":
            at[path[-1]] = old.replace("fake\n1\n", "fake\n2\n")
        case "tlogEntries":
            at[path[-1]] = []
        case _:
            at[path[-1]] = _flip(old)
    with pytest.raises(UntrustedError):
        place.identity.opened(json.dumps(value).encode())


@pytest.mark.parametrize("content", [b"", b"{}", b"[", b"[" * 100_000, b'{"mediaType": 5}', b"\xff"])
def test_malformed_bundle_is_refused(place: Place, content: bytes) -> None:
    with pytest.raises(UntrustedError):
        place.identity.opened(content)


def test_missing_or_unusable_token_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(keyless.TOKEN)
    with refused("identity-missing") as caught:
        Keyless(place.config)
    assert "id-token: write" in caught.value.fix
    for bad in ("x", token(WHO, ISSUER, lives=-3600)):
        monkeypatch.setenv(keyless.TOKEN, bad)
        with refused("identity-unusable") as caught:
            Keyless(place.config)
        assert bad not in str(caught.value) or bad == "x"


def test_expired_token_is_requested_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    signer = Keyless(place.config)
    monkeypatch.setattr(signer._token, "_exp", 1)
    statement = place.stand.sbom_statement()
    assert signer.sign(statement)
    monkeypatch.setattr(signer._token, "_exp", 1)
    monkeypatch.delenv(keyless.TOKEN)
    with refused("identity-missing"):
        signer.sign(statement)


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/api/v2", 403, ConfigError),
        ("/api/v2", 503, UnreachableError),
        ("/api/v1", 400, ConfigError),
        ("/api/v1", 502, UnreachableError),
    ],
)
def test_error_status_of_sigstore_is_reported_without_the_token(
    place: Place, path: str, status: int, error: type[Exception]
) -> None:
    place.server.statuses[path] = status
    signer = Keyless(place.config)
    with refused("sigstore-refused") as caught:
        signer.sign(place.stand.sbom_statement())
    assert str(signer._token) not in str(caught.value) + repr(signer)
    assert caught.value.__cause__ is None, "the library's error holds the request, token included"


def test_sigstore_that_does_not_answer_is_unreachable(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    signer, statement = Keyless(place.config), place.stand.sbom_statement()
    monkeypatch.setattr(keyless, "PATIENCE", 0.5)
    place.server.statuses["/api/v1"] = -1
    with refused("sigstore-unreachable"):
        signer.sign(statement)
    value = json.loads(place.config.read_text())
    value["signingConfig"]["caUrls"][0]["url"] = f"http://127.0.0.1:{free_port()}"
    place.config.write_text(json.dumps(value))
    monkeypatch.setattr(keyless, "PATIENCE", 60)
    with refused("sigstore-unreachable"):
        signer.sign(statement)


def test_malformed_or_missing_trust_config_is_refused(place: Place, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{")
    for path in (tmp_path / "x", tmp_path / "none"):
        with refused("trust-config-malformed"):
            Identity(WHO, ISSUER, path).opened(b"{}")


def test_missing_sigstore_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sigstore", None)
    monkeypatch.setitem(sys.modules, "sigstore.models", None)
    with refused("sigstore-missing"):
        Keyless()


def test_listed_identity_is_a_rebuilder_and_grants_its_level(place: Place, tmp_path: Path) -> None:
    facts = place.stand.image_facts
    built = replace(facts.record, tool={**facts.record.tool, "builder": "https://ci.example/build"})
    place.stand.image_facts = replace(facts, record=built)
    place.publish()
    words = ["verify", f"oci:{place.stand.layout.root}", "--sigstore", str(place.config), "--identity", WHO,
             "--issuer", ISSUER, "--builders", str(tmp_path / "list"), "--vsa", str(tmp_path / "vsa")]  # fmt: skip
    row = f'[[builder]]\nid = "https://ci.example/build"\noperator = "ci"\nidentity = "{WHO}"\nlevel = 3\n'
    for issuer, level, code in ((ISSUER, 3, 0), ("https://other.example", 1, 17)):
        (tmp_path / "list").write_text(f'{row}issuer = "{issuer}"\n')
        assert CliRunner().invoke(app, words).exit_code == 0
        said = json.loads((tmp_path / "vsa").read_text())["predicate"]["verifiedLevels"]
        assert said == [f"SLSA_BUILD_LEVEL_{level}"]
        assert CliRunner().invoke(app, [*words, "--rebuilders", "1"]).exit_code == code


def test_commands_publish_and_verify_by_identity_without_leaking_the_token(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "cache")
    finished_base(cache, tmp_path / "base")
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(cache.root))
    monkeypatch.setenv("TOOLCHAIN_SIGSTORE", str(place.config))
    secret, said = os.environ[keyless.TOKEN], []

    def call(*words: str) -> Result:
        found = CliRunner().invoke(app, ["-v", "-v", *words])
        said.append(found.stdout + found.stderr)
        return found

    name = ("--identity", WHO, "--issuer", ISSUER)
    with fake_registry() as server:
        publish = ("publish", f"{server.host}/ns", "toolchain-base", "--keyless", "--json")
        done = call(*publish)
        assert done.exit_code == 0, done.stderr
        (row,) = json.loads(done.stdout)["published"]
        assert row["evidence"]["signed_by"].startswith(WHO)
        (row,) = json.loads(call(*publish).stdout)["published"]
        assert (row["pushed_bytes"], row["evidence"]["pushed_bytes"]) == (0, 0)
        ref = f"{server.host}/ns/toolchain-base-debian13"
        good = call("verify", ref, *name, "--policy", "source-only")
        assert (good.exit_code, good.stdout.endswith("\ttrusted\ttoolchain-base-debian13\n")) == (0, True), good.stderr
        assert call("verify", ref, "--identity", "me", "--issuer", ISSUER).exit_code == 17
        monkeypatch.delenv(keyless.TOKEN)
        server.seen.clear()
        assert (call(*publish).exit_code, server.seen) == (3, []), "told before anything is sent"
        stored = b"".join([*server.blobs.values(), *(content for _, content in server.manifests.values())])
        # For an empty issuer, sigstore would skip the check of the issuer.
        alone = (("--identity", "me"), ("--issuer", "x"), (*name, "--public-key", "x"), (*name[:3], ""))
        for words in alone:
            assert call("verify", ref, *words).exit_code == 3
        assert call(*publish, "--key", "x").exit_code == 3
    records = b"".join(path.read_bytes() for path in cache.root.rglob("*") if path.is_file())
    for part in (secret, *secret.split(".")[1:], "not-signed-51"):
        assert part.encode() not in "".join(said).encode() + stored + records


_CIRCLE = {"oidc.circleci.com/project-id": "a1", "oidc.circleci.com/pipeline-definition-id": "b2"}
_WORKFLOW = "me/app/.github/workflows/p.yml@refs/heads/main"


@pytest.mark.parametrize(
    ("issuer", "claims", "name"),
    [
        (
            "https://token.actions.githubusercontent.com",
            {"job_workflow_ref": _WORKFLOW},
            f"https://github.com/{_WORKFLOW}",
        ),
        (
            "https://token.actions.githubusercontent.com/firm",
            {"job_workflow_ref": _WORKFLOW},
            f"https://github.com/{_WORKFLOW}",
        ),
        ("https://gitlab.com", {"ci_config_ref_uri": "gitlab.com/a//b@c"}, "https://gitlab.com/a//b@c"),
        (
            "https://agent.buildkite.com",
            {"organization_slug": "firm", "pipeline_slug": "app"},
            "https://buildkite.com/firm/app",
        ),
        (
            "https://oidc.circleci.com",
            _CIRCLE,
            "https://circleci.com/api/v2/projects/a1/pipeline-definitions/b2",
        ),
        (
            "https://oidc.circleci.com/org/f0",
            _CIRCLE,
            "https://circleci.com/api/v2/projects/a1/pipeline-definitions/b2",
        ),
    ],
)
def test_name_in_the_certificate_is_known_before_the_first_signature(
    place: Place, monkeypatch: pytest.MonkeyPatch, issuer: str, claims: dict[str, str], name: str
) -> None:
    monkeypatch.setenv(keyless.TOKEN, token("subject:of:the:token", issuer, more=claims))
    place.server.name = name
    signer = Keyless(place.config)
    assert (signer.identity.name, signer.identity.issuer) == (name, issuer)
    assert signer.identity.opened(signer.sign(place.stand.provenance())).payload


def test_publish_reports_the_identity_in_the_certificate(place: Place) -> None:
    place.server.name = "https://ci.example/another/name"
    stand = place.stand
    done = attach_evidence(
        stand.image_facts, stand.layout, stand.manifest, stand.index, stand.ref,
        signer=Keyless(place.config), scratch=stand.work,
    )  # fmt: skip
    assert done.signed_by == f"{place.server.name} (vouched for by {ISSUER})"
    assert place.look(Identity(place.server.name, ISSUER, place.config)).verdict == "trusted"
