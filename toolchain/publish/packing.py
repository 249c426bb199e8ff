"""Compress the layers of an image before it is published."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from toolchain.core import strict_json
from toolchain.core.cache import Cache
from toolchain.core.digest import CHUNK, sha256_json, write_atomically
from toolchain.core.errors import ConfigError, DigestError, ToolchainError
from toolchain.core.locks import held
from toolchain.core.record import Record
from toolchain.engine.resources import require_disk
from toolchain.oci.compressed import DAMAGED, PLAIN, unpacked
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import LayerBlob, add_layer, platform_of, read_layers, with_layers
from toolchain.oci.layer import MEDIA_TYPES, HashedFile, Layer, compress, compressor_id
from toolchain.oci.layout import Layout

Packing = Literal["gzip", "zstd"]
PACKINGS: tuple[Packing, ...] = ("gzip", "zstd")


def packing(text: str) -> Packing:
    for name in PACKINGS:
        if text == name:
            return name
    raise ConfigError("unknown-compression", f"unknown compression {text!r}", fix=f"use one of {', '.join(PACKINGS)}")


@dataclass(frozen=True)
class PackedLayer:
    """A layer to publish, and its compressor, such as `gzip/zlib-1.2.13/9` (an empty string if it is unknown)."""

    layer: LayerBlob
    compressor: str


@dataclass(frozen=True)
class PackedImage:
    """An image to publish: its manifest, and its layers from the lowest to the highest."""

    manifest: Descriptor
    layers: tuple[PackedLayer, ...]

    @property
    def compressors(self) -> dict[str, str]:
        """Return the compressor of each blob whose compressor is known, by the blob's digest."""
        return {layer.layer.descriptor.digest: layer.compressor for layer in self.layers if layer.compressor}


def packed_image(cache: Cache, record: Record, how: Packing) -> PackedImage:
    """Return a finished image with its layers in the requested compression.

    Uncompressed layers are compressed, and the topmost layer, which the stage made, is compressed again if its
    compression is not the requested one. Other compressed layers, such as those of a user's base, are not changed.
    """
    layout = Layout(cache.images).ensure()
    top = layout.resolve(record.manifest)
    config, *_ = layout.children(top)
    layers = read_layers(layout, top)
    packed = tuple(_packed(cache, layer, how, record if layer is layers[-1] else None) for layer in layers)
    if [sent.layer.descriptor for sent in packed] != [layer.descriptor for layer in layers]:
        top = with_layers(layout, top, [sent.layer for sent in packed])
    return PackedImage(replace(top, platform=platform_of(layout.read_json(config))), packed)


def _packed(cache: Cache, layer: LayerBlob, how: Packing, record: Record | None) -> PackedLayer:
    """Return a layer in the compression that `packed_image` describes.

    The blob of an earlier call is reused if the layout still has it.

    Args:
        record: the record of the stage that made the layer; None for a layer below it.
    """
    kind = layer.descriptor.media_type
    if kind not in PLAIN and (record is None or kind == MEDIA_TYPES[how]):
        return PackedLayer(layer, record.compressor if record is not None else "")
    layout = Layout(cache.images)
    note = layout.root / "packed" / f"{sha256_json([layer.diff_id, how]).removeprefix('sha256:')}.json"
    short = layer.diff_id.removeprefix("sha256:")[:12]
    with held(cache.locks / f"pack-{short}.lock", what=f"packing the layer {short}"):
        # If the note about an earlier call cannot be read, the layer is compressed again.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, ToolchainError):
            known = strict_json.read(note.read_bytes())
            blob = Descriptor.from_json(known["blob"])
            if layout.holds(blob.digest):
                return PackedLayer(LayerBlob(blob, layer.diff_id, layer.created_by), str(known["compressor"]))
        cache.work.mkdir(parents=True, exist_ok=True)
        size = int(record.facts.get("unpacked_bytes", 0)) if record is not None else 0
        with _tar(cache, layout, layer, size) as plain:
            made = add_layer(layout, compress(plain, cache.work / f"pack-{short}", how), move=True)
        written_by = compressor_id(how)
        note.parent.mkdir(exist_ok=True)
        write_atomically(note, json.dumps({"blob": made.descriptor.as_json(), "compressor": written_by}).encode())
        return PackedLayer(made, written_by)


@contextlib.contextmanager
def _tar(cache: Cache, layout: Layout, layer: LayerBlob, size: int) -> Iterator[Layer]:
    """Yield the tar of a layer: its blob if that is not compressed, otherwise a temporary file.

    Args:
        size: the approximate size of the tar in bytes, to check for free disk space; 0 if it is unknown.
    """
    blob = layout.blob(layer.descriptor.digest)
    if layer.descriptor.media_type in PLAIN:
        yield Layer(layer.diff_id, layer.descriptor.size, blob)
        return
    tar = cache.work / f"pack-{layer.diff_id.removeprefix('sha256:')[:12]}.tar"
    require_disk(cache.root, 2 * size)  # space for the tar and the compressed layer
    try:
        yield Layer(layer.diff_id, _unpack(blob, layer, tar), tar)
    finally:
        tar.unlink(missing_ok=True)


def _unpack(blob: Path, layer: LayerBlob, tar: Path) -> int:
    """Unpack a layer's blob to `tar`, and return the size of `tar` in bytes; raise DigestError for a damaged blob."""
    try:
        with unpacked(blob, layer.descriptor.media_type) as stream, HashedFile(tar) as sink:
            while piece := stream.read(CHUNK):
                sink.write(piece)
    except DAMAGED as error:
        raise _damaged(blob, layer, "it cannot be decompressed") from error
    if sink.digest != layer.diff_id:
        raise _damaged(blob, layer, f"it unpacks to {sink.digest}, not to {layer.diff_id}")
    return sink.size


def _damaged(blob: Path, layer: LayerBlob, why: str) -> DigestError:
    return DigestError(
        "layer-damaged",
        f"the layer {layer.descriptor.digest} in the cache is damaged",
        why=why,
        fix=f"delete {blob} and build the stage again",
    )
