"""Tests of local files and folders as sources, and of the messages for invalid ones."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.small_llvm import small_llvm
from toolchain.cli.app import app
from toolchain.cli.build_options import make_request
from toolchain.core.errors import SourceError

COMMIT = "d8da7c998c75c88691e0ec157fcfd92b49d7060a"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(source: str, target: str = "base") -> SourceError:
    """Return the error for a source; it is raised even if the target does not need the source."""
    with pytest.raises(SourceError) as caught:
        make_request(cache=Path("cache"), source=[source], target=target)
    assert f"--source {source}" in caught.value.what
    return caught.value


@pytest.mark.parametrize(
    ("source", "write"),
    [
        ("triton=3.6.0", ["--triton 3.6.0", "--source triton=pypi:3.6.0"]),
        ("triton=v3.6.0", ["--triton 3.6.0"]),
        (f"triton={COMMIT}", [f"--triton {COMMIT}", "URL@COMMIT"]),
        ("aotriton=0.11b", ["--aotriton 0.11b"]),
        ("llvm=22.1.8", ["llvm=distro:PACKAGE"]),
        ("llvm=10dc3a8e", ["URL@COMMIT", "40 digits"]),
        ("flash-attn=2.8.3", ["--source flash-attn=pypi:2.8.3"]),
        ("llvm=../llvm-project", ["PATH"]),
    ],
)
def test_error_for_a_missing_path_names_the_right_option(source: str, write: list[str]) -> None:
    for target in ("base", "llvm", "triton"):
        error = refused(source, target)
        assert error.id == "not-a-source"
        assert all(text in error.fix for text in write), error.fix


def test_folder_with_the_name_of_a_version_is_a_source(here: Path) -> None:
    (here / "3.6.0").mkdir()
    assert make_request(cache=here / "cache", source=["triton=3.6.0"]).sources["triton"].path == Path("3.6.0")


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.txz", "x-1-py3-none-any.whl", "x.zip", "notes.txt", "x"])
@pytest.mark.parametrize("content", [b"", b"not an archive", bytes(99), b"\x1f\x8b garbage", b"\x1f\x8b\x08"])
def test_file_that_is_not_an_archive_is_refused(here: Path, name: str, content: bytes) -> None:
    (here / name).write_bytes(content)
    assert "name" in refused(f"triton={name}").fix


def test_database_source_must_be_an_sqlite_file_or_empty(here: Path) -> None:
    for content in (b"", b"SQLite format 3\0"):
        (here / "a.sqlite3").write_bytes(content)
        given = make_request(cache=here / "cache", source=["aotriton-database=a.sqlite3"]).sources
        assert given["aotriton-database"].path == Path("a.sqlite3")
    (here / "a.sqlite3").write_bytes(b"version https://git-lfs")
    assert refused("aotriton-database=a.sqlite3").id == "not-a-source"


def test_dangling_link_and_pipe_are_refused(here: Path) -> None:
    (here / "link").symlink_to("nowhere")
    assert "link" in refused("triton=link").why
    os.mkfifo(here / "pipe.tar")
    assert refused("triton=pipe.tar").id == "not-a-source"


@pytest.mark.parametrize("how", ["w", "w:gz", "w:xz", "w:bz2"])
def test_archives_and_wheels_are_sources(here: Path, how: str) -> None:
    kind = how.partition(":")[2]
    name = "x.tar" + (f".{kind}" if kind else "")
    with tarfile.open(name, how) as archive:  # type: ignore[call-overload]
        archive.addfile(tarfile.TarInfo("top/file"), io.BytesIO())
    with zipfile.ZipFile("x-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("a", "b")
    (here / "x.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd\x00")
    (here / "pzstd.tzst").write_bytes(b"\x50\x2a\x4d\x18\x04")
    for file in (name, "x-1-py3-none-any.whl", "x.tar.zst", "pzstd.tzst"):
        assert make_request(cache=here / "cache", source=[f"triton={file}"]).sources["triton"].where == file


def test_programs_that_a_checkout_configures_do_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, mark = tmp_path / "llvm-project", tmp_path / "mark"
    small_llvm(tree, ("llvm", "mlir", "lld", "cmake", "third-party"))
    script = tmp_path / "evil"
    script.write_text(f"#!/bin/sh\necho $0 >> {mark}\ncat\n")
    script.chmod(0o755)

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", tree, *words], check=True, capture_output=True)

    git("init", "-q")
    git("add", "-A")
    git("-c", "user.name=t", "-c", "user.email=t@example.test", "commit", "-qm", "1")
    (tree / ".gitattributes").write_text("* filter=evil diff=evil\n")
    for name in ("core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "credential.helper",
                 "filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.textconv",
                 "diff.external", "uploadpack.packObjectsHook"):  # fmt: skip
        git("config", name, str(script))
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        (tree / ".git" / "hooks" / hook).write_bytes(script.read_bytes())
        (tree / ".git" / "hooks" / hook).chmod(0o755)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    for verb in ("plan", "fetch"):
        done = CliRunner().invoke(app, [verb, "llvm", "--source", f"llvm={tree}"])
        assert done.exit_code == 0, done.output
    assert not mark.exists()
    subprocess.run(["git", "-C", tree, "status"], capture_output=True, check=False)
    assert mark.exists(), "git itself runs it"
