"""Publish finished images to a layout folder or a registry."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError
from toolchain.core.record import Record
from toolchain.oci.files import tag_of
from toolchain.oci.image import standard_annotations, write_index
from toolchain.oci.layout import Layout
from toolchain.oci.places import open_place
from toolchain.oci.reference import Target
from toolchain.pipeline.finished_images import Publication, note_publication, note_use
from toolchain.pipeline.reuse import input_tags
from toolchain.publish.artifacts import DeliveredFiles, deliver_files
from toolchain.publish.attestations import AttachedEvidence, attach_evidence, collect
from toolchain.publish.consumer import Use, use_of
from toolchain.publish.packing import Packing, packed_image
from toolchain.publish.plain_files import FORMS, no_plain_form
from toolchain.trust.image_facts import ImageFacts
from toolchain.trust.keyless import Keyless
from toolchain.trust.keys import Signer


@dataclass(frozen=True)
class Delivered:
    """A published image, its attestations and plain files, and the lines of a Containerfile that use the image."""

    image: str
    refs: tuple[str, ...]
    digest: str
    pushed_bytes: int
    skipped_bytes: int
    partial: str
    evidence: AttachedEvidence
    use: Use
    files: DeliveredFiles | None = None

    def as_json(self) -> dict[str, Any]:
        files = self.files.as_json() if self.files is not None else None
        return vars(self) | {"evidence": self.evidence.as_json(), "use": self.use.as_json(), "files": files}


def deliver(
    cache: Cache,
    records: Sequence[Record],
    dest: Target,
    *,
    compression: Packing = "gzip",
    signer: Signer | Keyless | None = None,
    files: bool = False,
) -> list[Delivered]:
    """Publish finished images, and return a result for each name.

    Images with the same name for several architectures become one index.

    ConfigError is raised if plain files are requested but no image has any, if a Triton cache is to be compressed with
    zstd, or if two images have the same name and architecture.

    Args:
        records: the records of the images.
        dest: the namespace or folder to which the images are published.
        compression: the compression of the published layers (see `packing.packed_image` for exceptions).
        signer: the signer of the SBOMs and the provenance; with None, only the SBOMs are attached (see
            `attestations.attach_evidence`).
        files: whether to publish archives, wheels and reports too.
    """
    stages = {record.stage for record in records}
    if files and not FORMS.keys() & stages:
        raise no_plain_form("--files", "publish")
    if compression != "gzip" and "triton-cache" in stages:
        raise ConfigError(
            "compression-not-for-cache",
            f"a Triton cache cannot be published with {compression}",
            why="MCV, which unpacks Triton caches, reads only gzip layers",
            fix="leave out --compression",
        )
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(record.image, []).append(record)
    for name, images in by_name.items():
        arches = [record.arch for record in images]
        if len(set(arches)) < len(arches):
            raise ConfigError(
                "architecture-twice",
                f"two images with the name {name} are for the same architecture",
                why=", ".join(f"{record.arch}: {record.input_digest}" for record in images),
                fix="publish them separately, because an index has one image for each architecture",
            )
    facts = {name: [collect(cache, record) for record in images] for name, images in by_name.items()}
    note_use(cache, records)
    return [
        _deliver(cache, name, images, dest, compression=compression, signer=signer, files=files)
        for name, images in facts.items()
    ]


def _tags(images: Sequence[Record], compression: Packing) -> tuple[str, ...]:
    """Return the tags of an index: a tag that moves to each new image, and those of `input_tags`.

    With gzip, the moving tag is an empty string, which means `latest` in a registry. With zstd, it is `zstd`, because
    some engines cannot read zstd layers.
    """
    moving = "" if compression == "gzip" else compression
    return (moving, *input_tags({record.arch: record.input_digest for record in images}, compression))


def _deliver(
    cache: Cache,
    name: str,
    images: Sequence[ImageFacts],
    dest: Target,
    *,
    compression: Packing,
    signer: Signer | Keyless | None,
    files: bool,
) -> Delivered:
    layout = Layout(cache.images).ensure()
    records = [image.record for image in images]
    packed = [packed_image(cache, record, compression) for record in records]
    index = write_index(layout, [sent.manifest for sent in packed], standard_annotations(name))
    tags = _tags(records, compression)
    refs = tuple(dest.image(name, tag) for tag in tags)
    made = [replace(image, compressors=sent.compressors) for image, sent in zip(images, packed, strict=True)]
    with open_place(refs[0]) as place:
        done = place.put(layout, index, ())
        attached = [
            attach_evidence(facts, layout, sent.manifest, index, place, signer=signer, scratch=cache.work)
            for facts, sent in zip(made, packed, strict=True)
        ]
        beside = [dest.image(name, tag_of(tag)) for tag in tags]
        plain = deliver_files(cache, made, index, place, beside, signer=signer) if files else None
        # The tags are set last, so that they never point to an image without its attestations.
        place.tag(layout, index, [str(ref.tag) for ref in refs])
    names = tuple(str(ref) for ref in refs)
    for record in records:
        note_publication(cache, record, Publication(names[0], done.digest, round(time.time())))
    pushed = sum(part.pushed_bytes for part in attached)
    about = tuple(sorted({tag for part in attached for tag in part.tags}))
    partial = "; ".join(sorted({record.partial for record in records} - {""}))
    return Delivered(
        image=name,
        refs=names,
        digest=done.digest,
        pushed_bytes=done.pushed_bytes,
        skipped_bytes=done.skipped_bytes,
        partial=partial,
        evidence=replace(attached[0], pushed_bytes=pushed, tags=about),
        use=use_of(layout, index, refs[0], name=name),
        files=plain,
    )
