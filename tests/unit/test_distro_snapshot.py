"""A tarball that the distribution has moved on from comes from the archive that keeps it, held to the same digest."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from toolchain.errors import DigestError, SourceError
from toolchain.settings import Cache
from toolchain.sources import distro
from toolchain.sources.distro import Package, fetch_distro, known_distro
from toolchain.sources.store import Store

NAME = "llvm-toolchain-22"
CONTENT = b"a tarball\n"


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[str]:
    """A server that has one file."""
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "file").write_bytes(CONTENT)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *words: object, **named: object) -> None:
            super().__init__(*words, directory=str(tmp_path / "served"), **named)  # type: ignore[arg-type]

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def moved_on(monkeypatch: pytest.MonkeyPatch, row: Package) -> None:
    """A distribution whose index names another version."""

    def fetch(*_words: object) -> tuple[Package, Path]:
        raise SourceError(f"the distribution has no source package {NAME}=22.1.8", why="its versions are 22.1.9")

    monkeypatch.setattr(distro._Apt, "fetch", fetch)
    monkeypatch.setattr(distro, "known_packages", lambda: (row,))


def row_at(url: str, content: bytes = CONTENT) -> Package:
    known = distro.known_packages()[0]
    return replace(known, sha256=hashlib.sha256(content).hexdigest(), size=len(content), snapshot=url)


def test_the_archive_has_it(archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved_on(monkeypatch, row_at(f"{archive}/file"))
    cache = Cache(tmp_path / "cache")
    source = known_distro("llvm", NAME, "", cache=cache)
    found, path = fetch_distro(source, Store(cache.store), cache=cache, offline=False)
    assert path.read_bytes() == CONTENT
    assert found == source
    assert path.name == "llvm-toolchain-22_22.1.8.orig.tar.xz"


def test_another_file_is_refused(archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved_on(monkeypatch, row_at(f"{archive}/file", b"what it was\n"))
    cache = Cache(tmp_path / "cache")
    with pytest.raises(DigestError):
        fetch_distro(known_distro("llvm", NAME, "", cache=cache), Store(cache.store), cache=cache, offline=False)


def test_neither_has_it(archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved_on(monkeypatch, row_at(f"{archive}/gone"))
    cache = Cache(tmp_path / "cache")
    with pytest.raises(SourceError, match="no source package") as caught:
        fetch_distro(known_distro("llvm", NAME, "", cache=cache), Store(cache.store), cache=cache, offline=False)
    assert "22.1.9" in caught.value.why
    assert "/gone" in caught.value.why
