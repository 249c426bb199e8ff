"""Tests of the mirrors of the system's apt, and of its signed source index."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.core.cache import Cache
from toolchain.core.errors import SourceError
from toolchain.sources import distro
from toolchain.sources.distro import fetch_distro, known_distro
from toolchain.sources.mirrors import apt_mirrors
from toolchain.sources.store import Store
from toolchain.sources.suites import Package, Suite

PACKAGE = "llvm-toolchain-22"


@pytest.fixture(scope="module")
def apt_cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    if shutil.which("apt-get") is None:
        pytest.skip("apt-get is not installed: the distribution's source packages are NOT tested")
    try:
        mirrors = apt_mirrors()
    except SourceError as error:
        pytest.skip(f"apt has no mirror configured ({error.what}): the distribution's source packages are NOT tested")
    if not any(mirror.suite.startswith("bookworm") for mirror in mirrors):
        pytest.skip("not a Debian 12 machine: the distribution's source packages are NOT tested")
    return Cache(tmp_path_factory.mktemp("it's a cache"))


def test_first_mirror_is_the_main_archive_and_keyrings_exist(apt_cache: Cache) -> None:
    mirrors = apt_mirrors()
    assert not mirrors[0].security
    assert "main" in mirrors[0].components
    assert all("://" in mirror.site or mirror.site.startswith("/") for mirror in mirrors)
    for mirror in mirrors:
        assert not mirror.keyring.startswith("/") or Path(mirror.keyring).is_file()


def test_signed_index_agrees_with_the_data(
    apt_cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another digest and an unknown version are refused. The test does not download the tarball."""
    caplog.set_level(logging.INFO)
    asked: list[tuple[str, Package]] = []

    def download(suite: Suite, found: Package, _store: Store) -> Path:
        asked.append((suite.uri(found), found))
        return Path("not fetched")

    monkeypatch.setattr(Suite, "download", download)
    store = Store(apt_cache.store)
    source = known_distro("llvm", PACKAGE, "", cache=apt_cache)
    assert source.digest is not None
    told, _ = fetch_distro(source, store, cache=apt_cache, offline=False)
    assert told == source
    uri, found = asked[0]
    row = distro.known_packages()[0]
    assert (found.file, found.sha256, found.size) == (row.file, row.sha256, row.size)
    assert uri.endswith(row.file)
    host = uri.split("/")[2]
    assert host not in caplog.text
    assert host not in str(told)
    noted = (apt_cache.store / "distro" / f"{PACKAGE}.toml").read_text()
    assert host not in noted

    # The same index is read again, with another expected digest.
    monkeypatch.setattr(Suite, "update", lambda _self, bound: None)
    other = replace(source, digest="sha256:" + "0" * 64)
    with refused("package-digest-mismatch"):
        fetch_distro(other, store, cache=apt_cache, offline=False)
    unknown = replace(source, version="1.0")
    with refused("package-not-found") as caught:
        fetch_distro(unknown, store, cache=apt_cache, offline=False)
    assert "22.1.8" in caught.value.why
