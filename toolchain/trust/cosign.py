"""Write signatures and attestations for cosign and similar programs: layers under tags, and Sigstore bundles.

`verify` ignores the tags, and reads only the envelope of a bundle.
"""

from __future__ import annotations

import base64

from toolchain.core.digest import canonical
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.trust import dsse, keyless
from toolchain.trust.keys import PublicKey, Signer

SIGNATURE = "dev.cosignproject.cosign/signature"
# The predicate type of the bundle that replaces a signature under a tag. Its predicate is empty.
SIGNED = "https://sigstore.dev/cosign/sign/v1"
CONTENT = "dev.sigstore.bundle.content"
PREDICATE_TYPE = "dev.sigstore.bundle.predicateType"


def payload(reference: str, digest: str) -> bytes:
    """Return the payload of a simple signature for an image that is published in the repository `reference`."""
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
    """Write the blob of a layer under `.sig` into `layout`, and return the layer."""
    content = payload(reference, digest)
    made = layout.put_bytes(content, media.SIMPLE_SIGNING)
    return made.annotated({SIGNATURE: base64.b64encode(signer.sign(content)).decode()})


def attestation_layer(layout: Layout, envelope: bytes, predicate: str) -> Descriptor:
    """Write an envelope as a layer under `.att`; cosign requires the annotation, whose value is empty."""
    return layout.put_bytes(envelope, dsse.MEDIA_TYPE).annotated({SIGNATURE: "", "predicateType": predicate})


def bundle(envelope: dsse.Envelope, key: PublicKey) -> bytes:
    """Return an envelope as a Sigstore bundle to be verified by a key.

    The bundle has no key id, because readers expect another form of id and skip signatures with ours.
    """
    wrapped = envelope.as_json()
    for signature in wrapped["signatures"]:
        del signature["keyid"]
    hint = base64.b64encode(bytes.fromhex(key.id.removeprefix("sha256:"))).decode()
    material = {"publicKey": {"hint": hint}, "tlogEntries": []}
    return canonical({"mediaType": keyless.MEDIA_TYPE, "verificationMaterial": material, "dsseEnvelope": wrapped})


def bundle_notes(predicate: str) -> dict[str, str]:
    """Return the annotations of a bundle's artifact; `cosign load` copies only artifacts with both."""
    return {CONTENT: "dsse-envelope", PREDICATE_TYPE: predicate}
