"""An untrusted wheel: opened and read in bounded memory, its names checked before use."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from toolchain.core.digest import CHUNK
from toolchain.core.zips import open_zip


def open_wheel(path: Path) -> AbstractContextManager[zipfile.ZipFile]:
    """Open a wheel, see `open_zip`. Names that differ in case alone are refused, because wheels are for any system."""
    return open_zip(path, path.name, kind="wheel", ignore_case=True)


def pieces(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """A member's content in pieces of at most a mebibyte; its CRC is compared at the end."""
    with archive.open(member) as stream:
        while piece := stream.read(CHUNK):
            yield piece
