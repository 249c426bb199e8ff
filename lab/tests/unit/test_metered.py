"""Reads of a stream are limited in number, because tables of a hostile ELF file repeat."""

from __future__ import annotations

import io

import pytest

from toolchain_lab.metered import metered


def test_sequential_reads_return_the_file() -> None:
    stream = metered(io.BytesIO(b"content"))
    assert (stream.read(3), stream.tell(), stream.read()) == (b"con", 3, b"tent")
    assert stream.seek(1 << 62) == 7
    assert stream.read(1 << 62) == b""


def test_number_of_reads_is_limited() -> None:
    stream = metered(io.BytesIO(b"content"), reads=2)
    stream.read(1)
    stream.read(1)
    with pytest.raises(ValueError, match="overlap"):
        stream.read(1)
