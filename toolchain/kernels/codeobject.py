"""Read the ELF tables of AMDGPU code objects, and check that a file contains a kernel for a GPU.

Code objects may be hostile, so the sizes of their tables are limited.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from toolchain.catalog.gpus import check_gpu, gpu_of_flag, machine_flag
from toolchain.core.errors import KernelError
from toolchain.core.filesystem import read_regular

EM_AMDGPU = 224
_OSABI_HSA = 64
_DESCRIPTOR_SIZE = 64
_LARGEST = 1 << 30  # the maximum size of a code object in bytes
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNSYM = 11  # the type of the section with the dynamic symbols, SHT_DYNSYM
_MOST = 4096  # the maximum number of sections, and of segments
_MOST_SYMBOLS, _LONGEST_NAME = 100_000, 8192
_LARGEST_NAMES = 16 << 20


class ElfTables:
    """The tables of an AMDGPU ELF file. ValueError is raised for any other file, and for damaged or too large tables.

    Attributes:
        mach: EF_AMDGPU_MACH, the number of the GPU in the low byte of the ELF flags.
        osabi: the number of the OS ABI.
        view: the bytes of the file.
        segments: the rows of the program header table.
        symbols: the address and size of each dynamic symbol, by name.
    """

    def __init__(self, content: bytes) -> None:
        if content[:5] != b"\x7fELF\2" or content[18:20] != EM_AMDGPU.to_bytes(2, "little"):
            raise ValueError("it is not an AMDGPU ELF64 file" if content else "the file is empty")
        self.view = memoryview(content)
        try:
            head = _HEADER.unpack_from(content)
            if max(head[10], head[12]) > _MOST:
                raise ValueError("it has too many sections or segments")
            self.osabi = content[7]
            self.mach = head[7] & 0xFF
            self.segments = [_SEGMENT.unpack_from(content, head[5] + at * _SEGMENT.size) for at in range(head[10])]
            sections = [_SECTION.unpack_from(content, head[6] + at * _SECTION.size) for at in range(head[12])]
            self.symbols = self._read_symbols(sections)
        except (struct.error, IndexError, OverflowError) as error:
            raise ValueError("a table in it is damaged") from error

    def cut(self, start: int, size: int) -> memoryview:
        """Return `size` bytes of the file; raise ValueError if the file ends before them."""
        piece = self.view[start : start + size]
        if len(piece) != size:
            raise ValueError(f"it ends early: it has {len(self.view)} bytes, but a table names byte {start + size}")
        return piece

    def _read_symbols(self, sections: list[tuple[Any, ...]]) -> dict[str, tuple[int, int]]:
        table = next((row for row in sections if row[1] == _DYNSYM), None)
        if table is None:
            raise ValueError("it has no table of symbols")
        named = sections[table[6]]
        if table[5] > _MOST_SYMBOLS * _SYMBOL.size or named[5] > _LARGEST_NAMES:
            raise ValueError("it has too many symbols")
        names = bytes(self.cut(named[4], named[5]))
        symbols = {}
        rows = self.cut(table[4], table[5] // _SYMBOL.size * _SYMBOL.size)
        for name, _, _, _, value, size in _SYMBOL.iter_unpack(rows):
            end = names.find(b"\0", name, name + _LONGEST_NAME)
            if end < 0:
                raise ValueError("the name of a symbol is missing or too long")
            symbols[names[name:end].decode()] = (value, size)
        return symbols


def check_object(path: Path, gpu: str, kernel: str) -> None:
    """Raise KernelError unless a file is an AMDGPU ELF for `gpu` with the symbol and the descriptor of `kernel`."""
    check_gpu(gpu)
    try:
        elf = ElfTables(read_regular(path, _LARGEST))
        why = _fault(elf, gpu, kernel)
    except (OSError, ValueError) as error:
        why = str(error.strerror or error) if isinstance(error, OSError) else str(error)
    if why:
        raise KernelError(
            "not-a-code-object", f"{path} is not a code object for {gpu}", why=why, fix="compile the kernel again"
        )


def _fault(elf: ElfTables, gpu: str, kernel: str) -> str:
    if elf.osabi != _OSABI_HSA:
        return f"it is for OS ABI {elf.osabi}, not HSA"
    if elf.mach != machine_flag(gpu):
        return f"it is for {gpu_of_flag(elf.mach) or 'another GPU'} (EF_AMDGPU_MACH {elf.mach:#x})"
    if not elf.symbols.get(kernel, (0, 0))[1]:
        there = ", ".join(sorted(filter(None, elf.symbols))) or "none"
        return f"it has no code for the symbol {kernel}; its symbols: {there}"
    if elf.symbols.get(f"{kernel}.kd", (0, 0))[1] != _DESCRIPTOR_SIZE:
        return f"it has no kernel descriptor {kernel}.kd"
    return ""


def metadata_fault(metadata: Any, gpu: str) -> str:
    """Return what is wrong with the JSON beside an object; an empty string if it is valid."""
    if not isinstance(metadata, dict):
        return "the JSON file of the object contains no JSON object"
    numbers = {name: metadata.get(name) for name in ("shared", "num_warps", "warp_size")}
    if lacking := [name for name, value in numbers.items() if not isinstance(value, int)]:
        return f"the JSON file of the object lacks {', '.join(lacking)}"
    if metadata.get("compile_status") != "Complete" or metadata.get("arch") != gpu:
        return f"the JSON file of the object says {metadata.get('compile_status')} for {metadata.get('arch')}"
    return ""
