"""A commit by git and the same commit as an archive, as a forge makes it: one tree, to the byte."""

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
    """A repository with all that an archive treats otherwise than a checkout; its commit, and a server's address."""
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


def test_git_and_its_archive_end_in_one_tree(served: tuple[Path, str, str], tmp_path: Path) -> None:
    tree, commit, url = served
    by_git = fetched(f"file://{tree}@{commit}", Cache(tmp_path / "one"))
    by_archive = fetched(url, Cache(tmp_path / "two"))
    assert tree_digest(by_git, tmp_path / "stat 1") == tree_digest(by_archive, tmp_path / "stat 2")
    # And it is the tree that was meant: what is left out is left out, and lines end as the attributes say.
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
    """The commit, as if the data knew its archive."""
    _, commit, url = served
    where, _, digest = url.partition("#sha256=")
    row = CommitArchive(commit=commit, url=where, sha256=digest, source="a test", tried=True)
    monkeypatch.setattr(commit_archives, "commit_archives", lambda: (row,))
    monkeypatch.setattr("toolchain.sources.spec.commit_archives", lambda: (row,))
    monkeypatch.setattr("toolchain.sources.resolve.commit_archives", lambda: (row,))
    return commit


def test_an_archive_on_record_comes_by_its_commit(on_record: str, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    spec = parse_source_spec(f"archive:{on_record}")
    source = locate("llvm", spec, cache=cache)
    assert (source.kind, source.short_id, source.commit) == ("archive", on_record[:8], on_record)
    assert parse_source_spec(source.ref) == spec, "a lock names it by URL and digest, and means the same"
    assert (fetched(f"archive:{on_record}", cache) / "run.sh").exists()


def test_its_file_is_that_commit_however_it_came(on_record: str, tmp_path: Path) -> None:
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
def test_a_commit_without_an_archive_on_record_is_refused_with_those_that_have_one(text: str) -> None:
    with refused("archive-unknown") as caught:
        parse_source_spec(text)
    assert "1f126a6dea50d185c0781743a667390037ae88bd" in caught.value.why
