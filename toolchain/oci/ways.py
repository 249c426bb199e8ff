"""Choose whether a blob is sent in one piece or in chunks, by the rules of its registry and what that refused."""

from __future__ import annotations

from dataclasses import dataclass

import requests

from toolchain.core.web import header_number
from toolchain.oci.registry_rules import CHUNK, UNKNOWN, Rules

# The smallest chunk that is tried. A server in front of a registry accepts at least a megabyte by default.
LEAST = 256 << 10
TOO_LARGE = frozenset({413, 416})
# Statuses with which registries refuse a first chunk, and a blob in one piece.
NO_CHUNKS = frozenset({400, 404, 405, 411, 413, 415, 416, 501})
NO_WHOLE = frozenset({405, 411, 413, 415, 501})
# Error codes of a 400 that do not concern the way of sending.
NOT_THE_WAY = frozenset({"NAME_INVALID", "NAME_UNKNOWN", "DENIED", "UNAUTHORIZED", "TOOMANYREQUESTS"})


@dataclass
class Habits:
    """The ways of sending that a registry refused in this run.

    Args:
        whole: the status with which it refused a blob in one piece.
        chunks: the status with which it last refused a chunk.
        chunk: bytes of the chunks to send since then; 0 for as many as the rules say.
    """

    whole: int | None = None
    chunks: int | None = None
    chunk: int = 0

    def refuse(self, chunk: int | None, status: int, size: int) -> bool:
        """Note that a way was refused.

        Args:
            chunk: bytes of a chunk, None for one piece.
            size: of the blob, bytes.

        Returns:
            Whether another way is left.
        """
        if chunk is None:
            self.whole = status
            if status not in TOO_LARGE:
                return self.chunks is None
            return self._smaller(min(self.chunk or CHUNK, size), self.chunks or status)
        self.chunks = status
        self.chunk = chunk
        return True if self.whole is None else self._smaller(chunk, status)

    def _smaller(self, chunk: int, status: int) -> bool:
        self.chunk = below(chunk)
        return status in TOO_LARGE and self.chunk >= LEAST


def below(size: int) -> int:
    """Return the largest power of two that is smaller than `size`."""
    return 1 << max(size - 1, 1).bit_length() - 1


def choose(
    rules: Rules, habits: Habits, begun: requests.Response, size: int, *, wished: int | None, broken: int
) -> int | None:
    """Return the bytes of a chunk for a blob of `size` bytes; None for one piece.

    Args:
        begun: the answer that began the upload.
        wished: bytes of a chunk that the caller wants.
        broken: how often connections broke before the registry took anything, beyond the usual.
    """
    if habits.whole is not None:
        return None if habits.whole == 413 and size <= habits.chunk else habits.chunk
    return None if habits.chunks is not None else _chunk(rules, begun, size, wished or 0, broken=broken)


def _chunk(rules: Rules, begun: requests.Response, size: int, wished: int, *, broken: int) -> int | None:
    least, most = (header_number(begun.headers.get(f"OCI-Chunk-{which}-Length")) or 0 for which in ("Min", "Max"))
    chunk = wished or (rules.chunk if rules.upload == "chunks" or least or most else 0)
    if not chunk and broken and rules is UNKNOWN:
        # A server in front that closes the connection on large requests looks like a bad network.
        chunk = max(below(min(size, CHUNK + 1)) >> 2 * (broken - 1), LEAST)
    if not chunk:
        return None
    chunk = max(chunk, least)
    chunk = min(chunk, most) if most else chunk
    return None if size <= chunk else chunk
