"""A limit on the number of bytes that compressed files may expand to."""

from __future__ import annotations

_RATIO = 200
_FREE = 256 << 20


class UnpackBudget:
    """A shared budget of unpacked bytes: 256 MiB plus 200 times the size of the compressed files.

    All files share the budget, because many small decompression bombs are as harmful as one.
    """

    def __init__(self, packed: int = 0) -> None:
        self._left = _FREE
        self.add(packed)

    def add(self, packed: int) -> None:
        """Increase the budget by 200 times `packed`, the size of a compressed file in bytes."""
        self._left += _RATIO * packed

    def takes(self, unpacked: int) -> bool:
        """Return whether the budget has enough bytes left, and deduct them if so."""
        if unpacked > self._left:
            return False
        self._left -= unpacked
        return True
