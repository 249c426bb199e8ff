"""Read the files of a layer as a stream, without unpacking the layer to the disk."""

from __future__ import annotations

import contextlib
import hashlib
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache as memoize
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, Self, cast

from toolchain.core import tar_headers
from toolchain.core.digest import CHUNK
from toolchain.core.entry_names import LONGEST_PATH, MOST
from toolchain.core.errors import UntrustedError
from toolchain.core.tar_headers import CheckedHeader
from toolchain.oci.compressed import DAMAGED, PLAIN, Readable, unpacked

_DAMAGED = (tarfile.TarError, OSError, ValueError, RecursionError, *DAMAGED)
_GLANCE_LIMIT = 64 << 20
_HEADER_LIMIT = 1 << 20  # bytes; the limit for a long name or for PAX records, which tarfile reads into memory
# This is the maximum number of characters in all names together. The names are kept in memory.
_LARGEST_NAMES = 256 << 20
_DIGESTS = ("sha1", "sha256", "sha512")  # names of hash functions in hashlib, and of fields of LayerFile
_LONG = frozenset({tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK})
# These kinds of members are accepted. Others, such as global headers and sparse files, are refused, because programs
# unpack them differently.
_MEMBERS = frozenset({
    tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE,
    tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE,
})  # fmt: skip


@dataclass(frozen=True, order=True)
class LayerFile:
    """A file or link of a layer.

    Args:
        path: the path without a leading slash; bytes that are not UTF-8 are written as `\\xNN`.
        kind: `file`, or `link` for a symlink; a hard link has the kind of its target.
        size: the size in bytes of the content, or, for a link, of the path to which it points.
        sha1, sha256, sha512: the digests, in hex, of the content, or, for a link, of the path to which it points. SPDX
            needs `sha1`.
        target: the target of a link; empty for a file.
    """

    path: str
    kind: Literal["file", "link"]
    size: int
    sha1: str
    sha256: str
    sha512: str
    target: str = ""


class LayerMember(CheckedHeader):
    """A tar header that is checked, because a layer with the right digest can still be hostile.

    Each archive needs its own class, because `above` is an attribute of the class (see `for_archive`).
    """

    above: ClassVar[list[bytes]]  # the types of the extended headers that belong to the next member

    @classmethod
    def for_archive(cls) -> type[Self]:
        return type(cls.__name__, (cls,), {"above": []})

    @classmethod
    def look(cls, block: bytes, read: Callable[[], Self]) -> Self:
        try:
            member = read()
        except tarfile.HeaderError as error:
            if any(block):  # tarfile would treat it as the end, but other programs may continue
                raise UntrustedError("layer-garbage", "a layer has an invalid header between its members") from error
            raise
        if member.type not in _LONG | _MEMBERS:
            raise UntrustedError(
                "layer-member-kind",
                f"a layer contains a member of the kind {member.type!r}",
                why="programs unpack this kind differently",
            )
        if member.size < 0 or (member.type in _LONG and member.size > _HEADER_LIMIT):
            raise UntrustedError(
                "layer-header-size", "a layer has a header of an invalid size", why=f"{member.size} bytes"
            )
        if doubt := cls._doubt(block, member.type):
            raise _ambiguous(shown(member.name[:100]), doubt)
        return member

    @classmethod
    def _doubt(cls, block: bytes, kind: bytes) -> str:
        """Return the reason why programs may read a header differently; an empty string if there is none."""
        above = cls.above
        if kind in _LONG:
            above.append(kind)
            # Programs differ in whether they use the first or the last header of a type, and in whether they prefer
            # the names of PAX or those of GNU tar.
            if len(set(above)) < len(above) or (tarfile.XHDTYPE in above and len(above) > 1):
                return "it has several extended headers"
        else:
            # Python takes a file for a folder if its short name ends with a slash; other programs use its long name.
            short = block[:100].partition(b"\0")[0]
            if above and block[156:157] == tarfile.AREGTYPE and short.endswith(b"/"):
                return "its short name is the name of a folder"
            above.clear()
        # Only ustar and its variant star have a prefix of the name in these bytes, and star's is shorter. In an
        # incremental archive of GNU tar, these bytes are times, but Python reads them as a prefix.
        if block[257:263] != b"ustar\0" and any(block[345:500]):
            return "a header that is not of the format ustar has a prefix, or is of an incremental archive"
        return "its prefix is too long for star" if block[508:] == b"tar\0" and block[475] else ""


def _ambiguous(name: str, why: str) -> UntrustedError:
    return UntrustedError(
        "layer-header-ambiguous", f"programs read the header of {name!r} in a layer differently", why=why
    )


class _Watched:
    """A stream that records the position after its last non-zero byte, to find data after the end mark of a tar."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._at = 0
        self.last = 0

    def read(self, count: int) -> bytes:
        piece = self._stream.read(count)
        if full := len(piece.rstrip(b"\0")):
            self.last = self._at + full
        self._at += len(piece)
        return piece


def layer_files(path: Path, media_type: str) -> list[LayerFile]:
    """Return all files and links of a layer, sorted by path.

    UntrustedError is raised if the layer is damaged or too large, or if programs could unpack it differently.
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
    """Yield the paths of a layer's files and links in the order of the layer, without hashing contents."""
    with _readable(path):
        for name, _, _ in _walk(path, media_type):
            yield name


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise UntrustedError(
            "layer-unreadable", "a layer cannot be read", why=f"{path.name} is damaged", fix="download it again"
        ) from error


def read_member(path: Path, media_type: str, name: str, *, limit: int = _GLANCE_LIMIT) -> bytes | None:
    """Return the content of a file in a layer; None if there is no such regular file of at most `limit` bytes."""
    with _readable(path):
        for found, member, tar in _walk(path, media_type):
            if found == name:
                return _content(tar, member).read() if member.isreg() and member.size <= limit else None
    return None


def read_members(
    path: Path, media_type: str, wanted: Callable[[str], bool], *, limit: int
) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the content of each regular file of at most `limit` bytes whose path `wanted` accepts."""
    with _readable(path):
        for name, member, tar in _walk(path, media_type):
            if member.isreg() and wanted(name) and member.size <= limit:
                yield name, _content(tar, member).read()


def open_members(path: Path, media_type: str) -> Iterator[tuple[str, int, Callable[[], BinaryIO]]]:
    """Yield the path and the size of each regular file in a layer, and a function that opens the file.

    The function must be called before the next file is requested.
    """
    with _readable(path):
        for name, member, tar in _walk(path, media_type):
            if member.isreg():
                yield name, member.size, partial(_content, tar, member)


@memoize(maxsize=8)
def glance(path: Path, media_type: str, name: str) -> bytes | None:
    """Return the content of a file as `read_member` does, but with fewer checks of the members before it.

    This function is faster than `read_member`, but safe only for trusted layers.
    """
    how: Any = "r:" if media_type in PLAIN else "r|"  # tarfile can seek in an uncompressed file
    with (
        _readable(path),
        unpacked(path, media_type) as plain,
        tarfile.open(fileobj=cast("Any", plain), mode=how, tarinfo=LayerMember.for_archive()) as tar,
    ):
        for member in tar:
            if member.isreg() and member.size <= _GLANCE_LIMIT and _name(member) == name:
                return _content(tar, member).read()
    return None


def _walk(path: Path, media_type: str) -> Iterator[tuple[str, tarfile.TarInfo, tarfile.TarFile]]:
    """Yield the path and the header of each file and link in a layer, and the tar, positioned at the content."""
    tar_headers.require()
    known: set[str] = set()
    folders: dict[str, bool] = {}
    names = 0
    with (
        unpacked(path, media_type) as plain,
        tarfile.open(
            fileobj=cast("Any", stream := _Watched(plain)), mode="r|", tarinfo=LayerMember.for_archive()
        ) as tar,
    ):
        for member in tar:
            cast("Any", tar).members = []  # tarfile collects all members in this list, which would need much memory
            name = _name(member)
            names += len(name) + len(member.linkname)
            if len(folders) >= MOST or names > _LARGEST_NAMES:
                why = f"more than {MOST} members, or {_LARGEST_NAMES} characters of names"
                raise UntrustedError("layer-too-many-members", "a layer has too many members", why=why)
            if name in folders:
                raise UntrustedError("layer-member-twice", f"a layer contains {name} twice", why=path.name)
            folders[name] = member.isdir()
            if member.islnk() and _linked(member) not in known:
                raise UntrustedError(
                    "layer-hard-link", f"a hard link in a layer does not point to an earlier file: {name}"
                )
            if member.isreg() or member.issym() or member.islnk():
                known.add(name)
                yield name, member, tar
        while stream.read(CHUNK):  # read to the end, so that the decompressor verifies its checksums
            pass
        if stream.last > tar.offset:
            raise UntrustedError(
                "layer-trailing-data", "a layer has data after its end mark", why=f"{stream.last - tar.offset} bytes"
            )
    _require_folders(folders)


def _name(member: tarfile.TarInfo) -> str:
    """Return the path of a member; raise UntrustedError if the member is unsafe or ambiguous."""
    if any(key.startswith("GNU.sparse") for key in member.pax_headers):
        raise UntrustedError(
            "layer-sparse-file", "a layer contains a sparse file", why="programs unpack it differently"
        )
    if max(len(member.name), len(member.linkname)) > LONGEST_PATH:
        raise UntrustedError(
            "layer-name-too-long",
            "a layer contains a name that is longer than a path can be",
            why=f"{shown(member.name[:100])} …",
        )
    _require_plain_pax(member)
    name = member.name.removeprefix("./")
    whole = name in {"", "."} and member.isdir()  # the folder that contains all others
    if "\0" in name + member.linkname or (not whole and not {"", ".", ".."}.isdisjoint(name.split("/"))):
        raise UntrustedError(
            "layer-name-unsafe", f"a layer contains a name that is not a plain path: {shown(member.name)}"
        )
    return shown(name)


def _require_plain_pax(member: tarfile.TarInfo) -> None:
    """Raise UntrustedError if the PAX records of a member have values that programs ignore or read differently."""
    pax = member.pax_headers
    if "" in {pax.get("path"), pax.get("linkpath")} or not re.fullmatch("[0-9]{1,19}", pax.get("size", "0")):
        raise _ambiguous(shown(member.name), "a PAX record has no valid value")
    if pax.get("path", "").endswith("/") and not member.isdir():
        raise _ambiguous(shown(member.name), "the name in a PAX record ends with a slash, but it is not a folder")


def _require_folders(folders: Mapping[str, bool]) -> None:
    """Raise UntrustedError if a member is below a file or link.

    A program that follows a link could write the member to the target of the link, and replace a file there.
    """
    for name in folders:
        above = name.rpartition("/")[0]
        while above:
            if not folders.get(above, True):
                raise UntrustedError(
                    "layer-below-file", f"a layer contains {name} below {above}, which is not a folder"
                )
            above = above.rpartition("/")[0]


def _linked(member: tarfile.TarInfo) -> str:
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
    """Return a name as valid UTF-8; bytes that are not UTF-8 become `\\xNN`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
