"""Find the instructions, the data and the notes of kernels in AMDGPU code objects."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property

from toolchain.kernels.codeobject import ElfTables

_LOAD, _NOTE = 1, 4  # types of segments (PT_LOAD, PT_NOTE)


class CodeObject(ElfTables):
    """An AMDGPU ELF file, as a loader sees it."""

    def loaded(self, address: int, size: int) -> memoryview:
        """Return the `size` bytes that are loaded at an address; raise ValueError if no segment contains them."""
        for kind, _, offset, start, _, inside, _, _ in self.segments:
            if kind == _LOAD and start <= address and address + size <= start + inside:
                return self.cut(offset + address - start, size)
        raise ValueError("its code is in no segment")

    def code_range(self, name: str) -> tuple[int, int]:
        """Return the address and the size of a kernel's instructions.

        An assembler states no size for a symbol without `.size`, as in AITER's objects. The instructions then extend to
        the next symbol, or to the end of the segment.

        Raises:
            KeyError: there is no such symbol.
            ValueError: the symbol has no size, and is in no segment.
        """
        start, size = self.symbols[name]
        if size:
            return start, size
        ends = [row[3] + row[5] for row in self.segments if row[0] == _LOAD and row[3] <= start < row[3] + row[5]]
        if not ends:
            raise ValueError("its code is in no segment")
        following = bisect_right(self._places, start)
        return start, min([*ends, *self._places[following : following + 1]]) - start

    @cached_property
    def _places(self) -> list[int]:
        return sorted(place for place, _ in self.symbols.values())

    def notes(self) -> Iterator[bytes]:
        left = len(self.view)
        for kind, _, offset, _, _, size, _, _ in self.segments:
            if kind == _NOTE:
                left -= size
                if left < 0:
                    raise ValueError("its notes overlap")
                yield bytes(self.cut(offset, size))
