"""Compare two builds of a layer, and find where their files differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolchain.oci.layer_files import LayerFile, layer_files, read_members

# The limit is in bytes. Larger files are compared only by digest, because both contents must fit into memory.
_LIMIT = 256 << 20
_AROUND = 16
_PIECE = 1 << 16
_ARCHIVE = b"!<arch>\n"
_HEADER = 60


@dataclass(frozen=True)
class FileDifference:
    """A file that differs between two layers.

    Args:
        what: the kind of difference: `only in the first`, `only in the second`, `kind`, `size` or `content`.
        offset: the position of the first differing byte; None if the contents were not compared.
        first, second: up to 16 bytes of each file, from `offset` on, in hex. If the contents were not compared, they
            are the kinds of the two files if the kinds differ, the targets if both are links, and otherwise empty.
        member: if the first file is a static library, the name of its member that contains the byte at `offset`; empty
            if there is no such member.
    """

    path: str
    what: str
    offset: int | None = None
    first: str = ""
    second: str = ""
    member: str = ""

    def as_json(self) -> dict[str, Any]:
        value = asdict(self)
        return value if self.member else {key: item for key, item in value.items() if key != "member"}

    def __str__(self) -> str:
        at = "" if self.offset is None else f" at byte {self.offset}: {self.first} | {self.second}"
        inside = f" in its member {self.member}" if self.member else ""
        return f"{self.path}: {self.what}{inside}{at}"


@dataclass(frozen=True)
class Blob:
    """The path of a layer's file, and the media type of the layer."""

    path: Path
    media_type: str


def differences(first: Blob, second: Blob) -> list[FileDifference]:
    """Return the differences between two layers, sorted by path; an empty list if all files and links are equal.

    Paths, kinds, contents and the targets of links are compared; owners, times, modes, folders and special files are
    ignored.
    """
    first_files = {file.path: file for file in layer_files(first.path, first.media_type)}
    second_files = {file.path: file for file in layer_files(second.path, second.media_type)}
    differing: dict[str, FileDifference] = {}
    compared: set[str] = set()
    for path in sorted({*first_files, *second_files}):
        if path not in second_files:
            differing[path] = FileDifference(path, "only in the first")
        elif path not in first_files:
            differing[path] = FileDifference(path, "only in the second")
        elif (one := first_files[path]).sha256 != (other := second_files[path]).sha256 or one.kind != other.kind:
            differing[path] = _differing(one, other)
            if one.kind == other.kind == "file" and max(one.size, other.size) <= _LIMIT:
                compared.add(path)
    for path, a, b in _contents(first, second, compared):
        offset = first_difference(a, b)
        first_bytes, second_bytes = (content[offset : offset + _AROUND].hex() for content in (a, b))
        row = differing[path]
        differing[path] = FileDifference(path, row.what, offset, first_bytes, second_bytes, member_at(a, offset))
    return list(differing.values())


def _differing(file: LayerFile, other: LayerFile) -> FileDifference:
    if file.kind != other.kind:
        return FileDifference(file.path, "kind", None, file.kind, other.kind)
    return FileDifference(file.path, "content" if file.size == other.size else "size", None, file.target, other.target)


def _contents(first: Blob, second: Blob, paths: set[str]) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the path and both contents of each file in `paths`, reading each layer only once.

    The iteration stops at the first file that the layers contain in a different order.
    """
    if not paths:
        return
    members = (read_members(blob.path, blob.media_type, paths.__contains__, limit=_LIMIT) for blob in (first, second))
    for (path, a), (other, b) in zip(*members, strict=False):
        if path != other:
            return
        yield path, a, b


def first_difference(a: bytes, b: bytes) -> int:
    """Return the offset of the first differing byte; if there is none, return the length of the shorter content."""
    end = min(len(a), len(b))
    for start in range(0, end, _PIECE):
        if a[start : start + _PIECE] != b[start : start + _PIECE]:
            for offset in range(start, min(start + _PIECE, end)):
                if a[offset] != b[offset]:
                    return offset
    return end


def member_at(archive: bytes, offset: int) -> str:
    """Return the name of the member that contains the byte at `offset` of a static library.

    An empty string is returned if the byte belongs to no member, e.g. to the library's index, or if the file is not a
    valid static library.
    """
    if not archive.startswith(_ARCHIVE):
        return ""
    names, at = b"", len(_ARCHIVE)
    while at + _HEADER <= len(archive):
        header = archive[at : at + _HEADER]
        size = header[48:58].strip()
        if header[58:] != b"`\n" or not size.isdigit():
            return ""
        end = at + _HEADER + int(size)
        name = header[:16].rstrip()
        if name == b"//":  # the table of long names, each of which ends with a slash and a newline
            names = archive[at + _HEADER : end]
        elif at <= offset < end + end % 2:
            if name in {b"/", b"/SYM64/"}:
                return ""
            if name[1:].isdigit():
                name = names[int(name[1:]) :].split(b"\n", 1)[0]
            return name.rstrip(b"/").decode("utf-8", "replace")
        at = end + end % 2
    return ""
