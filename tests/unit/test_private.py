"""Privacy of the cache: other local users cannot read the sources that a user has fetched."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.other_user import read_by_another
from toolchain.core.cache import Cache, cache_of
from toolchain.core.digest import write_atomically
from toolchain.core.errors import ConfigError
from toolchain.core.filesystem import make_private
from toolchain.sources.resolve import fetch_source, locate
from toolchain.sources.spec import SourceSpec

SECRET = b"of one user alone"


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a folder that every user may enter, unlike the folders that pytest creates."""
    folder = Path(tempfile.mkdtemp(prefix="toolchain-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def private_tree(folder: Path) -> SourceSpec:
    folder.mkdir(mode=0o700)
    (folder / "code.c").write_bytes(SECRET)
    (folder / "code.c").chmod(0o600)
    return SourceSpec(kind="local", where=str(folder))


def test_other_user_cannot_read_a_private_tree_in_the_store(place: Path) -> None:
    cache = Cache(place / "cache")
    spec = private_tree(place / "tree")
    got = fetch_source(locate("notes", spec, cache=cache), cache=cache, offline=True)
    assert (got.path / "code.c").read_bytes() == SECRET
    assert (mode(cache.root), mode(cache.store)) == (0o700, 0o700)
    assert read_by_another(SECRET.decode(), place) == []
    # The reader does find the file once it may enter the folders.
    cache.root.chmod(0o755)
    cache.store.chmod(0o755)
    assert read_by_another(SECRET.decode(), place) == ["code.c"]


def test_existing_cache_is_made_private(place: Path) -> None:
    cache = Cache(place / "cache")
    cache.make()
    for folder in (cache.store / "files", cache.images):
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(SECRET)
    cache.root.chmod(0o755)
    cache.store.chmod(0o755)
    assert cache_of(cache.root) == cache
    assert mode(cache.root) == 0o700
    cache.make()
    assert mode(cache.store) == 0o700
    assert read_by_another(SECRET.decode(), place) == []


def test_a_folder_with_other_content_keeps_its_mode(place: Path) -> None:
    cache = Cache(place / "shared")
    write_atomically(cache.root / "of others", b"x")
    cache.root.chmod(0o775)
    cache.make()
    assert mode(cache.root) == 0o775
    for folder in (cache.store, cache.images, cache.work, cache.logs, cache.engine):
        (folder / "x").write_bytes(SECRET)
    assert read_by_another(SECRET.decode(), place) == []


def test_a_folder_of_another_user_keeps_its_mode(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "chmod", refuse)
    (place / "theirs").mkdir(mode=0o755)
    make_private(place / "theirs")
    assert mode(place / "theirs") == 0o755


def test_cache_in_folder_of_another_user_has_private_subfolders(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(place / "volume")
    cache.root.mkdir()
    cache.root.chmod(0o777)
    honest = Path.chmod

    def chmod(path: Path, mode: int) -> None:
        if path == cache.root:
            raise PermissionError
        honest(path, mode)

    monkeypatch.setattr(Path, "chmod", chmod)
    cache.make()
    assert mode(cache.root) == 0o777
    assert {mode(folder) for folder in (cache.store, cache.images, cache.work, cache.logs, cache.engine)} == {0o700}


def test_cache_of_another_user_is_refused(place: Path) -> None:
    cache = Cache(place / "cache")
    cache.make()
    if os.geteuid() != 0:
        pytest.skip("NO OTHER USER LOOKS: that needs root")
    os.setresuid(65534, 65534, 0)
    try:
        with pytest.raises(ConfigError) as caught:
            cache_of(cache.root)
    finally:
        os.setresuid(0, 0, 0)
    assert caught.value.why
