"""Tests of the unpacking of archives: a hostile archive leaves no files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.core import digest, process
from toolchain.core.amounts import reporting_to
from toolchain.core.errors import HostileInputError, SourceError
from toolchain.sources import unpack
from toolchain.sources.part import Part
from toolchain.sources.unpack import unpack_tar

Entry = tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def file(name: str, content: bytes = b"x", mode: int = 0o644) -> Entry:
    info = member(name, mode=mode)
    info.size = len(content)
    return info, content


def write(path: Path, entries: Sequence[Entry], fmt: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=fmt) as tar:
        for entry in entries:
            info, content = entry if isinstance(entry, tuple) else (entry, b"")
            tar.addfile(info, io.BytesIO(content))
    return path


def names(top: Path) -> set[str]:
    return {path.relative_to(top).as_posix() for path in top.rglob("*")}


GOOD: list[Entry] = [
    member("t", tarfile.DIRTYPE, mode=0o755),
    file("t/llvm/a.txt", b"hello"),
    file("t/llvm/run", b"#!/bin/sh\n", mode=0o4711),
    file("t/mlir/ü " + "long" * 40, b"m"),
    member("t/llvm/link", tarfile.SYMTYPE, "../llvm/a.txt"),
    member("t/llvm/hard", tarfile.LNKTYPE, "t/llvm/a.txt"),
    file("t/LICENSE.TXT", b"free"),
]


@pytest.mark.parametrize("fmt", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_good_archive_is_unpacked(tmp_path: Path, fmt: int) -> None:
    dest = tmp_path / "it's here"
    unpack_tar(write(tmp_path / "a b.tar", GOOD, fmt), dest)
    assert names(dest) == {
        "llvm",
        "llvm/a.txt",
        "llvm/run",
        "llvm/link",
        "llvm/hard",
        "mlir",
        "mlir/ü " + "long" * 40,
        "LICENSE.TXT",
    }
    assert (dest / "llvm/hard").read_bytes() == (dest / "llvm/link").read_bytes() == b"hello"
    run = (dest / "llvm/run").stat()
    assert run.st_mode & 0o7777 == 0o755, "the setuid bit stays out, the x bit comes in"
    assert run.st_mtime == digest.EPOCH


def test_only_the_requested_part_is_unpacked(tmp_path: Path) -> None:
    unpack_tar(write(tmp_path / "a.tar", GOOD), tmp_path / "d", part=Part(("mlir", "LICENSE.TXT")))
    assert {path.name for path in (tmp_path / "d").iterdir()} == {"mlir", "LICENSE.TXT"}


def _xz(content: bytes) -> bytes:
    return lzma.compress(content)


def _zstd(content: bytes) -> bytes:
    if shutil.which("zstd") is None:
        pytest.skip("zstd is not installed, so zstd archives are NOT tested")
    return subprocess.run(["zstd", "-qc"], input=content, stdout=subprocess.PIPE, check=True).stdout


def _pzstd(content: bytes) -> bytes:
    """Compress like pzstd, which writes a skippable frame with the size of the frame after it."""
    frame = _zstd(content)
    return struct.pack("<III", 0x184D2A50, 4, len(frame)) + frame


@pytest.mark.parametrize("squeeze", [_xz, gzip.compress, bz2.compress, _zstd, _pzstd])
def test_compressed_archive_is_unpacked_unless_it_is_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squeeze: Callable[[bytes], bytes]
) -> None:
    plain = write(tmp_path / "a.tar", GOOD).read_bytes()
    packed = tmp_path / "packed.tar"
    packed.write_bytes(squeeze(plain))
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(unpack, "_TOLD_EVERY", 1)
    with reporting_to(lambda *now: told.append(now)):
        unpack_tar(packed, tmp_path / "d")
    assert (tmp_path / "d/llvm/a.txt").read_bytes() == b"hello"
    size = packed.stat().st_size
    assert {(what, whole) for what, _, whole in told} == {("unpacking packed.tar", size)}
    assert 0 < told[-1][1] <= size
    packed.write_bytes(squeeze(plain)[:-20])
    with pytest.raises(SourceError):
        unpack_tar(packed, tmp_path / "e")
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize("squeeze", [_xz, gzip.compress, bz2.compress])
def test_archive_is_unpacked_without_external_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squeeze: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(process, "find", lambda _name: None)
    packed = tmp_path / "a.tar.x"
    packed.write_bytes(squeeze(write(tmp_path / "a.tar", GOOD).read_bytes()))
    told: list[int] = []
    monkeypatch.setattr(unpack, "_TOLD_EVERY", 1)
    with reporting_to(lambda _, done, __: told.append(done)):
        unpack_tar(packed, tmp_path / "d")
    assert (tmp_path / "d/llvm/a.txt").read_bytes() == b"hello"
    assert 0 < told[-1] <= packed.stat().st_size


def test_archive_without_a_top_folder_is_refused(tmp_path: Path) -> None:
    """`tar -C FOLDER -czf x.tar.gz .` packs the content of a folder."""
    archive = write(
        tmp_path / "a.tar", [file("./README"), file("./llvm/CMakeLists.txt"), file("./mlir/CMakeLists.txt")]
    )
    with refused("not-a-source-tree", "llvm and mlir"):
        unpack_tar(archive, tmp_path / "d")
    unpack_tar(archive, tmp_path / "d", strip=0)


HOSTILE: dict[str, list[Entry]] = {
    "dot-dot": [file("t/../../evil")],
    "dot-dot inside": [file("t/a/../b")],
    "absolute": [file("/tmp/toolchain-evil")],
    "link out": [member("t/l", tarfile.SYMTYPE, "../evil")],
    "link out deep": [member("t/a/b/l", tarfile.SYMTYPE, "../../../evil")],
    "absolute link": [member("t/l", tarfile.SYMTYPE, "/etc/passwd")],
    "link then write": [member("t/l", tarfile.SYMTYPE, "."), file("t/l/evil")],
    "link out then write": [member("t/l", tarfile.SYMTYPE, ".."), file("t/l/evil")],
    "link replaced": [member("t/l", tarfile.SYMTYPE, "x"), file("t/l")],
    "file then inside": [file("t/f"), file("t/f/evil")],
    # Each link alone stays inside; the second leaves through the first.
    "links in a chain": [
        member("t/a", tarfile.DIRTYPE),
        member("t/a/b", tarfile.DIRTYPE),
        member("t/up", tarfile.SYMTYPE, "a/b/.."),
        member("t/a/b/c", tarfile.SYMTYPE, "../../up/../../evil"),
    ],
    "link circle": [member("t/x", tarfile.SYMTYPE, "y"), member("t/y", tarfile.SYMTYPE, "x")],
    # As in CVE-2025-4517, the path through links is longer than os.path.realpath resolves.
    "long realpath": [
        *(member("t/" + "/".join(["d" * 240] * n), tarfile.DIRTYPE) for n in range(1, 17)),
        member("t/s", tarfile.SYMTYPE, "/".join(["d" * 240] * 16) + "/" + "../" * 17 + "evil"),
    ],
    "hard link out": [member("t/h", tarfile.LNKTYPE, "../../etc/passwd")],
    "hard link absolute": [member("t/h", tarfile.LNKTYPE, "/etc/passwd")],
    "hard link to nothing": [member("t/h", tarfile.LNKTYPE, "t/none")],
    "hard link through link": [
        member("t/l", tarfile.SYMTYPE, "x"),
        member("t/h", tarfile.LNKTYPE, "t/l"),
    ],
    "character device": [member("t/d", tarfile.CHRTYPE)],
    "block device": [member("t/d", tarfile.BLKTYPE)],
    "pipe": [member("t/p", tarfile.FIFOTYPE)],
    "twice": [file("t/f", b"1"), file("t/f", b"2")],
    "twice in disguise": [file("t/f", b"1"), file("t/./f", b"2")],
    "case": [file("t/File"), file("t/file")],
    "case of a folder": [file("t/Dir/a"), file("t/dir/b")],
    "case in unicode": [file("t/\u00c9"), file("t/e\u0301")],
    "newline": [file("t/a\nb")],
    "unknown kind": [member("t/q", b"Q")],
    "long path": [file("t/" + "a/" * 20_000 + "f")],
    "long target": [member("t/l", tarfile.SYMTYPE, "a/" * 20_000)],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archive_is_refused(tmp_path: Path, name: str) -> None:
    archive = write(tmp_path / "a.tar", [file("t/first"), *HOSTILE[name]])
    dest = tmp_path / "in" / "dest"
    dest.parent.mkdir()
    if len(name) % 2:  # in some of the cases, the folder already exists
        dest.mkdir()
    with pytest.raises(HostileInputError) as caught:
        unpack_tar(archive, dest)
    assert caught.value.why or "long" in caught.value.what
    assert not dest.exists()
    assert not list(tmp_path.rglob("evil"))
    assert not list(tmp_path.rglob("first"))
    assert not Path("/tmp/toolchain-evil").exists()


def test_hostile_member_outside_the_requested_part_is_refused(tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar", [file("t/llvm/a"), member("t/docs/l", tarfile.SYMTYPE, "../../../x")])
    with pytest.raises(HostileInputError):
        unpack_tar(archive, tmp_path / "d", part=Part(("llvm",)))


def test_archive_above_the_limit_of_bytes_or_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write(tmp_path / "a.tar", [file(f"t/{n}", b"\0" * 1000) for n in range(20)])
    monkeypatch.setattr(unpack, "LIMIT_BYTES", 20_000)
    monkeypatch.setattr(unpack, "LIMIT_FILES", 20)
    unpack_tar(archive, tmp_path / "fits")
    for limit, least in (("LIMIT_BYTES", 19_999), ("LIMIT_FILES", 19)):
        with monkeypatch.context() as less:
            less.setattr(unpack, limit, least)
            with pytest.raises(HostileInputError):
                unpack_tar(archive, tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_huge_file_is_refused_by_its_header(tmp_path: Path) -> None:
    info = member("t/huge")
    info.size = unpack.LIMIT_BYTES + 1
    archive = tmp_path / "a.tar"
    archive.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 10240)
    with refused("archive-bomb"):
        unpack_tar(archive, tmp_path / "d")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_huge_header_is_never_read(tmp_path: Path, kind: bytes) -> None:
    info = member("t/h", kind)
    info.size = 8 << 30
    archive = tmp_path / "a.tar"
    archive.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 10240)
    with refused("tar-header-size"):
        unpack_tar(archive, tmp_path / "d")


def test_sparse_file_is_refused(tmp_path: Path) -> None:
    holes = tmp_path / "holes"
    with holes.open("wb") as stream:
        stream.truncate(1 << 20)
        stream.seek(1 << 20)
        stream.write(b"x")
    for fmt in ("gnu", "pax"):
        archive = tmp_path / f"{fmt}.tar"
        subprocess.run(["tar", "-C", tmp_path, f"--format={fmt}", "-Scf", archive, "holes"], check=True)
        with refused("tar-sparse-file"):
            unpack_tar(archive, tmp_path / "d", strip=0)


def test_damaged_archive_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.tar", [file("t/a", b"a" * 600), file("t/b", b"b" * 600)]).read_bytes()
    second = whole.index(b"t/b\0")
    cases = {
        "no tar": b"hello" * 1000,
        "empty": b"",
        "cut in content": whole[: second - 600],
        "cut between members": whole[:second],
        "garbage for a header": whole[:second] + b"\xff" * 512 + whole[second + 512 :],
    }
    for name, content in cases.items():
        archive = tmp_path / "bad.tar"
        archive.write_bytes(content)
        with pytest.raises(SourceError):
            unpack_tar(archive, tmp_path / "d")
        assert not (tmp_path / "d").exists(), name


def test_trailing_bytes_above_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write(tmp_path / "a.tar", [file("t/a")])
    with archive.open("ab") as stream:
        stream.write(b"\0" * (2 << 20))
    unpack_tar(archive, tmp_path / "fine")
    monkeypatch.setattr(unpack, "_LIMIT_TRAILER", 1 << 20)
    with refused("tar-trailing-data"):
        unpack_tar(archive, tmp_path / "d")
