"""Tests of layers that are unpacked while they are read: damaged files and trailing bytes are refused."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.oci import descriptor as media
from toolchain.oci.compressed import DAMAGED, unpacked

CONTENT = random.Random(1).randbytes(100_000) + bytes(3_000_000)


def read(path: Path, content: bytes, count: int = 1000, kind: str = media.LAYER_GZIP) -> bytes:
    path.write_bytes(content)
    with unpacked(path, kind) as stream:
        pieces = list(iter(lambda: stream.read(count), b""))
    assert max(map(len, pieces), default=0) <= count
    return b"".join(pieces)


@pytest.mark.parametrize("count", [1000, 1 << 20, 1 << 24])
def test_members_of_a_gzip_file_are_concatenated(tmp_path: Path, count: int) -> None:
    assert read(tmp_path / "one", gzip.compress(CONTENT), count) == CONTENT
    assert read(tmp_path / "two", gzip.compress(CONTENT) + gzip.compress(b"more"), count) == CONTENT + b"more"


@pytest.mark.parametrize("cut", [0, 5, 500, -1, -8])
def test_truncated_gzip_file_is_refused(tmp_path: Path, cut: int) -> None:
    with pytest.raises(EOFError, match="truncated"):
        read(tmp_path / "cut", gzip.compress(CONTENT)[:cut])


@pytest.mark.parametrize("more", [bytes(512), b"garbage behind it"])
def test_bytes_after_the_end_of_a_gzip_file_are_refused(tmp_path: Path, more: bytes) -> None:
    with pytest.raises(DAMAGED):
        read(tmp_path / "more", gzip.compress(CONTENT) + more)


def test_plain_layer_is_read_and_unknown_media_type_is_refused(tmp_path: Path) -> None:
    assert read(tmp_path / "plain", CONTENT, kind=media.LAYER) == CONTENT
    with refused("layer-media-type"):
        read(tmp_path / "unknown", CONTENT, kind="application/x-layer")
