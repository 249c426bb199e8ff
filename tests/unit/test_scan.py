"""`sources.scan`: binaries are found by content, whatever their names and archives."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.core.digest import sha256_file
from toolchain.sources.scan import scan

ELF = b"\x7fELF\x02\x01\x01" + bytes(60)
BITCODE = b"BC\xc0\xde" + bytes(60)


def tar_of(**members: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (ELF, "ELF"),
        (BITCODE, "LLVM bitcode"),
        (b"\xde\xc0\x17\x0b" + bytes(20), "LLVM bitcode"),
        (b"!<arch>\nfoo", "static library"),
        (b"\x50\xed\x55\xba" + bytes(20), "CUDA fat binary"),
        (b"__CLANG_OFFLOAD_BUNDLE__" + bytes(8), "offload bundle"),
        (b"MZ\x90\x00\x03", "PE"),
        (b"\x00asm\x01", "WebAssembly"),
        (b"\x03\x02\x23\x07" + bytes(20), "SPIR-V"),
    ],
)
def test_binary_is_found_by_content(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "deep").mkdir()
    path = tmp_path / "deep" / "notes.txt"
    path.write_bytes(content)
    (found,) = scan(tmp_path)
    assert (found.path, found.what, found.sha256) == ("deep/notes.txt", what, sha256_file(path))


@pytest.mark.parametrize(
    "content",
    [b"", b"#!/bin/sh\n", b"MZ is how this text begins, with no NUL in it", b"BC is no bitcode", b"PK not a zip"],
)
def test_text_is_not_a_binary(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kernel.co").write_bytes(content)
    assert scan(tmp_path) == ()


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_binary_inside_a_compressed_tar_is_found(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    (tmp_path / "data.bin").write_bytes(pack(tar_of(**{"a/readme": b"text", "a/ocml": BITCODE})))
    (found,) = scan(tmp_path)
    assert (found.path, found.what, found.file) == ("data.bin!a/ocml", "LLVM bitcode", "data.bin")


def test_binary_inside_a_nested_zip_is_found(tmp_path: Path) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("k.hsaco", ELF)
    with zipfile.ZipFile(tmp_path / "outer", "w") as archive:
        archive.writestr("x/inner", inner.getvalue())
        archive.writestr("x/text", b"nothing")
    (found,) = scan(tmp_path)
    assert found.path == "outer!x/inner!k.hsaco"


def test_database_inside_a_tar_xz_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "tuning.sqlite3.tar.xz").write_bytes(lzma.compress(tar_of(db=b"SQLite format 3\0" + bytes(100))))
    assert scan(tmp_path) == ()


def test_truncated_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.gz").write_bytes(gzip.compress(tar_of(a=ELF))[:60])
    with refused("scan-incomplete"):
        scan(tmp_path)


def test_zip_with_undecodable_names_is_refused(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("\u00e9", "text")
    (tmp_path / "odd.zip").write_bytes(packed.getvalue().replace("\u00e9".encode(), b"\xff\xff"))
    with refused("scan-incomplete"):
        scan(tmp_path)


def test_encrypted_zip_is_refused(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a", "text")
    content = bytearray(packed.getvalue())
    for mark in (b"PK\x03\x04", b"PK\x01\x02"):
        content[content.index(mark) + (6 if mark[2] == 3 else 8)] |= 1  # encrypted
    (tmp_path / "sealed.zip").write_bytes(content)
    with refused("scan-incomplete"):
        scan(tmp_path)


def test_archive_over_the_unpacked_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.sources.scan._LIMIT", 1 << 20)
    (tmp_path / "bomb.tar.xz").write_bytes(lzma.compress(tar_of(a=bytes(2 << 20))))
    with refused("scan-incomplete"):
        scan(tmp_path)


def test_git_folder_and_links_are_ignored(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "pack").write_bytes(ELF)
    (tmp_path / "link").symlink_to("/bin/sh")
    assert scan(tmp_path) == ()


@pytest.mark.parametrize(
    "content",
    [
        b"\x28\xb5\x2f\xfd\x04",  # zstd
        b"7z\xbc\xaf\x27\x1c\0\x04",
        b"\xed\xab\xee\xdb\x03",
        b"070701" + b"0" * 104,
        lzma.compress(ELF, format=lzma.FORMAT_ALONE),
    ],
)
def test_unsupported_archive_format_is_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data").write_bytes(content)
    (found,) = scan(tmp_path)
    assert found.what.endswith("not scanned")


def zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x", content)
    return out.getvalue()


def test_too_deeply_nested_archive_is_reported(tmp_path: Path) -> None:
    content = ELF
    for _ in range(3):
        content = zipped(content)
    (tmp_path / "three").write_bytes(content)
    (tmp_path / "four").write_bytes(zipped(content))
    (tmp_path / "harmless").write_bytes(zipped(zipped(zipped(b"text"))))
    assert {one.file: one.what.partition(",")[0] for one in scan(tmp_path)} == {
        "three": "ELF",
        "four": "archive in archives",
    }


def test_binary_inside_a_v7_tar_is_found(tmp_path: Path) -> None:
    old = bytearray(tar_of(ocml=BITCODE))
    old[257:265] = bytes(8)
    old[148:156] = b" " * 8
    old[148:156] = b"%06o\0 " % sum(old[:512])
    (tmp_path / "data").write_bytes(bytes(old))
    (found,) = scan(tmp_path)
    assert found.path == "data!ocml"


def test_zip_after_other_data_is_scanned(tmp_path: Path) -> None:
    """Python can import from such a file, because the directory of a zip is at its end."""
    (tmp_path / "run").write_bytes(b"#!/usr/bin/env python3\n" + zipped(ELF))
    (tmp_path / "inner").write_bytes(tar_of(run=b"#!/bin/sh\n" + zipped(BITCODE)))
    (tmp_path / "deep").write_bytes(zipped(zipped(zipped(b"#!/bin/sh\n" + zipped(ELF)))))
    (tmp_path / "harmless").write_bytes(b"#!/bin/sh\n" + zipped(b"text"))
    (tmp_path / "no zip").write_bytes(b"x" * 100 + b"PK\x05\x06" + bytes(18))
    (tmp_path / "no zip either").write_bytes(b"x" * 100 + b"PK\x05\x06" + b"\xff" * 18)
    assert {one.path: one.what.partition(",")[0] for one in scan(tmp_path)} == {
        "run!x": "ELF",
        "inner!run!x": "LLVM bitcode",
        "deep!x!x!x": "archive in archives",
    }


def test_data_after_the_end_of_a_tar_is_reported(tmp_path: Path) -> None:
    whole = tar_of(a=b"text")
    (tmp_path / "two").write_bytes(whole + tar_of(b=ELF))
    (tmp_path / "garbage").write_bytes(whole[:1024] + b"\xff" * 512 + tar_of(b=ELF))
    (tmp_path / "padded").write_bytes(whole + bytes(50_000))
    found = {one.path: one.what for one in scan(tmp_path)}
    assert found == dict.fromkeys(["two", "garbage"], "tar with data after its end mark, not scanned")


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress])
@pytest.mark.parametrize("hidden", [ELF, zipped(ELF), b"\0" * 8 + ELF])
def test_data_after_a_compressed_stream_is_reported(
    tmp_path: Path, pack: Callable[[bytes], bytes], hidden: bytes
) -> None:
    (tmp_path / "hidden").write_bytes(pack(b"text") + hidden)
    (tmp_path / "two").write_bytes(pack(b"text") + pack(b"more text"))
    (tmp_path / "long").write_bytes(pack(bytes(3_000_000)) + bytes(8))
    (tmp_path / "second").write_bytes(pack(tar_of(a=b"text")[:700]) + pack(tar_of(a=b"text")[700:] + tar_of(b=ELF)))
    found = {one.path: one.what for one in scan(tmp_path)}
    assert found == {
        "hidden": "compressed file with other data after it, not scanned",
        "second": "tar with data after its end mark, not scanned",
    }
    (tmp_path / "cut").write_bytes(pack(b"text")[:-4])
    with refused("scan-incomplete"):
        scan(tmp_path)


def test_tar_member_of_unknown_kind_is_reported(tmp_path: Path) -> None:
    odd = bytearray(tar_of(lib=ELF))
    odd[156:157] = b"Z"
    odd[148:156] = b" " * 8
    odd[148:156] = b"%06o\0 " % sum(odd[:512])
    (tmp_path / "x.tar").write_bytes(bytes(odd))
    assert [(one.path, one.what) for one in scan(tmp_path)] == [
        ("x.tar!lib", "tar member of unknown kind, not scanned")
    ]


def test_exclamation_mark_in_a_name_is_not_a_separator(tmp_path: Path) -> None:
    (tmp_path / "a!b.so").write_bytes(ELF)
    (tmp_path / "c!d.tar").write_bytes(tar_of(e=ELF))
    found = scan(tmp_path)
    assert [(finding.path, finding.file) for finding in found] == [("a!b.so", "a!b.so"), ("c!d.tar!e", "c!d.tar")]
    assert "file" not in found[0].as_json()
