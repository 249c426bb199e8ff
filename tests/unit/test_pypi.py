"""Download of files from a package index, with an index on loopback."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import http.server
import importlib.util
import inspect
import io
import os
import re
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.refusals import refused
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_file
from toolchain.core.errors import DigestError, SourceError
from toolchain.sources import pypi, resolve
from toolchain.sources.pypi import PypiFile, fetch_pypi, python_of_wheel
from toolchain.sources.spec import parse_source_spec
from toolchain.sources.store import Store
from toolchain_lab.examine import wheel_llvm
from toolchain_lab.examine.wheel_llvm import download_wheel

WHEEL = "thing_x-1.0-cp313-cp313-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
STABLE = "thing_x-1.1-cp312-abi3-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
EARLY = "thing_x-0.8-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
PURE = "thing_x-1.0-py3-none-any.whl"
OLD = "thing_x-0.9-py2.py3-none-any.whl"
SDIST = "thing_x-1.0.tar.gz"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A request handler that serves a folder and logs nothing."""

    def log_message(self, *_args: object) -> None:
        return


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if importlib.util.find_spec("pip") is None:
        pytest.skip("pip is not installed beside this Python: fetching from an index is NOT tested")
    files = tmp_path / "served" / "files"
    page = tmp_path / "served" / "simple" / "thing-x" / "index.html"
    page.parent.mkdir(parents=True)
    files.mkdir()
    for name in (WHEEL, PURE, OLD, STABLE, EARLY):
        with zipfile.ZipFile(files / name, "w") as wheel:
            version = name.split("-")[1]
            info = f"thing_x-{version}.dist-info"
            about = f"Metadata-Version: 2.1\nName: thing-x\nVersion: {version}\nRequires-Python: >=3.10\n"
            wheel.writestr(f"{info}/METADATA", about)
            wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {name[12:-4]}\n")
            wheel.writestr(f"{info}/RECORD", "")
    # The code of this sdist creates a file if it runs.
    evil = f"open({str(tmp_path / 'ran')!r}, 'w')".encode()
    with tarfile.open(files / SDIST, "w:gz") as tar:
        member = tarfile.TarInfo("thing_x-1.0/setup.py")
        member.size = len(evil)
        tar.addfile(member, io.BytesIO(evil))
    links = "".join(f'<a class="f" href="../../files/{name}#sha256={"0" * 64}">{name}</a>' for name in (SDIST,))
    needs = 'data-requires-python="&gt;=3.10"'
    links += "".join(f'<a {needs} href="../../files/{name}">{name}</a>' for name in (WHEEL, PURE, OLD, STABLE, EARLY))
    page.write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    handler = functools.partial(Quiet, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_address[1]}/simple")
        monkeypatch.setenv("PIP_RETRIES", "0")
        yield files
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", [WHEEL, OLD, SDIST])
def test_fetched_file_is_stored_and_sdist_code_does_not_run(index: Path, tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "st ore")
    digest = sha256_file(index / name)
    version = name.split("-")[1].removesuffix(".tar.gz")
    got = fetch_pypi("Thing.X", version, name, digest, store, offline=False)
    assert got.name == name
    assert got.read_bytes() == (index / name).read_bytes()
    assert fetch_pypi("thing-x", version, name, digest, store, offline=True) == got
    assert not (tmp_path / "ran").exists(), "the sdist's own code must not run"


def test_wheel_is_downloaded_for_newest_available_python(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel_llvm, "_PYTHONS", ("3.13", "3.11"))
    name = EARLY
    folder = tmp_path / "here"
    got = download_wheel("thing-x", name.split("-")[1], folder, machine="x86_64")
    assert got == folder / name
    assert sha256_file(got) == sha256_file(index / name)


def test_wheel_missing_for_machine_is_refused(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_llvm, "_PYTHONS", ("3.11",))
    with refused("not-in-index", "0.8", "aarch64"):
        download_wheel("thing-x", "0.8", tmp_path, machine="aarch64")
    assert list(tmp_path.glob("*.whl")) == []


@pytest.mark.parametrize(
    ("name", "python", "later"),
    [
        (WHEEL, "3.13", False),
        (WHEEL.replace("cp313-cp313", "cp313-none"), "3.13", False),
        (STABLE, "3.12", True),
        (PURE, "3.0", True),
        (OLD, "3.0", True),
    ],
)
def test_wheel_name_gives_its_python(name: str, python: str, later: bool) -> None:
    assert python_of_wheel(name) == (python, later)
    with refused("not-a-wheel-name"):
        python_of_wheel(SDIST)


@pytest.mark.parametrize("name", [WHEEL, SDIST])
def test_file_with_another_digest_is_refused(index: Path, tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "store")
    other = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(DigestError) as caught:
        fetch_pypi("thing-x", "1.0", name, other, store, offline=False)
    assert other in caught.value.why
    assert sha256_file(index / name) in caught.value.why
    assert store.file(f"sha256:{other}") is None


def test_http_link_on_https_index_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    link = f'<a href="http://127.0.0.1:1/{SDIST}">{SDIST}</a>'
    answer = SimpleNamespace(
        status_code=200, iter_content=lambda _: [link.encode()], url="https://index.example/simple/thing-x/"
    )
    client = SimpleNamespace(get=lambda *_, **__: contextlib.nullcontext(answer))
    monkeypatch.setattr(pypi, "index_url", lambda: "https://index.example/simple")
    monkeypatch.setattr(pypi, "session", lambda: contextlib.nullcontext(client))
    with refused("insecure-url"):
        fetch_pypi("thing-x", "1.0", SDIST, "0" * 64, Store(tmp_path / "store"), offline=False)


class CountedSearches:
    """The module `re`, which counts the characters that its searches may read.

    A pattern with a repeat may read the rest of the text from each place where it can start.
    """

    def __init__(self) -> None:
        self.read = 0

    def __getattr__(self, name: str) -> Any:
        function = getattr(re, name)
        return functools.partial(self.search, function) if inspect.isfunction(function) else function

    def search(self, function: Callable[..., Any], pattern: str, *given: Any, **options: Any) -> Any:
        text = next(value for value in reversed(given) if isinstance(value, str))
        starts = 1 if function in (re.match, re.fullmatch) or not set("*+") & set(pattern) else text.count("<a")
        self.read += starts * len(text)
        return function(pattern, *given, **options)


def test_hostile_index_page_is_bounded_in_searches_and_size(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = index.parent / "simple" / "thing-x" / "index.html"
    page.write_text("<a " * 20_000 + page.read_text())
    sdist, store, counted = index / SDIST, Store(tmp_path / "store"), CountedSearches()
    monkeypatch.setattr(pypi, "re", counted)
    assert fetch_pypi("thing-x", "1.0", SDIST, sha256_file(sdist), store, offline=False).name == SDIST
    size = page.stat().st_size
    assert size < counted.read < 3 * size, "a search in the whole page may read the square of its size"
    monkeypatch.setattr(pypi, "_LARGEST_PAGE", 1000)
    with refused("not-in-index", "1000 bytes"):
        fetch_pypi("thing-x", "1.0", SDIST, "0" * 64, store, offline=False)


def test_file_missing_from_index_is_refused(index: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        fetch_pypi("thing-x", "2.0", WHEEL.replace("1.0", "2.0"), "0" * 64, Store(tmp_path / "store"), offline=False)


@pytest.mark.parametrize("name", [WHEEL, SDIST])
def test_mirror_serves_file_missing_from_index(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The index drops the file, which is first at a mirror, then only at a local path."""
    elsewhere = index / name.replace("1.0", "2.0")
    (index / name).rename(elsewhere)
    url = os.environ["PIP_INDEX_URL"].replace("/simple", f"/files/{elsewhere.name}")
    digest, size = sha256_file(elsewhere), elsewhere.stat().st_size
    row = PypiFile(project="thing-x", version="2.0", file=elsewhere.name, sha256=digest[7:], size=size, mirrors=(url,))
    for module in (pypi, resolve):
        monkeypatch.setattr(module, "known_files", lambda: (row,))
    for place in ("one", "two"):
        cache = Cache(tmp_path / place)
        source = resolve.locate("thing", parse_source_spec("pypi:thing-x"), cache=cache)
        if place == "one":
            got = resolve.fetch_source(source, cache=cache, offline=False)
            assert got.digest == digest
            elsewhere.rename(tmp_path / elsewhere.name)
            continue
        with refused("nowhere-available") as caught:
            resolve.fetch_source(source, cache=cache, offline=False)
        assert f"{size} bytes, SHA-256 {row.sha256}" in caught.value.why
        assert f"--source thing=PATH/{elsewhere.name}" in caught.value.fix
        by_path = parse_source_spec(str(tmp_path / elsewhere.name))
        brought = resolve.locate("thing", by_path, cache=cache)
        assert dataclasses.replace(brought, path=None) == source
        assert resolve.fetch_source(brought, cache=cache, offline=True).digest == digest


@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("folder", WHEEL), ("folder", SDIST), ("PYTHONPATH", WHEEL), ("PIP_PYTHON", SDIST), ("PIP_EDITABLE", WHEEL),
        ("PIP_NO_BINARY", WHEEL), ("pip.conf", WHEEL), ("PATH", SDIST),
    ],
)  # fmt: skip
def test_pip_runs_no_code_of_the_current_folder(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, name: str
) -> None:
    """Neither the current folder nor a variable nor pip.conf may make pip run other code."""
    folder, ran = tmp_path / "checkout", tmp_path / "ran"
    evil = f"open({str(ran)!r}, 'w').close()\n"
    (folder / "pip").mkdir(parents=True)
    for file in ("pip/__init__.py", "pip/__main__.py", "sitecustomize.py", "usercustomize.py", "json.py", "setup.py"):
        (folder / file).write_text(evil)
    for file in ("python", "git", "keyring", "env"):
        (folder / file).write_text(f"#!/bin/sh\n: > {ran}\n")
        (folder / file).chmod(0o755)
    (folder / "pip.conf").write_text("[global]\nno-binary = :all:\n[download]\nno-binary = :all:\n")
    monkeypatch.chdir(folder)
    values = {
        "PYTHONPATH": str(folder),
        "PIP_PYTHON": str(folder / "python"),
        "PIP_EDITABLE": str(folder),
        "PIP_NO_BINARY": ":all:",
        "PATH": f":.:{os.environ['PATH']}",
    }
    if way in values:
        monkeypatch.setenv(way, values[way])
    elif way == "pip.conf":
        monkeypatch.setenv("PIP_CONFIG_FILE", "pip.conf")
    store = Store(tmp_path / "store")
    got = fetch_pypi("thing-x", "1.0", name, sha256_file(index / name), store, offline=False)
    assert got.name == name
    assert not ran.exists()
