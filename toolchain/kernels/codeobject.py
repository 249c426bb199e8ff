"""Code objects: is this file really an AMDGPU kernel for this GPU?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain.errors import KernelError, UnsupportedError

EM_AMDGPU = 224
ELFOSABI_AMDGPU_HSA = 64
_MACH_MASK = 0xFF
DESCRIPTOR_SIZE = 64
# EF_AMDGPU_MACH of the AMDGPU ABI: the low byte of the ELF header's flags.
MACH = {
    "gfx90a": 0x3F,
    "gfx942": 0x4C,
    "gfx950": 0x4F,
    "gfx1100": 0x41,
    "gfx1101": 0x46,
    "gfx1102": 0x47,
    "gfx1103": 0x44,
    "gfx1150": 0x43,
    "gfx1151": 0x4A,
    "gfx1152": 0x55,
    "gfx1153": 0x58,
    "gfx1200": 0x48,
    "gfx1201": 0x4E,
    "gfx1250": 0x49,
}


def check_gpu(gpu: str) -> None:
    """Refuse a GPU that no code object can be checked for.

    Raises:
        UnsupportedError: unknown.
    """
    if gpu not in MACH:
        raise UnsupportedError(f"unknown GPU {gpu!r}", why=f"known: {', '.join(MACH)}", fix="give one of these")


def warp_size(gpu: str) -> int:
    """Lanes of a wave as Triton compiles for `gpu`: 64 on CDNA, 32 on RDNA and gfx1250."""
    check_gpu(gpu)
    return 32 if int(gpu[3:-2]) >= 10 else 64


def check_object(path: Path, gpu: str, kernel: str | None = None) -> None:
    """Check that a file is an AMDGPU ELF for `gpu` that holds a kernel and its descriptor.

    Args:
        kernel: the kernel's symbol; any one kernel will do when it is not given.

    Raises:
        KernelError: it is not, and why.
        UnsupportedError: an unknown GPU.
    """
    check_gpu(gpu)
    why = _fault(path, gpu, kernel)
    if why:
        raise KernelError(f"{path} is no code object for {gpu}", why=why, fix="compile it again")


@dataclass(frozen=True)
class _Header:
    elfclass: int
    machine: int | str
    osabi: int
    flags: int
    symbols: Mapping[str, int]  # size by name, of the dynamic symbols


def _read(path: Path) -> _Header:
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - a plan knows GPUs by their names alone
    from elftools.elf.sections import SymbolTableSection  # noqa: PLC0415

    with path.open("rb") as stream:
        elf = ELFFile(stream)
        table = elf.get_section_by_name(".dynsym")
        found = table.iter_symbols() if isinstance(table, SymbolTableSection) else ()
        symbols = {str(symbol.name): int(symbol["st_size"]) for symbol in found if symbol.name}
        stream.seek(7)
        return _Header(
            elfclass=elf.elfclass,
            machine=elf["e_machine"],
            osabi=stream.read(1)[0],  # pyelftools knows this number by another architecture's name
            flags=int(elf["e_flags"]),
            symbols=symbols,
        )


def _fault(path: Path, gpu: str, kernel: str | None) -> str:
    """What is wrong; empty when nothing is."""
    from elftools.common.exceptions import ELFError  # noqa: PLC0415 - see `_read`

    try:
        if path.stat().st_size == 0:
            return "the file is empty"
        header = _read(path)
    except OSError as error:
        return str(error.strerror or error)
    except (ELFError, ValueError, KeyError, AttributeError) as error:
        return f"not a whole ELF file: {error}"
    return _fault_of_header(header, gpu) or _fault_of_kernel(header.symbols, kernel)


def _fault_of_header(header: _Header, gpu: str) -> str:
    # Older pyelftools give the number.
    if header.elfclass != 64 or header.machine not in (EM_AMDGPU, "EM_AMDGPU"):
        return f"an ELF{header.elfclass} for machine {header.machine}, not an AMDGPU ELF64"
    if header.osabi != ELFOSABI_AMDGPU_HSA:
        return f"for OS ABI {header.osabi}, not HSA"
    if header.flags & _MACH_MASK != MACH[gpu]:
        made_for = next((name for name, mach in MACH.items() if mach == header.flags & _MACH_MASK), "another GPU")
        return f"made for {made_for} (flags {header.flags:#x})"
    return ""


def _fault_of_kernel(symbols: Mapping[str, int], kernel: str | None) -> str:
    names = [kernel] if kernel is not None else [name for name in symbols if f"{name}.kd" in symbols]
    if not names:
        return "no kernel with a descriptor"
    for name in names:
        if not symbols.get(name):
            return f"no code under the symbol {name}; it has {', '.join(sorted(symbols)) or 'none'}"
        if symbols.get(f"{name}.kd") != DESCRIPTOR_SIZE:
            return f"no kernel descriptor {name}.kd"
    return ""
