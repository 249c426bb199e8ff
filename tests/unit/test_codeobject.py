"""Tests of the check that a file is a code object for a GPU and contains a kernel."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.kernel_fixtures import endless, make_object
from tests.refusals import refused
from toolchain.catalog.gpus import gpu_of_flag, known_gpus, machine_flag
from toolchain.core.errors import KernelError
from toolchain.kernels.codeobject import check_object


def test_code_object_is_accepted_only_for_its_own_gpu(tmp_path: Path) -> None:
    path = tmp_path / 'it\'s a "kernel".hsaco'
    for gpu in known_gpus():
        path.write_bytes(make_object(gpu, "k"))
        check_object(path, gpu, "k")
        with refused("not-a-code-object") as caught:
            check_object(path, "gfx942" if gpu != "gfx942" else "gfx90a", "k")
        assert str(gpu) in caught.value.why


def test_machine_numbers_are_distinct() -> None:
    assert [gpu_of_flag(machine_flag(gpu)) for gpu in known_gpus()] == list(known_gpus())
    assert gpu_of_flag(0) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"not an elf", "AMDGPU ELF64"),
        (make_object("gfx942", "k")[:50], "damaged"),
        (make_object("gfx942", "k", machine=62), "AMDGPU ELF64"),
        (make_object("gfx942", "k", osabi=0), "not HSA"),
        (make_object("gfx942", "other"), "other.kd"),
        (make_object("gfx942", "k", descriptor=0), "k.kd"),
    ],
)
def test_file_that_is_not_a_code_object_of_the_kernel_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "k.hsaco"
    path.write_bytes(content)

    with pytest.raises(KernelError) as caught:
        check_object(path, "gfx942", "k")
    assert why in caught.value.why


def test_missing_file_and_unknown_gpu_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelError):
        check_object(tmp_path / "absent.hsaco", "gfx942", "k")
    with refused("unknown-gpu", "gfx000"):
        check_object(tmp_path / "absent.hsaco", "gfx000", "k")


def test_feature_bits_above_the_machine_number_are_ignored(tmp_path: Path) -> None:
    content = bytearray(make_object("gfx942", "k"))
    struct.pack_into("<I", content, 48, machine_flag("gfx942") | 0x500)
    path = tmp_path / "k.hsaco"
    path.write_bytes(bytes(content))

    check_object(path, "gfx942", "k")


def with_sections(count: int) -> bytes:
    """Return an acceptable code object, except that it has this number of sections, which are all in the file."""
    content = bytearray(make_object("gfx942", "k"))
    struct.pack_into("<H", content, 60, count)
    return bytes(content) + bytes(64) * (count - 4)


def with_symbols(count: int) -> bytes:
    """Return an acceptable code object, except that it has this number of symbols, which are all in the file."""
    content = bytearray(make_object("gfx942", "k"))
    (first,) = struct.unpack_from("<Q", content, 40)
    (offset,) = struct.unpack_from("<Q", content, first + 64 + 24)
    symbols = content[offset : offset + 72]
    struct.pack_into("<QQ", content, first + 64 + 24, len(content), count * 24)
    return bytes(content + symbols) + bytes(24) * (count - 3)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (endless(make_object("gfx942", "k"))["segments"], "too many sections or segments"),
        (with_sections(4097), "too many sections or segments"),
        (with_symbols(100_001), "too many symbols"),
        # The first section states the number 2^60 only because the header states 0, which is read as no sections.
        (endless(make_object("gfx942", "k"))["sections"], "no table of symbols"),
    ],
    ids=["segments", "sections", "symbols", "extended"],
)
def test_code_object_with_an_endless_table_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    for acceptable in (with_sections(4096), with_symbols(100_000)):
        (tmp_path / "k.hsaco").write_bytes(acceptable)
        check_object(tmp_path / "k.hsaco", "gfx942", "k")
    (tmp_path / "k.hsaco").write_bytes(content)
    with refused("not-a-code-object") as caught:
        check_object(tmp_path / "k.hsaco", "gfx942", "k")
    assert why in caught.value.why
