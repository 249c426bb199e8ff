"""Code objects: is this file really an AMDGPU kernel for this GPU?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolchain.catalog.gpus import check_gpu, gpu_of_flag, machine_flag
from toolchain.core.errors import KernelError
from toolchain.core.filesystem import open_regular
from toolchain.core.metered import metered

EM_AMDGPU = 224
ELFOSABI_AMDGPU_HSA = 64
_MACH_MASK = 0xFF
DESCRIPTOR_SIZE = 64


def check_object(path: Path, gpu: str, kernel: str) -> None:
    """Check that a file is an AMDGPU ELF for `gpu` that holds a kernel, by its symbol, and its descriptor."""
    check_gpu(gpu)
    why = _fault(path, gpu, kernel)
    if why:
        raise KernelError(f"{path} is not a code object for {gpu}", why=why, fix="compile it again")


def metadata_fault(metadata: Any, gpu: str) -> str:
    """Check the JSON beside an object for the packers; the fault, or empty."""
    if not isinstance(metadata, dict):
        return "the JSON beside the object is not an object"
    numbers = {name: metadata.get(name) for name in ("shared", "num_warps", "warp_size")}
    if lacking := [name for name, value in numbers.items() if not isinstance(value, int)]:
        return f"the JSON beside the object lacks {', '.join(lacking)}"
    if metadata.get("compile_status") != "Complete" or metadata.get("arch") != gpu:
        return f"the JSON says {metadata.get('compile_status')} for {metadata.get('arch')}"
    return ""


def _fault(path: Path, gpu: str, kernel: str) -> str:
    from elftools.common.exceptions import ELFError  # noqa: PLC0415 - a plan knows GPUs by their names alone
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415
    from elftools.elf.sections import SymbolTableSection  # noqa: PLC0415

    try:
        if path.stat().st_size == 0:
            return "the file is empty"
        with open_regular(path) as stream:
            elf = ELFFile(metered(stream))
            table = elf.get_section_by_name(".dynsym")
            rows = table.iter_symbols() if isinstance(table, SymbolTableSection) else ()
            symbols = {str(symbol.name): int(symbol["st_size"]) for symbol in rows if symbol.name}
            stream.seek(7)  # pyelftools knows this OS ABI by another architecture's name
            return _fault_of_header(elf, stream.read(1)[0], gpu) or _fault_of_kernel(symbols, kernel)
    except OSError as error:
        return str(error.strerror or error)
    except (ELFError, ValueError, KeyError, AttributeError) as error:
        return f"not a whole ELF file: {error}"


def _fault_of_header(elf: Any, osabi: int, gpu: str) -> str:
    machine, flags = elf["e_machine"], int(elf["e_flags"])
    # Older pyelftools give the number.
    if elf.elfclass != 64 or machine not in (EM_AMDGPU, "EM_AMDGPU"):
        return f"an ELF{elf.elfclass} for machine {machine}, not an AMDGPU ELF64"
    if osabi != ELFOSABI_AMDGPU_HSA:
        return f"for OS ABI {osabi}, not HSA"
    if flags & _MACH_MASK != machine_flag(gpu):
        return f"made for {gpu_of_flag(flags & _MACH_MASK) or 'another GPU'} (flags {flags:#x})"
    return ""


def _fault_of_kernel(symbols: Mapping[str, int], kernel: str) -> str:
    if not symbols.get(kernel):
        return f"no code under the symbol {kernel}; it has {', '.join(sorted(symbols)) or 'none'}"
    if symbols.get(f"{kernel}.kd") != DESCRIPTOR_SIZE:
        return f"no kernel descriptor {kernel}.kd"
    return ""
