"""Tests of oci.layer_diff: where two layers differ, file by file and byte by byte."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from toolchain.oci import descriptor as media
from toolchain.oci import layer_files
from toolchain.oci.compressed import unpacked
from toolchain.oci.layer_diff import Blob, differences, first_difference


def layer(path: Path, members: Mapping[str, bytes | str], *, pack: bool = False) -> Blob:
    """Write a layer; a member whose content is text is a symbolic link with that target."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                tar.addfile(entry)
            else:
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    path.write_bytes(gzip.compress(out.getvalue()) if pack else out.getvalue())
    return Blob(path, media.LAYER_GZIP if pack else media.LAYER)


def test_layers_with_equal_files_are_equal_despite_compression(tmp_path: Path) -> None:
    members: dict[str, bytes | str] = {"usr/lib/a": b"content", "usr/link": "lib/a"}
    assert differences(layer(tmp_path / "1", members), layer(tmp_path / "2", members, pack=True)) == []


def test_each_kind_of_difference_is_named(tmp_path: Path) -> None:
    one = layer(
        tmp_path / "1",
        {"same": b"x", "gone": b"g", "byte": b"0123456789", "longer": b"abc", "link": "here", "turned": b"file"},
    )
    two = layer(
        tmp_path / "2",
        {"same": b"x", "new": b"n", "byte": b"01234x6789", "longer": b"abcd", "link": "there", "turned": "file"},
    )
    found = {one.path: one for one in differences(one, two)}
    assert {path: one.what for path, one in found.items()} == {
        "gone": "only in the first",
        "new": "only in the second",
        "byte": "content",
        "longer": "size",
        "link": "size",
        "turned": "kind",
    }
    assert (found["byte"].offset, found["byte"].first[:2], found["byte"].second[:2]) == (5, "35", "78")
    assert (found["longer"].offset, found["longer"].first, found["longer"].second) == (3, "", "64")
    assert ("at byte 5" in str(found["byte"]), found["byte"].as_json()["offset"]) == (True, 5)
    assert (found["link"].first, found["link"].second) == ("here", "there")


def test_each_layer_is_read_exactly_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read is for digests and one for first bytes; a read for each of thousands of files would be slow."""
    names = [f"d/{number:02}" for number in range(30)]
    one = layer(tmp_path / "1", dict.fromkeys(names, b"a"), pack=True)
    two = layer(tmp_path / "2", dict.fromkeys(names, b"b"), pack=True)
    read: list[str] = []

    def counted(path: Path, media_type: str) -> Any:
        read.append(path.name)
        return unpacked(path, media_type)

    monkeypatch.setattr(layer_files, "unpacked", counted)
    found = differences(one, two)
    assert [(row.path, row.offset, row.first, row.second) for row in found] == [(name, 0, "61", "62") for name in names]
    assert sorted(read) == ["1", "1", "2", "2"]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_first_difference_returns_the_lowest_offset(size: int) -> None:
    chance = random.Random(size)
    content = chance.randbytes(size)
    for _ in range(20):
        spots = sorted(chance.sample(range(size), min(size, 3)))
        other = bytearray(content)
        for spot in spots:
            other[spot] ^= 0xFF
        assert first_difference(content, bytes(other)) == spots[0]
    assert first_difference(content, content + b"x") == size
    assert first_difference(b"", content) == 0
