"""Keys, envelopes, provenance."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import shutil
import stat
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.evidence_fixtures import BASE, COMMIT, LLVM, ed25519_signer, image_facts, p256_signer, record
from tests.refusals import refused
from toolchain.core.digest import canonical
from toolchain.core.errors import ConfigError, UntrustedError
from toolchain.core.record import RecordedSource
from toolchain.trust import attest, dsse, keys
from toolchain.trust.contents import of_provenance, of_records
from toolchain.trust.image_facts import ImageFacts
from toolchain.trust.invocation import request_command
from toolchain.trust.keys import PublicKey, load_public, load_signer, new_key
from toolchain.trust.statements import opened

SUBJECT = attest.subjects("thing", [f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"])

TOP = Path(__file__).resolve().parents[2]


def test_signed_bytes_match_example_of_dsse() -> None:
    # The example is from the text of the DSSE protocol.
    assert dsse.pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


@pytest.mark.parametrize("make", [ed25519_signer, p256_signer])
def test_signature_is_valid_only_for_its_key_and_content(make: Any) -> None:
    signer, other = make(), make()
    envelope = dsse.sign({"b": 1, "a": "ä"}, signer)
    assert envelope == dsse.sign({"b": 1, "a": "ä"}, signer), "otherwise a second publish would attach it again"
    back = dsse.read(envelope.as_bytes())
    assert back == envelope
    assert json.loads(back.payload) == {"a": "ä", "b": 1}
    assert back.signed_by(signer.public)
    assert not back.signed_by(other.public)
    assert not back.signed_by(ed25519_signer().public)
    changed = dsse.Envelope(back.payload_type, back.payload.replace(b"1", b"2"), back.signatures)
    assert not changed.signed_by(signer.public)
    retyped = dsse.Envelope("application/json", back.payload, back.signatures)
    assert not retyped.signed_by(signer.public)
    # A signature under another key's id is invalid, because it is checked with that key.
    claimed = dsse.Envelope(back.payload_type, back.payload, ((other.public.id, back.signatures[0][1]),))
    assert not claimed.signed_by(other.public)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"payload":"!","payloadType":"x","signatures":[{"sig":"AA=="}]}',
        b'{"payload":"AA==","payloadType":"x","signatures":[]}',
        b'{"payload":"AA==","payloadType":"x","signatures":[{}]}',
        b'{"payload":"AA==","payloadType":"x","signatures":7}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_malformed_envelope_is_refused(content: bytes) -> None:
    with pytest.raises(UntrustedError):
        dsse.read(content)


def test_statement_as_large_as_sbom_of_100000_files_is_read() -> None:
    statement = attest.statement([], "x", {"files": "x" * 75_000_000})
    envelope = dsse.sign(statement, ed25519_signer())
    for back in (dsse.read(envelope.as_bytes()), dsse.from_bundle(canonical({"dsseEnvelope": envelope.as_json()}))):
        assert opened(back) == statement


def test_new_key_is_private_and_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLCHAIN_KEY_PASSPHRASE", raising=False)
    path = tmp_path / "my 'keys'" / "key"
    path.parent.mkdir()
    made = new_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_signer(path).public.id == made.id == load_public(path.with_name("key.pub")).id
    assert load_public(path).id == made.id, "of a private key its public half"
    before = path.read_bytes()
    with refused("key-exists"):
        new_key(path)
    assert path.read_bytes() == before
    path.unlink()
    with refused("key-exists"):
        new_key(path)


def test_new_key_creates_no_folder(tmp_path: Path) -> None:
    """ssh-keygen and cosign do not create one either, because a misspelt path is no place for a secret."""
    with refused("output-unwritable"):
        new_key(tmp_path / "my keys" / "key")
    for name in ("", "/"):
        with refused("not-a-file-name"):
            new_key(Path(name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "told"),
    [(OSError(errno.ENOSPC, "No space left on device"), ConfigError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_failed_key_pair_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, told: type[BaseException]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(keys, "write_atomically", fails)
    with pytest.raises(told):
        new_key(tmp_path / "key")
    assert list(tmp_path.iterdir()) == []


def test_key_with_passphrase_is_encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCHAIN_KEY_PASSPHRASE", "open sesame")
    made = new_key(tmp_path / "key")
    assert b"ENCRYPTED" in (tmp_path / "key").read_bytes()
    assert load_signer(tmp_path / "key").public.id == made.id
    for said in ("wrong", ""):
        monkeypatch.setenv("TOOLCHAIN_KEY_PASSPHRASE", said)
        with refused("not-a-private-key") as caught:
            load_signer(tmp_path / "key")
        assert "sesame" not in str(caught.value)


def test_passphrase_may_be_any_bytes_but_not_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCHAIN_KEY_PASSPHRASE", os.fsdecode(b"\xff"))
    assert new_key(tmp_path / "key").id == load_signer(tmp_path / "key").public.id
    monkeypatch.setenv("TOOLCHAIN_KEY_PASSPHRASE", "x" * 1024)
    with refused("passphrase-too-long", "1,024"):
        new_key(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def pem(key: Any) -> bytes:
    return bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


@contextlib.contextmanager
def piped(content: bytes) -> Iterator[Path]:
    """Yield a path that supplies `content` once, as a process substitution of a shell does."""
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    try:
        yield Path(f"/dev/fd/{reading}")
    finally:
        os.close(reading)


@pytest.mark.parametrize("secret", ["", "open sesame"])
def test_key_is_read_from_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv("TOOLCHAIN_KEY_PASSPHRASE", secret)
    made = new_key(tmp_path / "key")
    both: tuple[Callable[[Path], PublicKey], ...] = (lambda path: load_signer(path).public, load_public)
    for load in both:
        with piped((tmp_path / "key").read_bytes()) as path:
            assert load(path).id == made.id
    with piped((tmp_path / "key.pub").read_bytes()) as path:
        assert load_public(path).id == made.id


COSIGN = "-----BEGIN ENCRYPTED {} PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED {} PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("content", "fix"),
    [
        ("", "keygen"),
        (ed25519_signer().public.pem().decode(), "FILE.pub"),
        (COSIGN.replace("{}", "SIGSTORE"), "cosign import-key-pair"),
        (COSIGN.replace(" {}", ""), "TOOLCHAIN_KEY_PASSPHRASE"),
        (COSIGN.replace("ENCRYPTED {}", "OPENSSH"), "keygen"),
    ],
    ids=["empty", "public", "sigstore", "encrypted", "openssh"],
)
def test_invalid_private_key_is_refused_with_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, fix: str
) -> None:
    monkeypatch.delenv("TOOLCHAIN_KEY_PASSPHRASE", raising=False)
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_signer(path)
    assert fix in caught.value.fix
    if "PUBLIC" not in content:
        with pytest.raises(ConfigError):
            load_public(path)


def test_unsupported_kind_of_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(pem(ec.generate_private_key(ec.SECP384R1())))
    with refused("key-kind"):
        load_signer(path)
    weak = rsa.generate_private_key(65537, 2048).public_key()
    path.write_bytes(weak.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    with refused("key-kind"):
        load_public(path)
    path.write_bytes(p256_signer().public.pem())
    load_public(path)
    with refused("not-a-private-key"):
        load_signer(path)
    with refused("key-unreadable"):
        load_public(tmp_path / "none")


def test_repr_of_signer_hides_private_key() -> None:
    signer = ed25519_signer()
    assert base64.b64encode(signer.key.private_bytes_raw()).decode() not in repr(signer)  # type: ignore[union-attr]


def test_openssl_verifies_signature(tmp_path: Path) -> None:
    """The test runs the commands of docs/trust.md, with which users check a signature without the tool."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is NOT INSTALLED: that others can check a signature is not tested")
    for signer, words in ((ed25519_signer(), ["-rawin"]), (p256_signer(), ["-rawin", "-digest", "sha256"])):
        envelope = json.loads(dsse.sign({"a": 1}, signer).as_bytes())
        payload = base64.b64decode(envelope["payload"])
        (tmp_path / "signed").write_bytes(dsse.pae(envelope["payloadType"], payload))
        (tmp_path / "sig").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
        (tmp_path / "pub").write_bytes(signer.public.pem())
        command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "pub", *words]
        command += ["-in", "signed", "-sigfile", "sig"]
        good = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert good.returncode == 0, good.stderr
        (tmp_path / "signed").write_bytes(b"something else")
        assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode != 0


# Provenance


def test_provenance_has_sources_base_times_and_probe() -> None:
    said = attest.provenance(image_facts(), SUBJECT)
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "https://slsa.dev/provenance/v1"
    assert [one["digest"] for one in said["subject"]] == [{"sha256": "1" * 64}, {"sha256": "2" * 64}]
    definition, run = said["predicate"]["buildDefinition"], said["predicate"]["runDetails"]
    assert definition["externalParameters"]["base"] == "debian13"
    source, base = definition["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": COMMIT}
    assert source["annotations"]["repository"] == LLVM
    assert source["annotations"]["patches"] == [{"name": "fix it.patch", "digest": f"sha256:{'c' * 64}"}]
    assert base["digest"] == {"sha256": BASE.manifest.removeprefix("sha256:")}
    assert run["metadata"] == {"startedOn": "2026-01-01T00:59:00Z", "finishedOn": "2026-01-01T01:00:00Z"}
    probe = run["byproducts"][0]
    shown = json.loads(base64.b64decode(probe["content"]))
    assert shown == {
        "mode": "chroot", "interfaces": 0, "buildah": "1.28.2", "measures": f"sha256:{'4' * 64}", "held": ["mount"],
    }  # fmt: skip
    assert "/root/place" not in canonical(said).decode()


def test_start_of_imported_build_is_not_computed() -> None:
    """A base from a bundle has no times, and its author chose the value of `total_seconds`."""
    base = image_facts(started=None, finished=None, facts={"total_seconds": 1e12})
    metadata = attest.provenance(base, SUBJECT)["predicate"]["runDetails"]["metadata"]
    assert metadata["startedOn"] == metadata["finishedOn"]


def test_the_build_type_is_documented() -> None:
    """BUILD_TYPE must be an address of the documentation once the project has one."""
    urls = tomllib.loads((TOP / "pyproject.toml").read_text())["project"].get("urls", {})
    home = urls.get("Documentation")
    assert (f"{home.rstrip('/')}/trust/#build-type" if home else "urn:toolchain:build:v1") == attest.BUILD_TYPE
    page = (TOP / "docs" / "trust.md").read_text()
    section = page.partition("\n## Build type\n")[2].partition("\n## ")[0]
    definition = attest.provenance(image_facts(), SUBJECT)["predicate"]["buildDefinition"]
    annotations = {name for row in definition["resolvedDependencies"] for name in row["digest"]}
    names = {*definition["internalParameters"], *definition, *annotations} - {"internalParameters"}
    assert [name for name in sorted(names) if f"`{name}`" not in section] == []
    assert f"`{attest.BUILD_TYPE}`" in section


def test_checkout_has_tree_digest_in_provenance() -> None:
    row: dict[str, Any] = {"name": "llvm", "ref": "local:x", "repository": "local", "digest": f"sha256:{'4' * 64}"}
    row |= {"kind": "local", "license": "", "locked": True, "patches": []}
    said = attest.provenance(image_facts(sources=[row]), SUBJECT)
    assert said["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"] == {"toolchainTree": "4" * 64}


def test_request_names_sources_of_dependencies() -> None:
    """Kernels depend on the source of their Triton too, and a checkout is named by the digest of its tree."""
    wheel = {"name": "triton", "ref": "pypi:triton==3.7.1", "repository": "pypi", "digest": f"sha256:{'1' * 64}"}
    tree = {"name": "flash-attn", "ref": "local:mine", "repository": "local", "digest": f"sha256:{'2' * 64}"}
    rest: dict[str, Any] = {"license": "", "locked": True, "patches": []}
    triton = record(
        stage="triton", sources=[wheel | rest | {"kind": "pypi"}], request={"sources": {"triton": "pypi:triton==3.7.1"}}
    )
    asked = {"stage": "kernels", "base": "oci:", "sources": {"flash-attn": "local:mine"}}
    kernels = record(stage="kernels", sources=[tree | rest | {"kind": "local"}], request=asked)
    facts = ImageFacts(record=kernels, dependencies=(BASE, triton))
    assert attest.asked_for(facts) == {
        "stage": "kernels",
        "base": f"oci:DIR@{BASE.manifest}",
        "sources": {"triton": "pypi:triton==3.7.1", "flash-attn": f"stored:mine@sha256:{'2' * 64}"},
    }
    command = request_command(attest.asked_for(facts))
    assert "--source triton=pypi:triton==3.7.1" in command
    inside = of_provenance(attest.provenance(facts, SUBJECT))
    assert inside == of_records(kernels, [BASE, triton])
    assert (str(inside.triton).split()[0], inside.llvm is not None) == ("3.7.1", True)


def test_commit_and_archive_are_written_as_source_options() -> None:
    def spec(**row: Any) -> str:
        return attest.spec_of(RecordedSource(name="llvm", repository=LLVM, digest="d", locked=True, **row))

    assert spec(ref=COMMIT, kind="git") == f"{LLVM}@{COMMIT}"
    assert spec(ref="https://x/y.tar.gz#sha256=1", kind="archive") == "https://x/y.tar.gz#sha256=1"
