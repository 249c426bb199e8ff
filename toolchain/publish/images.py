"""What leaves the cache as images, to a layout or a registry."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from toolchain.build.plan import PlanRow, plan
from toolchain.build.record import read_record
from toolchain.build.targets import by_arch
from toolchain.catalog.stages import ALL, published
from toolchain.digest import EPOCH, sha256_json, write_atomically
from toolchain.errors import PolicyError, SourceError, ToolchainError
from toolchain.locks import held
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.files import tag_of
from toolchain.oci.image import (
    LayerBlob,
    add_layer,
    platform_of,
    read_layers,
    standard_annotations,
    with_layers,
    write_index,
)
from toolchain.oci.layer import Layer, compress, compressor_id
from toolchain.oci.layout import Layout
from toolchain.oci.place import open_place
from toolchain.oci.reference import Target
from toolchain.publish.artifacts import DeliveredFiles, deliver_files, require_files
from toolchain.publish.attestations import AttachedEvidence, attach_evidence, collect
from toolchain.publish.consumer import Use, use_of
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
    request: Request, target: str, dest: Target, *, signer: Signer | Keyless | None = None, files: bool = False
) -> list[Delivered]:
    """Publish the finished images of `target` (its topmost stage, or all but the base for `all`), each as an index.

    Images of one name for several architectures go into one index, whose bytes do not tell which was built first.

    Args:
        signer: signs SBOM and provenance; without it the SBOM alone is attached (see `evidence.attach_evidence`).
        files: whether archives, wheels and reports go beside the images.

    Raises:
        ConfigError: files are wanted, and none of the stages has any.
        SourceError: one of them is not built yet.
        RegistryError, UnreachableError: it could not be published.
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
    return [_deliver(request, image, images, dest, signer=signer, files=files) for image, images in wanted.items()]


@dataclass(frozen=True)
class _One:
    """An image for one architecture, and the plan that it belongs to."""

    row: PlanRow
    plan: Sequence[Planned]

    @property
    def built(self) -> Built:
        assert self.row.built is not None  # noqa: S101 - the caller looked
        return self.row.built


def _tags(images: Sequence[_One]) -> tuple[str, ...]:
    """What names the work: the input digest; of several architectures one over theirs, then each one's own.

    By its own whoever plans one architecture alone asks for it (`reuse.reference`).
    """
    digests = {one.row.arch: one.built.input_digest for one in images}
    joint = (sha256_json(digests),) if len(digests) > 1 else ()
    return tuple(digest.removeprefix("sha256:")[:12] for digest in (*joint, *digests.values()))


def _moving(request: Request) -> str:
    """The tag that goes along to the newest: `latest`, and `zstd` beside it, which not every engine reads."""
    return "" if request.compression == "gzip" else request.compression


def _deliver(
    request: Request, image: str, images: Sequence[_One], dest: Target, *, signer: Signer | Keyless | None, files: bool
) -> Delivered:
    planned, cache = images[0].row.planned, request.cache
    unlocked = [source.name for source in planned.sources if not source.locked and source.digest is None]
    if unlocked:
        raise PolicyError(
            f"{image} rests on sources without a digest: {', '.join(unlocked)}",
            fix="fetch or lock them: toolchain fetch, or toolchain lock",
        )
    layout = Layout(cache.images).ensure()
    manifests = [_compressed(request, layout, one.built) for one in images]
    index = write_index(layout, manifests, standard_annotations(epoch=EPOCH, title=image))
    names = (_moving(request), *_tags(images))
    refs = tuple(dest.image(image, name) for name in names)
    with open_place(refs[0]) as place:
        done = place.put(layout, index, [str(ref.tag) for ref in refs])
        attached: list[AttachedEvidence] = []
        made: list[tuple[Built, ImageFacts]] = []
        # Known-bad kernels, for one, show when the work is done and not in the plan.
        partial: set[str] = set()
        for one, manifest in zip(images, manifests, strict=True):
            record = read_record(cache, one.built.input_digest)
            partial.add(record.partial or planned.partial)
            image_facts = collect(cache, record, one.plan)
            made.append((one.built, image_facts))
            attached.append(
                attach_evidence(image_facts, layout, manifest, index, place, signer=signer, scratch=cache.work)
            )
        beside = [dest.image(image, tag_of(name)) for name in names]
        plain = deliver_files(request, made, index, place, beside, signer=signer) if files else None
    sent = sum(part.pushed_bytes for part in attached)
    about = tuple(sorted({tag for one in attached for tag in one.tags}))
    evidence = replace(attached[0], pushed_bytes=sent, tags=about)
    use = use_of(layout, index, refs[0], name=image)
    told = tuple(str(ref) for ref in refs)
    return Delivered(
        image, told, done.digest, done.pushed_bytes, done.skipped_bytes, _joined(partial), evidence, use, plain
    )


def _joined(told: Set[str]) -> str:
    return "; ".join(sorted(told - {""}))


def _compressed(request: Request, layout: Layout, built: Built) -> Descriptor:
    """The manifest to publish: layers that were kept plain for this machine's engine are packed first."""
    manifest = layout.resolve(built.manifest)
    config, *_ = layout.children(manifest)
    platform = platform_of(layout.read_json(config))
    layers = read_layers(layout, manifest)
    if all(layer.descriptor.media_type != media.LAYER for layer in layers):
        return replace(manifest, platform=platform)
    packed: list[LayerBlob] = []
    for layer in layers:
        if layer.descriptor.media_type != media.LAYER:
            packed.append(layer)
            continue
        packed.append(_packed(request, layout, layer))
    return replace(with_layers(layout, manifest, packed), platform=platform)


def _packed(request: Request, layout: Layout, layer: LayerBlob) -> LayerBlob:
    """A plain layer as it is sent: minutes for gigabytes, so the blob of an earlier time is taken while it is here."""
    name = f"{layer.diff_id} {compressor_id(request.compression)}"
    note = layout.root / "packed" / f"{sha256_json(name).removeprefix('sha256:')}.json"
    short = layer.diff_id.removeprefix("sha256:")[:12]
    with held(request.cache.locks / f"pack-{short}.lock", what=f"packing the layer {short}"):
        # A note that cannot be read is written again.
        with contextlib.suppress(OSError, ValueError, KeyError, ToolchainError):
            known = Descriptor.from_json(json.loads(note.read_bytes()))
            if layout.holds(known.digest):
                return LayerBlob(known, layer.diff_id, layer.created_by)
        request.cache.work.mkdir(parents=True, exist_ok=True)
        out = request.cache.work / f"pack-{short}"
        plain = Layer(layer.diff_id, layer.descriptor.size, layout.blob(layer.descriptor.digest))
        made = add_layer(layout, compress(plain, out, request.compression), move=True)
        note.parent.mkdir(exist_ok=True)
        write_atomically(note, json.dumps(made.descriptor.as_json()).encode())
        return made
