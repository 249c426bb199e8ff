"""Tests of reading the dynamic linking information of ELF files."""

from __future__ import annotations

import _ctypes
import io
import os
import struct
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.refusals import refused
from toolchain.stages import elf as elf_module
from toolchain.stages.elf import linked_of, read_linked


def test_section_with_too_many_versions_is_refused() -> None:
    content = bytearray(Path(_ctypes.__file__).read_bytes())
    elf = ELFFile(io.BytesIO(content))
    number = elf.get_section_index(".gnu.version_r")
    assert number is not None
    assert "libc.so.6" in linked_of("library", bytes(content)).needed
    # The field sh_info is at byte 44 of a section header. The last version entry points to itself.
    struct.pack_into("<I", content, elf["e_shoff"] + number * elf["e_shentsize"] + 44, 1 << 31)
    with refused("not-an-elf"):
        linked_of("library", bytes(content))


@pytest.mark.parametrize(("field", "form", "value"), [(24, "<Q", (1 << 63) + 8), (40, "<I", 0)])
def test_damaged_section_header_is_refused(field: int, form: str, value: int) -> None:
    """The fields are sh_offset and sh_link of `.dynamic`."""
    content = bytearray(Path(_ctypes.__file__).read_bytes())
    elf = ELFFile(io.BytesIO(content))
    number = elf.get_section_index(".dynamic")
    assert number is not None
    struct.pack_into(form, content, elf["e_shoff"] + number * elf["e_shentsize"] + field, value)
    with refused("not-an-elf"):
        linked_of("library", bytes(content))


def test_library_of_gigabytes_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile build can leave a file of 60 GB that takes no place on the disk."""
    library = tmp_path / "lib.so"
    library.write_bytes(Path(_ctypes.__file__).read_bytes())
    assert "libc.so.6" in read_linked(library).needed
    os.truncate(library, 1 << 24)
    monkeypatch.setattr(elf_module, "LARGEST", 1 << 23)
    with refused("not-an-elf", "cannot be read"):
        read_linked(library)
