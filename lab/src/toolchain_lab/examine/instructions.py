"""Find kernels whose bytes differ, but whose instructions are the same apart from the addresses of data."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolchain.core.cache import Cache
from toolchain.core.errors import EngineError, LimitError
from toolchain_lab.bridge import disassembler
from toolchain_lab.emulator.disassembly import Disassembler, Line, disassemble_all
from toolchain_lab.emulator.errors import NotEmulatedError
from toolchain_lab.examine.diff import CHANGED, INSTRUCTIONS, Difference, Row, ranked
from toolchain_lab.examine.kernels import kernels_in
from toolchain_lab.examine.loaded_code import CodeObject

# To compute the address of data, code reads the program counter, and adds the low and the high half of an offset to it.
_HERE = re.compile(r"s_getpc_b64 s\[(\d+):\d+\]")
_ADD = re.compile(r"(s_add\w*) s(\d+), s\2, (?:0x[0-9a-f]+|-?\d+)")
_REACH = 8  # the number of instructions to search for the additions, including s_getpc_b64
_LONGEST = 64  # bytes; no instruction is as long
_AT_ONCE = 16  # the number of kernels, each in A and B, for a call of llvm-objdump


def compare_instructions(difference: Difference, places: Sequence[str], cache: Cache) -> tuple[Difference, int]:
    """Compare the instructions of those changed kernels whose code has the same size in A and B.

    Args:
        places: A and B, which are read again; see `places.opened`.

    Returns:
        The difference, with the status `INSTRUCTIONS` for kernels with the same instructions, and the number of kernels
        that could not be compared because there is no usable disassembler.
    """
    open_ = [row for row in difference.rows if _may_be_same(row)]
    if not open_:
        return difference, 0
    try:
        tool = disassembler()
    except EngineError:
        return difference, len(open_)
    wanted = {digest for row in open_ for digest in row.files}
    contents: dict[str, bytes] = {}
    for place in places:
        contents |= {
            kernel.sha256: kernel.content for kernel in kernels_in(place, cache, keep=wanted) if kernel.content
        }
    differing = _differing(open_, contents, tool)
    same = {row.key for row in open_ if row.key not in differing and _are_same(row, contents, tool)}
    rows = (replace(row, status=INSTRUCTIONS) if row.key in same else row for row in difference.rows)
    return ranked(rows), 0


def _may_be_same(row: Row) -> bool:
    objects = all(side is not None and side.vgpr is not None for side in (row.before, row.after))
    return row.status == CHANGED and objects and "code" not in row.changes()


class _Side:
    """A kernel in a code object of A or B.

    LookupError or ValueError is raised if the code object lacks the kernel.
    """

    def __init__(self, content: bytes, kernel: str) -> None:
        self.content = content
        self.start, self.size = CodeObject(content).code_range(kernel)

    def code(self) -> bytes:
        return bytes(CodeObject(self.content).loaded(self.start, self.size))

    def texts(self, lines: Iterable[Line], size: int) -> list[str]:
        """Return the instructions that start in the first `size` bytes, with `low` and `high` for offsets of data."""
        texts = [line.text for line in lines if self.start <= line.address < self.start + size]
        for at, text in enumerate(texts):
            if match := _HERE.fullmatch(text):
                for register, name in ((int(match[1]), "low"), (int(match[1]) + 1, "high")):
                    _leave_out(texts, at, register, name)
        return texts


@dataclass(frozen=True)
class _Pair:
    """A kernel in A and in B; `equal` is the number of equal bytes at the start of its code."""

    key: str
    a: _Side
    b: _Side
    equal: int

    @property
    def stop(self) -> int:
        return max(self.a.start, self.b.start) + self.equal + _LONGEST

    def differ(self, a: Iterable[Line], b: Iterable[Line]) -> bool:
        """Return whether the instructions up to the first different byte are known in A and B, and differ."""
        texts = self.a.texts(a, self.equal + 1), self.b.texts(b, self.equal + 1)
        return all(texts) and texts[0] != texts[1]


def _differing(rows: Iterable[Row], contents: Mapping[str, bytes], tool: Disassembler) -> set[str]:
    """Return the keys of the kernels whose instructions differ at the first different byte, as in most that differ.

    The code up to that byte is decoded for many kernels at once, because llvm-objdump takes longer to start.
    """
    pairs: dict[str, list[_Pair]] = {}
    for row in rows:
        with contextlib.suppress(LookupError, ValueError):
            a, b = (_Side(contents[digest], row.kernel) for digest in row.files)
            bytes_ = enumerate(zip(a.code(), b.code(), strict=True))
            equal = next((at for at, (of_a, of_b) in bytes_ if of_a != of_b), a.size)
            pairs.setdefault(row.gpu, []).append(_Pair(row.key, a, b, equal))
    differing = set[str]()
    for gpu, alike in pairs.items():
        alike.sort(key=lambda pair: pair.stop)  # all kernels of a call are decoded up to the same address
        for first in range(0, len(alike), _AT_ONCE):
            differing |= _differing_in(alike[first : first + _AT_ONCE], gpu, tool)
    return differing


def _differing_in(pairs: Sequence[_Pair], gpu: str, tool: Disassembler) -> set[str]:
    try:
        sides = [side for pair in pairs for side in (pair.a, pair.b)]
        listed = _disassembled(sides, gpu, tool, stop=max(pair.stop for pair in pairs))
    except (NotEmulatedError, LimitError):
        half = len(pairs) // 2  # a code object that cannot be decoded must not hide the others
        return _differing_in(pairs[:half], gpu, tool) | _differing_in(pairs[half:], gpu, tool) if half else set()
    return {pair.key for pair, a, b in zip(pairs, listed[::2], listed[1::2], strict=True) if pair.differ(a, b)}


def _disassembled(
    sides: Sequence[_Side], gpu: str, tool: Disassembler, *, stop: int | None = None
) -> list[tuple[Line, ...]]:
    with tempfile.TemporaryDirectory(prefix="toolchain-instructions-") as scratch:
        paths = [Path(scratch, f"{at}.hsaco") for at in range(len(sides))]
        for path, side in zip(paths, sides, strict=True):
            path.write_bytes(side.content)
        return disassemble_all(paths, gpu, tool, stop=stop)


def _are_same(row: Row, contents: Mapping[str, bytes], tool: Disassembler) -> bool:
    try:
        sides = [_Side(contents[digest], row.kernel) for digest in row.files]
        listed = _disassembled(sides, row.gpu, tool)
    except (NotEmulatedError, LookupError, ValueError):
        return False  # a kernel that cannot be decoded is reported as changed
    a, b = (side.texts(lines, side.size) for side, lines in zip(sides, listed, strict=True))
    return a == b


def _leave_out(texts: list[str], at: int, register: int, name: str) -> None:
    """Replace the constant that is added to `register`, a half of the program counter, with `name`."""
    for place in range(at + 1, min(at + _REACH, len(texts))):
        if (match := _ADD.fullmatch(texts[place])) and int(match[2]) == register:
            texts[place] = f"{match[1]} s{register} {name}"
            return
