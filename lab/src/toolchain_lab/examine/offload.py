"""Read Clang's offload bundles, which are code objects for several GPUs in one file or section, plain or compressed.

A plain bundle consists of a list of (offset, size, target) and the code objects. A compressed bundle (`CCOB`, versions
1 to 3) is a plain bundle that is compressed with zlib or zstd. A section contains the bundles of all object files that
were linked into a library, aligned to 4 KiB.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from toolchain.core.errors import HostileInputError, KernelError
from toolchain.core.stored_file import too_large
from toolchain.core.unpack_budget import UnpackBudget
from toolchain.kernels.result_store import LARGEST_OBJECT

PLAIN, PACKED = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
MAGIC_BYTES = len(PLAIN)
_COUNT, _ROW = struct.Struct("<Q"), struct.Struct("<QQQ")
# These are the header fields after the magic, by version: the version, the compression method, the size of the bundle
# (not in version 1), the size of the unpacked content, and a hash.
_HEADERS = {1: struct.Struct("<HHIQ"), 2: struct.Struct("<HHIIQ"), 3: struct.Struct("<HHQQQ")}
_ZLIB, _ZSTD = 0, 1
_MOST_ROWS, _LONGEST_TARGET = 4096, 1024
_MOST_BUNDLES = 100_000  # bundles; a library contains one for each linked object file
_LARGEST = 8 << 30
_WINDOW = 27  # log2 of the largest zstd window, in bytes, that Clang's compressor uses
_IN_MEMORY = 16 << 20
_CHUNK = 1 << 20
_FEW = 64
_AGAIN = "get the file again, or build it again"


@dataclass(frozen=True)
class Part:
    """A code object in a bundle.

    Args:
        target: the target that the bundle names, such as `hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-`.
    """

    target: str
    size: int
    _offset: int = field(repr=False)
    _stream: BinaryIO = field(repr=False, compare=False)

    @property
    def gpu(self) -> str:
        """LLVM's name for the AMD GPU, without features, or an empty string for other targets, such as the host."""
        return self.processor.partition(":")[0]

    @property
    def processor(self) -> str:
        """The AMD GPU with its features, such as `gfx90a:xnack-`, or an empty string for other targets."""
        return self.target[self.target.index("gfx") :] if "gfx" in self.target else ""

    def read(self) -> bytes:
        """Return the bytes of the code object.

        This method must be called before the iteration over `parts` goes on to the next part, because the file with the
        content of a compressed bundle is closed after the bundle's last part.

        HostileInputError is raised if the code object is too large.
        """
        if self.size > LARGEST_OBJECT:
            raise too_large(self.target, self.size, LARGEST_OBJECT)
        self._stream.seek(self._offset)
        return self._stream.read(self.size)


@dataclass(frozen=True)
class Sealed:
    """A compressed bundle that cannot be unpacked, because the package for zstd is not installed."""

    why: str


def is_bundle(head: bytes) -> bool:
    """Return whether a file is a bundle; `head` contains its first `MAGIC_BYTES` bytes."""
    return head.startswith((PLAIN, PACKED))


def parts(
    stream: BinaryIO, size: int, where: str, *, start: int = 0, budget: UnpackBudget | None = None
) -> Iterator[Part | Sealed]:
    """Yield the code objects of all bundles in a range of a file, one bundle after the other.

    If the package for zstd is not installed, a `Sealed` is yielded for each bundle that needs it. KernelError is raised
    if a bundle is damaged or has an unknown format, or if the range contains other nonzero data, and HostileInputError
    if a bundle unpacks to too many bytes, its code objects overlap, or there are more than 100,000 bundles.

    Args:
        size: the size of the range in bytes, from `start`.
        budget: a limit on unpacked bytes that several calls share; by default, this call gets a limit of its own.
    """
    at, end = start, start + size
    left, budget = _MOST_BUNDLES, budget or UnpackBudget(size)
    while (at := skip_zeros(stream, at, end)) < end:
        left -= 1
        if left < 0:
            raise HostileInputError(
                "offload-bundle-too-many", f"{where} has more than {_MOST_BUNDLES} offload bundles", fix=_AGAIN
            )
        stream.seek(at)
        head = stream.read(min(MAGIC_BYTES, end - at))
        if head == PLAIN:
            rows, used = _rows(stream, at, end - at, where)
            yield from rows
        elif head.startswith(PACKED):
            used = yield from _packed(stream, at, end - at, where, budget)
        else:
            raise _damaged(where, f"no bundle begins at byte {at}")
        at += used


def skip_zeros(stream: BinaryIO, at: int, end: int) -> int:
    """Return the offset of the first nonzero byte from `at` on, or `end` if there is none before `end`."""
    stream.seek(at)
    size = _FEW  # the first read is small, because usually no zeros need to be skipped
    while at < end:
        piece = stream.read(min(size, end - at))
        size = min(4 * size, _CHUNK)
        if not piece:
            return end
        if rest := piece.lstrip(b"\0"):
            return at + len(piece) - len(rest)
        at += len(piece)
    return end


def _damaged(where: str, why: str) -> KernelError:
    return KernelError("offload-bundle-damaged", f"{where} is not a complete offload bundle", why=why, fix=_AGAIN)


def _rows(stream: BinaryIO, at: int, size: int, where: str) -> tuple[list[Part], int]:
    """Return the parts of a plain bundle, and the bundle's size in bytes."""
    stream.seek(at + MAGIC_BYTES)
    place = MAGIC_BYTES + _COUNT.size
    found: list[Part] = []
    try:
        (count,) = _COUNT.unpack(stream.read(_COUNT.size))
        if count > _MOST_ROWS:
            raise _damaged(where, f"it lists {count} code objects")
        for _ in range(count):
            offset, length, name = _ROW.unpack(stream.read(_ROW.size))
            if name > _LONGEST_TARGET or offset + length > size:
                raise _damaged(where, f"it has {size} bytes, but its list requires {offset + length}")
            target = stream.read(name)
            place += _ROW.size + len(target)
            found.append(Part(target.decode("ascii", "backslashreplace"), length, at + offset, stream))
    except struct.error as error:
        raise _damaged(where, "its list ends early") from error
    end = at + place
    for part in sorted((part for part in found if part.size), key=lambda part: part._offset):
        if part._offset < end:
            raise HostileInputError(
                "offload-bundle-overlap", f"{where} contains code objects that overlap", why=part.target, fix=_AGAIN
            )
        end = part._offset + part.size
    return found, end - at


def _packed(
    stream: BinaryIO, at: int, size: int, where: str, budget: UnpackBudget
) -> Generator[Part | Sealed, None, int]:
    """Yield the parts of a compressed bundle, or a `Sealed`, and return the compressed bundle's size in bytes."""
    stream.seek(at + len(PACKED))
    head = stream.read(2)
    form = _HEADERS.get(int.from_bytes(head, "little"))
    if form is None:
        raise _damaged(where, f"its version {int.from_bytes(head, 'little')} is unknown")
    start = at + len(PACKED) + form.size
    stream.seek(at + len(PACKED))
    try:
        version, method, *numbers, _ = form.unpack(stream.read(form.size))
    except struct.error as error:
        raise _damaged(where, "its header ends early") from error
    packed, unpacked = (size, numbers[0]) if version == 1 else numbers
    if not len(PACKED) + form.size <= packed <= size:
        raise _damaged(where, f"it has {size} bytes, but its header states {packed}")
    if unpacked > _LARGEST or not budget.takes(unpacked):
        raise HostileInputError(
            "offload-bundle-bomb", f"{where} contains a bundle of {packed} bytes that unpacks to {unpacked}", fix=_AGAIN
        )
    try:
        unpack, errors = _unpacker(method, where)
    except ImportError:
        yield Sealed("zstd cannot be decompressed without the package backports.zstd")
        return packed
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as spooled:
        content = cast("BinaryIO", spooled)
        stream.seek(start)
        try:
            used, made = _unpack(stream, at + packed - start, unpack, content, unpacked)
        except errors as error:
            raise _damaged(where, "its compressed data is damaged") from error
        if made != unpacked or not unpack.eof:
            raise _damaged(where, f"it unpacks to {made} bytes, but its header states {unpacked}")
        content.seek(0)
        if content.read(MAGIC_BYTES) != PLAIN:
            raise _damaged(where, "its content is not a bundle")
        yield from _rows(content, 0, unpacked, where)[0]
    return start + used - at if version == 1 else packed


def _unpack(stream: BinaryIO, packed: int, unpack: Any, into: BinaryIO, most: int) -> tuple[int, int]:
    """Unpack a stream until it ends or gives more than `most` bytes; return the numbers of bytes used and written."""
    used, made = 0, 0
    while not unpack.eof and made <= most:
        needed = unpack.needs_input
        piece = stream.read(min(_CHUNK, packed - used)) if needed else b""
        used += len(piece)
        content = unpack.decompress(piece, _CHUNK)
        if needed and not piece and not content:
            break  # the stream ends early
        made += len(content)
        into.write(content)
    return used - len(unpack.unused_data), made


def _unpacker(method: int, where: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return a decompressor with the interface of `zstd.ZstdDecompressor`, and the errors that it raises.

    KernelError is raised if the compression method is unknown, and ImportError if the package for zstd is missing.
    """
    if method == _ZLIB:
        return _Zlib(), (zlib.error,)
    if method != _ZSTD:
        raise _damaged(where, f"its compression {method} is unknown")
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415 - few files need it
    else:
        from backports import zstd  # noqa: PLC0415
    options = {int(zstd.DecompressionParameter.window_log_max): _WINDOW}
    return zstd.ZstdDecompressor(options=options), (zstd.ZstdError,)


class _Zlib:
    """An adapter that gives zlib's decompressor the interface of zstd's decompressor."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj()
        self._left = b""

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._left

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return the next unpacked bytes, at most `max_length` of them."""
        piece = self._inner.decompress(self._left + data, max_length)
        self._left = self._inner.unconsumed_tail
        return piece
