"""A stream that ends the reading of a hostile file: pyelftools follows any table, however long and however often."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, cast

_MOST_READS = 400_000
_FREE = 16 << 20
_TIMES = 4


def metered(stream: BinaryIO, *, reads: int = _MOST_READS) -> BinaryIO:
    """Return a stream that may be read for a limited number of times, and for a limited number of bytes.

    A whole file needs far fewer reads. The tables of a hostile one overlap, repeat or have more rows than it has bytes,
    so that a small file is read for hours. Reading beyond the limit raises ValueError.

    Args:
        stream: a file that can be read from any offset. It is not closed with the new one.
        reads: how many reads there may be.
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
        """See `io.IOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Read bytes.

        Raises:
            ValueError: the limit is reached.
        """
        # Python takes memory for as many bytes as it is asked for.
        left = max(0, self._size - self._stream.tell())
        content = self._stream.read(left if size < 0 else min(size, left))
        self._reads -= 1
        self._bytes -= len(content)
        if self._reads < 0 or self._bytes < 0:
            raise ValueError("its tables overlap, or have more rows than any real file")
        return content

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """See `io.IOBase`."""
        return self._stream.seek(min(offset, self._size), whence)

    def tell(self) -> int:
        """See `io.IOBase`."""
        return self._stream.tell()
