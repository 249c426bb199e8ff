"""Read AOTriton's kernel archives, which are .aks2 files or .zip files of .aks2 files.

An .aks2 file is a header followed by an LZMA stream, which contains a directory and code objects.
"""

from __future__ import annotations

import lzma
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from toolchain.core.errors import HostileInputError, KernelError
from toolchain.core.stored_file import StoredFile, on_disk, too_large
from toolchain.core.unpack_budget import UnpackBudget
from toolchain.core.zips import entry, open_zip
from toolchain.kernels.result_store import LARGEST_OBJECT

MAGIC = b"AKS2"
_HEADER = struct.Struct("<4sIII")  # magic, unpacked size, number of kernels, size of the directory
_ENTRY = struct.Struct("<IIIII")  # shared memory, threads per block, offset, size, length of the name with its NUL
_LARGEST = 4 << 30
_LARGEST_DIRECTORY = 64 << 20
_LONGEST_NAME = 4096
_DICTIONARY = 80 << 20  # bytes of memory that LZMA may use; a stream made with its highest preset needs 65 MiB
_IN_MEMORY = 16 << 20
_CHUNK = 1 << 20
_AGAIN = "get the file again, or build it again"


@dataclass(frozen=True)
class Kernel:
    """A code object in an .aks2 file.

    `shared` is the shared memory that the kernel needs, in bytes, and `threads` is the number of threads in a block.
    """

    name: str
    shared: int
    threads: int
    size: int
    _start: int = field(repr=False)
    _unpacked: BinaryIO = field(repr=False, compare=False)

    def read(self) -> bytes:
        """Return the bytes of the code object; raise HostileInputError if it has more than `LARGEST_OBJECT` bytes.

        The context manager of `open_aks2` must not have exited.
        """
        if self.size > LARGEST_OBJECT:
            raise too_large(self.name, self.size, LARGEST_OBJECT)
        self._unpacked.seek(self._start)
        return self._unpacked.read(self.size)


@contextmanager
def open_aks2(stream: BinaryIO, size: int, budget: UnpackBudget | None = None) -> Iterator[tuple[Kernel, ...]]:
    """Open an .aks2 file of `size` bytes, and yield its entries in the order of its directory.

    The code objects can be read until the context manager exits.

    Args:
        budget: the limit on unpacked bytes that several files share; by default, a limit for this file alone.

    Raises:
        KernelError: the file is not an .aks2 file, is damaged, or needs too much memory for unpacking.
        HostileInputError: the unpacked file or its directory would be too large, or two entries overlap.
    """
    head = stream.read(_HEADER.size)
    if head[:4] != MAGIC or len(head) < _HEADER.size:
        raise KernelError("not-aks2", "the file is not an AKS2 file", why=f"it begins with {head[:4]!r}", fix=_AGAIN)
    _, total, count, directory = _HEADER.unpack(head)
    if directory > total or count * _ENTRY.size > directory:
        raise _damaged(
            "has impossible sizes in its header",
            f"it states {total} bytes, {count} kernels and a directory of {directory} bytes",
        )
    budget = budget or UnpackBudget(size)
    if total > _LARGEST or directory > _LARGEST_DIRECTORY or not budget.takes(total):
        raise HostileInputError(
            "aks2-bomb",
            f"an AKS2 file of {size} bytes unpacks to {total} bytes",
            why=f"this is more than is allowed; its directory has {directory} bytes",
            fix=_AGAIN,
        )
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as spooled:
        unpacked = cast("BinaryIO", spooled)
        _unpack(stream, unpacked, total)
        yield _entries(unpacked, total, count, directory)


def _unpack(stream: BinaryIO, into: BinaryIO, total: int) -> None:
    unpack = lzma.LZMADecompressor(memlimit=_DICTIONARY)
    left = total + 1
    try:
        while left and not unpack.eof:
            needed = unpack.needs_input
            packed = stream.read(_CHUNK) if needed else b""
            piece = unpack.decompress(packed, max_length=min(left, _CHUNK))
            if needed and not packed and not piece:
                break
            into.write(piece)
            left -= len(piece)
    except lzma.LZMAError as error:
        raise _damaged("cannot be unpacked", "it is not an LZMA stream, or needs too much memory") from error
    if left == 0:
        raise _damaged("does not match the size in its header", f"it unpacks to more than {total} bytes")
    if not unpack.eof or unpack.unused_data or stream.read(1):
        # A stream that ends early may contain all of the data, and lack only its checksum.
        raise _damaged("ends early, or has data after its end", f"it unpacks to {total + 1 - left} bytes")
    if left > 1:
        raise _damaged(
            "does not match the size in its header", f"it unpacks to {total + 1 - left} bytes instead of {total}"
        )


def _entries(unpacked: BinaryIO, total: int, count: int, directory: int) -> tuple[Kernel, ...]:
    unpacked.seek(0)
    listed = unpacked.read(directory)
    kernels: list[Kernel] = []
    names = set[str]()
    place = 0
    for _ in range(count):
        try:
            shared, threads, offset, size, length = _ENTRY.unpack_from(listed, place)
        except struct.error as error:
            raise _damaged("has a directory that ends early", f"its header states {count} kernels") from error
        place += _ENTRY.size
        name = _name(listed[place : place + length])
        place += length
        if name in names:
            raise _damaged("contains a name twice", f"the name is {name}")
        names.add(name)
        start = directory + offset
        if start + size > total:
            raise _damaged("ends before one of its entries", f"the entry is {name}")
        kernels.append(Kernel(name, shared, threads, size, start, unpacked))
    if place != directory:
        raise _damaged("has a directory of a wrong size", f"it has {place} bytes, and the header states {directory}")
    _require_apart(kernels)
    return tuple(kernels)


def _name(raw: bytes) -> str:
    try:
        name = raw.rstrip(b"\0").decode("utf-8")
    except UnicodeDecodeError as error:
        raise _damaged("contains a name that is not UTF-8", f"the name is {raw[:80]!r}") from error
    if len(raw) > _LONGEST_NAME or not name.isprintable():
        raise _damaged("contains a name that is too long or not printable", f"the name is {name[:80]!r}")
    return name


def _require_apart(kernels: Sequence[Kernel]) -> None:
    """Raise HostileInputError if entries overlap, because a small file could then contain many large objects."""
    end = 0
    for kernel in sorted((kernel for kernel in kernels if kernel.size), key=lambda kernel: kernel._start):
        if kernel._start < end:
            raise HostileInputError(
                "aks2-overlap", f"the kernel {kernel.name} in an AKS2 file overlaps another kernel", fix=_AGAIN
            )
        end = kernel._start + kernel.size


def _damaged(how: str, why: str) -> KernelError:
    return KernelError("aks2-damaged", f"an AKS2 file {how}", why=why, fix=_AGAIN)


def read_archive(path: Path) -> Iterator[tuple[str, tuple[Kernel, ...]]]:
    """Yield the name and the entries of each .aks2 file in a .zip file, or of a single .aks2 file.

    The code objects of an .aks2 file can be read only until the iterator moves on to the next file. A KernelError is
    raised if a file in the .zip is compressed. The errors of `open_zip` and `open_aks2` are raised too.
    """
    if path.suffix == ".aks2":
        yield from _opened(on_disk(path, path.name, path.parent))
        return
    with open_zip(path, path.name) as archive:
        for member in archive.infolist():
            if member.compress_type != 0:
                raise KernelError(
                    "aks2-compressed",
                    f"{path.name} is compressed",
                    why=f"AOTriton's loader cannot read {member.filename}",
                    fix=_AGAIN,
                )
            yield from _opened(entry(archive, member))


def _opened(file: StoredFile) -> Iterator[tuple[str, tuple[Kernel, ...]]]:
    with file.start() as stream, open_aks2(stream, file.size) as kernels:
        yield file.path, kernels
