"""A decoder for MessagePack, the encoding of a code object's metadata."""

from __future__ import annotations

import struct
from typing import Any

_DEPTH = 16
_MOST = 2_000_000  # the maximum number of values
# The first byte of a value determines its type. `_NUMBERS` maps this byte to the `struct` format of a number,
# `_LENGTHS` maps it to the format of a length and the type, and `_PLAIN` maps it to the value.
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_LENGTHS = {
    0xC4: (">B", "bytes"), 0xC5: (">H", "bytes"), 0xC6: (">I", "bytes"),
    0xD9: (">B", "text"), 0xDA: (">H", "text"), 0xDB: (">I", "text"),
    0xDC: (">H", "array"), 0xDD: (">I", "array"), 0xDE: (">H", "map"), 0xDF: (">I", "map"),
}  # fmt: skip
_PLAIN = {0xC0: None, 0xC2: False, 0xC3: True}


def unpack(data: bytes) -> Any:
    """Decode the value at the beginning of `data`.

    ValueError is raised if the data is truncated, contains an unsupported type or text that is not UTF-8, is nested
    more than 16 levels deep, or contains more than 2,000,000 values, and TypeError if a key of a map is a container.
    """
    return _Reader(data).value(_DEPTH)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0
        self._left = _MOST

    def _take(self, size: int) -> bytes:
        taken = self._data[self._place : self._place + size]
        if len(taken) != size:
            raise ValueError("the metadata is truncated")
        self._place += size
        return taken

    def value(self, depth: int) -> Any:
        if not depth:
            raise ValueError("the metadata is nested too deeply")
        self._left -= 1
        if self._left < 0:
            raise ValueError("the metadata contains too many values")
        first = self._take(1)[0]
        if first < 0x80:
            return first
        if first >= 0xE0:
            return first - 256
        if first in _PLAIN:
            return _PLAIN[first]
        if first in _NUMBERS:
            form = _NUMBERS[first]
            return struct.unpack(form, self._take(struct.calcsize(form)))[0]
        if first < 0x90:
            kind, length = "map", first & 15
        elif first < 0xA0:
            kind, length = "array", first & 15
        elif first < 0xC0:
            kind, length = "text", first & 31
        elif first in _LENGTHS:
            form, kind = _LENGTHS[first]
            length = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        else:
            raise ValueError(f"the metadata contains a value of the unsupported type {first:#x}")
        return self._of(kind, length, depth)

    def _of(self, kind: str, length: int, depth: int) -> Any:
        if kind == "bytes":
            return self._take(length)
        if kind == "text":
            return self._take(length).decode("utf-8")
        if kind == "array":
            return [self.value(depth - 1) for _ in range(length)]
        return {self.value(depth - 1): self.value(depth - 1) for _ in range(length)}
