"""A commit that is fetched by git and as an archive of a forge: both give the same tree."""

from __future__ import annotations

import http.server
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.refusals import refused
from tests.request_fixtures import specs
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_file
from toolchain.sources import commit_archives
from toolchain.sources.commit_archives import CommitArchive
from toolchain.sources.resolve import fetch_source, locate
from toolchain.sources.spec import parse_source_spec
from toolchain.sources.tree import tree_digest

ATTRIBUTES = """\
secret export-ignore
notes/*.txt export-ignore
*.bat text eol=crlf
*.sh text eol=lf
*.bin binary
version.h export-subst
"""


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield a repository whose archive and checkout differ by attributes, its commit, and the URL of its archive."""
    tree = tmp_path / "origin"
    (tree / "secret").mkdir(parents=True)
    (tree / "secret/key").write_text("left out\n")
    (tree / "notes").mkdir()
    (tree / "notes/a.txt").write_text("left out\n")
    (tree / "notes/b.md").write_text("kept\n")
    (tree / "run.bat").write_bytes(b"one\ntwo\n")
    (tree / "run.sh").write_bytes(b"#!/bin/sh\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "raw.bin").write_bytes(b"a\r\nb\n\0")
    (tree / "version.h").write_text("// $Format:%H$\n")
    (tree / "näme with spaces").write_text("1\n")
    (tree / "deep/er/and").mkdir(parents=True)
    (tree / "deep/er/and/er").symlink_to("../../../run.sh")
    (tree / "empty").write_text("")
    (tree / ".gitattributes").write_text(ATTRIBUTES)
    git(tree, "init", "-q", "-b", "main")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "1")
    commit = git(tree, "rev-parse", "HEAD")
    (tmp_path / "www").mkdir()
    archive = tmp_path / "www" / f"{commit}.tar.gz"
    git(tree, "archive", "--format=tar.gz", f"--prefix=origin-{commit}/", f"--output={archive}", commit)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(archive.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield tree, commit, f"http://127.0.0.1:{server.server_port}/{archive.name}#sha256={sha256_file(archive)[7:]}"
    server.shutdown()
    thread.join()
    server.server_close()


def fetched(text: str, cache: Cache) -> Path:
    return fetch_source(locate("triton", parse_source_spec(text), cache=cache), cache=cache, offline=False).path


def test_commit_and_its_archive_have_the_same_tree(served: tuple[Path, str, str], tmp_path: Path) -> None:
    tree, commit, url = served
    by_git = fetched(f"file://{tree}@{commit}", Cache(tmp_path / "one"))
    by_archive = fetched(url, Cache(tmp_path / "two"))
    assert tree_digest(by_git, tmp_path / "stat 1") == tree_digest(by_archive, tmp_path / "stat 2")
    # The tree also follows the attributes: ignored files are absent, and lines end as requested.
    assert not (by_git / "secret").exists()
    assert [path.name for path in (by_git / "notes").iterdir()] == ["b.md"]
    assert (by_git / "run.bat").read_bytes() == b"one\r\ntwo\r\n"
    assert (by_git / "raw.bin").read_bytes() == b"a\r\nb\n\0"
    assert (by_git / "version.h").read_text() == f"// {commit}\n"
    assert (by_git / "run.sh").stat().st_mode & 0o111
    (tree / "run.bat").write_text("other\n")
    git(tree, "commit", "-qam", "2")
    other = fetched(f"file://{tree}@{git(tree, 'rev-parse', 'HEAD')}", Cache(tmp_path / "one"))
    assert tree_digest(other, tmp_path / "stat 3") != tree_digest(by_git, tmp_path / "stat 4")


@pytest.fixture
def on_record(served: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the commit, and make its archive the only known one."""
    _, commit, url = served
    where, _, digest = url.partition("#sha256=")
    row = CommitArchive(commit=commit, url=where, sha256=digest, source="a test", tried=True)
    monkeypatch.setattr(commit_archives, "commit_archives", lambda: (row,))
    monkeypatch.setattr("toolchain.sources.spec.commit_archives", lambda: (row,))
    monkeypatch.setattr("toolchain.sources.resolve.commit_archives", lambda: (row,))
    return commit


def test_recorded_archive_is_fetched_by_its_commit(on_record: str, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    spec = parse_source_spec(f"archive:{on_record}")
    source = locate("llvm", spec, cache=cache)
    assert (source.kind, source.short_id, source.commit) == ("archive", on_record[:8], on_record)
    assert parse_source_spec(source.ref) == spec, "a lock names it by URL and digest, and means the same"
    assert (fetched(f"archive:{on_record}", cache) / "run.sh").exists()


def test_local_file_of_recorded_archive_has_its_commit(on_record: str, tmp_path: Path) -> None:
    (file,) = (tmp_path / "www").iterdir()
    renamed = tmp_path / "downloads" / "x.tar.gz"
    renamed.parent.mkdir()
    renamed.write_bytes(file.read_bytes())
    file.unlink()
    cache = Cache(tmp_path / "cache")
    source = locate("triton", specs({"triton": str(renamed)})["triton"], cache=cache)
    assert (source.kind, source.short_id) == ("archive", on_record[:8])
    assert (fetch_source(source, cache=cache, offline=True).path / "run.sh").exists()


@pytest.mark.parametrize("text", ["archive:", "archive:1f126a6d", f"archive:{'a' * 40}", "archive:v3.7.1"])
def test_commit_without_recorded_archive_is_refused_with_known_commits(text: str) -> None:
    with refused("archive-unknown") as caught:
        parse_source_spec(text)
    assert "1f126a6dea50d185c0781743a667390037ae88bd" in caught.value.why
