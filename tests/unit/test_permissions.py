"""The user's umask holds for what the user named; the tool widens it only for what containers read."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.evidence_fixtures import finished_base, small_image
from toolchain.core import permissions
from toolchain.core.cache import Cache
from toolchain.core.digest import write_output
from toolchain.core.record import Record
from toolchain.oci.layout import Layout
from toolchain.pipeline.records import read_record
from toolchain.publish import plain_files


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o755), (0o077, 0o700)])
def test_folder_that_the_user_named_has_the_permissions_of_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    layout = Layout(tmp_path / "from").ensure()
    layout.tag(small_image(layout, tmp_path / "work"), "t")
    words = ("publish", f"oci:{tmp_path}/to", f"oci:{layout.root}:t", "--cache", str(tmp_path / "cache"))
    subprocess.run([sys.executable, "-m", "toolchain", *words], umask=umask, check=True, capture_output=True)
    assert (tmp_path / "to").stat().st_mode & 0o777 == mode
    assert Layout(tmp_path / "to").refs()


def test_file_that_the_user_named_has_the_permissions_of_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permissions._Umask, "denied", 0o077)
    write_output(tmp_path / "file", b"", option="--out")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_archives_have_the_permissions_of_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder may exist already, and let everybody in."""

    def write(_: Cache, __: Record, folder: Path) -> list[Path]:
        (folder / "x.tar.gz").write_bytes(b"")
        return [folder / "x.tar.gz"]

    cache = Cache(tmp_path / "cache")
    record = read_record(cache, finished_base(cache, tmp_path / "base").input_digest)
    monkeypatch.setitem(plain_files.FORMS, "triton", write)
    monkeypatch.setattr(permissions._Umask, "denied", 0o077)
    (archive,) = plain_files.write_archives(cache, [replace(record, stage="triton")], tmp_path)
    assert archive.stat().st_mode & 0o777 == 0o600
