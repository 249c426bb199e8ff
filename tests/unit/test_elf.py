"""Reading the dynamic linking information of ELF files."""

from __future__ import annotations

import _ctypes
import io
import struct
from pathlib import Path

from elftools.elf.elffile import ELFFile

from tests.refusals import refused
from toolchain.stages.elf import linked_of


def test_a_section_that_claims_too_many_versions() -> None:
    content = bytearray(Path(_ctypes.__file__).read_bytes())
    elf = ELFFile(io.BytesIO(content))
    number = elf.get_section_index(".gnu.version_r")
    assert number is not None
    assert "libc.so.6" in linked_of("library", bytes(content)).needed
    # The field sh_info is at byte 44 of a section header. The last version entry points to itself.
    struct.pack_into("<I", content, elf["e_shoff"] + number * elf["e_shentsize"] + 44, 1 << 31)
    with refused("not-an-elf"):
        linked_of("library", bytes(content))
