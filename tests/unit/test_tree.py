"""Tests of the digests of trees and of the stat cache."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.core import digest
from toolchain.sources import tree as tree_module
from toolchain.sources import walk as walk_module
from toolchain.sources.tree import check_links, normalise, scan_tree, tree_digest


def make(top: Path) -> Path:
    (top / "sub dir").mkdir(parents=True)
    (top / "a").write_text("a")
    (top / "sub dir" / "it's").write_text("b")
    (top / "link").symlink_to("sub dir/it's")
    return top


def grow_old() -> None:
    """Wait until the files are old enough for the stat cache; the fixture below shortens that age."""
    time.sleep(0.05)


@pytest.fixture(autouse=True)
def _short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "_RACY_NS", 20_000_000)


def test_digest_ignores_path_mtime_read_permission_and_git(tmp_path: Path) -> None:
    one, two = make(tmp_path / "one"), make(tmp_path / "two")
    (two / ".git").mkdir()
    (two / ".git" / "HEAD").write_text("x")
    os.utime(two / "a", (1, 1))
    (two / "a").chmod(0o600)
    assert tree_digest(one) == tree_digest(two)


@pytest.mark.parametrize("cached", [False, True])
def test_digest_ignores_owner(tmp_path: Path, cached: bool) -> None:
    if os.geteuid() != 0:
        pytest.skip("NO OWNER IS CHANGED: only root may do that")
    top, cache = make(tmp_path / "t"), tmp_path / "cache.json" if cached else None
    grow_old()
    before = tree_digest(top, cache)
    for path in (top, *top.rglob("*")):
        os.chown(path, 4711, 4712, follow_symlinks=False)
    assert tree_digest(top, cache) == before


@pytest.mark.parametrize("change", ["content", "name", "x", "target", "link for file", "empty folder", "more", "less"])
def test_digest_covers_content_names_x_bits_links_and_folders(tmp_path: Path, change: str) -> None:
    top = make(tmp_path / "t")
    before = tree_digest(top)
    match change:
        case "content":
            (top / "a").write_text("b")
        case "name":
            (top / "a").rename(top / "A")
        case "x":
            (top / "a").chmod(0o755)
        case "target":
            (top / "link").unlink()
            (top / "link").symlink_to("a")
        case "link for file":
            (top / "a").unlink()
            (top / "a").symlink_to("a2")
        case "empty folder":
            (top / "empty").mkdir()
        case "more":
            (top / "z").touch()
        case _:
            (top / "a").unlink()
    assert tree_digest(top) != before


def test_digest_separates_adjacent_names(tmp_path: Path) -> None:
    for name, content in (("one", {"a": "", "b": ""}), ("two", {"ab": ""})):
        (tmp_path / name).mkdir()
        for file, text in content.items():
            (tmp_path / name / file).write_text(text)
    assert tree_digest(tmp_path / "one") != tree_digest(tmp_path / "two")


def test_stat_cache_avoids_reading_unchanged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top, cache = make(tmp_path / "t"), tmp_path / "cache.json"
    grow_old()
    first = tree_digest(top, cache)
    read: list[str] = []
    real = walk_module.hash_file

    def reading(name: str, at: int, path: str) -> str:
        read.append(path)
        return real(name, at, path)

    monkeypatch.setattr(tree_module, "hash_file", reading)
    assert tree_digest(top, cache) == first
    assert read == []
    assert scan_tree(top, cache, trust_cache=False).digest == first
    assert len(read) == 2
    read.clear()
    (top / "a").write_text("c")
    assert tree_digest(top, cache) != first
    assert [Path(path).name for path in read] == ["a"]


def test_unwritable_stat_cache_does_not_change_the_digest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    top = make(tmp_path / "t")
    grow_old()
    (tmp_path / "file").touch()
    assert tree_digest(top, tmp_path / "file" / "cache.json") == tree_digest(top)
    assert caplog.text


def test_stat_cache_detects_a_change_by_its_ctime(tmp_path: Path) -> None:
    """The size and the mtime are unchanged, so only the ctime shows the change."""
    top, cache = make(tmp_path / "t"), tmp_path / "cache.json"
    grow_old()
    before = (top / "a").stat()
    first = tree_digest(top, cache)
    (top / "a").write_text("X")
    os.utime(top / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (top / "a").stat().st_mtime_ns == before.st_mtime_ns
    assert tree_digest(top, cache) != first


def test_young_files_are_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "_RACY_NS", 3_600_000_000_000)
    top, cache = make(tmp_path / "t"), tmp_path / "cache.json"
    tree_digest(top, cache)
    assert not cache.exists() or json.loads(cache.read_text())["files"] == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": 99, "files": {}}',
        '{"format": 1, "files": {"a": 5}}',
    ],
)
def test_invalid_stat_cache_does_not_change_the_digest(tmp_path: Path, text: str) -> None:
    top, cache = make(tmp_path / "t"), tmp_path / "cache.json"
    cache.write_text(text)
    assert tree_digest(top, cache) == tree_digest(top)


def test_socket_in_a_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = make(tmp_path / "t")
    monkeypatch.chdir(top)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        with refused("special-file-in-source"):
            tree_digest(top)


def test_normalise_sets_modes_and_times(tmp_path: Path) -> None:
    top = make(tmp_path / "t")
    (top / "a").chmod(0o4711)
    (top / "sub dir").chmod(0o700)
    normalise(top)
    modes = {path.name: path.lstat().st_mode & 0o7777 for path in top.rglob("*") if not path.is_symlink()}
    assert modes == {"a": 0o755, "sub dir": 0o755, "it's": 0o644}
    assert {path.lstat().st_mtime for path in (top, *top.rglob("*"))} == {digest.EPOCH}


def test_check_links_refuses_a_link_out_of_the_tree(tmp_path: Path) -> None:
    top = make(tmp_path / "t")
    (top / "sub dir" / "up").symlink_to("../a")
    (top / "dangling").symlink_to("not/here")
    check_links(top)
    (top / "sub dir" / "out").symlink_to("../../a")
    with refused("link-escapes"):
        check_links(top)


def test_folder_replaced_by_a_link_while_the_tree_is_read_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, outside = make(tmp_path / "t"), tmp_path / "outside"
    for folder in (top / "sub", outside):
        folder.mkdir(exist_ok=True)
        (folder / "key").write_text(folder.name)
    real = walk_module._open

    def swapped(name: str, at: int, path: str, more: int) -> int:
        if name == "sub":
            (top / "sub").rename(tmp_path / "away")
            (top / "sub").symlink_to(outside)
        return real(name, at, path, more)

    monkeypatch.setattr(walk_module, "_open", swapped)
    with refused("source-unreadable", top / "sub"):
        tree_digest(top)
