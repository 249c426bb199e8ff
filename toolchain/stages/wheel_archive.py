"""An untrusted wheel: opened and read in bounded memory, its names checked before use."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolchain.core.digest import CHUNK
from toolchain.core.errors import HostileInputError, SourceError

LIMIT_BYTES = 4_000_000_000
_MAX_MEMBERS = 100_000
_MAX_DIRECTORY = 32 << 20
_END, _END_BYTES, _LOCATOR_BYTES = b"PK\x05\x06", 22, 20
_ELSEWHERE = "use another wheel, or another source of it"
# Of a member, while it is read; opening an archive finds more.
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error)


@contextmanager
def open_wheel(path: Path) -> Iterator[zipfile.ZipFile]:
    """The wheel, once its list of members is known to be small and its names to be harmless.

    Raises:
        SourceError: it cannot be read, or is not a zip archive; also where that shows only while a member is read.
        HostileInputError: a name leads out of the folder or comes twice, or the content is larger than any wheel.
    """
    try:
        _check_directory(path)
        archive = zipfile.ZipFile(path)
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read", why=error.strerror or str(error), fix="give the path of a wheel that you may read"
        ) from error
    except (*_BROKEN, ValueError) as error:
        raise _broken(path, error) from error
    with archive:
        try:
            _check_members(path.name, archive)
            yield archive
        except _BROKEN as error:
            raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> SourceError:
    return SourceError(f"{path.name} is not a complete wheel", why=str(error), fix=_ELSEWHERE)


def pieces(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """A member's content in pieces of at most a mebibyte; its CRC is compared at the end."""
    with archive.open(member) as stream:
        while piece := stream.read(CHUNK):
            yield piece


def _check_directory(path: Path) -> None:
    """Refuse a list of members that would fill the memory: zipfile reads all of it at once."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - _END_BYTES - _LOCATOR_BYTES - (1 << 16)))
        tail = stream.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_BYTES:
        raise SourceError(f"{path.name} is not a wheel", why="it is not a zip archive", fix=_ELSEWHERE)
    members, directory = struct.unpack_from("<10xHL", tail, at)
    if tail[max(0, at - _LOCATOR_BYTES) : at].startswith(b"PK\x06\x07") or directory == 0xFFFFFFFF:
        raise HostileInputError(f"{path.name} is a zip archive of the large kind, which no wheel needs", fix=_ELSEWHERE)
    if members > _MAX_MEMBERS or directory > _MAX_DIRECTORY:
        raise HostileInputError(f"{path.name} has a list of members of {directory} bytes", fix=_ELSEWHERE)


def _check_members(wheel: str, archive: zipfile.ZipFile) -> None:
    total, seen = 0, set[str]()
    if len(archive.filelist) > _MAX_MEMBERS:
        raise HostileInputError(f"{wheel} has {len(archive.filelist)} members", fix=_ELSEWHERE)
    for member in archive.infolist():
        name = member.filename
        if member.header_offset < 0:
            raise zipfile.BadZipFile(f"{name} begins before the file")
        if name.startswith("/") or ".." in Path(name).parts or "\\" in name or not name.isprintable():
            raise HostileInputError(f"{wheel} holds the name {name[:200]!r}", fix=_ELSEWHERE)
        if name in seen:
            raise HostileInputError(f"{wheel} holds {name} twice", why="it is ambiguous", fix=_ELSEWHERE)
        seen.add(name)
        # bzip2 and lzma may ask for gigabytes before the first byte comes.
        if member.flag_bits & 1 or member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise HostileInputError(f"{wheel} packs {name} in a way that no wheel has", fix=_ELSEWHERE)
        total += member.file_size
        if total > LIMIT_BYTES:
            raise HostileInputError(f"{wheel} unpacks to more than {LIMIT_BYTES} bytes", fix=_ELSEWHERE)
