"""Tests of the store: each entry is complete or missing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from tests.refusals import refused
from toolchain.core import console
from toolchain.core import locks as lock_module
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import DigestError, LockHeldError, SourceError
from toolchain.core.locks import held
from toolchain.sources.store import Store

DIGEST = sha256_bytes(b"content")
GIT = "git:" + "a" * 40 + "@https://example.test/r"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "my store")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(console, "warn", lines.append)
    monkeypatch.setattr(console, "note", lines.append)
    return lines


def put(store: Store, content: bytes = b"content", name: str = "x.whl") -> Path:
    store.partial.mkdir(parents=True, exist_ok=True)
    path = store.partial / name
    path.write_bytes(content)
    return path


def filler(content: str = "1", calls: list[Path] | None = None) -> Callable[[Path], None]:
    def unpack(dest: Path) -> None:
        if calls is not None:
            calls.append(dest)
        (dest / "d").mkdir()
        (dest / "d" / "f").write_text(content)

    return unpack


def test_added_file_is_found_by_its_digest(store: Store) -> None:
    assert store.file(DIGEST) is None
    there = store.add_file(put(store), DIGEST)
    assert there.name == "x.whl"
    assert there.read_bytes() == b"content"
    assert store.file(DIGEST) == store.file(DIGEST, verify=True) == there
    assert not list(store.partial.iterdir())
    assert store.add_file(put(store, name="y"), DIGEST) == there


def test_a_file_of_another_file_system_is_copied(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, rename = tmp_path / "file", os.rename
    path.write_bytes(b"content")

    def within(source: Path, target: Path) -> None:
        if Path(source) == path:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", within)
    monkeypatch.setattr(os, "replace", within)
    assert store.add_file(path, sha256_bytes(b"content"), name="name").read_bytes() == b"content"
    assert not path.exists()


def test_file_with_another_digest_is_refused_and_removed(store: Store) -> None:
    path = put(store, b"other")
    with pytest.raises(DigestError) as caught:
        store.add_file(path, DIGEST)
    assert DIGEST in caught.value.why
    assert sha256_bytes(b"other") in caught.value.why
    assert not path.exists()
    assert store.file(DIGEST) is None


def test_damaged_file_is_found_and_replaced(store: Store, said: list[str]) -> None:
    there = store.add_file(put(store), DIGEST)
    there.write_bytes(b"Content")
    assert store.file(DIGEST, verify=True) is None
    assert "damaged" in said[0]
    assert store.add_file(put(store), DIGEST).read_bytes() == b"content"


@pytest.mark.parametrize("text", ["", "sha256:1", "../x", "md5:" + "a" * 32, "sha256:" + "A" * 64])
def test_malformed_digest_is_refused(store: Store, text: str) -> None:
    with pytest.raises(DigestError):
        store.file(text)
    with pytest.raises(DigestError):
        store.tree(text, filler())


def test_tree_is_unpacked_once(store: Store) -> None:
    calls: list[Path] = []
    one = store.tree(DIGEST, filler(calls=calls))
    assert store.tree(DIGEST, filler(calls=calls)) == one
    assert store.tree(DIGEST, filler(calls=calls), verify=True) == one
    assert len(calls) == 1
    assert (one / "d" / "f").read_text() == "1"
    info = store.tree_info(DIGEST)
    assert info is not None
    assert (info.files, info.bytes) == (1, 1)


def test_git_entries_are_removed_from_a_tree(store: Store) -> None:
    """The digest of a tree ignores `.git`, so a build that read it would not be determined by the digest."""

    def unpack(dest: Path) -> None:
        filler()(dest)
        (dest / ".git").mkdir()
        (dest / ".git" / "config").write_text("token")
        (dest / "d" / ".git").write_text("gitdir: elsewhere")
        (dest / "d" / "sub").mkdir()
        (dest / "d" / "sub" / ".git").symlink_to("/etc")

    tree = store.tree(DIGEST, unpack, verify=True)
    assert sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*")) == ["d", "d/f", "d/sub"]


def test_parts_and_repositories_have_separate_trees(store: Store) -> None:
    paths = {
        store.tree(DIGEST, filler()),
        store.tree(DIGEST, filler(), part="a"),
        store.tree(GIT, filler()),
        store.tree(GIT + "2", filler()),
    }
    assert len(paths) == 4


def test_failed_unpack_leaves_no_tree(store: Store) -> None:
    def unpack(dest: Path) -> None:
        filler()(dest)
        raise SourceError("test-error", "no")

    with pytest.raises(SourceError):
        store.tree(DIGEST, unpack)
    assert not [path for path in (store.root / "trees").iterdir() if path.is_dir()]
    with refused("source-empty"):
        store.tree(DIGEST, lambda _dest: None)


def test_partial_tree_of_a_killed_run_is_removed(store: Store) -> None:
    code = (
        "import os, sys; from pathlib import Path; from toolchain.sources.store import Store\n"
        "def unpack(d):\n (d / 'half').touch(); os.kill(os.getpid(), 9)\n"
        "Store(Path(sys.argv[1])).tree(sys.argv[2], unpack)"
    )
    done = subprocess.run([sys.executable, "-c", code, store.root, DIGEST], check=False)
    assert done.returncode == -9
    assert list((store.root / "trees").rglob("half"))
    tree = store.tree(DIGEST, filler())
    assert not (tree / "half").exists()
    assert not list((store.root / "trees").rglob("half"))


@pytest.mark.parametrize("harm", ["change", "remove", "add", "x", "sidecar"])
def test_tampered_tree_is_unpacked_again(store: Store, said: list[str], harm: str) -> None:
    tree = store.tree(DIGEST, filler())
    file = tree / "d" / "f"
    match harm:
        case "change":
            file.write_text("2")
        case "remove":
            file.unlink()
        case "add":
            (tree / "g").touch()
        case "x":
            file.chmod(0o755)
        case _:
            for path in (store.root / "trees").glob("*.json"):
                path.unlink()
    again = store.tree(DIGEST, filler())
    assert "unpacking it again" in said[0]
    assert [path.name for path in again.rglob("*")] == ["d", "f"]
    assert file.read_text() == "1"


def test_concurrent_calls_unpack_a_tree_once(store: Store) -> None:
    calls: list[Path] = []
    gate = threading.Event()

    def slow(dest: Path) -> None:
        gate.wait(60)
        filler(calls=calls)(dest)

    threads = [threading.Thread(target=lambda: store.tree(DIGEST, slow)) for _ in range(3)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(300)
    assert len(calls) == 1


def _close_after(said: list[str], stream: IO[str]) -> None:
    """Close a stream as soon as a note is printed."""
    while not said:
        time.sleep(0.05)
    stream.close()


def test_lock_names_its_holder(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "PATIENCE", 0.1)
    code = (
        "import sys; from pathlib import Path; from toolchain.core.locks import held\n"
        "with held(Path(sys.argv[1]), what='w'):\n print('in', flush=True); sys.stdin.readline()"
    )
    path = tmp_path / "a lock"
    with subprocess.Popen(
        [sys.executable, "-c", code, path, "toolchain", "build", "llvm"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "in\n"
        monkeypatch.setenv("TOOLCHAIN_LOCK_TIMEOUT", "0")
        with (
            refused("work-locked", other.pid),
            held(path, what="the work"),
        ):
            pass
        monkeypatch.setenv("TOOLCHAIN_LOCK_TIMEOUT", "0.1")
        with pytest.raises(LockHeldError), held(path, what="the work"):
            pass
        monkeypatch.delenv("TOOLCHAIN_LOCK_TIMEOUT")
        assert said == [], "nobody is told of what is over before two seconds"
        release = threading.Thread(target=_close_after, args=(said, other.stdin))
        release.start()
        with held(path, what="the work"):
            pass
        release.join()
        assert said == [f"waiting for pid {other.pid} (build llvm): the work"]
    monkeypatch.setenv("TOOLCHAIN_LOCK_TIMEOUT", "0")
    with held(path, what="the work"):
        pass
