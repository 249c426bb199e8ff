"""A stream that limits the reads and the bytes, because pyelftools follows all tables, even in a malicious file."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, cast

_MOST_READS = 400_000
_FREE = 16 << 20
_TIMES = 4


def metered(stream: BinaryIO, *, reads: int = _MOST_READS) -> BinaryIO:
    """Return a stream that raises ValueError after too many reads or bytes.

    In a malicious file, tables can overlap or repeat, so that reading a small file could take hours. The limit for
    bytes is 16 MiB plus four times the size of the file.

    Args:
        stream: a seekable file. It stays open when the new stream is closed.
        reads: the limit for the number of reads.
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
        # The size is limited, because a read allocates all requested bytes even if the file is shorter.
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
