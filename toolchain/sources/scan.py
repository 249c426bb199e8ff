"""Find binaries, such as machine code and bitcode, in a source tree by the content of its files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from toolchain.core.digest import CHUNK, sha256_file
from toolchain.core.errors import SourceError

# Files that compilers, assemblers, linkers and archivers write begin with these bytes.
MAGIC = {
    b"\x7fELF": "ELF",
    b"BC\xc0\xde": "LLVM bitcode",
    b"\xde\xc0\x17\x0b": "LLVM bitcode",
    b"!<arch>\n": "static library",
    b"!<thin>\n": "static library",
    b"\x50\xed\x55\xba": "CUDA fat binary",
    b"__CLANG_OFFLOAD_BUNDLE__": "offload bundle",
    b"CCOB": "offload bundle",
    b"MZ": "PE",
    b"\xcf\xfa\xed\xfe": "Mach-O",
    b"\xce\xfa\xed\xfe": "Mach-O",
    b"\xca\xfe\xba\xbe": "Mach-O or Java class",
    b"\x00asm": "WebAssembly",
    b"ML\xefR": "MLIR bytecode",
    b"AKS2": "AOTriton kernel archive",
    b"\x03\x02\x23\x07": "SPIR-V",
}
# `scan` reports files that begin with these bytes, because it cannot unpack them, and they may contain anything.
SEALED = {
    b"\x28\xb5\x2f\xfd": "zstd file, not scanned",
    b"\x04\x22\x4d\x18": "LZ4 file, not scanned",
    b"7z\xbc\xaf\x27\x1c": "7z archive, not scanned",
    b"Rar!\x1a\x07": "RAR archive, not scanned",
    b"\xed\xab\xee\xdb": "RPM package, not scanned",
    b"MSCF\0\0\0\0": "cabinet, not scanned",
    b"LZIP\x01": "lzip file, not scanned",
    b"\x89LZO\0\r\n\x1a\n": "LZO file, not scanned",
    b"\x5d\0\0": "LZMA file, not scanned",
    b"\x1f\x9d": "compress file, not scanned",
    b"hsqs": "SquashFS image, not scanned",
    b"070701": "cpio archive, not scanned",
    b"070702": "cpio archive, not scanned",
    b"070707": "cpio archive, not scanned",
    b"xar!": "xar archive, not scanned",
}
_CONTAINERS = (b"PK\x03\x04", b"\x1f\x8b", b"\xfd7zXZ\x00", b"BZh")
_MARK = re.compile(b"|".join(re.escape(mark) for mark in (*MAGIC, *SEALED, *_CONTAINERS)))
_DEPTH = 3
# These are the signature of the record at the end of a zip file, and an upper bound of that record's size: 22 bytes and
# a comment of less than 64 KiB.
_ZIP_END, _ZIP_TAIL = b"PK\x05\x06", (1 << 16) + 22
# A compressed file, or a member of an archive, may unpack to at most this many bytes, to stop decompression bombs.
_LIMIT = 4 << 30
_IN_MEMORY = 64 << 20
# zipfile raises RuntimeError for a password or an unknown compression. ValueError, OverflowError and struct.error come
# from invalid names and numbers.
_UNREADABLE = (
    *(OSError, EOFError, RuntimeError, ValueError, OverflowError, struct.error),
    *(tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error),
)


@dataclass(frozen=True, order=True)
class Finding:
    """A binary in a source tree, or an archive that cannot be scanned.

    Args:
        path: the path relative to the tree; `CONTAINER!MEMBER` for a file in an archive.
        what: the kind of the file, for display.
        sha256: the digest `sha256:…` of the file, or of the archive that contains it.
        size: the size in bytes of the file whose digest is given.
        file: the path of the file, or of the archive that contains it.
    """

    path: str
    what: str
    sha256: str
    size: int
    file: str

    def as_json(self) -> dict[str, str | int]:
        """Return the finding in the form that records contain."""
        return {"path": self.path, "what": self.what, "sha256": self.sha256, "size": self.size}


def scan(tree: Path) -> tuple[Finding, ...]:
    """Return all binaries in a tree or a single file, and all archives that cannot be scanned, sorted by path.

    Tar, zip, gzip, bzip2 and xz files are unpacked. Links and folders named `.git` are skipped. SourceError is raised
    if a file to unpack is damaged, has a password or unpacks to too many bytes, because it may contain anything.
    """
    findings: list[Finding] = []
    alone = tree.is_file()
    for file in [os.fspath(tree)] if alone else sorted(_files(tree)):
        if _is_plain(file):
            continue
        path = Path(file)
        name = path.name if alone else path.relative_to(tree).as_posix()
        hits = list(_look(path))
        if hits:
            digest, size = sha256_file(path), path.stat().st_size
            findings += [Finding(name + inside, what, digest, size, name) for inside, what in hits]
    return tuple(sorted(findings))


def _files(tree: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(tree):
        folders[:] = sorted(name for name in folders if name != ".git")
        for name in names:
            path = f"{folder}/{name}"
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield path


def _is_plain(file: str) -> bool:
    """Return whether the beginning and the end of a file rule out that it is a binary or an archive.

    The rest of the file is not read, because a tree has many files, and few of them are binaries.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        head = os.pread(descriptor, 512, 0)
        if _MARK.match(head) or _is_tar(head):
            return False
        return _ZIP_END not in os.pread(descriptor, _ZIP_TAIL, max(0, size - _ZIP_TAIL))
    finally:
        os.close(descriptor)


def _look(path: Path) -> Iterator[tuple[str, str]]:
    with path.open("rb") as stream:
        try:
            yield from _inside(stream, "", _DEPTH)
        except _UNREADABLE as error:
            raise SourceError(
                "scan-incomplete",
                f"{path} cannot be scanned for binaries",
                why=f"it is damaged, has a password, or unpacks to more than {_LIMIT >> 30} GiB",
                fix="remove the file with a patch",
            ) from error


def _kind(head: bytes) -> str:
    for magic, what in MAGIC.items():
        if head.startswith(magic) and (magic != b"MZ" or b"\0" in head):
            return what
    return next((what for magic, what in SEALED.items() if head.startswith(magic)), "")


def _inside(stream: IO[bytes], where: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the path and the kind of each binary, and of each archive that is not scanned, in a stream or its members.

    `where` is the path of the stream inside its containers, such as `!MEMBER`, and empty for the file itself. `depth`
    is the number of levels of nested archives that may still be unpacked.
    """
    head = stream.read(512)
    stream.seek(0)
    if what := _kind(head):
        yield where, what
    elif depth == 0:
        if head.startswith(_CONTAINERS) or _is_tar(head) or _ends_as_zip(stream):
            yield where, f"archive in archives, {_DEPTH} deep, not scanned"
    elif head.startswith(b"\x1f\x8b"):
        with gzip.open(stream) as opened, _held(cast("IO[bytes]", opened)) as held:
            yield from _inside(held, where, depth - 1)
    elif found := next((magic for magic in _DECODERS if head.startswith(magic)), b""):
        more: list[str] = []
        with _held(cast("IO[bytes]", io.BufferedReader(_Decoded(stream, found, more)))) as held:
            yield from _inside(held, where, depth - 1)
        yield from ((where, what) for what in more)
    elif _is_tar(head):
        yield from _in_tar(stream, where, depth)
    elif head.startswith(b"PK\x03\x04") or _ends_as_zip(stream):
        with zipfile.ZipFile(stream) as archive:
            for member in archive.infolist():
                if not member.is_dir():
                    with archive.open(member) as content, _held(content) as held:
                        yield from _inside(held, f"{where}!{member.filename}", depth - 1)


def _in_tar(stream: IO[bytes], where: str, depth: int) -> Iterator[tuple[str, str]]:
    with tarfile.open(fileobj=stream, mode="r:") as tar:
        for entry in tar:
            if entry.type not in tarfile.SUPPORTED_TYPES:  # other tar readers may unpack it as a file
                yield f"{where}!{entry.name}", "tar member of unknown kind, not scanned"
            file = tar.extractfile(entry) if entry.isfile() else None
            if file is not None:
                with file, _held(file) as held:
                    yield from _inside(held, f"{where}!{entry.name}", depth - 1)
        stream.seek(tar.offset)
    # Some tar readers continue after the end mark or an invalid header, and would unpack this data.
    if any(piece.strip(b"\0") for piece in iter(lambda: stream.read(CHUNK), b"")):
        yield where, "tar with data after its end mark, not scanned"


def _ends_as_zip(stream: IO[bytes]) -> bool:
    """Return whether a stream ends with a zip file that has members, even if other data precedes the zip file."""
    stream.seek(0, os.SEEK_END)
    stream.seek(max(0, stream.tell() - _ZIP_TAIL))
    is_zip = _ZIP_END in stream.read(_ZIP_TAIL)
    if is_zip:  # other data may contain the signature by chance
        try:
            with zipfile.ZipFile(stream) as archive:
                is_zip = bool(archive.infolist())
        except (zipfile.BadZipFile, ValueError, OSError):
            is_zip = False
    stream.seek(0)
    return is_zip


class _Decoded(io.RawIOBase):
    """The content of a bzip2 or xz file.

    Unlike those of the modules `bz2` and `lzma`, this reader reports data after the compressed streams, because a zip
    file or a binary may be hidden there.

    Args:
        magic: the first bytes of each compressed stream.
        more: the list to which a description of such data is added.
    """

    def __init__(self, stream: IO[bytes], magic: bytes, more: list[str]) -> None:
        self._stream = stream
        self._magic = magic
        self._more = more
        self._decoder = _DECODERS[magic]()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._decoder.eof:
                rest = self._decoder.unused_data + self._stream.read(CHUNK)
                while rest and not (rest := rest.lstrip(b"\0")):  # xz allows zeros between and after its streams
                    rest = self._stream.read(CHUNK)
                if rest and len(rest) < len(self._magic):
                    rest += self._stream.read(CHUNK)
                if not rest.startswith(self._magic):
                    if rest:
                        self._more.append("compressed file with other data after it, not scanned")
                    return 0
                self._decoder = _DECODERS[self._magic]()
                data = rest
            else:
                data = self._stream.read(CHUNK) if self._decoder.needs_input else b""
                if self._decoder.needs_input and not data:
                    raise EOFError
            if piece := self._decoder.decompress(data, len(buffer)):
                buffer[: len(piece)] = piece
                return len(piece)


_DECODERS: dict[bytes, Callable[[], Any]] = {b"\xfd7zXZ\x00": lzma.LZMADecompressor, b"BZh": bz2.BZ2Decompressor}


def _held(stream: IO[bytes]) -> IO[bytes]:
    """Return a seekable copy of a stream, or of only its first bytes if these already show its kind."""
    head = stream.read(512)
    if _kind(head):
        return io.BytesIO(head)
    kept = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - the caller closes it
    kept.write(head)
    while piece := stream.read(CHUNK):
        kept.write(piece)
        if kept.tell() > _LIMIT:
            kept.close()
            raise OSError("it unpacks to too many bytes")
    kept.seek(0)
    return cast("IO[bytes]", kept)


def _is_tar(head: bytes) -> bool:
    """Return whether a block is a tar header; old headers have no magic bytes, so their checksum is compared."""
    if head[257:262] == b"ustar":
        return True
    digits = head[148:156].strip(b" \0")
    if len(head) < 512 or not head[0] or not digits or digits.strip(b"01234567"):
        return False
    return sum(head[:148]) + 8 * ord(" ") + sum(head[156:512]) == int(digits, 8)
