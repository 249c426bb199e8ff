"""Unpack untrusted tar archives; every member is checked, and nothing stays behind after an error."""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import lzma
import os
import re
import shutil
import tarfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Self, cast

from toolchain.core import digest, process, tar_headers
from toolchain.core.amounts import tell
from toolchain.core.digest import CHUNK
from toolchain.core.entry_names import LONGEST_PATH
from toolchain.core.errors import HostileInputError, ResourceError, SourceError
from toolchain.core.process import CommandError, output
from toolchain.core.tar_headers import CheckedHeader
from toolchain.sources.part import WHOLE, Part
from toolchain.sources.tree import check_link_map

LIMIT_BYTES = 16 << 30  # largest total size of the files, including those that are not written
LIMIT_FILES = 1_000_000  # largest number of members
_LIMIT_HEADER = 1 << 20  # bytes; largest extended header or long name, which tarfile reads into memory
_LIMIT_TRAILER = 64 << 20  # bytes; largest amount of data after the end mark
_WINDOW = 1 << 16  # bytes; the buffer is small, because tarfile copies the rest of the buffer at every header
_TOLD_EVERY = 64  # number of members after which the progress is reported
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LONG = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_DECOMPRESSORS: tuple[tuple[bytes, tuple[str, ...], Callable[[IO[bytes]], Any] | None], ...] = (
    # A row has the magic bytes, the command, and the Python function, if any, to use if the program is missing.
    (b"\xfd7zXZ\x00", ("xz", "-dc", "-T0", "--memlimit-decompress=2GiB"), lzma.open),
    (b"\x1f\x8b", ("gzip", "-dc"), gzip.open),
    (b"\x28\xb5\x2f\xfd", ("zstd", "-dcq"), None),
    (b"\x50\x2a\x4d\x18", ("zstd", "-dcq"), None),  # a skippable frame, with which the output of pzstd begins
    (b"BZh", ("bzip2", "-dc"), bz2.open),
)


def unpack_tar(archive: Path, dest: Path, *, strip: int = 1, part: Part = WHOLE, portable_names: bool = True) -> None:
    """Unpack a tar archive (plain, gz, xz, bz2, zst) into `dest`, which must be missing or empty.

    `dest` is removed after an error. HostileInputError is raised for an unsafe archive, SourceError for a damaged one
    and one without a top folder, and ResourceError if the disk is full.

    Args:
        strip: the number of leading path components that are removed from every name, and must be equal in all names.
        part: the part of the tree to unpack, applied after `strip`. Other members are checked, but not written.
        portable_names: whether to refuse names with control characters, and names that differ only in case.
    """
    dest.mkdir(parents=True, exist_ok=True)
    done = False
    try:
        _Unpacker(archive, dest, strip=strip, part=part, portable_names=portable_names).run()
        done = True
    except CommandError as error:
        raise _damaged(
            f"{archive.name} cannot be decompressed", error.tail[-1] if error.tail else error.what
        ) from error
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError, RecursionError) as error:
        raise _damaged(f"{archive.name} is damaged, or is not a tar archive") from error
    except OSError as error:
        raise _os_error(archive, error) from error
    finally:
        if not done:
            shutil.rmtree(dest, ignore_errors=True)


def _damaged(what: str, why: str = "") -> SourceError:
    return SourceError("archive-damaged", what, why=why, fix="download it again")


def _os_error(archive: Path, error: OSError) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError(
            "disk-full",
            f"the disk is too full to unpack {archive.name}",
            why=str(error.strerror),
            fix="free disk space",
        )
    if error.errno == errno.ENAMETOOLONG:
        return HostileInputError("entry-name-too-long", f"{archive.name} contains a file name that is too long")
    return SourceError(
        "archive-not-unpacked", f"cannot unpack {archive.name}", why=error.strerror or "", fix="download it again"
    )


class _Unpacker:
    def __init__(self, archive: Path, dest: Path, *, strip: int, part: Part, portable_names: bool) -> None:
        self.archive = archive
        self.dest = os.fspath(dest)
        self.strip = strip
        self.part = part
        self.portable_names = portable_names
        self.kinds: dict[str, str] = {}  # `d`, `f` or `l` for each path that was read, whether or not it is written
        self.folded: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.top: list[str] = []  # the leading path components that are removed
        self.ended = False

    def run(self) -> None:
        tar_headers.require()
        count = total = 0
        with self.archive.open("rb", buffering=0) as packed, decompressed(packed) as stream:
            size = self.archive.stat().st_size
            with tarfile.open(fileobj=stream, mode="r|", bufsize=_WINDOW, tarinfo=self._member_class()) as tar:
                for member in tar:
                    # tarfile keeps all members in this list, so it is emptied to save memory.
                    cast("Any", tar).members = []
                    count += 1
                    total += member.size if member.isreg() else 0
                    if count > LIMIT_FILES or total > LIMIT_BYTES:
                        raise self._hostile(
                            "archive-bomb",
                            "it unpacks to more than is allowed",
                            f"limits: {LIMIT_FILES} members, {LIMIT_BYTES} bytes",
                        )
                    self._take(tar, member)
                    if count % _TOLD_EVERY == 0:
                        tell(f"unpacking {self.archive.name}", os.lseek(packed.fileno(), 0, os.SEEK_CUR), size)
            self._drain(stream)
        # If the decompressor failed, its error was raised before this check.
        if not self.ended:
            raise _damaged(f"{self.archive.name} is truncated", "its end mark is missing")
        # Symbolic links are created last, so that no member can be written through one.
        check_link_map(self.links, what=self.archive.name)
        for path, target in self.links.items():
            if self.part.holds(path):
                self._folder(path.rpartition("/")[0])
                Path(self.dest, path).symlink_to(target)

    def _member_class(self) -> type[tarfile.TarInfo]:
        outer = self

        class Member(CheckedHeader):
            @classmethod
            def look(cls, block: bytes, read: Callable[[], Self]) -> Self:
                if len(block) == tarfile.BLOCKSIZE and not any(block):
                    outer.ended = True
                try:
                    member = read()
                except tarfile.HeaderError as error:
                    if any(block):  # tarfile would treat an invalid header as the end of the archive
                        raise _damaged(f"{outer.archive.name} is damaged, or is not a tar archive") from error
                    raise
                if member.size < 0 or (member.type in _LONG and member.size > _LIMIT_HEADER):
                    raise outer._hostile("tar-header-size", "a header has an invalid size", f"{member.size} bytes")
                if member.type == tarfile.GNUTYPE_SPARSE:
                    raise outer._hostile("tar-sparse-file", "it contains a sparse file", member.name)
                return member

        return Member

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = self._path(member.name)
        if member.ischr() or member.isblk() or member.isfifo():
            raise self._hostile("tar-device", "it contains a device or a pipe", member.name)
        if member.issparse():
            raise self._hostile("tar-sparse-file", "it contains a sparse file", member.name)
        if not path:
            return
        if member.isdir():
            self._enter(path, "d")
            if self.part.holds(path):
                self._folder(path)
        elif member.issym():
            self._check_length(member.linkname)
            self._enter(path, "l")
            self.links[path] = member.linkname
        elif member.islnk():
            self._hard_link(path, member)
        elif member.isreg() and member.type in tarfile.REGULAR_TYPES:
            self._enter(path, "f")
            if self.part.holds(path):
                self._write(tar, member, path)
        else:
            raise self._hostile(
                "tar-member-kind", "it contains a member of unknown kind", f"{member.name}: {member.type!r}"
            )

    def _path(self, name: str) -> str:
        """Return a member's path below the destination, empty if `strip` leaves nothing; refuse an unsafe name."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        self._check_length(name)
        if name.startswith("/"):
            raise self._hostile("entry-absolute", "it contains an absolute path", name)
        if ".." in parts:
            raise self._hostile("entry-escapes", "it contains a path with ..", name)
        if self.portable_names and _CONTROL.search(name):
            raise self._hostile("entry-name-unsafe", "it contains a name with control characters", repr(name))
        if len(parts) > self.strip:
            self.top = self.top or parts[: self.strip]
            if parts[: self.strip] != self.top:
                raise SourceError(
                    "not-a-source-tree",
                    f"{self.archive.name} does not have all its files in one folder",
                    why=f"it contains {'/'.join(self.top)} and {'/'.join(parts[: self.strip])}",
                    fix="pack the folder itself instead of its content, or name the folder",
                )
        return "/".join(parts[self.strip :])

    def _check_length(self, path: str) -> None:
        # Long paths are refused before they are split, because the folders above a path are stored one by one.
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise self._hostile("entry-name-too-long", "it contains a path that is too long", f"{path[:100]}…")

    def _enter(self, path: str, kind: str) -> None:
        """Remember a member and the folders above it; raise HostileInputError if it collides with an earlier member."""
        above = path.rpartition("/")[0]
        if above and self.kinds.get(above) != "d":
            self._enter_folders(above)
        before = self.kinds.get(path)
        if before is not None and not (before == kind == "d"):
            raise self._hostile("entry-twice", "it contains the same name twice", path)
        if before is None:
            self._note(path, kind)

    def _enter_folders(self, path: str) -> None:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth])
            kind = self.kinds.get(folder)
            if kind is None:
                self._note(folder, "d")
            elif kind != "d":
                raise self._hostile("entry-through-link", "a member would be written through a link or a file", path)

    def _note(self, path: str, kind: str) -> None:
        folded = path.casefold() if path.isascii() else unicodedata.normalize("NFC", path).casefold()
        earlier = self.folded.setdefault(folded, path)
        if earlier != path and self.portable_names:
            raise self._hostile("entry-case", "it contains names that differ only in case", f"{earlier} and {path}")
        self.kinds[path] = kind

    def _hard_link(self, path: str, member: tarfile.TarInfo) -> None:
        target = self._path(member.linkname)
        if self.kinds.get(target) != "f":
            raise self._hostile(
                "tar-hard-link", "a hard link has no earlier file as target", f"{member.name} -> {member.linkname}"
            )
        self._enter(path, "f")
        if self.part.holds(path):
            if not self.part.holds(target):
                raise SourceError(
                    "hard-link-left-out",
                    f"{path} is a hard link to {target}, which is not in the part that is unpacked",
                    fix="report this error with the name of the archive",
                )
            self._folder(path.rpartition("/")[0])
            os.link(f"{self.dest}/{target}", f"{self.dest}/{path}", follow_symlinks=False)

    def _folder(self, path: str) -> None:
        if path:
            Path(self.dest, path).mkdir(parents=True, exist_ok=True)

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        content = tar.extractfile(member)
        assert content is not None  # noqa: S101 - a regular file has content
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        target = f"{self.dest}/{path}"
        try:
            descriptor = os.open(target, flags, 0o600)
        except FileNotFoundError:
            self._folder(path.rpartition("/")[0])
            descriptor = os.open(target, flags, 0o600)
        try:
            left = member.size
            while left:
                chunk = content.read(min(left, CHUNK))
                if not chunk:
                    raise _damaged(f"{self.archive.name} ends in the middle of {path}")
                left -= len(chunk)
                view = memoryview(chunk)
                while view:
                    view = view[os.write(descriptor, view) :]
            # The owner, the setuid bit and the times of the member are ignored; only its executable bit is used.
            os.fchmod(descriptor, 0o755 if member.mode & 0o111 else 0o644)
            os.utime(descriptor, (digest.EPOCH, digest.EPOCH))
        finally:
            os.close(descriptor)

    def _drain(self, stream: IO[bytes]) -> None:
        """Read the rest of the stream, so that the decompressor verifies the checksums."""
        left = _LIMIT_TRAILER
        while chunk := stream.read(CHUNK):
            left -= len(chunk)
            if left < 0:
                raise self._hostile(
                    "tar-trailing-data", "too much data follows its end mark", f"more than {_LIMIT_TRAILER} bytes"
                )

    def _hostile(self, id: str, what: str, why: str) -> HostileInputError:
        return HostileInputError(id, f"{self.archive.name}: {what}", why=why[:300], fix="do not use this source")


@contextlib.contextmanager
def decompressed(packed: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield a stream of the decompressed content of an archive; an archive without compression is yielded as it is.

    `packed` is the open file of the archive. Its first bytes decide the format, and its position shows the progress.
    """
    magic = packed.read(6)
    packed.seek(0)
    known = next((row for row in _DECOMPRESSORS if magic.startswith(row[0])), None)
    if known is None:
        yield packed
        return
    _, argv, fallback = known
    if fallback is None or process.find(argv[0]):
        with output(argv, stdin=packed) as stream:
            yield stream
    else:
        with fallback(packed) as stream:
            yield stream
