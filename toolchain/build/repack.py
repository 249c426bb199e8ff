"""A finished image in another compression: its layers are packed again, and nothing is built."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from toolchain.build.record import known_record, read_record, write_record
from toolchain.build.workspace import image_tag
from toolchain.cache import Cache
from toolchain.digest import CHUNK, canonical
from toolchain.engine.resources import require_disk
from toolchain.errors import DigestError
from toolchain.oci import descriptor as media
from toolchain.oci.compressed import DAMAGED, PLAIN, unpacked
from toolchain.oci.image import LayerBlob, add_layer, read_layers, with_layers
from toolchain.oci.labels import INPUT_DIGEST
from toolchain.oci.layer import Compression, HashedFile, Layer, compress
from toolchain.oci.layout import Layout
from toolchain.request import Request
from toolchain.stages.stage import Built, Planned

_ALL: tuple[Literal["gzip", "zstd"], ...] = ("gzip", "zstd")


def other_requests(request: Request) -> list[Request]:
    """The same request for each other compression. A lock names one compressor, so it is not held against these."""
    return [replace(request, compression=how, lock=None) for how in _ALL if how != request.compression]


def is_twin(planned: Planned, other: Planned, below: Mapping[str, str]) -> bool:
    """Whether two plans differ in the compressor alone: their own, and that of the stages that they stand on.

    Args:
        below: input digests of those stages, each with its twin's.
    """
    if planned.inputs is None or other.inputs is None or planned.input_digest == other.input_digest:
        return False
    mine, others = (_but_compressor(one) for one in (planned.inputs, other.inputs))
    for digest, twin in below.items():
        mine = mine.replace(digest.encode(), twin.encode())
    return mine == others


def _but_compressor(inputs: Mapping[str, Any]) -> bytes:
    return canonical({name: value for name, value in inputs.items() if name != "compressor"})


def made_here(cache: Cache, built: Built) -> bool:
    """Whether this cache's own tool built it. What somebody else signed is not packed again under our name."""
    record = known_record(cache, built.input_digest)
    return record is not None and record.taken_from is None


def repack(request: Request, planned: Planned, twin: Built, below: Sequence[Built]) -> Built:
    """The image of `planned` from that of its twin: the bytes that building it would end in.

    Args:
        below: stages in this compression, whose layers may lie in it.

    Raises:
        DigestError: a layer is not what its image says.
        EngineError: the zstd program is missing.
        ResourceError: too little disk.
    """
    assert planned.input_digest is not None  # noqa: S101 - a twin has one
    layout = Layout(request.cache.images)
    # A layer's tar, and what it is packed to.
    require_disk(request.cache.root, 2 * int(twin.facts.get("unpacked_bytes", 0)))
    there = {one.diff_id: one for built in below for one in read_layers(layout, layout.resolve(built.manifest))}
    source = layout.resolve(twin.manifest)
    config, *_ = layout.children(source)
    # Its name is the stage's, whose lock is held: what a killed run left there goes.
    work = request.cache.work / f"repack-{planned.input_digest.removeprefix('sha256:')[:12]}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        layers = [
            there.get(one.diff_id) or _packed(layout, one, request.compression, work)
            for one in read_layers(layout, source)
        ]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    said = layout.read_json(config)
    said["config"]["Labels"][INPUT_DIGEST] = planned.input_digest
    manifest = with_layers(layout, source, layers, config=layout.put_json(said, media.CONFIG))
    top = layers[-1].descriptor
    built = Built(
        planned=planned,
        input_digest=planned.input_digest,
        manifest=manifest.digest,
        layers=tuple(one.descriptor.as_json() for one in layers),
        facts={**twin.facts, "blob_bytes": top.size, "packed_from": twin.input_digest},
        binaries=twin.binaries,
    )
    layout.tag(manifest, image_tag(planned.image, planned.input_digest))
    was = read_record(request.cache, twin.input_digest)
    record = replace(
        was,
        input_digest=built.input_digest,
        manifest=built.manifest,
        inputs=dict(planned.inputs or {}),
        request={**was.request, "compression": request.compression},
        finished=round(time.time(), 1),
        layers=built.layers,
        facts=built.facts,
    )
    write_record(request.cache, record)
    return built


def _packed(layout: Layout, layer: LayerBlob, how: Compression, work: Path) -> LayerBlob:
    """A layer in another compression; one that is kept plain for this machine's engine stays so."""
    if layer.descriptor.media_type in PLAIN:
        return layer
    tar = work / "layer.tar"
    size = _unpack(layout, layer, tar)
    blob = compress(Layer(layer.diff_id, size, tar), work / "blob", how)
    tar.unlink()
    return add_layer(layout, blob, move=True)


def _unpack(layout: Layout, layer: LayerBlob, tar: Path) -> int:
    """Write a layer's tar, which must be the one that its image names; its bytes."""
    blob = layout.blob(layer.descriptor.digest)
    try:
        with unpacked(blob, layer.descriptor.media_type) as stream, HashedFile(tar) as sink:
            while piece := stream.read(CHUNK):
                sink.write(piece)
    except DAMAGED as error:
        raise _damaged(blob, layer, str(error)) from error
    if sink.digest != layer.diff_id:
        raise _damaged(blob, layer, f"it unpacks to {sink.digest}, not to {layer.diff_id}")
    return sink.size


def _damaged(blob: Path, layer: LayerBlob, why: str) -> DigestError:
    return DigestError(
        f"the layer {layer.descriptor.digest} in the cache is damaged",
        why=why,
        fix=f"delete {blob} and run it again: the stage is then built anew",
    )
