"""A file in a folder, archive or image, which is read on demand and with limited memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from toolchain.core.errors import HostileInputError
from toolchain.core.filesystem import open_regular

_IN_MEMORY = 16 << 20  # bytes; a larger copy is kept in a temporary file
_CHUNK = 1 << 20


@dataclass(frozen=True)
class StoredFile:
    """A file in a folder, archive or image. A file in a tar archive can be read only once, in the order of the archive.

    Args:
        size: the number of bytes that the folder, archive or image declares.
        start: a function that opens the content for reading from its beginning.
        seekable: whether the opened content can be read from any offset.
        target: for a link in a folder, the path of the file in the folder that it leads to; otherwise empty.
    """

    path: str
    size: int
    start: Callable[[], BinaryIO]
    seekable: bool = False
    target: str = ""

    def read(self, limit: int) -> bytes:
        """Return the content; raise a HostileInputError if it is larger than `limit` or than the declared `size`."""
        if self.size > limit:
            raise too_large(self.path, self.size, limit)
        with self.start() as stream:
            content = stream.read(self.size + 1)
        if len(content) > self.size:
            raise HostileInputError(
                "entry-size-mismatch",
                f"{self.path} has more bytes than its archive declares",
                why=f"the archive declares {self.size} bytes",
            )
        return content

    def head(self, count: int) -> bytes:
        """Return the first `count` bytes. In a tar archive, the content cannot be read again after this call."""
        with self.start() as stream:
            return stream.read(count)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the content for reading at any offset; if it is not seekable, copy it to a temporary file first."""
        with self.start() as stream:
            if self.seekable:
                yield stream
                return
            with tempfile.SpooledTemporaryFile(_IN_MEMORY) as copy:
                shutil.copyfileobj(stream, copy, _CHUNK)
                copy.seek(0)
                yield cast("BinaryIO", copy)


def too_large(name: str, size: int, limit: int) -> HostileInputError:
    """Return the error for a file that is larger than the limit for its kind."""
    return HostileInputError(
        "entry-too-large", f"{name} has {size} bytes", why=f"the limit for such a file is {limit} bytes"
    )


def on_disk(path: Path, name: str, within: Path) -> StoredFile:
    """Return a file in a folder as a StoredFile.

    Args:
        name: the path to show in messages and results.
        within: a folder that the file must be in after links are followed.
    """
    return StoredFile(name, path.stat().st_size, lambda: open_regular(path, within=within), seekable=True)
