"""Reading of untrusted zip archives: the list of entries is checked before an entry is read, and memory is limited."""

from __future__ import annotations

import contextlib
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from toolchain.core.entry_names import EntryNames
from toolchain.core.errors import HostileInputError, SourceError
from toolchain.core.stored_file import StoredFile

LIMIT_BYTES = 4_000_000_000
_MOST_ENTRIES = 100_000
_LARGEST_LIST = 32 << 20
_END, _END_BYTES, _LOCATOR_BYTES = b"PK\x05\x06", 22, 20
# This is the header of an entry: signature, flags, method, and the lengths of the name and the extra field.
_HEADER = struct.Struct("<4s2xHH16xHH")
_ENCRYPTED = 0x2041  # flags: encrypted, strong encryption, masked header
_AGAIN = "download it again, or create it again without encryption and with the method `deflate` or `stored`"
# These errors may be raised when an entry of a damaged archive is read.
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error)


class _ContradictionError(zipfile.BadZipFile):
    """Two parts of an archive contradict each other."""


class _Zip(zipfile.ZipFile):
    """A zip archive that refuses entries whose header contradicts the list of entries."""

    ends: dict[int, int]  # the largest permitted end offset of each entry, by its start offset

    def open(self, name: Any, mode: Any = "r", pwd: bytes | None = None, *, force_zip64: bool = False) -> IO[bytes]:
        row = name if isinstance(name, zipfile.ZipInfo) else self.getinfo(name)
        self._require_room(row)
        try:
            return super().open(row, mode, pwd, force_zip64=force_zip64)
        except (ValueError, RuntimeError) as error:  # the header is encrypted, or its name cannot be decoded
            raise _ContradictionError(f"the header of {row.filename} contradicts the list of entries") from error

    def _require_room(self, row: zipfile.ZipInfo) -> None:
        stream = cast("BinaryIO", self.fp)
        stream.seek(row.header_offset)
        head = stream.read(30)
        if len(head) < 30:
            raise _ContradictionError(f"{row.filename} begins after the end of the archive")
        mark, flags, method, name, extra = _HEADER.unpack(head)
        if mark != b"PK\x03\x04":
            raise _ContradictionError(f"{row.filename} has no header")
        if flags & _ENCRYPTED or method != row.compress_type:
            raise _ContradictionError(f"the header of {row.filename} contradicts the list of entries")
        if row.header_offset + 30 + name + extra + row.compress_size > self.ends[row.header_offset]:
            raise HostileInputError("zip-overlap", f"{row.filename} overlaps another entry of its archive", fix=_AGAIN)


def dist_info(wheel: Path) -> str:
    """Return the name of a wheel's own `.dist-info/` folder, as the wheel's file name determines it."""
    return "-".join(wheel.name.split("-")[:2]) + ".dist-info/"


def open_wheel(path: Path) -> contextlib.AbstractContextManager[zipfile.ZipFile]:
    """Open a wheel as `open_zip` does, and refuse names that differ only in case."""
    return open_zip(path, path.name, kind="wheel", ignore_case=True)


@contextlib.contextmanager
def open_zip(
    source: Path | BinaryIO, name: str, *, kind: str = "zip archive", ignore_case: bool = False
) -> Iterator[zipfile.ZipFile]:
    """Open an archive, and check its list of entries before the block.

    Raise a SourceError for an archive that is unreadable or damaged, and a HostileInputError for one that is unsafe,
    too large, encrypted or compressed by an unusual method. Some damage is noticed only when an entry is read.

    Args:
        source: a path, or a seekable stream.
        ignore_case: whether names that differ only in case are refused.
    """
    try:
        archive = _opened(source, name, kind)
    except OSError as error:
        why = error.strerror or str(error)
        raise SourceError(
            "archive-unreadable", f"{name} cannot be read", why=why, fix="check its path and its permissions"
        ) from error
    except (*_BROKEN, ValueError, OverflowError) as error:
        raise _incomplete(name, kind, error) from error
    with archive:
        try:
            _check_entries(archive, name, kind, ignore_case=ignore_case)
            yield archive
        except _BROKEN as error:
            raise _incomplete(name, kind, error) from error


def entry(archive: zipfile.ZipFile, row: zipfile.ZipInfo) -> StoredFile:
    """Return an entry of an open archive as a StoredFile. Reading a damaged entry raises a SourceError."""
    return StoredFile(row.filename, row.file_size, lambda: cast("BinaryIO", _Entry(archive, row)))


class _Entry(io.RawIOBase):
    """A stream of an entry's content. Opening or reading a damaged entry raises a SourceError."""

    def __init__(self, archive: zipfile.ZipFile, row: zipfile.ZipInfo) -> None:
        self._name = row.filename
        try:
            self._stream = archive.open(row)
        except _BROKEN as error:
            raise self._damaged(error) from error

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._stream.read(size)
        except _BROKEN as error:
            raise self._damaged(error) from error

    def close(self) -> None:
        self._stream.close()
        super().close()

    def _damaged(self, error: Exception) -> SourceError:
        return SourceError("archive-incomplete", f"the entry {self._name} is damaged", why=_damage(error), fix=_AGAIN)


def _opened(source: Path | BinaryIO, name: str, kind: str) -> _Zip:
    if isinstance(source, Path):
        with source.open("rb") as stream:
            _check_list(stream, name, kind)
        return _Zip(source)
    _check_list(source, name, kind)
    return _Zip(source)


def _damage(error: Exception) -> str:
    match error:
        case _ContradictionError():
            return str(error)
        case UnicodeDecodeError():
            return "the name of an entry is not UTF-8"
        case _:
            return "the archive is damaged or cut off"


def _incomplete(name: str, kind: str, error: Exception) -> SourceError:
    return SourceError("archive-incomplete", f"{name} is not a complete {kind}", why=_damage(error), fix=_AGAIN)


def _check_list(stream: BinaryIO, name: str, kind: str) -> None:
    """Raise an error if the list of entries is missing or too large, or if the archive uses ZIP64.

    This check comes before zipfile reads the list, because zipfile keeps all of it in memory.
    """
    size = stream.seek(0, 2)
    stream.seek(max(0, size - _END_BYTES - _LOCATOR_BYTES - (1 << 16)))
    tail = stream.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_BYTES:
        raise _ContradictionError("the list of entries at its end is missing")
    entries, listed = struct.unpack_from("<10xHL", tail, at)
    if tail[max(0, at - _LOCATOR_BYTES) : at].startswith(b"PK\x06\x07") or listed == 0xFFFFFFFF:
        raise HostileInputError(
            "zip-too-large", f"{name} uses the format for more than 4 GiB", why=f"no valid {kind} is that large"
        )
    if entries > _MOST_ENTRIES or listed > _LARGEST_LIST:
        raise HostileInputError(
            "zip-too-many-entries",
            f"{name} has {entries} entries in a list of {listed} bytes",
            why=f"no valid {kind} has that many",
        )


def _check_entries(archive: _Zip, name: str, kind: str, *, ignore_case: bool) -> None:
    names, total = EntryNames(name, ignore_case=ignore_case), 0
    if len(archive.filelist) > _MOST_ENTRIES:
        raise HostileInputError(
            "zip-too-many-entries", f"{name} has {len(archive.filelist)} entries", why=f"no valid {kind} has that many"
        )
    for row in archive.filelist:
        if row.header_offset < 0:
            raise _ContradictionError(f"{row.filename} begins before the start of the archive")
        names.add(row.filename, folder=row.filename.endswith("/"))
        if row.flag_bits & _ENCRYPTED:
            why = f"the entry {row.filename} is encrypted"
            raise HostileInputError("zip-encrypted", f"{name} is encrypted", why=why, fix=_AGAIN)
        # For bzip2 and lzma, zipfile does not limit the number of bytes that one read decompresses.
        if row.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            why = f"it uses the compression method {row.compress_type}; only `deflate` and `stored` are supported"
            raise HostileInputError("zip-unusual", f"{name}: {row.filename} cannot be read", why=why, fix=_AGAIN)
        form = stat.S_IFMT(row.external_attr >> 16)
        if row.create_system == 3 and form not in {0, stat.S_IFREG, stat.S_IFDIR}:  # 3: made on Unix
            raise HostileInputError("zip-link", f"{name} contains a link or a device: {row.filename}", fix=_AGAIN)
        total += row.file_size
        if total > LIMIT_BYTES:
            raise HostileInputError(
                "zip-bomb", f"{name} unpacks to more than {LIMIT_BYTES} bytes", why=f"no valid {kind} is that large"
            )
    _check_places(archive, name)


def _check_places(archive: _Zip, name: str) -> None:
    """Set `archive.ends`, and raise an error if entries overlap.

    A small archive with overlapping entries could unpack to a huge number of bytes.
    """
    ordered = sorted(archive.filelist, key=lambda row: row.header_offset)
    starts = [*(row.header_offset for row in ordered), archive.start_dir]
    archive.ends = {}
    for row, end in zip(ordered, starts[1:], strict=True):
        if row.header_offset + 30 + row.compress_size > end:
            raise HostileInputError(
                "zip-overlap", f"{name} contains {row.filename}, which overlaps another entry", fix=_AGAIN
            )
        archive.ends[row.header_offset] = end
