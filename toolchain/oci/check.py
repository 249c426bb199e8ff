"""Check that the content of a layout matches its digests."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from toolchain.core import process
from toolchain.core.digest import CHUNK
from toolchain.core.errors import ToolchainError, UntrustedError
from toolchain.oci import descriptor as media
from toolchain.oci.compressed import DAMAGED, FREE, PLAIN, RATIO, BombError, unpacked
from toolchain.oci.descriptor import Descriptor, Platform
from toolchain.oci.image import diff_ids_of, platform_of
from toolchain.oci.layout import Layout

# Container programs take these architectures and variants for the architectures without a variant.
_DEFAULTS = {("amd64", "v1"), ("arm64", "v8")}


class Fault(NamedTuple):
    """A fault in the content of an image: the id of the error to raise for it, and a description."""

    id: str
    text: str


def verify_layout(layout: Layout, descriptor: Descriptor) -> list[Fault]:
    """Return the faults of an image or index and of everything that it contains; an empty list if there are none.

    The checks include the size and the digest of every blob, the depth of nested indexes, the diff ids of the layers of
    every image, and the platform with which an index lists an image. Checks that need a faulty blob are skipped.
    """
    return list(_Check(layout).problems(descriptor))


class _Check:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._hashed: set[str] = set()
        self._visited: set[tuple[str, str]] = set()
        self._diff_ids: dict[tuple[str, str], Fault] = {}
        self._left = FREE  # bytes that may still be unpacked; a compressed layer adds `RATIO` times its size

    def problems(self, item: Descriptor, depth: int = 0) -> Iterator[Fault]:
        if depth > media.DEEPEST:
            yield Fault("content-too-deep", f"{item.digest} is nested in more than {media.DEEPEST} indexes")
            return
        if problem := self._blob(item):
            yield problem
            return
        if item.media_type not in media.MANIFESTS or (item.digest, item.media_type) in self._visited:
            return
        # The content of each manifest is checked once, because indexes may list the same manifest many times.
        self._visited.add((item.digest, item.media_type))
        try:
            children = self._layout.children(item)
        except ToolchainError as error:
            yield Fault(error.id, f"{item.digest}: {error.what}")
            return
        if item.media_type in media.INDEXES:
            for child in children:
                yield from self.problems(child, depth + 1)
                yield from self._platform(child)
            return
        bad = [problem for child in children for problem in self.problems(child, depth)]
        yield from bad
        if not bad:
            yield from self._layers(item, children[0], children[1:])

    def _blob(self, item: Descriptor) -> Fault | None:
        if not self._layout.has(item.digest):
            return Fault("content-missing", f"{item.digest} is missing")
        path = self._layout.blob(item.digest)
        if (size := path.stat().st_size) != item.size:
            return Fault("content-size", f"{item.digest} has {size} bytes instead of {item.size}")
        if item.digest not in self._hashed and (actual := self._layout.digest_of(item.digest)) != item.digest:
            return Fault("content-changed", f"{item.digest} was changed: the digest of its content is {actual}")
        self._hashed.add(item.digest)
        return None

    def _platform(self, image: Descriptor) -> Iterator[Fault]:
        if image.platform is None or image.media_type not in media.IMAGES or image.digest not in self._hashed:
            return
        with contextlib.suppress(ToolchainError):
            config = self._layout.children(image)[0]
            if config.media_type == media.EMPTY or not self._layout.has(config.digest):
                return
            configured = platform_of(self._layout.read_json(config))
            if _without_default(configured) != _without_default(image.platform):
                text = f"{image.digest} is listed for {image.platform}, but its config says {configured}"
                yield Fault("content-platform", text)

    def _layers(self, item: Descriptor, config: Descriptor, layers: tuple[Descriptor, ...]) -> Iterator[Fault]:
        try:
            if self._layout.is_artifact(item):
                return  # the layers of an artifact need not be archives, and only archives have diff ids
            expected = diff_ids_of(self._layout.read_json(config))
        except ToolchainError as error:
            yield Fault(error.id, f"{config.digest}: {error.what}")
            return
        if len(expected) != len(layers):
            text = f"{item.digest} has {len(layers)} layers, but its config has {len(expected)} diff_ids"
            yield Fault("content-layers", text)
            return
        for layer, diff_id in zip(layers, expected, strict=True):
            key = (layer.digest, layer.media_type)
            if key not in self._diff_ids:
                self._diff_ids[key] = self._diff_id(self._layout.blob(layer.digest), layer)
            if (actual := self._diff_ids[key]).text != diff_id:
                yield Fault(actual.id, f"{layer.digest} does not have the diff id {diff_id}, but {actual.text}")

    def _diff_id(self, path: Path, layer: Descriptor) -> Fault:
        """Return the fault to report if the layer's diff id is not the expected one.

        The text of the fault is the actual diff id, or the reason why the layer cannot be unpacked.
        """
        if layer.media_type in PLAIN:
            return Fault("content-diff-id", layer.digest)
        sha256 = hashlib.sha256()
        self._left += RATIO * path.stat().st_size
        try:
            with unpacked(path, layer.media_type) as stream:
                while piece := stream.read(CHUNK):
                    self._left -= len(piece)
                    if self._left < 0:
                        raise BombError("image-bomb", "the layers of this image unpack to too many bytes")
                    sha256.update(piece)
        except BombError as error:
            return Fault(error.id, f"none, because {error.what}")
        except UntrustedError as error:
            return Fault(error.id, f"none, because the media type {layer.media_type} is unknown")
        except process.CommandError as error:
            return Fault("content-unreadable", f"none, because zstd failed: {error.tail[-1] if error.tail else '?'}")
        except DAMAGED:
            return Fault("content-unreadable", "none, because the layer is damaged")
        return Fault("content-diff-id", f"sha256:{sha256.hexdigest()}")


def _without_default(platform: Platform) -> Platform:
    return replace(platform, variant="") if (platform.arch, platform.variant) in _DEFAULTS else platform
