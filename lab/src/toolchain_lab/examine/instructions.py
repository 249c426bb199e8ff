"""Find kernels whose bytes differ, but whose instructions are the same apart from the addresses of data."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from toolchain.core.cache import Cache
from toolchain.core.errors import EngineError
from toolchain_lab.bridge import disassembler
from toolchain_lab.emulator.disassembly import Disassembler, disassemble
from toolchain_lab.emulator.errors import NotEmulatedError
from toolchain_lab.examine.diff import CHANGED, INSTRUCTIONS, Difference, Row, ranked
from toolchain_lab.examine.kernels import kernels_in
from toolchain_lab.examine.loaded_code import CodeObject

# To compute the address of data, code reads the program counter, and adds the low and the high half of an offset to it.
_HERE = re.compile(r"s_getpc_b64 s\[(\d+):\d+\]")
_ADD = re.compile(r"(s_add\w*) s(\d+), s\2, (?:0x[0-9a-f]+|-?\d+)")
_REACH = 8  # the number of instructions to search for the additions, including s_getpc_b64


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
    same = {row.key for row in open_ if _are_same(row, contents, tool)}
    rows = (replace(row, status=INSTRUCTIONS) if row.key in same else row for row in difference.rows)
    return ranked(rows), 0


def _may_be_same(row: Row) -> bool:
    objects = all(side is not None and side.vgpr is not None for side in (row.before, row.after))
    return row.status == CHANGED and objects and "code" not in row.changes()


def _are_same(row: Row, contents: dict[str, bytes], tool: Disassembler) -> bool:
    try:
        a, b = (instructions(contents[digest], row.kernel, row.gpu, tool) for digest in row.files)
    except (NotEmulatedError, LookupError, ValueError):
        return False  # a kernel that cannot be decoded is reported as changed
    return a == b


def instructions(content: bytes, kernel: str, gpu: str, tool: Disassembler) -> list[str]:
    """Return the instructions of a kernel as strings, with `low` and `high` in place of the offsets of data.

    NotEmulatedError, LookupError or ValueError is raised if the code object cannot be decoded, or lacks the kernel.
    """
    with tempfile.TemporaryDirectory(prefix="toolchain-instructions-") as scratch:
        path = Path(scratch, "kernel.hsaco")
        path.write_bytes(content)
        lines = disassemble(path, gpu, tool)
    start, size = CodeObject(content).code_range(kernel)
    texts = [line.text for line in lines if start <= line.address < start + size]
    for at, text in enumerate(texts):
        if match := _HERE.fullmatch(text):
            for register, name in ((int(match[1]), "low"), (int(match[1]) + 1, "high")):
                _leave_out(texts, at, register, name)
    return texts


def _leave_out(texts: list[str], at: int, register: int, name: str) -> None:
    """Replace the constant that is added to `register`, a half of the program counter, with `name`."""
    for place in range(at + 1, min(at + _REACH, len(texts))):
        if (match := _ADD.fullmatch(texts[place])) and int(match[2]) == register:
            texts[place] = f"{match[1]} s{register} {name}"
            return
