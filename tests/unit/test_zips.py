"""Tests of the checks on the names, places and sizes of the entries of an untrusted archive."""

from __future__ import annotations

import io
import stat
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.core import entry_names
from toolchain.core.entry_names import EntryNames
from toolchain.core.errors import HostileInputError, SourceError, ToolchainError
from toolchain.core.filesystem import read_regular
from toolchain.core.zips import open_wheel, open_zip
from toolchain.stages.triton_wheel import unzip

NAMES = {
    "dot": ("entry-twice", "./a", "a"), "slashes": ("entry-twice", "a//b", "a/b"), "twice": ("entry-twice", "a", "a"),
    "case": ("entry-twice", "a/X", "a/x"), "case in unicode": ("entry-twice", "É", "é"),
    "case of the folder": ("entry-case", "A/x", "a/x"), "case of folders": ("entry-case", "A/", "a/x", "a/"),
    "file and folder": ("entry-through-file", "a", "a/b"), "folder and file": ("entry-through-file", "a/b", "a"),
    "empty folder and file": ("entry-through-file", "a/", "a"), "case of both": ("entry-through-file", "A", "a/b"),
    "long": ("entry-name-too-long", "x" * 300), "long path": ("entry-name-too-long", "/".join(["y" * 200] * 30)),
}  # fmt: skip


def packed(*names: str, content: bytes = b"content", **about: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            row = zipfile.ZipInfo(name)
            for key, value in about.items():
                setattr(row, key, value)
            archive.writestr(row, b"" if name.endswith("/") else content)
    return stream.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_conflicting_or_too_long_names_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Names that differ only in case would be one file for some file systems."""
    reason, *entries = names
    wheel = tmp_path / "a-1-py3-none-any.whl"
    wheel.write_bytes(packed(*entries))
    with refused(reason):
        unzip(wheel, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_names_of_a_linux_archive_may_differ_in_case() -> None:
    names = EntryNames("image")
    assert [names.add(name) for name in ("terminfo/E/e", "./terminfo/e/e", "xt_MARK.h", "xt_mark.h")][
        1
    ] == "terminfo/e/e"
    with pytest.raises(HostileInputError):
        names.add("terminfo//e/e")


def _links(path: Path) -> None:
    path.write_bytes(packed("link", external_attr=(stat.S_IFLNK | 0o777) << 16, create_system=3))


def _read(path: Path) -> None:
    with open_wheel(path) as archive:
        for row in archive.infolist():
            archive.read(row)


def _encrypted(*, listed: bool) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        content = bytearray(packed("a.so"))
        content[6] |= 1
        content[content.rindex(b"PK\x01\x02") + 8] |= listed
        path.write_bytes(content)

    return make


def _encoding(path: Path) -> None:
    content = packed("ä.so")
    path.write_bytes(content.replace("ä".encode(), b"\xff\xfe"))


def _own_encoding(path: Path) -> None:
    content = packed("ä.so")
    path.write_bytes(content.replace("ä".encode(), b"\xff\xfe", 1))


def _overlapping(path: Path) -> None:
    """Write an archive in which two rows of the directory refer to the same entry."""
    content = packed("a.so", content=bytes(1000))
    at = content.index(b"PK\x01\x02")
    row, end = content[at : content.rindex(b"PK\x05\x06")], bytearray(content[content.rindex(b"PK\x05\x06") :])
    end[8:12], end[12:16] = struct.pack("<HH", 2, 2), struct.pack("<L", 2 * len(row))
    path.write_bytes(content[:at] + row + row.replace(b"a.so", b"b.so") + end)


MALFORMED = {
    "link": _links, "encrypted": _encrypted(listed=True), "encrypted by its own header": _encrypted(listed=False),
    "encoding": _encoding, "own encoding": _own_encoding, "overlapping": _overlapping,
}  # fmt: skip


@pytest.mark.parametrize("make", MALFORMED.values(), ids=MALFORMED)
def test_malformed_archive_raises_an_error_of_the_tool(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    make(path)
    with pytest.raises((HostileInputError, SourceError)):
        _read(path)


def test_good_archive_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(packed("a/", "a/b", "c"))
    with open_zip(path, "x.zip") as archive:
        assert [archive.read(row) for row in archive.infolist()] == [b"", b"content", b"content"]
    with pytest.raises(ToolchainError), open_zip(io.BytesIO(b"PK"), "x"):
        pass


def test_read_regular_takes_memory_for_the_file_and_not_for_the_limit(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    tracemalloc.start()
    assert read_regular(tmp_path / "x", 8 << 30) == b"x"
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20
    assert read_regular(Path("/proc/self/status"), 1 << 20)  # its st_size is 0
    with pytest.raises(OSError, match="10"):
        read_regular(Path("/proc/self/status"), 10)


def test_limit_of_entries_includes_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_names, "MOST", 100)
    names = EntryNames("image")
    with refused("archive-too-many-files"):
        for number in range(3):
            names.add(f"{number}/" + "a/" * 50 + "f")
