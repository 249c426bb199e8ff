"""The file of `kernels check --results`."""

from __future__ import annotations

from pathlib import Path

from toolchain.core.check_result import Object
from toolchain_lab.numbers.check import Checked
from toolchain_lab.numbers.journal import append, conditions, read


def test_name_that_is_not_utf_8_leaves_a_readable_file(tmp_path: Path) -> None:
    for name in ("k\udcff.hsaco", "ü.hsaco"):
        append(tmp_path / "rows", Checked(name=name, gpu="gfx942", kernel="k", status="right"), "decoder")
    names = ("k?.hsaco", "ü.hsaco")
    assert tuple(read(tmp_path / "rows", dict.fromkeys(names, "decoder"))) == names
    assert read(tmp_path / "rows", dict.fromkeys(names, "another")) == {}


def test_result_is_kept_only_for_the_same_launch_data(tmp_path: Path) -> None:
    each = Object(tmp_path / "k.hsaco", "k.hsaco", "gfx942", "k")
    row = Checked(name="k.hsaco", gpu="gfx942", kernel="k", status="refused")
    append(tmp_path / "rows", row, conditions([each], "decoder")["k.hsaco"])
    assert list(read(tmp_path / "rows", conditions([each], "decoder"))) == ["k.hsaco"]
    (tmp_path / "k.json").write_text("{}")
    assert read(tmp_path / "rows", conditions([each], "decoder")) == {}
