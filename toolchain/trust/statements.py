"""Read the files that are attached to an image, and select the statements by their signers and subjects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

from toolchain.core import strict_json
from toolchain.core.errors import DigestError, DocumentError, RegistryError, UntrustedError
from toolchain.core.pages import page
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import children_of, parse_object, subject_of
from toolchain.oci.place import Place
from toolchain.trust import attest, dsse, keyless, sbom
from toolchain.trust.keyless import Identity
from toolchain.trust.keys import PublicKey

LOG = logging.getLogger(__name__)
T = TypeVar("T")
# These limits apply to all attachments of an image together. Anyone who may push can attach files, and reading them
# must not exhaust the memory or take too long.
_MOST_ARTIFACTS = 200
_MOST_BYTES = 512 << 20  # bytes
ENVELOPES = frozenset({dsse.MEDIA_TYPE, keyless.MEDIA_TYPE})
_KINDS = ENVELOPES | {of.media_type for of in sbom.FORMATS}


@dataclass(frozen=True)
class Evidence:
    """A file that is attached to an image.

    Args:
        artifact: the digest of the artifact that contains the file.
    """

    media_type: str
    content: bytes
    artifact: str

    def envelope(self) -> dsse.Envelope:
        """Return the envelope; the content is the envelope itself, or a Sigstore bundle that contains it.

        UntrustedError is raised if the content is malformed. The signatures are not verified.
        """
        return dsse.from_bundle(self.content) if self.media_type == keyless.MEDIA_TYPE else dsse.read(self.content)


def gather(place: Place, subjects: Sequence[str], scratch: Layout) -> list[Evidence]:
    """Return the attached files whose media types are known, each content once.

    Attachments that cannot be read and attachments beyond the limits of this module are skipped, and a warning is
    logged.

    Args:
        subjects: the digests to which the files may be attached, such as those of the image and of its index.
        scratch: a layout for the downloaded files.
    """
    evidence: dict[tuple[str, bytes], Evidence] = {}  # the same file may be attached to an image and to its index
    left, room = _MOST_ARTIFACTS, _MOST_BYTES
    for subject in subjects:
        for artifact in place.referrers(subject):
            left -= 1
            if left < 0:
                LOG.warning("the image has more than %d attachments; the others are ignored", _MOST_ARTIFACTS)
                return list(evidence.values())
            try:
                for content in _contents(place, artifact, subject, scratch, room=room):
                    room -= len(content.content)
                    evidence.setdefault((content.media_type, content.content), content)
            except (RegistryError, DigestError, DocumentError) as error:
                LOG.warning("the attachment %s cannot be read: %s", artifact.digest, error.what)
    return list(evidence.values())


def _contents(place: Place, artifact: Descriptor, subject: str, scratch: Layout, *, room: int) -> Iterable[Evidence]:
    if artifact.media_type not in media.IMAGES:
        return
    value = parse_object(place.manifest(artifact.digest)[1], artifact.digest)
    if subject_of(value) != subject:
        return
    for layer in children_of(value, artifact)[1:]:
        if layer.media_type not in _KINDS:
            continue
        if layer.size > room:
            LOG.warning(
                "the attachment %s is ignored, because it contains a file that is too large: %d bytes",
                artifact.digest,
                layer.size,
            )
            continue
        room -= layer.size
        path = place.blob(layer, scratch)
        if path.stat().st_size != layer.size:
            raise DigestError(
                "attestation-size-mismatch",
                f"{layer.digest} has another size than its artifact states",
                fix="do not use the image; its publisher must publish it again",
            )
        yield Evidence(layer.media_type, path.read_bytes(), artifact.digest)


def signed_by(
    key: PublicKey | Identity, evidence: Sequence[Evidence], digest: str, checks: dict[str, str]
) -> list[dict[str, Any]]:
    """Return the attached statements that a key or an identity has signed; raise UntrustedError if there are none.

    Args:
        digest: the digest of the image to which the files are attached, for the error.
        checks: the results of the checks that passed. An entry `signature`, which names the signer, is added.
    """
    # Statements that an identity has signed are always in bundles.
    kinds = {keyless.MEDIA_TYPE} | ({dsse.MEDIA_TYPE} if isinstance(key, PublicKey) else set())
    contents = [attached for attached in evidence if attached.media_type in kinds]
    good, broken, names = [], "", set()
    for content in contents:
        try:
            if isinstance(key, Identity):
                good.append(key.opened(content.content))
                continue
            envelope = content.envelope()
        except UntrustedError as error:
            broken = error.what + (f": {error.why}" if error.why else "")
            continue
        names |= {name[:80] or "no key" for name, _ in envelope.signatures}
        if envelope.signed_by(key):
            good.append(envelope)
    who = f"the key {key.id}" if isinstance(key, PublicKey) else key.id
    if not contents or not (good or names or isinstance(key, Identity)):
        raise UntrustedError(
            "signature-missing",
            f"signature: no signed statement is attached to {digest}",
            why=broken,
            fix="if this is a mirror, copy it again with `toolchain publish DEST REF`, because skopeo leaves signatures"
            f" behind ({page('docs/tasks/publish-verify.md#mirror')}); if you publish it, sign it: publish --key FILE",
        )
    statements = []
    for envelope in (opened for opened in good if opened.payload_type == dsse.IN_TOTO):
        try:
            statements.append(opened(envelope))
        except UntrustedError as error:  # one valid statement is enough, so invalid ones are skipped
            LOG.warning("%s, so it is ignored: %s", error.what, error.why)
            broken = f"{error.what}: {error.why}"
    if not statements:
        raise UntrustedError(
            "signature-other-key",
            f"signature: none of {len(contents)} envelopes is signed by {who}",
            why=broken if good or not names else f"they name {', '.join(sorted(names)[:3])}",
        )
    checks["signature"] = f"by {who}"
    return statements


def about(statements: Sequence[dict[str, Any]], needed: Set[str], kind: str, name: str) -> list[dict[str, Any]]:
    """Return the statements of a type whose subjects include all required digests.

    UntrustedError is raised if there are none.

    Args:
        needed: the required digests.
        kind: the predicate type.
        name: the name of the check, for the error.
    """
    of_kind = [statement for statement in statements if statement["predicateType"] == kind]
    if not of_kind:
        raise UntrustedError(
            "statement-other-key", f"{name}: there is none with a valid signature by the given key or identity"
        )
    matching = [statement for statement in of_kind if needed <= subjects_of(statement)]
    if not matching:
        missing = sorted(needed - subjects_of(of_kind[-1]))
        raise UntrustedError(
            "statement-other-image", f"{name}: the signed statements are about other images, not about {missing[0]}"
        )
    return matching


def passing(candidates: Sequence[T], check: Callable[[T], None]) -> list[T]:
    """Return the candidates for which `check` raises no UntrustedError; if all fail, raise the error of the first one.

    One valid candidate is enough, because anyone who may push can attach invalid ones.
    """
    passed: list[T] = []
    problem: UntrustedError | None = None
    for candidate in candidates:
        try:
            check(candidate)
        except UntrustedError as error:
            problem = problem or error
        else:
            passed.append(candidate)
    if problem is not None and not passed:
        raise problem
    return passed


def opened(envelope: dsse.Envelope) -> dict[str, Any]:
    """Return the in-toto statement in an envelope; raise UntrustedError if it contains no valid statement.

    The signatures of the envelope are not verified.
    """
    try:
        value = strict_json.read(envelope.payload, "the statement", keys=attest.KEYS, limit=sbom.LARGEST)
        if value["_type"] != attest.STATEMENT or not isinstance(value["predicate"], dict):
            raise ValueError(value["_type"])
        return {**value, "predicateType": str(value["predicateType"]), "subject": list(value["subject"])}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UntrustedError(
            "statement-not-in-toto",
            "signature: an envelope contains no in-toto statement",
            why="a field is missing, or has another form",
        ) from error


def named_subjects(statement: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the name and the digest (`sha256:<hex>`) of each subject of a statement that has a SHA-256 digest."""
    named = set()
    for subject in statement["subject"]:
        digest = subject.get("digest") if isinstance(subject, dict) else None
        if isinstance(digest, dict) and isinstance(digest.get("sha256"), str):
            named.add((str(subject.get("name")), f"sha256:{digest['sha256']}"))
    return named


def subjects_of(statement: Mapping[str, Any]) -> set[str]:
    """Return the digests (`sha256:<hex>`) of a statement's subjects; subjects without a SHA-256 are skipped."""
    return {digest for _, digest in named_subjects(statement)}
