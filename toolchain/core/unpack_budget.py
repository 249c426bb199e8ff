"""A budget for the bytes that packed files unpack to."""

from __future__ import annotations

_RATIO = 200
_FREE = 256 << 20


class UnpackBudget:
    """The bytes that may be unpacked: 256 MiB, and 200 times the size of the packed files.

    Code objects pack to a tenth of their size, and bundles of ROCm's libraries to a thirtieth. All files share one
    budget, because a thousand bombs of some kilobytes are a bomb too.
    """

    def __init__(self, packed: int = 0) -> None:
        self._left = _FREE
        self.add(packed)

    def add(self, packed: int) -> None:
        """Raise the budget for a packed file, by its size in bytes."""
        self._left += _RATIO * packed

    def takes(self, unpacked: int) -> bool:
        """Return whether so many bytes may be unpacked, and take them from the budget."""
        if unpacked > self._left:
            return False
        self._left -= unpacked
        return True
