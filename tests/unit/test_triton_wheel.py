"""stages.triton: a wheel of the index becomes a tree."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from toolchain.errors import HostileInputError
from toolchain.stages.triton_wheel import unzip


def wheel(path: Path, name: str, mode: int) -> Path:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, "x")
    return path


def test_programs_stay_programs(tmp_path: Path) -> None:
    unzip(wheel(tmp_path / "a.whl", "bin/tool", 0o755), tmp_path / "out")
    unzip(wheel(tmp_path / "b.whl", "bin/text", 0o644), tmp_path / "out")
    assert os.access(tmp_path / "out" / "bin" / "tool", os.X_OK)
    assert not (tmp_path / "out" / "bin" / "text").stat().st_mode & 0o111


@pytest.mark.parametrize("name", ["/etc/evil", "a/../../evil", "a\\evil"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(HostileInputError):
        unzip(wheel(tmp_path / "bad.whl", name, 0o644), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
