"""Make the headers of tar members; their bytes do not depend on the version of Python or tar.

Headers are in the ustar format. PAX records are added only for names and link targets that are longer than 100 bytes or
not ASCII, for sizes of at least 8 GiB, for ids of at least 8**7, and for extended attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Protocol

from toolchain.core.digest import CHUNK
from toolchain.core.errors import BuildError

BLOCK = 512
REGULAR, HARDLINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
CAPABILITY = "security.capability"
DEVICES = 8**7  # the numbers of a device are smaller; Linux has numbers below 2**20


class Sink(Protocol):
    """An object to which bytes can be written."""

    def write(self, data: bytes, /) -> object: ...


@dataclass(frozen=True, kw_only=True)
class Member:
    """A member of a tar.

    Names are bytes without a leading slash, only a regular file has a `size`, and `device` has numbers below `DEVICES`.
    """

    name: bytes
    kind: bytes
    mode: int
    mtime: int
    uid: int = 0
    gid: int = 0
    size: int = 0
    link: bytes = b""
    device: tuple[int, int] = (0, 0)
    xattrs: Mapping[str, bytes] = field(default_factory=dict)

    def header(self) -> bytes:
        """Return the PAX records that the member needs, followed by its header."""
        name = self.name + b"/" if self.kind == DIRECTORY else self.name
        records: list[tuple[bytes, bytes]] = []
        for key, text in ((b"path", name), (b"linkpath", self.link)):
            if len(text) > 100 or not text.isascii():
                records.append((key, text))
        for key, number, limit in ((b"gid", self.gid, 8**7), (b"size", self.size, 8**11), (b"uid", self.uid, 8**7)):
            if number >= limit:
                records.append((key, b"%d" % number))
        records += [(b"SCHILY.xattr." + key.encode(), value) for key, value in sorted(self.xattrs.items())]
        blocks = b""
        if records:
            if not all(_utf8(text) for _, text in records):
                records.insert(0, (b"hdrcharset", b"BINARY"))
            content = b"".join(_record(key, text) for key, text in records)
            blocks = _ustar(b"././@PaxHeader", b"x", size=len(content))
            blocks += content + padding(len(content))
        return blocks + _ustar(
            name,
            self.kind,
            size=self.size if self.kind == REGULAR else 0,
            mode=self.mode & 0o7777,
            uid=self.uid,
            gid=self.gid,
            mtime=max(self.mtime, 0),
            link=self.link,
            device=self.device,
        )


def padding(size: int) -> bytes:
    """Return the zeros that fill the last block after `size` bytes of content."""
    return b"\0" * (-size % BLOCK)


def copy_content(source: IO[bytes], sink: Sink, size: int, *, name: str) -> None:
    """Copy `size` bytes from a source to a sink and add the padding; raise BuildError if the source has fewer bytes."""
    left = size
    while left:
        piece = source.read(min(left, CHUNK))
        if not piece:
            raise BuildError(
                "file-shrank", f"{name} became shorter while it was read", fix="do not change the tree, and try again"
            )
        sink.write(piece)
        left -= len(piece)
    sink.write(padding(size))


END = b"\0" * (2 * BLOCK)


def _utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _record(key: bytes, value: bytes) -> bytes:
    # The length at the beginning of a record includes its own digits.
    body = b" " + key + b"=" + value + b"\n"
    size = len(body)
    while len(text := b"%d" % size + body) != size:
        size = len(text)
    return text


def _octal(number: int, width: int) -> bytes:
    if number >= 8 ** (width - 1):
        number = 0  # a uid, gid or size that does not fit into the field is in a PAX record
    return b"%0*o\0" % (width - 1, number)


def _ustar(
    name: bytes,
    kind: bytes,
    *,
    size: int,
    mode: int = 0o644,
    uid: int = 0,
    gid: int = 0,
    mtime: int = 0,
    link: bytes = b"",
    device: tuple[int, int] = (0, 0),
) -> bytes:
    numbers = _octal(mode, 8) + _octal(uid, 8) + _octal(gid, 8) + _octal(size, 12) + _octal(mtime, 12)
    tail = kind + link[:100].ljust(100, b"\0") + b"ustar\x0000" + b"\0" * 64
    tail += _octal(device[0], 8) + _octal(device[1], 8)
    head = name[:100].ljust(100, b"\0") + numbers
    block = (head + b" " * 8 + tail).ljust(BLOCK, b"\0")
    return head + b"%06o\0 " % sum(block) + block[len(head) + 8 :]
