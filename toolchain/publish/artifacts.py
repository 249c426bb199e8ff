"""Publish the plain files of a stage as an artifact that is attached to its image, and download published wheels."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolchain.core import console
from toolchain.core.cache import Cache
from toolchain.core.digest import canonical
from toolchain.core.errors import SourceError, ToolchainError
from toolchain.core.record import Record
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.files import PlainFile, read_files, tag_of, write_files
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import parse_object
from toolchain.oci.place import Place
from toolchain.oci.places import open_place
from toolchain.oci.reference import Target
from toolchain.pipeline.reuse import input_tag, reference
from toolchain.publish.attestations import AttachedEvidence, attach_to_files
from toolchain.publish.packing import PACKINGS
from toolchain.publish.plain_files import FORMS, write_archives
from toolchain.request.model import Request
from toolchain.sources.store import Store
from toolchain.stages.stage import Built, Planned
from toolchain.stages.wheels import in_store
from toolchain.trust.image_facts import ImageFacts
from toolchain.trust.keyless import Keyless
from toolchain.trust.keys import Signer

if TYPE_CHECKING:
    from toolchain.pipeline.reuse import Reuse


@dataclass(frozen=True)
class DeliveredFiles:
    """The result of publishing the plain files of an image as one artifact."""

    refs: tuple[str, ...]
    digest: str
    pushed_bytes: int
    skipped_bytes: int
    files: tuple[PlainFile, ...]
    evidence: AttachedEvidence

    def as_json(self) -> dict[str, Any]:
        return vars(self) | {"files": [file.as_json() for file in self.files], "evidence": self.evidence.as_json()}


def deliver_files(
    cache: Cache,
    made: Sequence[ImageFacts],
    index: Descriptor,
    place: Place,
    refs: Sequence[Target],
    *,
    signer: Signer | Keyless | None,
) -> DeliveredFiles | None:
    """Publish the archives, wheels and reports of an image as one artifact, whose subject is the index of the image.

    The result is None if the stage of the image has no plain files.

    Args:
        made: the facts of the image for each architecture.
        index: the index of the image, which `place` must already contain.
        refs: the references under which the artifact is published, each with a tag.
        signer: the signer of the provenance; None to attach no provenance.
    """
    if made[0].record.stage not in FORMS:
        return None
    cache.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.work, prefix="files-") as folder:
        paths = [_write(cache, facts.record, Path(folder) / str(at)) for at, facts in enumerate(made)]
        layout = Layout(Path(folder) / "layout").ensure()
        image = made[0].record.image
        names = [[path.name for path in of_one] for of_one in paths]
        manifest = write_files(layout, index, [path for of_one in paths for path in of_one], title=f"{image}: files")
        files = read_files(layout.read_json(manifest), manifest)
        done = place.put(layout, manifest, ())
        listed = place.attach(layout, index.digest, [manifest])
        by_build = [
            (facts, [file for file in files if file.name in of_one]) for facts, of_one in zip(made, names, strict=True)
        ]
        evidence = attach_to_files(by_build, manifest, place, signer=signer, scratch=cache.work)
        place.tag(layout, manifest, [str(ref.tag) for ref in refs])
    pushed = done.pushed_bytes + listed.pushed_bytes
    return DeliveredFiles(tuple(str(ref) for ref in refs), manifest.digest, pushed, done.skipped_bytes, files, evidence)


def _write(cache: Cache, record: Record, folder: Path) -> list[Path]:
    paths = write_archives(cache, [record], folder)
    report = folder / f"{record.image}-{record.arch}.report.json"
    value = {
        "image": record.image,
        "stage": record.stage,
        "arch": record.arch,
        "input_digest": record.input_digest,
        "facts": _lasting(dict(record.facts)),
    }
    report.write_bytes(canonical(value) + b"\n")
    return [*paths, report]


def _lasting(value: Any) -> Any:
    """Return a report without the keys that end with `seconds`, so that equal builds give equal reports."""
    if isinstance(value, Mapping):
        return {key: _lasting(item) for key, item in value.items() if not str(key).endswith("seconds")}
    return [_lasting(item) for item in value] if isinstance(value, list | tuple) else value


def bring_wheels(request: Request, built: Sequence[Built], reuse: Reuse) -> None:
    """Download the wheels of reused images into the store, from the artifacts of these images.

    Each wheel is compared with the digest in the facts of its image. A note is printed if a wheel cannot be downloaded.

    Args:
        built: the images of the build. Wheels that are already in the store are not downloaded.
        reuse: the folder or repository from which the images were reused.
    """
    for stage in built:
        wanted = {str(wheel["digest"]): str(wheel["file"]) for wheel in stage.facts.get("wheels", ())}
        missing = {digest: name for digest, name in wanted.items() if in_store(request.cache, digest) is None}
        if missing:
            try:
                _bring(request, stage.planned, missing, reuse.place)
            except ToolchainError as error:
                console.note(f"{stage.planned.name}: cannot fetch the wheels of {stage.planned.image} ({error.what})")


def _bring(request: Request, planned: Planned, missing: Mapping[str, str], where: Target) -> None:
    image = reference(where, planned)
    refs = [where.image(planned.image, tag_of(input_tag(str(planned.input_digest), how))) for how in PACKINGS]
    with open_place(refs[0]) as place:
        known = place.tags()
        ref = next((ref for ref in refs if ref.tag in known), refs[0])
        manifest, content = place.manifest(str(ref.tag))
        files = {file.blob.digest: file for file in read_files(parse_object(content, manifest.digest), manifest)}
        with tempfile.TemporaryDirectory(dir=request.cache.work, prefix="files-") as folder:
            scratch = Layout(Path(folder)).ensure()
            for digest, name in missing.items():
                if digest not in files:
                    raise SourceError(
                        "artifact-file-missing",
                        f"the files that were published with {image} have no {name} with the digest {digest}",
                        fix="publish the image with --files on the machine that built it, or build the stage here",
                    )
                path = place.blob(files[digest].blob, scratch)
                Store(request.cache.store).add_file(path, digest, name=name)
                console.note(f"{planned.name}: using {name} from {ref}")
