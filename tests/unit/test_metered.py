"""Hostile tables of ELF files end early: what pyelftools would follow for hours, or in gigabytes of memory."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.kernel_fixtures import endless, make_object
from toolchain.core.errors import KernelError
from toolchain.core.metered import metered
from toolchain.kernels.codeobject import check_object


def test_what_is_read_in_order_is_the_file() -> None:
    stream = metered(io.BytesIO(b"content"))
    assert (stream.read(3), stream.tell(), stream.read()) == (b"con", 3, b"tent")
    assert stream.seek(1 << 62) == 7
    assert stream.read(1 << 62) == b""


def test_a_file_is_read_a_limited_number_of_times() -> None:
    stream = metered(io.BytesIO(b"content"), reads=2)
    stream.read(1)
    stream.read(1)
    with pytest.raises(ValueError, match="overlap"):
        stream.read(1)


@pytest.mark.timeout(60)
def test_a_table_of_sections_without_end_is_no_code_object(tmp_path: Path) -> None:
    (tmp_path / "k.hsaco").write_bytes(endless(make_object("gfx942", "k"))["sections"])
    with pytest.raises(KernelError):
        check_object(tmp_path / "k.hsaco", "gfx942", "k")
