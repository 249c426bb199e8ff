"""Read and write signed envelopes (DSSE)."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from toolchain.core import strict_json
from toolchain.core.digest import canonical
from toolchain.core.errors import DocumentError, UntrustedError
from toolchain.core.strict_json import Keys
from toolchain.oci import descriptor as media
from toolchain.trust.keys import PublicKey, Signer

MEDIA_TYPE = media.DSSE
MOST_SIGNATURES = 16
IN_TOTO = "application/vnd.in-toto+json"
_ENVELOPE: Keys = {"payload": None, "payloadType": None, "signatures": dict.fromkeys(("keyid", "sig", "cert"))}
BUNDLE: Keys = {
    **dict.fromkeys(("mediaType", "verificationMaterial", "messageSignature")),
    "dsseEnvelope": _ENVELOPE,
}


@dataclass(frozen=True)
class Envelope:
    """A payload with its signatures, each as (key id, signature). Key ids are not verified."""

    payload_type: str
    payload: bytes
    signatures: tuple[tuple[str, bytes], ...]

    def as_json(self) -> dict[str, Any]:
        """Return the envelope as JSON."""
        signatures = [{"keyid": key, "sig": base64.b64encode(sig).decode()} for key, sig in self.signatures]
        payload = base64.b64encode(self.payload).decode()
        return {"payload": payload, "payloadType": self.payload_type, "signatures": signatures}

    def as_bytes(self) -> bytes:
        """The envelope as it is stored."""
        return canonical(self.as_json())

    def signed_by(self, key: PublicKey) -> bool:
        """Return whether one of the signatures was made by `key`."""
        content = pae(self.payload_type, self.payload)
        return any(key.verifies(signature, content) for _, signature in self.signatures)


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding, over which signatures are made."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(statement: Any, signer: Signer) -> Envelope:
    """Return an envelope that contains a statement in canonical form with one signature."""
    payload = canonical(statement)
    return Envelope(IN_TOTO, payload, ((signer.public.id, signer.sign(pae(IN_TOTO, payload))),))


def from_bundle(content: bytes) -> Envelope:
    """Return the envelope in a Sigstore bundle, ignoring the rest of the bundle."""
    try:
        value = strict_json.read(content, "the bundle", keys=BUNDLE)["dsseEnvelope"]
    except (ValueError, KeyError, TypeError) as error:
        raise UntrustedError(
            "not-a-sigstore-bundle", "what is attached is not a bundle with an envelope", why=_reason(error)
        ) from error
    return _envelope(value)


def read(content: bytes) -> Envelope:
    """Parse an envelope. Signatures are not verified."""
    try:
        value = strict_json.read(content, "the envelope", keys=_ENVELOPE)
    except ValueError as error:
        raise UntrustedError(
            "envelope-malformed", "what is attached is not a signed envelope", why=_reason(error)
        ) from error
    return _envelope(value)


def _reason(error: Exception) -> str:
    return error.what if isinstance(error, DocumentError) else type(error).__name__


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
        raise UntrustedError(
            "envelope-malformed", "what is attached is not a signed envelope", why=type(error).__name__
        ) from error
    if len(envelope.signatures) > MOST_SIGNATURES:
        # Each signature is verified over the whole payload, and anybody may attach an envelope.
        raise UntrustedError(
            "envelope-too-many-signatures", f"an attached envelope has more than {MOST_SIGNATURES} signatures"
        )
    if not envelope.signatures:
        raise UntrustedError("envelope-unsigned", "an attached envelope has no signature")
    return envelope
