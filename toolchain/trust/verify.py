"""Whether an image is what it must be: bytes, signature, provenance, SBOM, policy; the first fault counts."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from toolchain.errors import DigestError, RegistryError, UntrustedError
from toolchain.oci import descriptor as media
from toolchain.oci.check import verify_layout
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import diff_ids_of, labels_of
from toolchain.oci.labels import GLIBC, INPUT_DIGEST
from toolchain.oci.layer_files import LayerFile, layer_files
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import children_of, parse_object
from toolchain.oci.place import Place
from toolchain.oci.referrers import subject_of
from toolchain.trust import attest, dsse, keyless, policy, sbom
from toolchain.trust.keyless import Identity
from toolchain.trust.keys import PublicKey
from toolchain.trust.policy import Policy

LOG = logging.getLogger(__name__)
T = TypeVar("T")
# Anyone who may push can attach things; none of it may eat memory or time.
_MOST_ARTIFACTS = 200
_MOST_BYTES = 512 << 20  # together; an SBOM of ours has a few
_KINDS = frozenset({dsse.MEDIA_TYPE, sbom.MEDIA_TYPE, keyless.MEDIA_TYPE})


@dataclass(frozen=True)
class Evidence:
    """Something attached to an image: the kind and bytes of its content, and the artifact that brought it."""

    media_type: str
    content: bytes
    artifact: str

    def envelope(self) -> dsse.Envelope:
        """The envelope that it is, or that it wraps; nothing is checked but its form.

        Raises:
            UntrustedError: there is none.
        """
        return dsse.from_bundle(self.content) if self.media_type == keyless.MEDIA_TYPE else dsse.read(self.content)


@dataclass
class Verdict:
    """What was found.

    Args:
        verdict: `trusted`: a key was given and everything holds. `intact`: the bytes are those that the digests name
            and nothing contradicts them, but nobody was asked who made them. `untrusted`: something is wrong.
        problems: what is wrong; of several the first.
        checks: what was looked at and held, in order, with a word for people.
        provenance: the signed statement that was believed; of several images that of the last. In `as_json` what it
            says that the image is.
    """

    ref: str
    digest: str
    verdict: Literal["trusted", "intact", "untrusted"] = "intact"
    problems: list[str] = field(default_factory=list)
    checks: dict[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """A row of `verify --json`."""
        return {
            "ref": self.ref,
            "digest": self.digest,
            **({"provenance": policy.said(self.provenance)} if self.provenance is not None else {}),
            "verdict": self.verdict,
            "problems": self.problems,
            "checks": self.checks,
        }


def verify(
    place: Place,
    layout: Layout,
    top: Descriptor,
    *,
    key: PublicKey | Identity | None = None,
    demands: Policy | None = None,
    now: datetime | None = None,
) -> Verdict:
    """Look at an image or index whose blobs are in `layout`.

    Args:
        place: where it came from and where evidence lies.
        layout: where its blobs are.
        top: image or index.
        key: whose signature counts: a key's or an identity's; without one nothing is authenticated.
        demands: further conditions; they count only with a key.
        now: for tests.

    Raises:
        UnreachableError, RegistryError: the evidence could not be asked for; that says nothing about the image.
        EngineError: a zstd layer, and the zstd program is missing.
    """
    verdict = Verdict(str(place.ref), top.digest)
    verdict.problems = [f"digests: {problem}" for problem in verify_layout(layout, top)]
    if verdict.problems:
        verdict.verdict = "untrusted"
        return verdict
    verdict.checks["digests"] = "every blob and every unpacked layer has the digest that names it"
    try:
        images = _images(layout, top)
        if floor := _one_floor(layout, images):
            verdict.checks["floor"] = floor
        for image in images:
            found = gather(place, tuple(dict.fromkeys([image.digest, top.digest])), layout)
            look = _Image(layout, image, top, found, verdict.checks)
            if key is None:
                look.unsigned()
            else:
                verdict.provenance = look.signed(key, demands or Policy(), now or datetime.now(UTC))
    except UntrustedError as error:
        verdict.verdict = "untrusted"
        verdict.problems = [error.what + (f" ({error.why})" if error.why else "")]
        verdict.provenance = None
        return verdict
    verdict.verdict = "intact" if key is None else "trusted"
    return verdict


def _images(layout: Layout, top: Descriptor) -> list[Descriptor]:
    images = [
        one
        for one in layout.walk(top)
        if one.media_type in media.IMAGES and layout.children(one)[0].media_type != media.EMPTY
    ]
    if not images:
        raise UntrustedError("digests: there is no image in it", why=top.media_type)
    return images


def _one_floor(layout: Layout, images: Sequence[Descriptor]) -> str:
    """The oldest system that links every image of an index, as their labels tell it; empty where none tells one.

    Raises:
        UntrustedError: they tell different ones, and whoever reads one of them would take it for all.
    """
    floors: dict[str, str] = {}
    for image in images:
        config = layout.read_json(layout.children(image)[0])
        floors[labels_of(config).get(GLIBC, "")] = str(config.get("architecture"))
    if len(floors) > 1:
        told = [f"{arch}: {f'glibc {floor}' if floor else 'bound to its base'}" for floor, arch in floors.items()]
        raise UntrustedError("floor: the index holds layers for different systems", why="; ".join(sorted(told)))
    (floor,) = floors
    return f"links with glibc {floor} and later" if floor else ""


def gather(place: Place, subjects: Sequence[str], scratch: Layout) -> list[Evidence]:
    """What is attached to the given digests, of the kinds known here. What is broken is left out and logged.

    Args:
        scratch: a layout that takes the blobs.
    """
    found: dict[str, Evidence] = {}
    left, room = _MOST_ARTIFACTS, _MOST_BYTES
    for subject in subjects:
        for artifact in place.referrers(subject):
            left -= 1
            if left < 0:
                LOG.warning("more than %d things are attached; the rest is not looked at", _MOST_ARTIFACTS)
                return list(found.values())
            try:
                for one in _contents(place, artifact, subject, scratch, room=room):
                    room -= len(one.content)
                    found.setdefault(one.media_type + one.artifact, one)
            except (RegistryError, DigestError) as error:
                LOG.warning("%s, which is attached, cannot be read: %s", artifact.digest, error.what)
    return list(found.values())


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
            LOG.warning("%s, which is attached, is too large: %d bytes", artifact.digest, layer.size)
            continue
        room -= layer.size
        path = place.blob(layer, scratch)
        if path.stat().st_size != layer.size:
            raise DigestError(f"{layer.digest} has another size than its artifact says")
        yield Evidence(layer.media_type, path.read_bytes(), artifact.digest)


class _Image:
    """One image on its way through the checks; each raises for the first thing that is wrong."""

    def __init__(
        self, layout: Layout, image: Descriptor, top: Descriptor, found: Sequence[Evidence], checks: dict[str, str]
    ) -> None:
        self._image = image
        self._needed = {image.digest, top.digest}
        self._found = found
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
        """Without a key an SBOM can still contradict the bytes."""
        documents = [one for one in self._documents() if _is_about(one, self._image.digest)]
        if documents:
            good = _one_of(documents, self._compare)
            self._checks["sbom"] = (
                f"{len(good['files'])} files are as an SBOM lists them; nobody's signature was checked"
            )

    def _documents(self) -> list[Mapping[str, Any]]:
        documents: list[Mapping[str, Any]] = []
        for one in self._found:
            try:
                if one.media_type == sbom.MEDIA_TYPE:
                    documents.append(parse_object(one.content, "the SBOM"))
                    continue
                said = _statement(one.envelope())
                if said["predicateType"] in sbom.PREDICATES:
                    documents.append(said["predicate"])
            except (UntrustedError, RegistryError) as error:
                LOG.warning("%s: %s", one.artifact, error.what)
            except (ValueError, RecursionError) as error:  # what JSON can say and nobody can write again
                LOG.warning("%s: it holds no envelope (%s)", one.artifact, type(error).__name__)
        return documents

    def signed(self, key: PublicKey | Identity, demands: Policy, now: datetime) -> Mapping[str, Any]:
        """With a key only what it signed counts; the provenance that was believed."""
        statements = self._by(key)
        made = self._about(statements, {attest.PREDICATE}, "provenance")
        chosen = _one_of(made, lambda one: self._provenance(one, demands, now))
        self._checks["provenance"] = "it is about this image and agrees with itself and the image's label"
        if demands.source_repos:
            self._checks["source-repo"] = f"every source comes from {' or '.join(demands.source_repos)}"
        if demands.max_age is not None:
            self._checks["age"] = f"built within {demands.max_age:g} days"
        listed = self._about(statements, sbom.PREDICATES, "sbom")
        document = _one_of([one["predicate"] for one in listed], self._compare)
        self._checks["sbom"] = f"{len(document['files'])} files are as the signed SBOM lists them"
        policy.first("policy", policy.check_binaries(chosen, document, demands))
        if demands.source_only:
            self._checks["policy"] = "nothing prebuilt but what was allowed"
        return chosen

    def _by(self, key: PublicKey | Identity) -> list[dict[str, Any]]:
        # An identity signs bundles. A key's envelope may lie in one too; what that says about it is not looked at.
        kinds = {keyless.MEDIA_TYPE} | ({dsse.MEDIA_TYPE} if isinstance(key, PublicKey) else set())
        contents = [one for one in self._found if one.media_type in kinds]
        good, broken, names = [], "", set()
        for one in contents:
            try:
                if isinstance(key, Identity):
                    good.append(key.opened(one.content))
                    continue
                envelope = one.envelope()
            except UntrustedError as error:
                broken = error.what + (f": {error.why}" if error.why else "")
                continue
            names |= {name[:80] or "no key" for name, _ in envelope.signatures}
            if envelope.signed_by(key):
                good.append(envelope)
        who = f"the key {key.id}" if isinstance(key, PublicKey) else key.id
        if not contents or not (good or names or isinstance(key, Identity)):
            raise UntrustedError(
                f"signature: nothing signed is attached to {self._image.digest}",
                why=broken,
                fix="publish it with --key or --keyless, or ask who published it",
            )
        statements = []
        for envelope in (one for one in good if one.payload_type == dsse.IN_TOTO):
            try:
                statements.append(_statement(envelope))
            except UntrustedError as error:  # one good one is enough, whoever attached the others
                LOG.warning("%s is passed over: %s", error.what, error.why)
                broken = f"{error.what}: {error.why}"
        if not statements:
            raise UntrustedError(
                f"signature: none of {len(contents)} envelopes is signed by {who}",
                why=broken if good or not names else f"they name {', '.join(sorted(names)[:3])}",
            )
        self._checks["signature"] = f"by {who}"
        return statements

    def _about(self, statements: Sequence[dict[str, Any]], kinds: Set[str], name: str) -> list[dict[str, Any]]:
        of_kind = [one for one in statements if one["predicateType"] in kinds]
        if not of_kind:
            raise UntrustedError(f"{name}: none is signed by this key")
        about = [one for one in of_kind if self._needed <= _subjects(one)]
        if not about:
            missing = sorted(self._needed - _subjects(of_kind[-1]))
            raise UntrustedError(f"{name}: what is signed is about other images, not about {missing[0]}")
        return about

    def _provenance(self, statement: dict[str, Any], demands: Policy, now: datetime) -> None:
        policy.first("provenance", policy.check_provenance(statement, demands, label=self._label))
        policy.first("source-repo", policy.check_sources(statement, demands))
        policy.first("age", policy.check_age(statement, demands, now))

    def _compare(self, document: Mapping[str, Any]) -> None:
        manifest, diff_id = sbom.described(document)
        if manifest != self._image.digest:
            raise UntrustedError(f"sbom: it describes {manifest}, not {self._image.digest}")
        if diff_id != self._diff_id:
            raise UntrustedError(f"sbom: it lists the layer {diff_id}, the image's top layer is {self._diff_id}")
        if self._files is None:
            if self._layer is None or self._path is None:
                raise UntrustedError("sbom: it describes a layer, and the image has none")
            self._files = layer_files(self._path, self._layer.media_type)
        for difference in sbom.differences(document, self._files):
            raise UntrustedError(f"sbom: {difference}")


def _one_of(candidates: Sequence[T], check: Callable[[T], None]) -> T:
    """The first that passes. Several may be attached, and whoever may push can add one: one good one is enough."""
    problem: UntrustedError | None = None
    for one in candidates:
        try:
            check(one)
        except UntrustedError as error:
            problem = problem or error
        else:
            return one
    assert problem is not None  # noqa: S101 - the callers have candidates
    raise problem


def _is_about(document: Mapping[str, Any], manifest: str) -> bool:
    try:
        return sbom.described(document)[0] == manifest
    except UntrustedError:
        return False


def _statement(envelope: dsse.Envelope) -> dict[str, Any]:
    """The statement in an envelope.

    Raises:
        UntrustedError: there is none.
    """
    try:
        value = json.loads(envelope.payload)
        if value["_type"] != attest.STATEMENT or not isinstance(value["predicate"], dict):
            raise ValueError(value["_type"])
        return {**value, "predicateType": str(value["predicateType"]), "subject": list(value["subject"])}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UntrustedError("signature: an envelope holds no in-toto statement", why=repr(error)) from error


def _subjects(statement: Mapping[str, Any]) -> set[str]:
    found = set()
    for one in statement["subject"]:
        digest = one.get("digest") if isinstance(one, dict) else None
        if isinstance(digest, dict) and isinstance(digest.get("sha256"), str):
            found.add(f"sha256:{digest['sha256']}")
    return found
