"""Tests that `CheckedHeader.look` sees each header, whichever method Python's tarfile calls."""

from __future__ import annotations

import importlib.util
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pytest

from tests.nested_headers import nested_headers
from tests.refusals import refused
from toolchain.core import tar_headers
from toolchain.kernels.cache_entries import unpack
from toolchain.oci.layer import normalise_tar
from toolchain.sources.local import check_local
from toolchain.sources.spec import of_folder


def fresh() -> ModuleType:
    """Return the module as a new process would load it."""
    spec = importlib.util.find_spec("toolchain.core.tar_headers")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make tarfile read headers by `_frombuf`, as the security releases of Python do."""
    if hasattr(tarfile.TarInfo, "_frombuf"):
        return monkeypatch  # this Python is such a release
    original: Any = tarfile.TarInfo.frombuf.__func__  # type: ignore[attr-defined]

    def behind(cls: Any, buf: bytes, encoding: str, errors: str, *, dircheck: bool = True) -> Any:
        return original(cls, buf, encoding, errors)

    def plain(cls: Any, buf: bytes, encoding: str, errors: str) -> Any:
        return cls._frombuf(buf, encoding, errors)

    def from_file(cls: Any, tar: Any, *, dircheck: bool = True) -> Any:
        member = cls._frombuf(tar.fileobj.read(512), tar.encoding, tar.errors, dircheck=dircheck)
        member.offset = tar.fileobj.tell() - 512
        return member._proc_member(tar)

    for name, function in (("_frombuf", behind), ("frombuf", plain), ("fromtarfile", from_file)):
        monkeypatch.setattr(tarfile.TarInfo, name, classmethod(function), raising=False)
    return monkeypatch


def an_archive() -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("ä" * 120, "b"):
            tar.addfile(tarfile.TarInfo(name))
    stream.seek(0)
    return stream


def seen_by(module: ModuleType) -> list[str]:
    """Return the kinds of the headers that `look` saw; `end` is the end mark."""
    kinds: list[str] = []

    class Header(module.CheckedHeader):  # type: ignore[name-defined, misc]
        @classmethod
        def look(cls, block: bytes, read: Callable[[], Self]) -> Self:
            kinds.append(chr(block[156]) if any(block) else "end")
            return read()

    with tarfile.open(fileobj=an_archive(), mode="r|", tarinfo=Header) as tar:
        assert [member.name for member in tar] == ["ä" * 120, "b"]
    return kinds


def test_each_header_is_seen_once() -> None:
    tar_headers.require()
    assert seen_by(tar_headers) == ["x", "0", "0", "end"]


def test_each_header_is_seen_once_where_tarfile_calls_the_private_method(patched: pytest.MonkeyPatch) -> None:
    module = fresh()
    module.require()
    assert seen_by(module) == ["x", "0", "0", "end"]


def test_tarfile_that_bypasses_the_header_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fresh()
    monkeypatch.setattr(module, "CheckedHeader", tarfile.TarInfo)
    with refused("tar-reader-unknown"):
        module.require()


def test_archive_of_nested_extended_headers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(nested_headers())
    path.with_suffix(".json").write_text(json.dumps({"kernels": [["add", "a" * 64]], "about": {}}))
    with refused("cache-entry-damaged"):
        unpack(path, tmp_path / "made")
    with refused("tar-incomplete"):
        normalise_tar(path, tmp_path / "layer.tar")
    with refused("not-a-source"):
        check_local("triton", of_folder(path))
