"""The addresses of a kernel's buffers and code, and the initial values of its scalar registers."""

from __future__ import annotations

from dataclasses import dataclass

# Consecutive buffers are this many times 4 GiB apart, plus `Placement.step` bytes. The distance is large, so that an
# access slightly beyond the end of a buffer does not hit the next buffer.
_STEP = 3


@dataclass(frozen=True)
class Placement:
    """The addresses of buffers and code, and the initial values of scalar registers.

    Args:
        page: the upper 32 bits of the first buffer's address before `low` is added.
        low: the offset of the first buffer from a multiple of 4 GiB, in bytes.
        step: the number of bytes by which this offset increases from one buffer to the next.
        code: the offset of the kernel's first instruction from a multiple of 4 GiB, in bytes.
        cleared: whether scalar registers are initially 0 instead of random.
    """

    page: int
    low: int
    step: int
    code: int
    cleared: bool

    def buffers(self, count: int) -> tuple[int, ...]:
        """Return the addresses of `count` buffers, as unsigned 64-bit numbers."""
        return tuple((self.page + _STEP * number << 32) + self.low + self.step * number for number in range(count))

    def code_address(self, entry: int) -> int:
        """Return the address of a code object whose kernel begins at the offset `entry` in it."""
        return (self.page - _STEP << 32) + self.code - entry


# Each buffer begins 16 bytes below a multiple of 4 GiB, and the kernel begins at such a multiple, so that address
# computations that drop the carry between the two 32-bit words give wrong addresses.
ACROSS = Placement(page=0x7F10, low=-16, step=0, code=0, cleared=False)
# The upper 16 bits of buffer addresses are set. A kernel must clear them in a buffer descriptor, because the base
# address there has only 48 bits. Scalar registers are initially 0, so a descriptor whose size the kernel does not set
# describes an empty buffer.
UPPER = Placement(page=0xFFFF8010, low=64, step=64, code=1 << 16, cleared=True)
