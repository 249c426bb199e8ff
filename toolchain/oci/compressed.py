"""Decompress layers as streams, with a limit on the unpacked size."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

from toolchain.core.digest import CHUNK
from toolchain.core.errors import UntrustedError
from toolchain.core.process import CommandError, output
from toolchain.oci import descriptor as media

PLAIN = frozenset({media.LAYER, media.DOCKER_LAYER})
_GZIP = frozenset({media.LAYER_GZIP, media.DOCKER_LAYER_GZIP})
# These are the exceptions that reading a damaged layer may raise.
DAMAGED = (EOFError, zlib.error, CommandError)
# This is the largest accepted ratio of a layer's unpacked size to its compressed size. Layers are unpacked before the
# signature of their image is verified, so the unpacked size must be limited. A gzip file can unpack to 1,032 times its
# size.
RATIO = 200
FREE = 256 << 20  # bytes that are added to the limit, so that a small layer may exceed the ratio
LARGEST = 256 << 30


class BombError(UntrustedError):
    """An error for a layer or image that unpacks to more bytes than the limits of this module allow."""


class Readable(Protocol):
    """A stream that can be read."""

    def read(self, count: int, /) -> bytes:
        """Return at most `count` bytes; no bytes at the end of the stream."""


class _Gunzipped:
    """A reader of a gzip stream with one or more members.

    zlib.error is raised for invalid data, such as other data after a member, and EOFError for a truncated stream.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._unpacker = zlib.decompressobj(31)
        self._packed = b""

    def read(self, count: int, /) -> bytes:
        while True:
            self._packed = self._packed or self._stream.read(CHUNK)
            if not self._packed and self._unpacker.eof:
                return b""
            if self._unpacker.eof:
                self._unpacker = zlib.decompressobj(31)
            ended = not self._packed
            piece = self._unpacker.decompress(self._packed, count)
            self._packed = self._unpacker.unconsumed_tail or self._unpacker.unused_data
            if piece:
                return piece
            if ended and not self._unpacker.eof:
                raise EOFError("the gzip stream is truncated")


class _Bounded:
    """A stream of a decompressed file.

    BombError is raised after `LARGEST` bytes, or after `FREE` plus `RATIO` times the size of the compressed file.
    """

    def __init__(self, stream: Readable, path: Path) -> None:
        self._stream, self._name = stream, path.name
        self._most = self._left = min(LARGEST, FREE + RATIO * path.stat().st_size)

    def read(self, count: int, /) -> bytes:
        piece = self._stream.read(count)
        self._left -= len(piece)
        if self._left < 0:
            why = f"{self._name} unpacks to more than {self._most} bytes"
            raise BombError("layer-bomb", "a layer unpacks to too many bytes", why=why, fix="do not use this image")
        return piece


@contextlib.contextmanager
def unpacked(path: Path, media_type: str) -> Iterator[Readable]:
    """Yield a stream of the tar in a layer's file.

    UntrustedError is raised for an unknown media type, and EngineError if `zstd` is needed but not installed. Reading
    the stream raises BombError if a compressed layer unpacks to too many bytes. If a compressed layer is damaged, one
    of `DAMAGED` is raised while the stream is read or at the end of the block.
    """
    if media_type in _GZIP:
        with path.open("rb", buffering=0) as stream:
            yield _Bounded(_Gunzipped(stream), path)
    elif media_type == media.LAYER_ZSTD:
        with output(["zstd", "-dcq", "--", path.absolute()]) as stream:
            yield _Bounded(stream, path)
    elif media_type in PLAIN:
        with path.open("rb") as stream:
            yield stream
    else:
        raise UntrustedError("layer-media-type", f"a layer has an unknown media type: {media_type}", why=path.name)
