"""The file of `kernels check --results`."""

from __future__ import annotations

from pathlib import Path

from toolchain_lab.numbers.check import Checked
from toolchain_lab.numbers.journal import append, read


def test_a_name_that_is_not_utf_8_leaves_a_file_that_can_be_read(tmp_path: Path) -> None:
    for name in ("k\udcff.hsaco", "ü.hsaco"):
        append(tmp_path / "rows", Checked(name=name, gpu="gfx942", kernel="k", status="right"), "decoder")
    assert list(read(tmp_path / "rows", "decoder")) == ["k?.hsaco", "ü.hsaco"]
    assert read(tmp_path / "rows", "another") == {}
