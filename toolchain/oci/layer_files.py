"""Read the files of a layer as a stream, without unpacking it."""

from __future__ import annotations

import contextlib
import hashlib
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache as memoize
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, cast

from toolchain.core import tar_headers
from toolchain.core.digest import CHUNK
from toolchain.core.entry_names import LONGEST_PATH, MOST
from toolchain.core.errors import UntrustedError
from toolchain.core.tar_headers import CheckedHeader
from toolchain.oci.compressed import DAMAGED, PLAIN, Readable, unpacked

_DAMAGED = (tarfile.TarError, OSError, ValueError, RecursionError, *DAMAGED)
_GLANCE_LIMIT = 64 << 20
_HEADER_LIMIT = 1 << 20  # long names and attributes are read into memory
# All paths of a layer are kept in memory, and a member takes as few as six bytes of a gzip layer.
_LARGEST_NAMES = 256 << 20  # characters; LLVM's layers have a million
_DIGESTS = ("sha1", "sha256", "sha512")  # fields of LayerFile, and names of hashlib
_LONG = frozenset({tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK})
# Kinds of members that every reader understands in the same way. Global headers, sparse files and rare kinds are
# refused, because readers would unpack them to different files.
_MEMBERS = frozenset({
    tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE,
    tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE,
})  # fmt: skip


@dataclass(frozen=True, order=True)
class LayerFile:
    """A file or link of a layer.

    Args:
        path: the path from the layer's root, without a leading slash; bytes that are not UTF-8 as `\\xNN`.
        kind: `file` (a hard link is a file with the same content) or `link`.
        size: bytes; of a link, of its target's name.
        sha1: hex, because SPDX asks for it.
        sha256, sha512: hex, of the content; of a link, of its target's name.
        target: the target of a link.
    """

    path: str
    kind: Literal["file", "link"]
    size: int
    sha1: str
    sha256: str
    sha512: str
    target: str = ""


class LayerMember(CheckedHeader):
    """A header that is checked, because a layer with the right digest can still be hostile."""

    @classmethod
    def look(cls, block: bytes, read: Callable[[], Self]) -> Self:
        try:
            member = read()
        except tarfile.HeaderError as error:
            if any(block):  # tarfile would take it for the end, but other readers may continue
                raise UntrustedError("layer-garbage", "a layer holds garbage between its members") from error
            raise
        if member.type not in _LONG | _MEMBERS:
            raise UntrustedError(
                "layer-member-kind",
                f"a layer holds a member of the kind {member.type!r}",
                why="readers disagree about it",
            )
        if member.size < 0 or (member.type in _LONG and member.size > _HEADER_LIMIT):
            raise UntrustedError(
                "layer-header-size", "a layer has a header of impossible size", why=f"{member.size} bytes"
            )
        return member


class _Watched:
    """A stream that records the position of the last non-zero byte, because none may follow a tar's end mark."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._at = 0
        self.last = 0

    def read(self, count: int) -> bytes:
        """Return the next bytes."""
        piece = self._stream.read(count)
        if full := len(piece.rstrip(b"\0")):
            self.last = self._at + full
        self._at += len(piece)
        return piece


def layer_files(path: Path, media_type: str) -> list[LayerFile]:
    """Return all files and links of a layer, sorted by path. Folders and devices are left out.

    UntrustedError is raised if two readers could unpack the layer to different files: a name twice or in an unusual
    form, a file below a link, an unusual kind of member.
    """
    files: dict[str, LayerFile] = {}
    with _readable(path):
        for name, member, tar in _walk(path, media_type):
            if member.issym():
                text = member.linkname.encode("utf-8", "surrogateescape")
                digests = {kind: hashlib.new(kind, text, usedforsecurity=False).hexdigest() for kind in _DIGESTS}
                files[name] = LayerFile(name, "link", len(text), **digests, target=shown(member.linkname))
            elif member.islnk():
                files[name] = replace(files[_linked(member)], path=name)
            else:
                files[name] = _digested(tar, member, name)
    return sorted(files.values(), key=lambda file: file.path)


def layer_paths(path: Path, media_type: str) -> Iterator[str]:
    """Yield the paths of a layer's files and links, in its order, without hashing them."""
    with _readable(path):
        for name, _, _ in _walk(path, media_type):
            yield name


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise UntrustedError(
            "layer-unreadable", "a layer cannot be read", why=f"{path.name} is damaged", fix="fetch it again"
        ) from error


def read_member(path: Path, media_type: str, name: str, *, limit: int = _GLANCE_LIMIT) -> bytes | None:
    """Return the content of a regular file in a layer; None if there is none, or if it has more than `limit` bytes."""
    for found, member, tar in _walk(path, media_type):
        if found == name:
            return _content(tar, member).read() if member.isreg() and member.size <= limit else None
    return None


def read_members(
    path: Path, media_type: str, wanted: Callable[[str], bool], *, limit: int
) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the wanted regular files of a layer. Files over `limit` bytes are left out."""
    for name, member, tar in _walk(path, media_type):
        if member.isreg() and wanted(name) and member.size <= limit:
            yield name, _content(tar, member).read()


def open_members(path: Path, media_type: str) -> Iterator[tuple[str, int, Callable[[], BinaryIO]]]:
    """Yield path and size of each regular file of a layer, and a function that opens it until the next is taken."""
    with _readable(path):
        for name, member, tar in _walk(path, media_type):
            if member.isreg():
                yield name, member.size, partial(_content, tar, member)


@memoize(maxsize=8)
def glance(path: Path, media_type: str, name: str) -> bytes | None:
    """Return one file, like `read_member`, of a blob that was made here. Only this file is checked."""
    how: Any = "r:" if media_type in PLAIN else "r|"  # tarfile can seek in an uncompressed file
    with (
        unpacked(path, media_type) as plain,
        tarfile.open(fileobj=cast("Any", plain), mode=how, tarinfo=LayerMember) as tar,
    ):
        for member in tar:
            if member.isreg() and member.size <= _GLANCE_LIMIT and _name(member) == name:
                return _content(tar, member).read()
    return None


def _walk(path: Path, media_type: str) -> Iterator[tuple[str, tarfile.TarInfo, tarfile.TarFile]]:
    """Yield the checked files and links of a layer: path, header, and the tar, positioned at the content."""
    tar_headers.require()
    known: set[str] = set()
    folders: dict[str, bool] = {}
    names = 0
    with (
        unpacked(path, media_type) as plain,
        tarfile.open(fileobj=cast("Any", stream := _Watched(plain)), mode="r|", tarinfo=LayerMember) as tar,
    ):
        for member in tar:
            cast("Any", tar).members = []  # tarfile keeps every member, which a stream never needs
            name = _name(member)
            names += len(name) + len(member.linkname)
            if len(folders) >= MOST or names > _LARGEST_NAMES:
                why = f"more than {MOST} members, or {_LARGEST_NAMES} characters of names"
                raise UntrustedError("layer-too-many-members", "a layer holds more members than any real one", why=why)
            if name in folders:
                raise UntrustedError("layer-member-twice", f"a layer holds {name} twice", why=path.name)
            folders[name] = member.isdir()
            if member.islnk() and _linked(member) not in known:
                raise UntrustedError("layer-hard-link", f"a hard link in a layer leads nowhere: {name}")
            if member.isreg() or member.issym() or member.islnk():
                known.add(name)
                yield name, member, tar
        while stream.read(CHUNK):  # so that the decompressor checks its checksums
            pass
        if stream.last > tar.offset:
            raise UntrustedError(
                "layer-trailing-data", "a layer holds data after its end mark", why=f"{stream.last - tar.offset} bytes"
            )
    _require_folders(folders)


def _name(member: tarfile.TarInfo) -> str:
    """Return the path of a member; refuse names that readers could interpret differently."""
    if any(key.startswith("GNU.sparse") for key in member.pax_headers):
        raise UntrustedError("layer-sparse-file", "a layer holds a sparse file", why="readers disagree about it")
    if max(len(member.name), len(member.linkname)) > LONGEST_PATH:
        raise UntrustedError(
            "layer-name-too-long",
            "a layer holds a name that is longer than a path",
            why=f"{shown(member.name[:100])} …",
        )
    name = member.name.removeprefix("./")
    if name not in {"", "."} and not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise UntrustedError(
            "layer-name-unsafe", f"a layer holds a name that is not a plain path: {shown(member.name)}"
        )
    return shown(name)


def _require_folders(folders: Mapping[str, bool]) -> None:
    """Refuse members below anything but a folder, because through a link they would replace another file."""
    for name in folders:
        above = name.rpartition("/")[0]
        while above:
            if not folders.get(above, True):
                raise UntrustedError("layer-below-file", f"a layer holds {name} below {above}, which is not a folder")
            above = above.rpartition("/")[0]


def _linked(member: tarfile.TarInfo) -> str:
    """Return the path of the file that a hard link names."""
    return shown(member.linkname.removeprefix("./"))


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> BinaryIO:
    content = tar.extractfile(member)
    assert content is not None  # noqa: S101 - a regular file has content
    return cast("BinaryIO", content)


def _digested(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> LayerFile:
    content = _content(tar, member)
    digests = {kind: hashlib.new(kind, usedforsecurity=False) for kind in _DIGESTS}
    left = member.size
    while left:
        piece = content.read(min(left, CHUNK))
        if not piece:
            raise EOFError(f"it ends in the middle of {name}")
        for digest in digests.values():
            digest.update(piece)
        left -= len(piece)
    return LayerFile(name, "file", member.size, **{kind: digest.hexdigest() for kind, digest in digests.items()})


def shown(name: str) -> str:
    """Return a name as JSON can hold it: bytes that are not UTF-8 become `\\xNN`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
