"""Verify an image: its bytes, its signature, its provenance, its SBOM, and the requirements of a policy.

The verification ends at the first check that fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from toolchain.core.errors import DigestError, DocumentError, HostileInputError, RegistryError, UntrustedError
from toolchain.oci import descriptor as media
from toolchain.oci.check import verify_layout
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.files import PlainFile, are_files, read_files
from toolchain.oci.image import diff_ids_of, labels_of
from toolchain.oci.labels import GLIBC, INPUT_DIGEST
from toolchain.oci.layer_files import LayerFile, layer_files
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import parse_object
from toolchain.oci.place import Place
from toolchain.trust import attest, numbers, policy, rebuilt
from toolchain.trust.keyless import Identity
from toolchain.trust.keys import PublicKey
from toolchain.trust.policy import Policy
from toolchain.trust.rebuilt import Rebuilders
from toolchain.trust.sbom import FORMATS, KEYS, LARGEST, SPDX, Format, Listing
from toolchain.trust.statements import ENVELOPES, Evidence, about, gather, named_subjects, opened, passing, signed_by

LOG = logging.getLogger(__name__)


@dataclass
class Verdict:
    """The result of a verification.

    Args:
        digest: the digest of the verified image, index or artifact.
        problems: descriptions of the problems; empty if the verification passed. If `verify_layout` found faults, the
            list contains all of them. Otherwise, it contains the single problem that ended the verification.
        checks: a phrase about each check that passed, by the name of the check, in the order of the checks.
        believed: the signed provenances that were accepted: one for each image, or one or more for plain files. It is
            empty if no signature was required, or if a check failed.
        fix: advice for the user; empty if there is none.
        id: the error id of the first problem; empty if there is no problem.
    """

    ref: str
    digest: str
    problems: list[str] = field(default_factory=list)
    checks: dict[str, str] = field(default_factory=dict)
    believed: list[Mapping[str, Any]] = field(default_factory=list)
    fix: str = ""
    id: str = ""

    @property
    def provenance(self) -> Mapping[str, Any] | None:
        """The last of the accepted provenances; None if there are none."""
        return self.believed[-1] if self.believed else None

    @property
    def verdict(self) -> Literal["trusted", "intact", "untrusted"]:
        """The result in one word.

        It is `untrusted` if a check failed, `intact` if all checks passed but no signature was required, and `trusted`
        if all checks including that of the signature passed.
        """
        if self.problems:
            return "untrusted"
        return "intact" if self.provenance is None else "trusted"

    def as_json(self) -> dict[str, Any]:
        return {
            "ref": self.ref,
            "digest": self.digest,
            **({"provenance": policy.summary(self.provenance)} if self.provenance is not None else {}),
            "verdict": self.verdict,
            "problems": self.problems,
            **({"id": self.id} if self.id else {}),
            "checks": self.checks,
        }


def verify(
    place: Place,
    layout: Layout,
    top: Descriptor,
    *,
    key: PublicKey | Identity | None = None,
    demands: Policy | None = None,
    rebuilders: Rebuilders | None = None,
    now: datetime | None = None,
    accept: Callable[[Mapping[str, Any]], object] | None = None,
) -> Verdict:
    """Verify an image, an index, or an artifact with plain files, and return the result.

    Args:
        place: the repository or folder with the attached signatures, SBOMs and provenances.
        layout: the layout that contains all blobs of `top`, and to which the attachments are downloaded.
        key: the key or identity that must have signed the attestations; None to require no signature.
        demands: requirements for the provenance, which are checked only if `key` is given.
        rebuilders: the builders whose rebuilds count, and the number of operators that must have rebuilt each image;
            None to require no rebuild.
        now: the time at which the age of the build is computed; None for the current time.
        accept: a function that raises UntrustedError for a provenance of an image that the caller cannot use. It is
            called only if `key` is given.

    Raises:
        UnreachableError, RegistryError: the attachments or Sigstore's certificates could not be read.
        ConfigError: an identity is to be verified, but sigstore is not installed or its trust config is invalid.
    """
    verdict = Verdict(str(place.ref), top.digest)
    try:
        place.require_one_reading()
        faults = verify_layout(layout, top)
        verdict.problems = [f"digests: {fault.text}" for fault in faults]
        verdict.id = faults[0].id if faults else ""
    except DigestError as error:
        verdict.problems, verdict.id = [f"digests: {error.what}"], error.id
    if verdict.problems:
        return verdict
    verdict.checks["digests"] = "every blob and every unpacked layer has the digest that names it"
    demands, now = demands or Policy(), now or datetime.now(UTC)
    try:
        if top.media_type in media.IMAGES and are_files(value := layout.read_json(top)):
            try:
                files = read_files(value, top)
            except (HostileInputError, RegistryError) as error:
                raise UntrustedError("artifact-names-unusable", f"names: {error.what}", why=error.why) from error
            if rebuilders is not None:
                raise UntrustedError(
                    "rebuilders-for-files",
                    "rebuilders: this is an artifact with files, but only images can be rebuilt",
                    fix="name the image",
                )
            if key is not None:
                evidence = gather(place, [top.digest], layout)
                verdict.believed = _signed_files(
                    key, files, top, evidence, demands=demands, now=now, checks=verdict.checks
                )
            return verdict
        images = _images(layout, top, only=rebuilders is not None)
        if floor := _one_floor(layout, images):
            verdict.checks["floor"] = floor
        for image in images:
            evidence = gather(place, tuple(dict.fromkeys([image.digest, top.digest])), layout)
            look = _Image(layout, image, top, evidence, verdict.checks)
            if key is None:
                look.unsigned()
            else:
                verdict.believed.append(look.signed(key, demands, now, accept))
            if rebuilders is not None:
                look.rebuilt(rebuilders)
    except UntrustedError as error:
        verdict.problems = [error.what + (f" ({error.why})" if error.why else "")]
        verdict.fix, verdict.id = error.fix, error.id
        verdict.believed = []
    return verdict


def _signed_files(
    key: PublicKey | Identity,
    files: Sequence[PlainFile],
    manifest: Descriptor,
    evidence: Sequence[Evidence],
    *,
    demands: Policy,
    now: datetime,
    checks: dict[str, str],
) -> list[Mapping[str, Any]]:
    """Return signed provenances that together list every file of an artifact by name and digest.

    There may be several, because the files for each architecture come from a build of their own. UntrustedError is
    raised if the provenances that `key` has signed, and that meet the requirements, do not list every file.
    """
    statements = signed_by(key, evidence, manifest.digest, checks)
    left = {(file.name, file.blob.digest) for file in files}
    chosen: list[Mapping[str, Any]] = []
    problem: UntrustedError | None = None
    for statement in about(statements, {manifest.digest}, attest.PREDICATE, "provenance"):
        covered = left & named_subjects(statement)
        if not covered and chosen:
            continue
        try:
            policy.check_build_facts(statement, demands, now, label=None)
            policy.require_policy(statement, demands)
        except UntrustedError as error:  # another provenance may name the same files
            problem = problem or error
            continue
        left -= covered
        chosen.append(statement)
    if left or not chosen:
        names = ", ".join(sorted(name for name, _ in left)) or "nothing"
        raise problem or UntrustedError(
            "artifact-not-named", f"provenance: the signed provenance does not name {names}, or names other digests"
        )
    checks["provenance"] = f"it names every file ({len(files)}) by name and digest, and agrees with itself"
    checks |= policy.met(demands, "source-repo", "age", "policy")
    return chosen


def _images(layout: Layout, top: Descriptor, *, only: bool) -> list[Descriptor]:
    """Return the images in an index, or the image itself; raise UntrustedError if there are none.

    Args:
        only: whether to raise UntrustedError too if the index lists anything except images and indexes.
    """
    if only:
        _require_only_images(layout, top)
    if images := layout.images_below(top):
        return images
    raise UntrustedError(
        "index-without-image",
        "digests: the index contains no image",
        why=top.artifact_type or top.media_type,
        fix="name an image; `toolchain bundle import` verifies a bundle",
    )


def _require_only_images(layout: Layout, top: Descriptor) -> None:
    """Raise UntrustedError if an index lists anything except images and indexes.

    Rebuilders do not sign the index, so another publisher may have added the entry. Some programs choose an entry only
    by its platform, and so would use it as an image although nobody rebuilt it.
    """
    for item in layout.walk(top):
        for child in layout.children(item) if item.media_type in media.INDEXES else ():
            if child.media_type not in media.MANIFESTS or (
                child.media_type in media.IMAGES and layout.is_artifact(child)
            ):
                raise UntrustedError(
                    "rebuilders-too-few",
                    f"rebuilders: the index lists {child.digest}, which is not an image, so nobody can have rebuilt it",
                    fix="name one of the images in the index by its digest",
                )


def _one_floor(layout: Layout, images: Sequence[Descriptor]) -> str:
    """Return a phrase with the glibc version in the label `toolchain.glibc`; an empty string if no image has it.

    UntrustedError is raised if the labels of the images differ.
    """
    floors: dict[str, str] = {}
    for image in images:
        config = layout.read_json(layout.children(image)[0])
        floors[labels_of(config).get(GLIBC, "")] = str(config.get("architecture"))
    if len(floors) > 1:
        by_arch = [f"{arch}: {f'glibc {floor}' if floor else 'bound to its base'}" for floor, arch in floors.items()]
        raise UntrustedError(
            "floor-mismatch", "floor: the images in the index are for different systems", why="; ".join(sorted(by_arch))
        )
    (floor,) = floors
    return f"links with glibc {floor} and later" if floor else ""


class _Image:
    """The checks of a single image. A check that fails raises UntrustedError."""

    def __init__(
        self, layout: Layout, image: Descriptor, top: Descriptor, evidence: Sequence[Evidence], checks: dict[str, str]
    ) -> None:
        self._image = image
        self._needed = {image.digest, top.digest}
        self._found = evidence
        self._checks = checks
        config, *layers = layout.children(image)
        value = layout.read_json(config)
        diff_ids = diff_ids_of(value)
        self._label = labels_of(value).get(INPUT_DIGEST)
        self._diff_id = diff_ids[-1] if diff_ids else ""
        self._layer = layers[-1] if layers else None
        self._path = layout.blob(layers[-1].digest) if layers else None
        self._files: list[LayerFile] | None = None

    def unsigned(self) -> None:
        """Check that the attached SBOMs match the image, without verifying signatures.

        If there are SBOMs of a format that describe the image, at least one of them must match.
        """
        for format_ in FORMATS:
            documents = [
                document for document in self._documents(format_) if format_.describes(document, self._image.digest)
            ]
            if documents:
                files = len(self._passing(format_, documents).files)
                self._checks["sbom"] = f"every file ({files}) is as an SBOM lists it; no signature was checked"

    def rebuilt(self, rebuilders: Rebuilders) -> None:
        self._checks["rebuilders"] = rebuilt.require(
            rebuilders, self._found, self._image.digest, input_digest=self._label
        )

    def _documents(self, format_: Format) -> Iterator[Mapping[str, Any]]:
        """Yield each attached SBOM of a format, signed or not; log a warning for attachments that cannot be read."""
        for attached in self._found:
            try:
                if attached.media_type == format_.media_type:
                    yield parse_object(attached.content, "the SBOM", keys=KEYS, limit=LARGEST)
                elif attached.media_type in ENVELOPES:
                    statement = opened(attached.envelope())
                    if statement["predicateType"] == format_.predicate:
                        yield statement["predicate"]
            except (UntrustedError, RegistryError, DocumentError) as error:
                LOG.warning("the attachment %s cannot be read: %s", attached.artifact, error.what)
            except (ValueError, RecursionError) as error:  # the JSON may be hostile
                LOG.warning("the attachment %s is malformed (%s)", attached.artifact, type(error).__name__)

    def signed(
        self,
        key: PublicKey | Identity,
        demands: Policy,
        now: datetime,
        accept: Callable[[Mapping[str, Any]], object] | None,
    ) -> Mapping[str, Any]:
        """Check the statements about the image that `key` has signed, and return the accepted provenance."""
        statements = signed_by(key, self._found, self._image.digest, self._checks)
        made = about(statements, self._needed, attest.PREDICATE, "provenance")
        made = passing(made, lambda statement: policy.check_build_facts(statement, demands, now, label=self._label))
        self._checks["provenance"] = "it is about this image and agrees with itself and the image's label"
        self._checks |= policy.met(demands, "source-repo", "age")
        binaries = [self._signed_sbom(statements, format_) for format_ in FORMATS]

        def as_demanded(statement: Mapping[str, Any]) -> None:
            for listed in binaries:
                if listed is not None:
                    policy.check_binaries(statement, listed)
            policy.require_policy(statement, demands)
            if accept is not None:
                accept(statement)

        chosen = passing(made, as_demanded)[0]
        self._checks |= policy.met(demands, "policy")
        if numbers_checked := numbers.result(statements, self._needed):
            self._checks["numbers"] = numbers_checked
        return chosen

    def _signed_sbom(self, statements: Sequence[dict[str, Any]], format_: Format) -> tuple[str, ...] | None:
        """Return the prebuilt inputs in the signed SBOM of a format, after comparing this SBOM with the image.

        The result is None if there is no CycloneDX document, because only the SPDX document is required.
        """
        if format_ is not SPDX and all(each["predicateType"] != format_.predicate for each in statements):
            return None
        listed = about(statements, self._needed, format_.predicate, "sbom")
        listing = self._passing(format_, [statement["predicate"] for statement in listed])
        self._checks["sbom"] = f"every file ({len(listing.files)}) is as the signed SBOM lists it"
        return listing.binaries

    def _passing(self, format_: Format, documents: Sequence[Mapping[str, Any]]) -> Listing:
        """Return the facts in the first document that matches the image; raise UntrustedError if none matches."""
        passed = passing(documents, lambda document: self._compare(format_.read(document)))
        return format_.read(passed[0])

    def _compare(self, listing: Listing) -> None:
        if listing.manifest != self._image.digest:
            raise UntrustedError("sbom-other-image", f"sbom: it describes {listing.manifest}, not {self._image.digest}")
        if listing.diff_id != self._diff_id:
            raise UntrustedError(
                "sbom-other-layer",
                f"sbom: it lists the layer {listing.diff_id}, the image's top layer is {self._diff_id}",
            )
        if self._files is None:
            if self._layer is None or self._path is None:
                raise UntrustedError("sbom-without-layer", "sbom: it describes a layer, and the image has none")
            self._files = layer_files(self._path, self._layer.media_type)
        listing.require(self._files)
