"""Tests of the files that belong to root in containers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolchain.engine import view


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT ROOT: only root can give files to other users")
def test_own_with_whole_changes_the_owner_of_files_added_later(tmp_path: Path) -> None:
    first, _ = view.ids()
    folder = tmp_path / "plan"
    view.own(folder)
    (folder / "added" / "below").mkdir(parents=True)
    (folder / "other").touch()
    os.chown(folder / "other", first + 5, first + 5)
    view.own(folder)
    assert (folder / "added").stat().st_uid == os.geteuid()
    view.own(folder, whole=True)
    owners = [path.stat().st_uid for path in (folder / "added", folder / "added" / "below", folder / "other")]
    assert owners == [first, first, first + 5]
