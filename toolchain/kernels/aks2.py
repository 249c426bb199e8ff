"""AOTriton's kernel archives, read back: .zip of .aks2, each an LZMA stream of a directory and code objects."""

from __future__ import annotations

import lzma
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolchain.core.errors import KernelError

MAGIC = b"AKS2"
_HEADER = struct.Struct("<III")  # unpacked bytes, kernels, bytes of the directory
_ENTRY = struct.Struct("<IIIII")  # shared memory, threads of a block, offset, size, bytes of the name with its NUL
_LIMIT = 4 << 30
_AGAIN = "build again; report it if it stays"


@dataclass(frozen=True)
class Kernel:
    """One entry: a code object, or an empty one, which the loader treats as known bad.

    Args:
        shared: bytes of shared memory.
        threads: threads of a block.
    """

    name: str
    shared: int
    threads: int
    content: bytes


def read_aks2(data: bytes) -> tuple[Kernel, ...]:
    """The entries of an .aks2 file, in its order.

    Raises:
        KernelError: it is damaged.
    """
    if data[:4] != MAGIC or len(data) < 16:
        raise KernelError("not an AKS2 file", why=f"it begins with {data[:4]!r}", fix=_AGAIN)
    total, count, directory = _HEADER.unpack_from(data, 4)
    if total > _LIMIT or directory > total:
        raise _damaged("with impossible sizes", f"{total} bytes, directory {directory}")
    unpack = lzma.LZMADecompressor()
    try:
        content = unpack.decompress(data[16:], max_length=total + 1)
    except lzma.LZMAError as error:
        raise _damaged("that does not unpack", str(error)) from error
    if not unpack.eof or unpack.unused_data:
        # Without the end there is no checksum; the loader would take such a file all the same.
        raise _damaged("that ends early, or has data after its end", f"{len(data)} bytes")
    if len(content) != total:
        raise _damaged("whose size does not match its header", f"{len(content)} bytes instead of {total}")
    kernels = []
    place = 0
    for _ in range(count):
        try:
            shared, threads, offset, size, length = _ENTRY.unpack_from(content, place)
        except struct.error as error:
            raise _damaged("whose directory ends early", str(error)) from error
        place += _ENTRY.size
        name = content[place : place + length].rstrip(b"\0").decode("utf-8")
        place += length
        start = directory + offset
        if start + size > total:
            raise _damaged("whose entry is outside", name)
        kernels.append(Kernel(name, shared, threads, content[start : start + size]))
    if place != directory:
        raise _damaged("whose directory's size does not match its header", f"{place}, {directory}")
    return tuple(kernels)


def _damaged(how: str, why: str) -> KernelError:
    return KernelError(f"an AKS2 file {how}", why=why, fix=_AGAIN)


def read_archive(path: Path) -> Iterator[tuple[str, tuple[Kernel, ...]]]:
    """Each .aks2 of a .zip with its entries, held to what AOTriton's loader takes: stored, and no name twice; of a
    loose .aks2 itself, under its own name.

    Raises:
        KernelError: the archive or one of its files is damaged, or the loader would not find what it holds.
    """
    if path.suffix == ".aks2":
        yield path.name, read_aks2(path.read_bytes())
        return
    try:
        with zipfile.ZipFile(path) as archive:
            seen: set[str] = set()
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                    raise KernelError(f"{path.name} is compressed or encrypted", why=member.filename, fix=_AGAIN)
                if member.filename in seen:
                    raise KernelError(f"{path.name} holds one name twice", why=member.filename, fix=_AGAIN)
                seen.add(member.filename)
                yield member.filename, read_aks2(archive.read(member))
    except zipfile.BadZipFile as error:
        raise KernelError(f"{path.name} is not a complete .zip", why=str(error), fix=_AGAIN) from error
