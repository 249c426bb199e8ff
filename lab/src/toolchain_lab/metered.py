"""A stream that limits how often and how much is read, because pyelftools follows any table of a hostile file."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, cast

_MOST_READS = 400_000
_FREE = 16 << 20
_TIMES = 4


def metered(stream: BinaryIO, *, reads: int = _MOST_READS) -> BinaryIO:
    """Return a stream that may be read a limited number of times, and for a limited number of bytes.

    A complete file needs far fewer reads. The tables of a hostile one overlap or repeat, so that a small file would be
    read for hours. A read beyond the limit raises ValueError.

    Args:
        stream: a seekable file, which is not closed with the new one.
        reads: how many reads are allowed.
    """
    return cast("BinaryIO", _Metered(stream, reads))


class _Metered(io.RawIOBase):
    def __init__(self, stream: BinaryIO, reads: int) -> None:
        self._stream = stream
        self._reads = reads
        self._size = stream.seek(0, os.SEEK_END)
        self._bytes = _FREE + _TIMES * self._size
        stream.seek(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        # Python allocates as many bytes as it is asked for.
        left = max(0, self._size - self._stream.tell())
        content = self._stream.read(left if size < 0 else min(size, left))
        self._reads -= 1
        self._bytes -= len(content)
        if self._reads < 0 or self._bytes < 0:
            raise ValueError("its tables overlap, or have more rows than any real file")
        return content

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._stream.seek(min(offset, self._size), whence)

    def tell(self) -> int:
        return self._stream.tell()
