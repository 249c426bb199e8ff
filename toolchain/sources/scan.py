"""Find machine code and bitcode in a source tree by content."""

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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, cast

from toolchain.core.digest import CHUNK, sha256_file
from toolchain.core.errors import SourceError

# The first bytes of files that compilers, assemblers, linkers and archivers write.
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
# Archives that are not unpacked here, and so may hold anything.
SEALED = {
    b"\x28\xb5\x2f\xfd": "zstd file, not looked into",
    b"\x04\x22\x4d\x18": "LZ4 file, not looked into",
    b"7z\xbc\xaf\x27\x1c": "7z archive, not looked into",
    b"Rar!\x1a\x07": "RAR archive, not looked into",
    b"\xed\xab\xee\xdb": "RPM package, not looked into",
    b"MSCF\0\0\0\0": "cabinet, not looked into",
    b"LZIP\x01": "lzip file, not looked into",
    b"\x89LZO\0\r\n\x1a\n": "LZO file, not looked into",
    b"\x5d\0\0": "LZMA file, not looked into",
    b"\x1f\x9d": "compress file, not looked into",
    b"hsqs": "SquashFS image, not looked into",
    b"070701": "cpio archive, not looked into",
    b"070702": "cpio archive, not looked into",
    b"070707": "cpio archive, not looked into",
    b"xar!": "xar archive, not looked into",
}
_CONTAINERS = (b"PK\x03\x04", b"\x1f\x8b", b"\xfd7zXZ\x00", b"BZh")
_MARK = re.compile(b"|".join(re.escape(mark) for mark in (*MAGIC, *SEALED, *_CONTAINERS)))
_DEPTH = 3
# The end mark of a zip, and its largest distance from the end, since a comment may follow.
_ZIP_END, _ZIP_TAIL = b"PK\x05\x06", (1 << 16) + 22
# Bytes of a container that are read at most, so that a bomb cannot stop a build.
_LIMIT = 4 << 30
_IN_MEMORY = 64 << 20
# RuntimeError: a zip with a password, or with an unknown compression.
# ValueError and the following: invalid names and numbers.
_UNREADABLE = (
    *(OSError, EOFError, RuntimeError, ValueError, OverflowError, struct.error),
    *(tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error),
)


@dataclass(frozen=True, order=True)
class Finding:
    """A file that a compiler made.

    Args:
        path: below the tree, with `/`; inside a container `CONTAINER!MEMBER`.
        what: its kind, for display.
        sha256: of the file, or of the container in the tree: `sha256:…`.
        size: bytes of that file.
    """

    path: str
    what: str
    sha256: str
    size: int

    @property
    def file(self) -> str:
        """Return the file of the tree that holds it."""
        return self.path.partition("!")[0]

    def as_json(self) -> dict[str, str | int]:
        """Return the form in records."""
        return asdict(self)


def scan(tree: Path) -> tuple[Finding, ...]:
    """Return all binaries of a tree or a single file, sorted by path; tar, zip, gzip, bzip2 and xz files are opened.

    An unreadable container is an error, because it may hold anything.
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
            findings += [Finding(name + inside, what, digest, size) for inside, what in hits]
    return tuple(sorted(findings))


def _files(tree: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(tree):
        folders[:] = sorted(name for name in folders if name != ".git")
        for name in names:
            path = f"{folder}/{name}"
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield path


def _is_plain(file: str) -> bool:
    """Return whether a file needs no closer look. Nearly all files of a tree end here, after three system calls."""
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
                f"{path} cannot be looked into",
                why="it is damaged, or unpacks to more than this looks at",
                fix="remove it by a patch",
            ) from error


def _kind(head: bytes) -> str:
    for magic, what in MAGIC.items():
        if head.startswith(magic) and (magic != b"MZ" or b"\0" in head):
            return what
    return next((what for magic, what in SEALED.items() if head.startswith(magic)), "")


def _inside(stream: IO[bytes], where: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the kind of a stream, or the binaries in it if it is a container."""
    head = stream.read(512)
    stream.seek(0)
    if what := _kind(head):
        yield where, what
    elif depth == 0:
        if _is_container(head) or _ends_as_zip(stream):
            yield where, f"archive in archives, {_DEPTH} deep, not looked into"
    elif opened := _unpacked(head, stream):
        with opened, _held(opened) as held:
            yield from _inside(held, where, depth - 1)
    elif _is_tar(head):
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            for entry in tar:
                file = tar.extractfile(entry) if entry.isfile() else None
                if file is not None:
                    with file, _held(file) as held:
                        yield from _inside(held, f"{where}!{entry.name}", depth - 1)
            stream.seek(tar.offset)
        # Readers that ignore the end mark or bad headers find content after it.
        if any(piece.strip(b"\0") for piece in iter(lambda: stream.read(CHUNK), b"")):
            yield where, "tar with something behind its end, not looked into"
    elif head.startswith(b"PK\x03\x04") or _ends_as_zip(stream):
        with zipfile.ZipFile(stream) as archive:
            for member in archive.infolist():
                if not member.is_dir():
                    with archive.open(member) as content, _held(content) as held:
                        yield from _inside(held, f"{where}!{member.filename}", depth - 1)


def _ends_as_zip(stream: IO[bytes]) -> bool:
    """Return whether a zip follows other content, as Python's importer reads it: a zip is found from its end."""
    stream.seek(0, os.SEEK_END)
    stream.seek(max(0, stream.tell() - _ZIP_TAIL))
    is_zip = _ZIP_END in stream.read(_ZIP_TAIL)
    if is_zip:  # the mark may occur by chance
        try:
            with zipfile.ZipFile(stream) as archive:
                is_zip = bool(archive.infolist())
        except (zipfile.BadZipFile, ValueError, OSError):
            is_zip = False
    stream.seek(0)
    return is_zip


def _unpacked(head: bytes, stream: IO[bytes]) -> IO[bytes] | None:
    if head.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.open(stream))
    if head.startswith(b"\xfd7zXZ\x00"):
        return lzma.open(stream)
    if head.startswith(b"BZh"):
        return bz2.open(stream)
    return None


def _held(stream: IO[bytes]) -> IO[bytes]:
    """Return content that can be read twice, and from its end."""
    head = stream.read(512)
    if _kind(head):
        return io.BytesIO(head)
    kept = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - the caller reads it
    kept.write(head)
    while piece := stream.read(CHUNK):
        kept.write(piece)
        if kept.tell() > _LIMIT:
            kept.close()
            raise OSError("it unpacks to more than this looks at")
    kept.seek(0)
    return cast("IO[bytes]", kept)


def _is_container(head: bytes) -> bool:
    return head.startswith(_CONTAINERS) or _is_tar(head)


def _is_tar(head: bytes) -> bool:
    """Return whether this is a tar's first header; the oldest form is known only by its checksum."""
    if head[257:262] == b"ustar":
        return True
    digits = head[148:156].strip(b" \0")
    if len(head) < 512 or not head[0] or not digits or digits.strip(b"01234567"):
        return False
    return sum(head[:148]) + 8 * ord(" ") + sum(head[156:512]) == int(digits, 8)
