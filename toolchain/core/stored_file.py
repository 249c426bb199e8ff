"""A file of a folder, archive or image that is read on demand and in bounded memory."""

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

_IN_MEMORY = 16 << 20  # bytes of a copy in memory; a larger one is a temporary file
_CHUNK = 1 << 20


@dataclass(frozen=True)
class StoredFile:
    """A file, and its path in the place that holds it. The files of a tar come in its order, and each is read once.

    Args:
        size: bytes, as the place says.
        start: opens the content at its beginning.
        seekable: whether the opened content can be read from any offset.
    """

    path: str
    size: int
    start: Callable[[], BinaryIO]
    seekable: bool = False

    def read(self, limit: int) -> bytes:
        """Return the content; more than `limit` bytes are refused."""
        if self.size > limit:
            raise too_large(self.path, self.size, limit)
        with self.start() as stream:
            content = stream.read(self.size + 1)
        if len(content) > self.size:
            raise HostileInputError(
                "entry-size-mismatch", f"{self.path} has more bytes than its archive says", why=f"{self.size} bytes"
            )
        return content

    def head(self, count: int) -> bytes:
        """Return the first bytes, without a change for later readers; not possible in a tar."""
        with self.start() as stream:
            return stream.read(count)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the content for reading at any offset; a packed file is copied to a temporary file."""
        with self.start() as stream:
            if self.seekable:
                yield stream
                return
            with tempfile.SpooledTemporaryFile(_IN_MEMORY) as copy:
                shutil.copyfileobj(stream, copy, _CHUNK)
                copy.seek(0)
                yield cast("BinaryIO", copy)


def too_large(name: str, size: int, limit: int) -> HostileInputError:
    """Return the error of a file with more bytes than are read of its kind."""
    return HostileInputError(
        "entry-too-large", f"{name} has {size} bytes", why=f"at most {limit} bytes of such a file are read"
    )


def on_disk(path: Path, name: str, within: Path) -> StoredFile:
    """Return a file of a folder.

    Args:
        name: its path in the place.
        within: the folder that links may not lead out of.
    """
    return StoredFile(name, path.stat().st_size, lambda: open_regular(path, within=within), seekable=True)
