"""Unusable paths: each verb reports them with a specific exit code, and replaces nothing."""

from __future__ import annotations

import errno
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from typer import Exit
from typer.testing import CliRunner

from tests.refusals import refused
from tests.small_llvm import small_llvm
from toolchain.cli.app import app
from toolchain.cli.failing import handled
from toolchain.core.cache import Cache
from toolchain.core.digest import write_atomically, write_output
from toolchain.core.errors import ConfigError
from toolchain.engine.probe import probe
from toolchain.engine.storage import Storage
from toolchain.oci.logins import _login_files
from toolchain.pipeline.fetching import Prefetch
from toolchain.request.model import Request
from toolchain.sources.spec import of_folder
from toolchain.sources.tree import Source

LONG = "x" * 300


def fails(words: list[str], code: int, *said: str) -> None:
    """Run a verb with --json in this process, and check its exit code and the texts of its error."""
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == code, done.output
    error = json.loads(done.stdout)
    for text in said:
        assert text in f"{error['what']} {error['why']}", error


@pytest.fixture
def llvm(tmp_path: Path) -> Path:
    return small_llvm(tmp_path / "llvm")


@pytest.mark.parametrize(("verb", "kind"), [("verify", "file"), ("inspect", "loop"), ("verify", "long")])
def test_path_that_is_no_layout_is_refused(tmp_path: Path, verb: str, kind: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    path = tmp_path / (LONG if kind == "long" else kind)
    fails([verb, f"oci:{path}"], 13, "cannot be read as an OCI layout")


def test_output_replaces_only_plain_files(tmp_path: Path) -> None:
    """Root could otherwise replace /dev/null, or /dev/stdout, which is a link, with a file."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path / "folder"):
        with pytest.raises(ConfigError) as caught:
            write_output(path, b"", option="--out")
        assert caught.value.id in {"output-unwritable", "output-is-link"}
    assert ((tmp_path / "pipe").is_fifo(), (tmp_path / "link").is_symlink()) == (True, True)
    assert not list(tmp_path.glob(".folder*"))


def test_unusable_patch_archive_and_pin_paths_are_refused(tmp_path: Path, llvm: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    asked = ["--source", f"llvm={llvm}", "--base", "debian13"]
    cache = ["--cache", os.fspath(tmp_path / "cache")]
    fails(["plan", "llvm", *asked, *cache, "--patch", f"llvm={tmp_path / LONG}"], 3, "File name too long")
    fails(["build", "llvm", *asked, *cache, "--archive", os.fspath(tmp_path / "loop")], 3, "form a loop")
    fails(["pins", "--from", os.fspath(tmp_path / LONG)], 3, "cannot be used")


@pytest.mark.parametrize("name", ["two\nlines", "not UTF-8: \udcff"])
def test_cache_path_with_newline_or_invalid_utf8_is_refused(tmp_path: Path, llvm: Path, name: str) -> None:
    """A Containerfile cannot contain such a path."""
    cache = ["--cache", os.fspath(tmp_path / name)]
    fails(["fetch", "llvm", "--source", f"llvm={llvm}", "--base", "debian13", *cache], 3, "line end")
    with pytest.raises(ConfigError) as caught:
        probe(Storage(Cache(tmp_path / name)))
    assert caught.value.id == "cache-unusable"


@pytest.mark.parametrize(
    "error", [RuntimeError("a mistake"), PermissionError(13, "Permission denied"), FileNotFoundError(2, "x", "y")]
)
def test_internal_error_is_not_handled(error: Exception) -> None:
    @handled
    def verb() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        verb()
    assert caught.value is error


def test_missing_home_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    for name in ("TOOLCHAIN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    fails(["plan", "base"], 3, "there is no default folder for the cache")
    assert list(_login_files()) == []


def test_read_error_of_disk_exits_with_code_3() -> None:
    def reads() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(Exit) as caught:
        handled(reads)()
    assert caught.value.exit_code == 3


def test_deeply_nested_toml_tables_are_refused(tmp_path: Path, llvm: Path) -> None:
    deep = ".".join("a" * 3000)
    (tmp_path / "a.lock").write_text(f"schema = 1\n[request.{deep}]\nx = 1\n")
    (tmp_path / "toolchain.toml").write_text(f"[cache.{deep}]\nx = 1\n")
    asked = ["plan", "llvm", "--source", f"llvm={llvm}", "--cache", os.fspath(tmp_path / "cache")]
    fails([*asked, "--lock-file", os.fspath(tmp_path / "a.lock")], 3, "a.lock")
    done = CliRunner().invoke(app, ["--config", os.fspath(tmp_path / "toolchain.toml"), "plan", "llvm"])
    assert (done.exit_code, "[config-bad-value]" in done.stderr) == (3, True)


def test_path_with_nul_is_refused(tmp_path: Path) -> None:
    (tmp_path / "toolchain.toml").write_text('lock-file = "a\\u0000b"\n')
    fails(["--config", os.fspath(tmp_path / "toolchain.toml"), "plan", "base"], 3, "--lock-file", "control character")


def test_patch_name_that_is_not_utf8_cannot_be_locked(tmp_path: Path, llvm: Path) -> None:
    patch = tmp_path / os.fsdecode(b"\xff.patch")
    patch.write_text("--- a/llvm/CMakeLists.txt\n+++ b/llvm/CMakeLists.txt\n@@ -0,0 +1 @@\n+# more\n")
    asked = ["--source", f"llvm={llvm}", "--patch", f"llvm={patch}", "--cache", os.fspath(tmp_path / "cache")]
    fails(
        ["lock", "llvm", *asked, "--base", "debian13", "--open-base", "-o", os.fspath(tmp_path / "a.lock")], 3, "UTF-8"
    )
    assert not (tmp_path / "a.lock").exists()


def test_prefetch_ends_after_unexpected_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error ends the thread, and a wait for a later source must still return."""

    def broken(*_: object, **__: object) -> None:
        raise ValueError("of no kind")

    monkeypatch.setattr("toolchain.pipeline.fetching.fetch_for", broken)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    sources = [
        Source(name=name, kind="git", where="x", version="1" * 40, digest="git:" + "1" * 40, path=None, locked=True)
        for name in ("first", "second")
    ]
    prefetch = Prefetch(Request(cache=Cache(tmp_path / "cache")), sources)
    prefetch.wait("second")
    prefetch.check()


def test_prefetch_refuses_patch_that_does_not_apply_to_checkout(tmp_path: Path) -> None:
    """Other faults of a checkout are not reported, because the user may repair them until its stage is built."""
    checkout = tmp_path / "triton"
    checkout.mkdir()
    (checkout / "setup.py").write_text("x\n")
    patch = tmp_path / "a.patch"
    patch.write_text("--- a/setup.py\n+++ b/setup.py\n@@ -1 +1 @@\n-y\n+z\n")
    request = Request(cache=Cache(tmp_path / "cache"), patches={"triton": (patch,)})
    source = request.locate("triton", of_folder(checkout))

    def prefetched(source: Source) -> Prefetch:
        prefetch = Prefetch(request, [source])
        prefetch.wait("triton")
        return prefetch

    with refused("patch-does-not-apply"):
        prefetched(source).check()
    prefetched(replace(source, digest=f"sha256:{'0' * 64}")).check()


@pytest.mark.parametrize(
    "words", [("images", "--cache", ""), ("report", "x", "--out", ""), ("audit", ""), ("keygen", "")]
)
def test_empty_path_is_refused(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, "empty" in done.output) == (2, True), done.output


def test_path_that_names_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.json").write_text("{}")
    cache = ("--cache", os.fspath(tmp_path / "cache"))
    fails(["kernels", "try", ".", "--source", ".", *cache], 3, "there is no JSON file next to")
    fails(["emulate", "x.hsaco", "--objdump", "/nowhere/objdump"], 8, "/nowhere/objdump is not an executable file")
    with pytest.raises(IsADirectoryError):
        write_atomically(Path(), b"")


def test_eof_error_of_verb_becomes_runtime_error() -> None:
    """Typer treats an EOFError as a prompt without an answer, and prints only "Aborted."."""

    def verb() -> None:
        raise EOFError

    with pytest.raises(RuntimeError, match="early"):
        handled(verb)()
