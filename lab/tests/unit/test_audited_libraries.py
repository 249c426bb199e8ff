"""`audit`: the GPUs, fat binaries and bundles in libraries, and hostile files with too many of them."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path

import pytest

from lab.tests.json_runs import answer
from tests.kernel_fixtures import stored
from toolchain.core.errors import HostileInputError, KernelError
from toolchain_lab.examine.libraries import nvidia_targets, read_library


def test_glibc_and_targets_of_libraries_are_read(tmp_path: Path) -> None:
    library = next(Path("/usr/lib").rglob("libz.so.1"))
    (tmp_path / "libz.so.1").write_bytes(library.resolve().read_bytes())
    (tmp_path / "libz.so").symlink_to("libz.so.1")  # as in most prefixes; it is the same library
    (row,) = answer("audit", tmp_path)["libraries"]
    assert (row["soname"], "libc.so.6" in row["needed"], row["targets"]) == ("libz.so.1", True, [])
    assert row["glibc"].startswith("2.")
    assert read_library(stored("x.so", b"\x7fELF")) is None
    element = struct.pack("<HHIQ", 2, 0, 64, 16) + bytes(12) + struct.pack("<I", 90) + bytes(32 + 16)
    fatbin = bytes(8) + b"\x50\xed\x55\xba" + struct.pack("<HHQ", 1, 16, len(element)) + element
    assert list(nvidia_targets(io.BytesIO(fatbin), 0, len(fatbin))) == ["sm_90"]


@pytest.mark.timeout(300)
def test_fat_binary_with_header_of_length_0_has_no_targets() -> None:
    header = b"\x50\xed\x55\xba" + struct.pack("<HHQ", 1, 0, 0)
    assert list(nvidia_targets(io.BytesIO(header * 4), 0, 4 * len(header))) == []


def test_too_many_entries_in_the_last_fat_binary_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain_lab.examine.libraries._MOST_ENTRIES", 3)
    element = struct.pack("<HHIQ", 2, 0, 64, 0) + bytes(12) + struct.pack("<I", 90) + bytes(32)
    fatbin = b"\x50\xed\x55\xba" + struct.pack("<HHQ", 1, 16, 10 * len(element)) + 10 * element
    with pytest.raises(HostileInputError):
        list(nvidia_targets(io.BytesIO(fatbin), 0, len(fatbin)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("word", [b"\1" * 8, b"\x50\xed\x55\xba\1\0\x10\0" + bytes(8)])
def test_section_with_too_many_entries_is_refused(word: bytes) -> None:
    content = word * 500_001
    with pytest.raises(HostileInputError):
        list(nvidia_targets(io.BytesIO(content), 0, len(content)))


@pytest.mark.timeout(300)
def test_file_of_empty_bundles_is_reported_as_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.co").write_bytes((b"__CLANG_OFFLOAD_BUNDLE__" + bytes(8)) * 150_000)
    assert "offload bundles" in str(answer("audit", tmp_path, code=KernelError.code)["damaged"])


@pytest.mark.timeout(300)
def test_decompression_bomb_is_refused(tmp_path: Path) -> None:
    head = tarfile.TarInfo("big.bin")
    head.size = 40 << 24
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(head.tobuf()) + gzip.compress(bytes(1 << 24)) * 40)
    answer("audit", tmp_path / "x.tar.gz", code=HostileInputError.code)
