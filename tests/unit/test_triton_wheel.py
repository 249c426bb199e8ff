"""Tests of the stage that unpacks a Triton wheel from PyPI."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.catalog.base_ref import BaseRef
from toolchain.catalog.bases import base_recipe
from toolchain.core.cache import Cache
from toolchain.core.errors import HostileInputError
from toolchain.request.model import Request
from toolchain.sources.spec import SourceSpec
from toolchain.stages.stage import Planned
from toolchain.stages.triton_wheel import TritonWheelStage, unzip


def wheel(path: Path, name: str, mode: int) -> Path:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, "x")
    return path


def test_unzip_keeps_the_x_bit_of_programs(tmp_path: Path) -> None:
    unzip(wheel(tmp_path / "a.whl", "bin/tool", 0o755), tmp_path / "out")
    unzip(wheel(tmp_path / "b.whl", "bin/text", 0o644), tmp_path / "out")
    assert os.access(tmp_path / "out" / "bin" / "tool", os.X_OK)
    assert not (tmp_path / "out" / "bin" / "text").stat().st_mode & 0o111


@pytest.mark.parametrize("name", ["/etc/evil", "a/../../evil", "a\\evil"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(HostileInputError):
        unzip(wheel(tmp_path / "bad.whl", name, 0o644), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("version", "base", "fits"),
    [("3.7.1", "debian13", True), ("3.7.1", "debian12", False), ("3.7.1", "ubi9", False),
     ("3.9.0", "debian13", True), ("3.9.0", "debian12", False), ("3.9.0", "ubi9", True)],
)  # fmt: skip
def test_wheel_for_another_python_is_refused(tmp_path: Path, version: str, base: str, fits: bool) -> None:
    """A wheel with the stable ABI also fits later versions of Python."""
    spec = SourceSpec(kind="pypi", where="triton", version=version)
    request = Request(cache=Cache(tmp_path / "cache"), base=BaseRef(recipe=base), sources={"triton": spec})
    below = {"base": Planned(name="base", image="base", inputs=None, details=base_recipe("debian13", "amd64"))}
    if fits:
        assert TritonWheelStage().plan(request, below).sources[0].version == version
        return
    with refused("wheel-other-python"):
        TritonWheelStage().plan(request, below)
