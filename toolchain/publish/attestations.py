"""Make SBOMs and provenance for finished images, sign them, and attach them to the published images."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain.catalog.bases import base_recipe
from toolchain.catalog.floors import load_floors
from toolchain.catalog.pythons import load_pythons
from toolchain.core import strict_json
from toolchain.core.cache import Cache
from toolchain.core.digest import EPOCH, canonical, sha256_json
from toolchain.core.errors import DocumentError, UnsupportedError, UntrustedError
from toolchain.core.record import Record
from toolchain.oci.descriptor import PREDICATE_TYPE, Descriptor
from toolchain.oci.files import PlainFile
from toolchain.oci.image import diff_ids_of, timestamp
from toolchain.oci.labels import CREATED
from toolchain.oci.layer_files import glance, layer_files
from toolchain.oci.layout import Layout
from toolchain.oci.place import Place
from toolchain.oci.referrers import write_artifact
from toolchain.oci.tagged import Tagged
from toolchain.pipeline.finished_images import require_below
from toolchain.pipeline.records import isolation_facts, stages_below
from toolchain.trust import attest, cosign, dsse, keyless, numbers
from toolchain.trust.image_facts import (
    ImageFacts,
    Package,
    parse_dpkg_status,
    parse_lock,
    parse_os_release,
    with_sources,
)
from toolchain.trust.keyless import Identity, Keyless
from toolchain.trust.keys import Signer
from toolchain.trust.sbom import CYCLONEDX, LARGEST, SPDX, Format
from toolchain.trust.spdx import spdx
from toolchain.trust.statements import Evidence, gather

_ANNOTATED = {CREATED: timestamp(EPOCH)}


@dataclass(frozen=True)
class AttachedEvidence:
    """The SBOMs and attestations that were attached to an image or to the artifact with its plain files.

    Args:
        signed_by: the id of the key or identity; empty if the documents are not signed.
        how: where the documents are listed (see `place.Attached`); `none` if no document was added to a list.
        tags: cosign's tags under which the documents and cosign's signatures are also stored.
    """

    kinds: tuple[str, ...]
    signed_by: str
    how: str
    pushed_bytes: int
    tags: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "tags" or value}


def collect(cache: Cache, record: Record) -> ImageFacts:
    """Return the facts about a finished image from which its SBOM and its provenance are made.

    SourceError is raised if the cache lacks the record of a stage on which the image was built.
    """
    dependencies = stages_below(cache, record.inputs)
    require_below(record, dependencies)
    base = next((dependency for dependency in (record, *dependencies) if dependency.stage == "base"), None)
    installed = parse_dpkg_status(_in_base(cache, base, "var/lib/dpkg/status"))
    # The resolved list is preferred to dpkg's, because it contains digests and also exists for bases with RPM packages.
    packages = (_resolved(cache, "base", base) or installed) if base else ()
    for dependency in (record, *dependencies):
        if dependency.stage in _COMPILED_IN:
            packages = tuple(sorted({*packages, *_COMPILED_IN[dependency.stage](cache, dependency)}))
    named = base is not None and base.inputs.get("base")
    return ImageFacts(
        record=record,
        dependencies=tuple(dependencies),
        packages=with_sources(packages, installed),
        system="" if named else parse_os_release(_in_base(cache, base, "usr/lib/os-release")),
        isolation=isolation_facts(cache),
        finished=cache.record(record.input_digest).stat().st_mtime,
    )


def _resolved(cache: Cache, stage: str, record: Record) -> tuple[Package, ...]:
    """Return the resolved packages of a stage; an empty tuple if no readable list matches the record."""
    inputs = record.inputs
    try:
        name, arch = str(inputs.get("base", "")), str(inputs.get("arch", ""))
        if stage == "base":
            name = base_recipe(name, arch).name
        lock = strict_json.read(cache.package_list(stage, name, arch).read_bytes())
        return parse_lock(lock["packages"]) if sha256_json(lock) == inputs.get("packages") else ()
    except (OSError, ValueError, KeyError, UnsupportedError):
        return ()


def _compiled_against(cache: Cache, record: Record) -> tuple[Package, ...]:
    """Return the packages of a sysroot; if its glibc floor is known, each package gets the floor's distribution."""
    packages = _resolved(cache, "sysroot", record)
    glibc = str(record.inputs.get("base", "")).removeprefix("glibc-")
    floor = load_floors().get(glibc)
    return tuple(replace(package, system=floor.distro) for package in packages) if floor else packages


def _headers_of_python(cache: Cache, record: Record) -> tuple[Package, ...]:
    """Return the packages that contain the CPython headers for compiling wheels, each with its distribution."""
    packages = _resolved(cache, "python", record)
    rows = {row.headers: row.distro for row in load_pythons().values()}
    return tuple(replace(package, system=rows[package.name]) for package in packages if package.name in rows)


# These functions, by stage, return the packages that other builds compile against or import.
_COMPILED_IN: Mapping[str, Callable[[Cache, Record], tuple[Package, ...]]] = {
    "sysroot": _compiled_against,
    "python": _headers_of_python,
    "torch": lambda cache, record: _resolved(cache, "torch", record),
}


def _in_base(cache: Cache, base: Record | None, path: str) -> str:
    """Return the text of a file in the layers of a base; an empty string if the file or the base is missing."""
    layout = Layout(cache.images)
    if base is None or not base.manifest or not layout.has(base.manifest):
        return ""
    for layer in reversed(layout.children(layout.resolve(base.manifest))[1:]):
        content = glance(layout.blob(layer.digest), layer.media_type, path)
        if content is not None:
            return content.decode("utf-8", "replace")
    return ""


def sboms(image_facts: ImageFacts, layout: Layout, manifest: Descriptor) -> list[tuple[Format, dict[str, Any]]]:
    """Return the SBOM of an image as an SPDX and as a CycloneDX document, each with its format."""
    from toolchain.trust.cyclonedx import cyclonedx  # noqa: PLC0415 - its library is slow to import

    config, *layers = layout.children(manifest)
    files = layer_files(layout.blob(layers[-1].digest), layers[-1].media_type)
    diff_id = diff_ids_of(layout.read_json(config))[-1]
    content = layout.blob(manifest.digest).read_bytes()
    document = spdx(image_facts, manifest=content, diff_id=diff_id, files=files)
    derived = cyclonedx(document, files, input_digest=image_facts.record.input_digest)
    return [(SPDX, document), (CYCLONEDX, derived)]


@dataclass(frozen=True)
class _Content:
    """The content and media type of an artifact's only layer, and the artifact's annotations."""

    content: bytes
    kind: str
    notes: Mapping[str, str]


def attach_evidence(
    image_facts: ImageFacts,
    layout: Layout,
    manifest: Descriptor,
    index: Descriptor,
    place: Place,
    *,
    signer: Signer | Keyless | None,
    scratch: Path,
) -> AttachedEvidence:
    """Make the SBOMs and the provenance of an image, and attach them to its manifest and its index.

    With a key, each document is attached in a signed envelope. The envelopes and a signature of the image are also
    stored under cosign's tags, and they are attached as Sigstore bundles too if `signer.bundles` is set. With an OIDC
    identity, each document is attached in a signed Sigstore bundle. Without a signer, only the SBOMs are attached,
    because unsigned provenance proves nothing. With a signer, the result of a numerical check of the image's kernels is
    attached too, if the record contains one.

    Args:
        manifest: the image for one platform.
        signer: the key or identity that signs; None for unsigned SBOMs.
    """
    documents, subjects = sboms(image_facts, layout, manifest), (manifest, index)
    image, facts = image_facts.record.image, image_facts.record.facts
    about = attest.subjects(image, [manifest.digest, index.digest])
    listed = {of.kind: attest.statement(about, of.predicate, document) for of, document in documents}
    for kind, statement in listed.items():
        _require_readable(canonical(statement), f"the {kind} of {image}")
    if signer is None:
        contents = [_Content(canonical(document), of.media_type, {}) for of, document in documents]
        return _attach(contents, subjects, place, scratch, tuple(of.kind for of, _ in documents))
    made = {**listed, "provenance": attest.provenance(image_facts, about)}
    if checked := facts.get("numbers"):
        made["numbers"] = numbers.statement(about, checked)
    statements, kinds = list(made.values()), tuple(made)
    return _sign(statements, about, subjects, place, signer=signer, scratch=scratch, image=image, kinds=kinds)


def _require_readable(content: bytes, name: str) -> None:
    """Raise DocumentError for an SBOM that `verify` would not read, because it then accepts no signature either."""
    try:
        strict_json.require_size(content, name, limit=LARGEST)
    except DocumentError as error:
        error.why = "an SBOM lists every file of the image's own layer, and `verify` reads at most about 150,000 files"
        error.fix = "build an image with fewer files"
        raise


def attach_to_files(
    made_by: Sequence[tuple[ImageFacts, Sequence[PlainFile]]],
    files: Descriptor,
    place: Place,
    *,
    signer: Signer | Keyless | None,
    scratch: Path,
) -> AttachedEvidence:
    """Sign the provenance of published plain files, and attach it to their artifact; attach nothing without a signer.

    Each file is a subject of the provenance, so that the provenance can be found by the digest of a file.

    Args:
        made_by: for each architecture, the facts of the image and the files that were made from it.
        files: the manifest of the artifact, which `place` must already contain.
    """
    if signer is None:
        return AttachedEvidence((), "", "none", 0)
    statements: list[attest.Statement] = []
    everything: list[attest.Resource] = []
    for image_facts, named in made_by:
        about = attest.subjects(image_facts.record.image, [files.digest])
        own = [subject for file in named for subject in attest.subjects(file.name, [file.blob.digest])]
        statements.append(attest.provenance(image_facts, [*about, *own]))
        everything = [*(everything or about), *own]
    image = made_by[0][0].record.image
    kinds = ("provenance",)
    return _sign(statements, everything, (files,), place, signer=signer, scratch=scratch, image=image, kinds=kinds)


def _sign(
    statements: Sequence[attest.Statement],
    about: Sequence[attest.Resource],
    subjects: Sequence[Descriptor],
    place: Place,
    *,
    signer: Signer | Keyless,
    scratch: Path,
    image: str,
    kinds: tuple[str, ...],
) -> AttachedEvidence:
    """Sign statements, and attach them to the subjects in the formats that the signer uses."""
    with _own_layout(scratch) as own:
        if isinstance(signer, Keyless):
            signed_before = _signed_before(signer.identity, subjects[0], place, own)
            contents = [_by_identity(signer, statement, signed_before) for statement in statements]
            return replace(_attach(contents, subjects, place, scratch, kinds), signed_by=signer.identity.id)
        to_sign = [*statements, attest.statement(about, cosign.SIGNED, {})] if signer.bundles else statements
        envelopes = [(statement["predicateType"], dsse.sign(statement, signer)) for statement in to_sign]
        signed = envelopes[: len(statements)]
        contents = [
            _Content(statement.as_bytes(), dsse.MEDIA_TYPE, {PREDICATE_TYPE: kind}) for kind, statement in signed
        ]
        if signer.bundles:  # all statements become bundles, because a reader of bundles ignores other formats
            contents += [_bundled(kind, cosign.bundle(envelope, signer.public)) for kind, envelope in envelopes]
        done = _attach(contents, subjects, place, scratch, kinds)
        name = (
            str(place.ref.at()) if place.ref.remote else image
        )  # the path of a folder is meaningless on other machines
        tagged = [entry for subject in subjects for entry in _tagged(own, signer, name, signed, subject.digest)]
        pushed = place.attach_layers(own, tagged)
    tags = tuple(entry.tag for entry in tagged)
    return replace(done, signed_by=signer.public.id, pushed_bytes=done.pushed_bytes + pushed, tags=tags)


def attach_statement(
    statement: attest.Statement, digests: Sequence[str], place: Place, *, kind: str, signer: Signer, scratch: Path
) -> AttachedEvidence:
    """Sign a statement about an image, and attach it to the manifests or indexes with the given digests."""
    subjects = [place.manifest(digest)[0] for digest in digests]
    content = _Content(
        dsse.sign(statement, signer).as_bytes(), dsse.MEDIA_TYPE, {PREDICATE_TYPE: statement["predicateType"]}
    )
    return replace(_attach([content], subjects, place, scratch, (kind,)), signed_by=signer.public.id)


@contextlib.contextmanager
def _own_layout(scratch: Path) -> Iterator[Layout]:
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="evidence-") as folder:
        yield Layout(Path(folder)).ensure()


def _attach(
    contents: Sequence[_Content], subjects: Sequence[Descriptor], place: Place, scratch: Path, kinds: tuple[str, ...]
) -> AttachedEvidence:
    pushed, how = 0, "none"
    with _own_layout(scratch) as own:
        blobs = [own.put_bytes(entry.content, entry.kind) for entry in contents]
        for subject in subjects:
            artifacts = [
                write_artifact(own, subject, blob, artifact_type=entry.kind, annotations={**_ANNOTATED, **entry.notes})
                for blob, entry in zip(blobs, contents, strict=True)
            ]
            done = place.attach(own, subject.digest, artifacts)
            pushed += done.pushed_bytes
            how = done.how if done.how != "none" else how
    return AttachedEvidence(kinds, "", how, pushed)


def _by_identity(signer: Keyless, statement: attest.Statement, known: Mapping[bytes, Evidence]) -> _Content:
    before = known.get(canonical(statement))
    return _bundled(statement["predicateType"], before.content if before is not None else signer.sign(statement))


def _bundled(kind: str, bundle: bytes) -> _Content:
    return _Content(bundle, keyless.MEDIA_TYPE, {PREDICATE_TYPE: kind, **cosign.bundle_notes(kind)})


def _tagged(
    own: Layout, signer: Signer, named: str, envelopes: Sequence[tuple[str, dsse.Envelope]], subject: str
) -> tuple[Tagged, ...]:
    """Sign an image in cosign's format; return the signature for cosign's tag `.sig`, and the envelopes for `.att`."""
    signature = cosign.signature_layer(own, signer, named, subject)
    layers = [cosign.attestation_layer(own, envelope.as_bytes(), kind) for kind, envelope in envelopes]
    return Tagged(subject, "sig", (signature,)), Tagged(subject, "att", tuple(layers))


def _signed_before(who: Identity, manifest: Descriptor, place: Place, scratch: Layout) -> dict[bytes, Evidence]:
    """Return the attached bundles that an identity signed earlier, by payload.

    For an unchanged payload, the earlier bundle is attached again, because signing adds an entry to Sigstore's log.
    """
    by_payload: dict[bytes, Evidence] = {}
    for attached in gather(place, [manifest.digest], scratch):
        if attached.media_type == keyless.MEDIA_TYPE:
            with contextlib.suppress(UntrustedError):
                by_payload.setdefault(who.opened(attached.content).payload, attached)
    return by_payload
