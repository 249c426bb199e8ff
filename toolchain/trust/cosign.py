"""Make signatures and attestations that cosign can verify: layers under cosign's tags, and Sigstore bundles.

`verify` does not read cosign's tags. From a bundle that is signed with a key, it reads only the envelope.
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
# In newer versions of cosign, a bundle with this predicate type and an empty predicate replaces the signature under a
# tag.
SIGNED = "https://sigstore.dev/cosign/sign/v1"
CONTENT = "dev.sigstore.bundle.content"
PREDICATE_TYPE = "dev.sigstore.bundle.predicateType"


def payload(reference: str, digest: str) -> bytes:
    """Return the bytes that cosign signs for an image: a payload in the format "simple signing".

    Args:
        reference: the repository of the image, or the name of an image in a folder.
    """
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
    """Sign an image in cosign's format, store the payload in `layout`, and return it as a layer for the tag `.sig`."""
    content = payload(reference, digest)
    made = layout.put_bytes(content, media.SIMPLE_SIGNING)
    return made.annotated({SIGNATURE: base64.b64encode(signer.sign(content)).decode()})


def attestation_layer(layout: Layout, envelope: bytes, predicate: str) -> Descriptor:
    """Store an envelope in `layout`, and return it as a layer for the tag `.att`.

    The layer's annotation SIGNATURE is empty, but cosign requires it.
    """
    return layout.put_bytes(envelope, dsse.MEDIA_TYPE).annotated({SIGNATURE: "", "predicateType": predicate})


def bundle(envelope: dsse.Envelope, key: PublicKey) -> bytes:
    """Return a Sigstore bundle that contains an envelope, and that can be verified with `key`.

    The key ids in the envelope are removed, because other programs skip signatures with key ids in this tool's form.
    """
    wrapped = envelope.as_json()
    for signature in wrapped["signatures"]:
        del signature["keyid"]
    hint = base64.b64encode(bytes.fromhex(key.id.removeprefix("sha256:"))).decode()
    material = {"publicKey": {"hint": hint}, "tlogEntries": []}
    return canonical({"mediaType": keyless.MEDIA_TYPE, "verificationMaterial": material, "dsseEnvelope": wrapped})


def bundle_notes(predicate: str) -> dict[str, str]:
    """Return two annotations for the artifact of a bundle; `cosign load` copies only artifacts that have both."""
    return {CONTENT: "dsse-envelope", PREDICATE_TYPE: predicate}
