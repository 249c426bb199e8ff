"""What leaves the cache as images, to a layout or a registry."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolchain.errors import PolicyError, SourceError
from toolchain.evidence import AttachedEvidence, attach_evidence, collect, read_record
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import LayerBlob, platform_of, read_layers, standard_annotations, write_index
from toolchain.oci.layer import Layer, compress
from toolchain.oci.layout import Layout
from toolchain.oci.publish import Published, publish
from toolchain.oci.reference import LayoutRef, RegistryRef, Target
from toolchain.oci.registry import Registry
from toolchain.pipeline import PlanRow, plan
from toolchain.settings import EPOCH, Cache, Request
from toolchain.stages.stage import Built, Planned
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
        }


def deliver(request: Request, goal: str, dest: Target, *, signer: Signer | None = None) -> list[Delivered]:
    """Publish the finished images of `goal` (its topmost stage, or all but the base for `all`), each as an index.

    Args:
        signer: signs SBOM and provenance; without it the SBOM alone is attached (see `evidence.attach_evidence`).

    Raises:
        SourceError: one of them is not built yet.
        RegistryError, UnreachableError: it could not be published.
    """
    rows = plan(request, goal)
    wanted = [row for row in rows if row.planned.name in _published(goal)]
    missing = [row.planned.image for row in wanted if row.built is None]
    if missing:
        raise SourceError(f"not built yet: {', '.join(missing)}", fix=f"toolchain build {goal}, with the same options")
    return [_deliver(request.cache, row, [one.planned for one in rows], dest, signer) for row in wanted]


def _published(goal: str) -> tuple[str, ...]:
    return ("llvm", "kernels", "aotriton") if goal == "all" else (goal,)


def _deliver(cache: Cache, row: PlanRow, plan: Sequence[Planned], dest: Target, signer: Signer | None) -> Delivered:
    assert row.built is not None  # noqa: S101 - the caller looked
    planned, built = row.planned, row.built
    unlocked = [source.name for source in planned.sources if not source.locked and source.digest is None]
    if unlocked:
        raise PolicyError(f"{planned.image} rests on sources without a digest: {', '.join(unlocked)}")
    layout = Layout(cache.images).ensure()
    manifest = _compressed(cache, layout, built)
    index = write_index(layout, [manifest], standard_annotations(epoch=EPOCH, title=planned.image))
    short = built.input_digest.removeprefix("sha256:")[:12]
    if isinstance(dest, RegistryRef):
        target: Target = dest.child(planned.image)
        tags: Sequence[str] = ("latest", short)
    else:
        assert isinstance(dest, LayoutRef)  # noqa: S101 - the other kind
        target, tags = LayoutRef(dest.path), (planned.image, f"{planned.image}.{short}")
    material = collect(cache, read_record(cache, built.input_digest), plan)
    with contextlib.ExitStack() as stack:
        registry = stack.enter_context(Registry(target.host)) if isinstance(target, RegistryRef) else None
        done: Published = publish(layout, index, target, tags, registry=registry)
        attached = attach_evidence(
            material, layout, manifest, index, target, signer=signer, registry=registry, scratch=cache.work
        )
    refs = tuple(str(target.at(tag=tag)) for tag in tags)
    return Delivered(planned.image, refs, done.digest, done.pushed_bytes, done.skipped_bytes, planned.partial, attached)


def _compressed(cache: Cache, layout: Layout, built: Built) -> Descriptor:
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
        cache.work.mkdir(parents=True, exist_ok=True)
        out = cache.work / f"pack-{layer.diff_id.removeprefix('sha256:')[:12]}"
        plain = Layer(layer.diff_id, layer.descriptor.size, layout.blob(layer.descriptor.digest))
        blob = compress(plain, out, "gzip")
        packed.append(
            LayerBlob(layout.put_file(out, digest=blob.digest, move=True, media_type=blob.media_type), layer.diff_id)
        )
    value = json.loads(layout.read(manifest))
    value["layers"] = [layer.descriptor.plain.as_json() for layer in packed]
    return replace(layout.put_json(value, media.MANIFEST), platform=platform)
