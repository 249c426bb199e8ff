"""What leaves the cache as images, to a layout or a registry."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from toolchain.build.plan import PlanRow, plan
from toolchain.build.record import read_record
from toolchain.build.reuse import input_tag
from toolchain.build.targets import by_arch
from toolchain.catalog.stages import ALL, published
from toolchain.digest import EPOCH, sha256_json
from toolchain.errors import PolicyError, SourceError
from toolchain.oci.files import tag_of
from toolchain.oci.image import standard_annotations, write_index
from toolchain.oci.layout import Layout
from toolchain.oci.place import open_place
from toolchain.oci.reference import Target
from toolchain.publish.artifacts import DeliveredFiles, deliver_files, require_files
from toolchain.publish.attestations import AttachedEvidence, attach_evidence, collect
from toolchain.publish.consumer import Use, use_of
from toolchain.publish.packing import Packing, packed_image
from toolchain.request import Request
from toolchain.stages.stage import Built, Planned
from toolchain.trust.image_facts import ImageFacts
from toolchain.trust.keyless import Keyless
from toolchain.trust.keys import Signer


@dataclass(frozen=True)
class Delivered:
    """One image where it was published."""

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
        """A row of `publish --json`."""
        return {
            "image": self.image,
            "refs": list(self.refs),
            "digest": self.digest,
            "pushed_bytes": self.pushed_bytes,
            "skipped_bytes": self.skipped_bytes,
            "partial": self.partial,
            "evidence": self.evidence.as_json(),
            "use": self.use.as_json(),
            "files": self.files.as_json() if self.files is not None else None,
        }


def deliver(
    request: Request,
    target: str,
    dest: Target,
    *,
    compression: Packing = "gzip",
    signer: Signer | Keyless | None = None,
    files: bool = False,
) -> list[Delivered]:
    """Publish the finished images of `target` (its topmost stage, or all but the base for `all`), each as an index.

    Images of one name for several architectures go into one index, whose bytes do not tell which was built first.

    Args:
        compression: how the layers are compressed where they are published.
        signer: signs SBOM and provenance; without it the SBOM alone is attached (see `evidence.attach_evidence`).
        files: whether archives, wheels and reports go beside the images.

    Raises:
        ConfigError: files are wanted, and none of the stages has any.
        SourceError: one of them is not built yet.
        RegistryError, UnreachableError: it could not be published.
        DigestError, EngineError, ResourceError: a layer cannot be compressed again (`publish.packing`).
    """
    if files:
        require_files(target)
    wanted: dict[str, list[_One]] = {}
    missing, here = [], set[str]()
    for one in by_arch(request):
        rows = plan(one, target)
        here |= {row.planned.name for row in rows if row.built is not None}
        planned = [row.planned for row in rows]
        for row in rows:
            if row.planned.name not in published(target):
                continue
            wanted.setdefault(row.planned.image, []).append(_One(row, planned))
            if row.built is None:
                missing.append(row.planned.image + (f" for {row.arch}" if len(request.arch) > 1 else ""))
    if missing:
        fix = f"toolchain build {target}, with the same options"
        # Who built one stage alone publishes it by its name.
        if (built := [name for name in published(target) if name in here]) and target == ALL:
            fix += f"; or publish what is built: --stage {built[-1]}"
        raise SourceError(f"not built yet: {', '.join(missing)}", fix=fix)
    return [
        _deliver(request, image, images, dest, compression=compression, signer=signer, files=files)
        for image, images in wanted.items()
    ]


@dataclass(frozen=True)
class _One:
    """An image for one architecture, and the plan that it belongs to."""

    row: PlanRow
    plan: Sequence[Planned]

    @property
    def built(self) -> Built:
        assert self.row.built is not None  # noqa: S101 - the caller looked
        return self.row.built


def _tags(images: Sequence[_One], compression: Packing) -> tuple[str, ...]:
    """The tag that goes along to the newest, then those that name the work.

    The first is `latest`, which is empty here, or `zstd` beside it, since not every engine reads such layers. The work
    is named by its input digest: of several architectures by a digest over theirs, then by each one's own. By its own
    whoever plans one architecture alone asks for it (`reuse.references`).
    """
    digests = {one.row.arch: one.built.input_digest for one in images}
    joint = (sha256_json(digests),) if len(digests) > 1 else ()
    moving = "" if compression == "gzip" else compression
    return (moving, *(input_tag(digest, compression) for digest in (*joint, *digests.values())))


def _deliver(
    request: Request,
    image: str,
    images: Sequence[_One],
    dest: Target,
    *,
    compression: Packing,
    signer: Signer | Keyless | None,
    files: bool,
) -> Delivered:
    planned, cache = images[0].row.planned, request.cache
    unlocked = [source.name for source in planned.sources if not source.locked and source.digest is None]
    if unlocked:
        raise PolicyError(
            f"{image} rests on sources without a digest: {', '.join(unlocked)}",
            fix="fetch or lock them: toolchain fetch, or toolchain lock",
        )
    layout = Layout(cache.images).ensure()
    packed = [packed_image(cache, one.built.manifest, one.built.input_digest, compression) for one in images]
    index = write_index(layout, [one.manifest for one in packed], standard_annotations(epoch=EPOCH, title=image))
    names = _tags(images, compression)
    refs = tuple(dest.image(image, name) for name in names)
    with open_place(refs[0]) as place:
        done = place.put(layout, index, [str(ref.tag) for ref in refs])
        attached: list[AttachedEvidence] = []
        made: list[tuple[Built, ImageFacts]] = []
        # Known-bad kernels, for one, show when the work is done and not in the plan.
        partial: set[str] = set()
        for one, sent in zip(images, packed, strict=True):
            record = read_record(cache, one.built.input_digest)
            partial.add(record.partial or planned.partial)
            image_facts = replace(collect(cache, record, one.plan), compressors=sent.compressors)
            made.append((one.built, image_facts))
            attached.append(
                attach_evidence(image_facts, layout, sent.manifest, index, place, signer=signer, scratch=cache.work)
            )
        beside = [dest.image(image, tag_of(name)) for name in names]
        plain = deliver_files(request, made, index, place, beside, signer=signer) if files else None
    pushed = sum(part.pushed_bytes for part in attached)
    about = tuple(sorted({tag for one in attached for tag in one.tags}))
    evidence = replace(attached[0], pushed_bytes=pushed, tags=about)
    use = use_of(layout, index, refs[0], name=image)
    told = tuple(str(ref) for ref in refs)
    return Delivered(
        image, told, done.digest, done.pushed_bytes, done.skipped_bytes, _joined(partial), evidence, use, plain
    )


def _joined(told: Set[str]) -> str:
    return "; ".join(sorted(told - {""}))
