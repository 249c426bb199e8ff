"""A check of every header of a tar archive before Python's tarfile uses the header.

tarfile parses headers with `TarInfo.frombuf`. In some versions of Python, such as 3.13.5 in Debian 13, it calls
`_frombuf` instead. `CheckedHeader` overrides both methods, and `require` checks that `CheckedHeader.look` is called for
every header.
"""

from __future__ import annotations

import io
import tarfile
from abc import abstractmethod
from collections.abc import Callable
from functools import cache as memoize
from functools import partial
from typing import Any, Self

from toolchain.core.errors import EngineError


class CheckedHeader(tarfile.TarInfo):
    """A tar header that a subclass checks before it is used."""

    @classmethod
    @abstractmethod
    def look(cls, block: bytes, read: Callable[[], Self]) -> Self:
        """Return the result of `read`, or raise an error to refuse the header.

        Args:
            block: the 512 bytes of the header, all zero for the end mark; fewer bytes if the archive is cut off.
            read: tarfile's own parser, which raises a `tarfile.HeaderError` for an invalid header.
        """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse a header through `look`, which may refuse it."""
        if _BEHIND is not None:  # `frombuf` calls `_frombuf`, which calls `look`
            return super().frombuf(buf, encoding, errors)
        return cls.look(bytes(buf), partial(super().frombuf, buf, encoding, errors))

    @classmethod
    def _frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str, **more: Any) -> Self:
        behind: Any = super()
        return cls.look(bytes(buf), partial(behind._frombuf, buf, encoding, errors, **more))


_BEHIND = getattr(tarfile.TarInfo, "_frombuf", None)


@memoize
def require() -> None:
    """Raise an EngineError unless tarfile calls `look` for each header and for the end mark of a test archive."""
    seen: list[bool] = []

    class Probe(CheckedHeader):
        @classmethod
        def look(cls, block: bytes, read: Callable[[], Self]) -> Self:
            seen.append(any(block))
            return read()

    with io.BytesIO() as plain:
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as tar:
            tar.addfile(tarfile.TarInfo("a" * 150))
        plain.seek(0)
        with tarfile.open(fileobj=plain, mode="r|", tarinfo=Probe) as tar:
            list(tar)
    # `look` should see the header of the long name, the header of the file, and the end mark.
    if seen[:3] != [True, True, False]:
        raise EngineError(
            "tar-reader-unknown",
            "the tarfile module of this Python cannot be used safely",
            why=f"this version of the tool could check only {len(seen)} of 3 headers of a test archive",
            fix="use another Python, or a newer version of the tool",
        )
