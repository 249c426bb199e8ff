"""Read and write DSSE envelopes, which contain a payload and its signatures."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from toolchain.core import strict_json
from toolchain.core.digest import canonical
from toolchain.core.errors import DocumentError, UntrustedError
from toolchain.core.strict_json import Keys
from toolchain.oci import descriptor as media
from toolchain.trust import sbom
from toolchain.trust.keys import PublicKey, Signer

MEDIA_TYPE = media.DSSE
MOST_SIGNATURES = 16
LARGEST = sbom.LARGEST * 4 // 3 + (1 << 20)  # bytes; base64 makes the payload a third larger
_MALFORMED = "it is not JSON, or a field is missing or has another form"
IN_TOTO = "application/vnd.in-toto+json"
_ENVELOPE: Keys = {"payload": None, "payloadType": None, "signatures": dict.fromkeys(("keyid", "sig", "cert"))}
BUNDLE: Keys = {
    **dict.fromkeys(("mediaType", "verificationMaterial", "messageSignature")),
    "dsseEnvelope": _ENVELOPE,
}


@dataclass(frozen=True)
class Envelope:
    """A payload and its signatures.

    Args:
        signatures: the key id and the bytes of each signature. A signature does not protect its key id.
    """

    payload_type: str
    payload: bytes
    signatures: tuple[tuple[str, bytes], ...]

    def as_json(self) -> dict[str, Any]:
        signatures = [{"keyid": key, "sig": base64.b64encode(sig).decode()} for key, sig in self.signatures]
        payload = base64.b64encode(self.payload).decode()
        return {"payload": payload, "payloadType": self.payload_type, "signatures": signatures}

    def as_bytes(self) -> bytes:
        """Return the envelope as canonical JSON, the form in which artifacts contain it."""
        return canonical(self.as_json())

    def signed_by(self, key: PublicKey) -> bool:
        content = pae(self.payload_type, self.payload)
        return any(key.verifies(signature, content) for _, signature in self.signatures)


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that are signed: DSSE's pre-authentication encoding of a payload and its type."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(statement: Any, signer: Signer) -> Envelope:
    """Return an envelope that contains an in-toto statement as canonical JSON, and its signature by `signer`."""
    payload = canonical(statement)
    return Envelope(IN_TOTO, payload, ((signer.public.id, signer.sign(pae(IN_TOTO, payload))),))


def from_bundle(content: bytes) -> Envelope:
    """Return the envelope in a Sigstore bundle, without verifying its signatures.

    The other parts of the bundle, such as a certificate, are ignored. UntrustedError is raised if the bundle is
    malformed, and for an envelope that `read` refuses.
    """
    try:
        value = strict_json.read(content, "the bundle", keys=BUNDLE, limit=LARGEST)["dsseEnvelope"]
    except (ValueError, KeyError, TypeError) as error:
        raise UntrustedError(
            "not-a-sigstore-bundle", "an attachment is not a Sigstore bundle with an envelope", why=_reason(error)
        ) from error
    return _envelope(value)


def read(content: bytes) -> Envelope:
    """Parse an envelope and return it, without verifying its signatures.

    UntrustedError is raised if the envelope is malformed, has no signature, or has more than `MOST_SIGNATURES`.
    """
    try:
        value = strict_json.read(content, "the envelope", keys=_ENVELOPE, limit=LARGEST)
    except ValueError as error:
        raise UntrustedError(
            "envelope-malformed", "an attachment is not a signed envelope", why=_reason(error)
        ) from error
    return _envelope(value)


def _reason(error: Exception) -> str:
    return error.what if isinstance(error, DocumentError) else _MALFORMED


def _envelope(value: Any) -> Envelope:
    try:
        envelope = Envelope(
            str(value["payloadType"]),
            base64.b64decode(value["payload"], validate=True),
            tuple(
                (str(signature.get("keyid", "")), base64.b64decode(signature["sig"], validate=True))
                for signature in value["signatures"]
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UntrustedError("envelope-malformed", "an attachment is not a signed envelope", why=_MALFORMED) from error
    if len(envelope.signatures) > MOST_SIGNATURES:
        # Anyone who may push can attach an envelope, and the whole payload is hashed for each signature.
        raise UntrustedError(
            "envelope-too-many-signatures", f"an attached envelope has more than {MOST_SIGNATURES} signatures"
        )
    if not envelope.signatures:
        raise UntrustedError("envelope-unsigned", "an attached envelope has no signature")
    return envelope
