"""What a kernel finds at its start: the addresses of buffers and code, and the scalar registers that nothing sets."""

from __future__ import annotations

from dataclasses import dataclass

# Pages of 4 GiB from one buffer to the next, so that an access beyond a buffer meets no other one.
_STEP = 3


@dataclass(frozen=True)
class Placement:
    """Addresses of buffers and code, and the start of scalar registers.

    Args:
        page: the upper 32 bits of the first address.
        low: the first byte of a buffer from a boundary of 4 GiB on.
        step: the further bytes of each following buffer.
        code: the entry of the kernel from a boundary of 4 GiB on.
        cleared: whether scalar registers begin as 0 instead of garbage.
    """

    page: int
    low: int
    step: int
    code: int
    cleared: bool

    def buffers(self, count: int) -> tuple[int, ...]:
        """Return the addresses of so many buffers, as unsigned numbers of 64 bits."""
        return tuple((self.page + _STEP * number << 32) + self.low + self.step * number for number in range(count))

    def code_address(self, entry: int) -> int:
        """Return the address of a code object whose kernel begins at the offset `entry`."""
        return (self.page - _STEP << 32) + self.code - entry


# All of a buffer but its first 16 bytes, which is what Triton lets a pointer be a multiple of, lies above a boundary of
# 4 GiB, and the kernel above the functions that it calls: sums of 64 bits need their carry.
ACROSS = Placement(page=0x7F10, low=-16, step=0, code=0, cleared=False)
# Addresses whose upper bits are copies of bit 47, as Linux gives them to graphics programs: the base address of a
# buffer descriptor has 48 bits, so a kernel must remove them. A descriptor whose range was never set is empty.
UPPER = Placement(page=0xFFFF8010, low=64, step=64, code=1 << 16, cleared=True)
