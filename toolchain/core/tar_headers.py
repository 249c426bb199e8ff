"""A check of every header of a tar archive before Python's tarfile uses it.

tarfile reads headers by `TarInfo.frombuf`. Some releases, such as 3.13.5 of Debian 13, call `_frombuf` instead.
`CheckedHeader` overrides both methods, and `require` checks that `CheckedHeader.look` sees every block.
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
    """A header whose class decides whether it is accepted."""

    @classmethod
    @abstractmethod
    def look(cls, block: bytes, read: Callable[[], Self]) -> Self:
        """Read one header block, or refuse it.

        Args:
            block: 512 bytes, all zero for the end mark; fewer where the archive ends.
            read: tarfile's own reader; it raises `tarfile.HeaderError` for an invalid header.
        """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header as tarfile does, after `look` has seen its bytes."""
        if _BEHIND is not None:  # `frombuf` calls `_frombuf`
            return super().frombuf(buf, encoding, errors)
        return cls.look(bytes(buf), partial(super().frombuf, buf, encoding, errors))

    @classmethod
    def _frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str, **more: Any) -> Self:
        behind: Any = super()
        return cls.look(bytes(buf), partial(behind._frombuf, buf, encoding, errors, **more))


_BEHIND = getattr(tarfile.TarInfo, "_frombuf", None)


@memoize
def require() -> None:
    """Check that this Python's tarfile shows every header, also after a long name, and the end mark."""
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
    # The long name's own header, the member's, and the end mark.
    if seen[:3] != [True, True, False]:
        raise EngineError(
            "tar-reader-unknown",
            "this Python reads tar archives in a way that this version of the tool does not know",
            why=f"of three headers it showed {len(seen)}",
            fix="use another Python, or a newer version of the tool",
        )
