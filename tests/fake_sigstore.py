"""A Sigstore in one process, with a certificate authority, a log of certificates and a log of signatures."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import hashlib
import json
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from toolchain.core.digest import canonical

_ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_SCTS = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_ALWAYS = {"start": "2020-01-01T00:00:00Z"}


def _b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


class _Log:
    """A key, and the id that Sigstore derives from it."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        self.public = self.key.public_key().public_bytes(serialization.Encoding.DER, form)
        self.id = _sha256(self.public)

    def sign(self, content: bytes) -> bytes:
        return self.key.sign(content, ec.ECDSA(hashes.SHA256()))

    def as_json(self, url: str) -> dict[str, Any]:
        key = {"rawBytes": _b64(self.public), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": _ALWAYS}
        return {"baseUrl": url, "hashAlgorithm": "SHA2_256", "publicKey": key, "logId": {"keyId": _b64(self.id)}}


class FakeSigstore(ThreadingHTTPServer):
    """A Sigstore that accepts every token.

    Args:
        statuses: the statuses to answer with, by the start of a path; with -1, a request gets no answer.
        name: the name to write into certificates; None for the subject of the token.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.certificates, self.signatures = _Log(), _Log()
        self.statuses: dict[str, int] = {}
        self.name: str | None = None
        self.entries: list[bytes] = []
        self.over = threading.Event()
        self._root = _Log()
        self._name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "fake sigstore")])
        self.root = self._certificate(self._name, self._root.key.public_key(), ca=True)

    def write_config(self, path: Path) -> Path:
        """Write the trust config of this Sigstore."""
        service = {"url": self.url, "majorApiVersion": 1, "validFor": _ALWAYS, "operator": "test"}
        root = self.root.public_bytes(serialization.Encoding.DER)
        chain = {"certificates": [{"rawBytes": _b64(root)}]}
        subject = {"organization": "test", "commonName": "fake sigstore"}
        value = {
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": {
                "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
                "tlogs": [self.signatures.as_json(self.url)],
                "certificateAuthorities": [
                    {"subject": subject, "uri": self.url, "certChain": chain, "validFor": _ALWAYS}
                ],
                "ctlogs": [self.certificates.as_json(self.url)],
                "timestampAuthorities": [],
            },
            "signingConfig": {
                "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
                "caUrls": [service],
                "oidcUrls": [service],
                "rekorTlogUrls": [service],
                "rekorTlogConfig": {"selector": "ANY"},
                "tsaUrls": [],
                "tsaConfig": {"selector": "ANY"},
            },
        }
        path.write_text(json.dumps(value))
        return path

    def _certificate(
        self, name: x509.Name, key: Any, *, ca: bool = False, more: tuple[tuple[x509.ExtensionType, bool], ...] = ()
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateBuilder(
                subject_name=name, issuer_name=self._name, public_key=key, serial_number=len(more) + 7
            )
            .not_valid_before((now - dt.timedelta(minutes=1)).replace(microsecond=0))
            .not_valid_after((now + dt.timedelta(minutes=10)).replace(microsecond=0))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._root.key.public_key()), critical=False
            )
            .add_extension(x509.KeyUsage(not ca, False, False, False, False, ca, ca, False, False), critical=True)
        )
        for extension, critical in more:
            made = made.add_extension(extension, critical=critical)
        if more:
            # The log signs the certificate without the extension that will contain the signature.
            plain = made.sign(self._root.key, hashes.SHA256()).tbs_certificate_bytes
            made = made.add_extension(x509.UnrecognizedExtension(_SCTS, self._scts(plain)), critical=False)
        return made.sign(self._root.key, hashes.SHA256())

    def _scts(self, tbs: bytes) -> bytes:
        stamp = int(time.time() * 1000)
        entry = _sha256(self._root.public) + struct.pack("!I", len(tbs))[1:] + tbs
        signature = self.certificates.sign(struct.pack("!BBQH", 0, 0, stamp, 1) + entry + b"\0\0")
        one = b"\0" + self.certificates.id + struct.pack("!QHBBH", stamp, 0, 4, 3, len(signature)) + signature
        many = struct.pack("!H", len(one) + 2) + struct.pack("!H", len(one)) + one
        assert len(many) < 256
        return b"\x04" + (bytes([len(many)]) if len(many) < 128 else bytes([0x81, len(many)])) + many

    def certify(self, token: str, request: bytes) -> list[str]:
        """Return the certificate chain for the identity that the token names."""
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        who = self.name or claims["sub"]
        key = x509.load_pem_x509_csr(request).public_key()
        more: tuple[tuple[x509.ExtensionType, bool], ...] = (
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), False),
            (x509.SubjectAlternativeName([x509.UniformResourceIdentifier(who)]), True),
            (x509.UnrecognizedExtension(_ISSUER, claims["iss"].encode()), False),
        )
        leaf = self._certificate(x509.Name([]), key, more=more)
        return [one.public_bytes(serialization.Encoding.PEM).decode() for one in (leaf, self.root)]

    def enter(self, proposed: dict[str, Any]) -> dict[str, Any]:
        """Return the log's entry for a DSSE envelope; each entry is the only leaf of its own tree."""
        content = proposed["spec"]["proposedContent"]
        envelope = json.loads(content["envelope"])
        payload = base64.b64decode(envelope["payload"])
        body = canonical(
            {
                "apiVersion": "0.0.1",
                "kind": "dsse",
                "spec": {
                    "envelopeHash": {"algorithm": "sha256", "value": _sha256(content["envelope"].encode()).hex()},
                    "payloadHash": {"algorithm": "sha256", "value": _sha256(payload).hex()},
                    "signatures": [
                        {"signature": envelope["signatures"][0]["sig"], "verifier": content["verifiers"][0]}
                    ],
                },
            }
        )
        self.entries.append(body)
        top = _sha256(b"\0" + body)
        note = f"fake\n1\n{_b64(top)}\n"
        signed = _b64(self.signatures.id[:4] + self.signatures.sign(note.encode()))
        entry = {
            "body": _b64(body),
            "integratedTime": int(time.time()),
            "logID": self.signatures.id.hex(),
            "logIndex": 0,
        }
        proof = {"logIndex": 0, "rootHash": top.hex(), "treeSize": 1, "hashes": [],
                 "checkpoint": f"{note}\n\u2014 fake {signed}\n"}  # fmt: skip
        promise = _b64(self.signatures.sign(canonical(entry)))
        return {"0" * 64: {**entry, "verification": {"inclusionProof": proof, "signedEntryTimestamp": promise}}}


class _Handler(BaseHTTPRequestHandler):
    server: FakeSigstore

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = next((code for path, code in self.server.statuses.items() if self.path.startswith(path)), 0)
        if status < 0:
            self.server.over.wait(60)
            return
        if status:
            # A careless server repeats the token, which the client must not show.
            value: Any = {"message": f"as asked, {self.headers.get('Authorization', '')}"}
        elif self.path.startswith("/api/v2/signingCert"):
            token = self.headers["Authorization"].removeprefix("Bearer ")
            chain = self.server.certify(token, base64.b64decode(body["certificateSigningRequest"]))
            value = {"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}
        else:
            value = self.server.enter(body)
        content = json.dumps(value).encode()
        self.send_response(status or 201)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def token(name: str, issuer: str, *, lives: float = 600, more: Mapping[str, str] | None = None) -> str:
    """Return a token like one of an OIDC issuer, but with an invalid signature."""
    now = int(time.time())
    claims = {"iss": issuer, "sub": name, "aud": "sigstore", "iat": now - 5, "nbf": now - 5, "exp": now + int(lives)}
    claims |= more or {}
    parts = [json.dumps(one).encode() for one in ({"alg": "RS256", "typ": "JWT"}, claims)]
    return ".".join(base64.urlsafe_b64encode(one).decode().rstrip("=") for one in (*parts, b"not-signed-51"))


@contextlib.contextmanager
def fake_sigstore() -> Iterator[FakeSigstore]:
    """Run a Sigstore in a thread, and yield it."""
    with FakeSigstore() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join(10)
