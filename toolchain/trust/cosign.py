"""Signatures and attestations in the forms that cosign and its kin look for: layers under tags, and Sigstore bundles.

Both say again what the envelopes say, or less: a signature names a digest and nothing more. So neither adds anything to
what `verify` believes.
"""

from __future__ import annotations

import base64

from toolchain.core.digest import canonical
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.tagged import Same, same_content
from toolchain.trust import dsse, keyless
from toolchain.trust.keys import PublicKey, Signer

SIGNATURE = "dev.cosignproject.cosign/signature"
# The kind of the statement, with an empty predicate, that takes the place of a signature among bundles.
SIGNED = "https://sigstore.dev/cosign/sign/v1"
CONTENT = "dev.sigstore.bundle.content"
PREDICATE_TYPE = "dev.sigstore.bundle.predicateType"


def payload(reference: str, digest: str) -> bytes:
    """The payload of a simple signature; `reference` is the repository that the image is published in."""
    return canonical(
        {
            "critical": {
                "identity": {"docker-reference": reference},
                "image": {"docker-manifest-digest": digest},
                "type": "cosign container image signature",
            },
            "optional": None,
        }
    )


def signature_layer(layout: Layout, signer: Signer, reference: str, digest: str) -> Descriptor:
    """The layer under `.sig`, its blob put into `layout`."""
    content = payload(reference, digest)
    made = layout.put_bytes(content, media.SIMPLE_SIGNING)
    return made.annotated({SIGNATURE: base64.b64encode(signer.sign(content)).decode()})


def attestation_layer(layout: Layout, envelope: bytes, predicate: str) -> Descriptor:
    """A layer under `.att`: the envelope as it is, with cosign's annotation, which has nothing to say here."""
    return layout.put_bytes(envelope, dsse.MEDIA_TYPE).annotated({SIGNATURE: "", "predicateType": predicate})


def signed_already(layout: Layout, key: PublicKey) -> Same:
    """Whether a layer is as good as the one wanted: another signature over the same payload by the same key is."""

    def same(wanted: Descriptor, there: Descriptor) -> bool:
        if same_content(wanted, there):
            return True
        try:
            signature = base64.b64decode(there.annotations.get(SIGNATURE, ""), validate=True)
        except ValueError:
            return False
        return wanted.digest == there.digest and key.verifies(signature, layout.blob(wanted.digest).read_bytes())

    return same


def bundle(envelope: dsse.Envelope, key: PublicKey) -> bytes:
    """An envelope as a Sigstore bundle that a key verifies.

    No key id goes with the signature: readers expect one of another form there, and pass over what has ours.
    """
    wrapped = envelope.as_json()
    for signature in wrapped["signatures"]:
        del signature["keyid"]
    hint = base64.b64encode(bytes.fromhex(key.id.removeprefix("sha256:"))).decode()
    material = {"publicKey": {"hint": hint}, "tlogEntries": []}
    return canonical({"mediaType": keyless.MEDIA_TYPE, "verificationMaterial": material, "dsseEnvelope": wrapped})


def bundle_notes(predicate: str) -> dict[str, str]:
    """The annotations of a bundle's artifact; programs that copy images take along what has both."""
    return {CONTENT: "dsse-envelope", PREDICATE_TYPE: predicate}
