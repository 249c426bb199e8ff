"""Take finished images from a registry or layout instead of building them, if a trusted key signed them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from toolchain.core import console
from toolchain.core.deadline import LONGEST_CHECK, deadline
from toolchain.core.digest import sha256_json
from toolchain.core.errors import (
    ConfigError,
    DigestError,
    DocumentError,
    EngineError,
    RegistryError,
    SourceError,
    UnreachableError,
    UntrustedError,
)
from toolchain.core.record import Record, TakenFrom
from toolchain.oci.descriptor import Descriptor, Platform
from toolchain.oci.layout import Layout
from toolchain.oci.place import Place
from toolchain.oci.places import open_place
from toolchain.oci.reference import Target, parse_place
from toolchain.pipeline.records import image_tag, new_record, write_record
from toolchain.request.model import Request
from toolchain.stages.prebuilt import let_in_names
from toolchain.stages.stage import Built, Planned
from toolchain.trust import attest
from toolchain.trust.keys import PublicKey, load_public
from toolchain.trust.policy import Policy
from toolchain.trust.verify import verify

_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """A registry or layout with finished images.

    Args:
        place: a namespace of a registry, or a layout folder, in the form that `publish` takes.
        key: the key that must have signed the images.
        only: whether it is an error if a stage cannot be taken from `place`; otherwise the stage is built.
    """

    place: Target
    key: PublicKey
    only: bool = False


def make_reuse(where: str, key: Path | None, *, only: bool = False, offline: bool = False) -> Reuse:
    """Return the registry or layout and the key that the options name.

    Raise ConfigError if `where` or the key is invalid, if `key` is None, or if `--offline` forbids access to the
    registry.

    Args:
        where: the value of `--reuse-from`.
        key: the file with the publisher's public key.
    """
    if key is None:
        raise ConfigError(
            "reuse-needs-key",
            "--reuse-from needs --public-key",
            why="a label or a tag does not prove who made an image; only a signature does",
            fix="give the publisher's public key: --public-key FILE",
        )
    place = parse_place(where, "--reuse-from")
    if offline and place.remote:
        raise ConfigError(
            "reuse-offline",
            "--reuse-from cannot use a registry with --offline",
            fix="leave one of the two options out, or use oci:DIR",
        )
    return Reuse(place=place, key=load_public(key), only=only)


def input_tag(input_digest: str, compression: str = "gzip") -> str:
    """Return the tag under which `publish` stores an image with this input digest.

    It consists of the first 12 digits and, unless the compression is gzip, `-` and the name of the compression.
    """
    return input_digest.removeprefix("sha256:")[:12] + ("" if compression == "gzip" else f"-{compression}")


def input_tags(digests: Mapping[str, str], compression: str = "gzip") -> tuple[str, ...]:
    """Return the tags under which `publish` stores an index: a joint tag for several images, and a tag for each image.

    Args:
        digests: the input digests of the images, by architecture.
    """
    joint = (sha256_json(dict(digests)),) if len(digests) > 1 else ()
    return tuple(input_tag(digest, compression) for digest in (*joint, *digests.values()))


def reference(place: Target, planned: Planned, compression: str = "gzip") -> Target:
    """Return the reference under which `publish` stores the image of a planned stage."""
    return place.image(planned.image, input_tag(str(planned.input_digest), compression))


def take(request: Request, planned: Planned, reuse: Reuse) -> Built | None:
    """Fetch the finished image of a stage into the cache, record it like an image that was built here, and return it.

    The bytes, the signature, the provenance for exactly these inputs, the SBOM and the prebuilt parts are verified
    before the image is added to the cache's images. An image compressed with gzip is preferred to one with zstd.

    Return None if the stage must be built: for the user's own base image, for a stage whose input digest is unknown,
    and, after a note with the reason, if the image cannot be fetched or does not verify. With `reuse.only`, an error is
    raised in all these cases except the first.
    """
    if planned.name == "base" and request.base.image is not None:
        return None  # the user's own base image is already here
    if planned.input_digest is None:
        if reuse.only:
            raise SourceError(
                "reuse-digest-unknown",
                f"{planned.image} cannot be looked up at a publisher",
                why="one of its inputs is not locked, so its input digest is unknown",
                fix="build it once, or import a bundle that contains its base",
            )
        return None
    ref = reference(reuse.place, planned)
    try:
        try:
            return _take(request, planned, ref, reuse.key)
        except RegistryError as error:
            with contextlib.suppress(RegistryError):
                ref = reference(reuse.place, planned, "zstd")
                return _take(request, planned, ref, reuse.key)
            ref = reference(reuse.place, planned)
            raise error from None
    except (UntrustedError, DigestError, DocumentError) as error:
        problem = f"{ref} does not verify"
        if reuse.only:
            raise UntrustedError(
                error.id,
                f"{problem}: {error.what}",
                why=error.why,
                fix="build it without --reuse-only, or ask its publisher to publish it again",
            ) from error
        _note(planned, problem, error.what)
    except UnreachableError as error:
        if reuse.only:
            raise
        _note(planned, f"{ref} cannot be looked up", error.what)
    except (RegistryError, EngineError) as error:  # EngineError: a decompressor is not installed
        if reuse.only:
            raise
        _note(planned, f"{ref} is not available", error.what)
    return None


def _note(planned: Planned, problem: str, why: str) -> None:
    console.note(f"{planned.name}: {problem}, so it is built here ({why})")


def _take(request: Request, planned: Planned, ref: Target, key: PublicKey) -> Built:
    def problem() -> UnreachableError:
        return UnreachableError(
            "verify-timeout", f"{ref} could not be checked within {LONGEST_CHECK:g} s", fix="try again later"
        )

    with deadline(LONGEST_CHECK, problem), open_place(ref) as place:
        return _look(request, planned, place, key)


def _look(request: Request, planned: Planned, place: Place, key: PublicKey) -> Built:
    request.cache.work.mkdir(parents=True, exist_ok=True)
    # The folder is in the cache, so that the verified blobs can be moved and need not be copied.
    with tempfile.TemporaryDirectory(dir=request.cache.work, prefix="reuse-") as folder:
        scratch = Layout(Path(folder) / "layout").ensure()
        # The index may also contain images for other architectures, which are neither fetched nor verified.
        platform = Platform("linux", request.arch[0])
        manifest = place.fetch(scratch, platform=platform)
        by_digest = str(place.ref.at(digest=manifest.digest))

        def proved(statement: Mapping[str, Any]) -> tuple[Built, Record]:
            parts = scratch.children(manifest)
            made = Built(
                planned=planned,
                input_digest=str(planned.input_digest),
                manifest=manifest.digest,
                layers=tuple(layer.as_json() for layer in parts[1:]),
                reused=True,
                taken_from=by_digest,
            )
            record = replace(new_record(request, planned, made), taken_from=TakenFrom(by_digest, key.id))
            return made, _as_proved(record, statement, planned, request, parts[-1])

        demands = Policy(source_only=True, allow=let_in_names(request), input_digest=planned.input_digest)
        verdict = verify(place, scratch, manifest, key=key, demands=demands, accept=proved)
        if verdict.problems or verdict.provenance is None:
            raise UntrustedError(
                verdict.id, verdict.problems[0] if verdict.problems else "no provenance names its builder"
            )
        made, record = proved(verdict.provenance)
        _bring(scratch, manifest, Layout(request.cache.images).ensure(), planned)
    write_record(request.cache, record)
    console.note(f"{planned.name}: {planned.image} is verified and taken from {by_digest}")
    return replace(made, facts=record.facts, binaries=record.binaries)


def _as_proved(
    record: Record, statement: Mapping[str, Any], planned: Planned, request: Request, layer: Descriptor
) -> Record:
    """Return a record with the facts in the signed provenance, because another machine built the image.

    Raise UntrustedError if the provenance is malformed, is about another stage or image, contains no build report, or
    shows that the image was built without a contract check that the request demands. `layer` is the stage's own layer.
    """
    try:
        definition, run = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
        inner, parameters = definition["internalParameters"], dict(definition["externalParameters"])
        tool = {"version": str(run["builder"]["version"]["toolchain"]), "builder": str(run["builder"]["id"])}
        if "invocationId" in run["metadata"]:
            tool["run"] = str(run["metadata"]["invocationId"])
        proved = replace(
            record,
            request=parameters,
            started=_seconds(run["metadata"]["startedOn"]),
            finished=_seconds(run["metadata"]["finishedOn"]),
            tool=tool,
            isolation=attest.byproduct(statement, "isolation", recorded=attest.WITH_THE_BUILD) or None,
            # During the build, the scan of the sources may have found more binaries than were planned.
            binaries=tuple(sorted({*planned.binaries, *(str(name) for name in inner["binaries"])})),
            partial=str(inner["partial"]),
            compressor=str(inner["compressors"].get(layer.digest, "")),
            facts=attest.byproduct(statement, attest.REPORT) or {},
        )
        named = (str(inner["stage"]), str(inner["image"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UntrustedError(
            "provenance-malformed",
            "provenance: the statement is malformed",
            why="a field is missing or has another type",
        ) from error
    if named != (planned.name, planned.image):
        raise UntrustedError(
            "provenance-other-stage",
            f"provenance: it is about {named[0]} {named[1]}, not {planned.name} {planned.image}",
        )
    if not proved.facts:
        raise UntrustedError(
            "provenance-without-report",
            "provenance: it contains no build report",
            fix="publish it again with this version",
        )
    if planned.has_contract_check and request.contract and proved.request.get("contract") is False:
        raise UntrustedError(
            "provenance-without-contract",
            "provenance: it was built without the contract check",
            fix="to accept it: --no-contract",
        )
    return proved


def _seconds(text: str) -> float:
    return datetime.strptime(str(text), _TIME).replace(tzinfo=UTC).timestamp()


def _bring(scratch: Layout, image: Descriptor, own: Layout, planned: Planned) -> None:
    """Move the verified blobs of an image into the cache's layout, and tag the image."""
    content = scratch.read(image)
    for part in scratch.children(image):
        own.put_file(scratch.blob(part.digest), digest=part.digest, move=True, media_type=part.media_type)
    manifest = own.put_bytes(content, image.media_type)
    # The tag protects the blobs. The record, which the caller writes last, makes the image finished.
    own.tag(manifest, image_tag(planned.image, str(planned.input_digest)))
