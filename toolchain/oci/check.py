"""Whether a layout holds what its names promise."""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path

from toolchain import process
from toolchain.digest import CHUNK, sha256_file
from toolchain.errors import ToolchainError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor, Platform
from toolchain.oci.image import diff_ids_of, platform_of
from toolchain.oci.layout import Layout

_GZIP = frozenset({media.LAYER_GZIP, media.DOCKER_LAYER_GZIP})
_PLAIN = frozenset({media.LAYER, media.DOCKER_LAYER})
# A layer is unpacked before anybody has asked who made it: a bomb may cost minutes, neither days nor disk.
_MOST_UNPACKED = 256 << 30
_TOO_MUCH = "nothing (it unpacks to more than any layer holds)"


class _BombError(Exception):
    """More came out than any layer holds."""


def verify_layout(layout: Layout, descriptor: Descriptor) -> list[str]:
    """All that is wrong with an image or index and everything below it; empty when all is well.

    Every blob is hashed and measured; every layer is unpacked and compared with its diff_id; every image's platform is
    compared with its config; nothing may be missing.

    Raises:
        EngineError: a zstd layer, and the zstd program is missing.
    """
    return list(_Check(layout).problems(descriptor))


class _Check:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._hashed: set[str] = set()
        self._diff_ids: dict[str, str] = {}

    def problems(self, item: Descriptor, depth: int = 0) -> Iterator[str]:
        if depth > media.DEEPEST:
            yield f"{item.digest} lies below more than {media.DEEPEST} indexes"
            return
        blob = self._blob(item)
        if blob is not None:
            yield blob
            return
        if item.media_type not in media.MANIFESTS:
            return
        try:
            children = self._layout.children(item)
        except ToolchainError as error:
            yield f"{item.digest}: {error.what}"
            return
        if item.media_type in media.INDEXES:
            for child in children:
                yield from self.problems(child, depth + 1)
                yield from self._platform(child)
            return
        bad = [problem for child in children for problem in self.problems(child, depth)]
        yield from bad
        # An artifact has no root file system to compare.
        if not bad and children[0].media_type != media.EMPTY:
            yield from self._layers(item, children[0], children[1:])

    def _blob(self, item: Descriptor) -> str | None:
        if item.digest in self._hashed:
            return None
        if not self._layout.has(item.digest):
            return f"{item.digest} is missing"
        path = self._layout.blob(item.digest)
        if (size := path.stat().st_size) != item.size:
            return f"{item.digest} has {size} bytes, {item.size} expected"
        if (found := sha256_file(path)) != item.digest:
            return f"{item.digest} holds other bytes: {found}"
        self._hashed.add(item.digest)
        return None

    def _platform(self, image: Descriptor) -> Iterator[str]:
        if image.platform is None or image.media_type not in media.IMAGES or image.digest not in self._hashed:
            return
        with contextlib.suppress(ToolchainError):
            config = self._layout.children(image)[0]
            if config.media_type == media.EMPTY or not self._layout.has(config.digest):
                return
            said: Platform = platform_of(self._layout.read_json(config))
            if said != image.platform:
                yield f"{image.digest} is listed for {image.platform}, its config says {said}"

    def _layers(self, item: Descriptor, config: Descriptor, layers: tuple[Descriptor, ...]) -> Iterator[str]:
        try:
            expected = diff_ids_of(self._layout.read_json(config))
        except ToolchainError as error:
            yield f"{config.digest}: {error.what}"
            return
        if len(expected) != len(layers):
            yield f"{item.digest} has {len(layers)} layers, its config {len(expected)} diff_ids"
            return
        for layer, diff_id in zip(layers, expected, strict=True):
            found = self._diff_id(layer)
            if found != diff_id:
                yield f"{layer.digest} unpacks to {found}, {diff_id} expected"

    def _diff_id(self, layer: Descriptor) -> str:
        if layer.digest not in self._diff_ids:
            path = self._layout.blob(layer.digest)
            if layer.media_type in _PLAIN:
                found = layer.digest
            elif layer.media_type in _GZIP:
                found = _gunzipped(path)
            elif layer.media_type == media.LAYER_ZSTD:
                found = _unzstd(path)
            else:
                found = f"nothing known ({layer.media_type})"
            self._diff_ids[layer.digest] = found
        return self._diff_ids[layer.digest]


class _Hasher:
    """SHA-256 of what comes out of a decompressor, as long as that is not too much."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._left = _MOST_UNPACKED

    def update(self, piece: bytes) -> None:
        """Take the next bytes."""
        self._left -= len(piece)
        if self._left < 0:
            raise _BombError
        self._sha256.update(piece)

    def digest(self) -> str:
        """`sha256:<hex>`."""
        return f"sha256:{self._sha256.hexdigest()}"


def _gunzipped(path: Path) -> str:
    hasher = _Hasher()
    unpacker = zlib.decompressobj(31)
    try:
        with path.open("rb", buffering=0) as stream:
            while piece := stream.read(CHUNK):
                while piece:
                    hasher.update(unpacker.decompress(piece, 8 * CHUNK))
                    piece = unpacker.unconsumed_tail or unpacker.unused_data
                    if unpacker.eof and piece:  # another gzip member follows: compressors of others do that
                        unpacker = zlib.decompressobj(31)
            hasher.update(unpacker.flush())
    except zlib.error as error:
        return f"nothing (not gzip: {error})"
    except _BombError:
        return _TOO_MUCH
    return hasher.digest() if unpacker.eof else "nothing (it ends early)"


def _unzstd(path: Path) -> str:
    hasher = _Hasher()
    try:
        with process.output(["zstd", "-dcq", "--", path.absolute()]) as stream:
            while piece := stream.read(CHUNK):
                hasher.update(piece)
    except process.CommandError as error:
        return f"nothing (not zstd: {error.tail[-1] if error.tail else ''})"
    except _BombError:
        return _TOO_MUCH
    return hasher.digest()
