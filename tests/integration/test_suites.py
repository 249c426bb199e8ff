"""A distribution's suites as sources: an archive with several, signed, read by the machine's own apt."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.apt_archive import Archive, archive, signed
from tests.refusals import refused
from toolchain.core.cache import Cache
from toolchain.sources import distro
from toolchain.sources.distro import known_distro
from toolchain.sources.mirrors import Mirror, suites
from toolchain.sources.resolve import locate
from toolchain.sources.spec import parse_source_spec
from toolchain.sources.store import Store
from toolchain.sources.suites import Package, Suite

__all__ = ["archive", "signed"]


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distro, "known_packages", lambda: ())
    monkeypatch.setattr(distro, "load", lambda _: {"suites": ["sid", "bookworm", "bullseye", "forky"]})


def fetched(text: str, tmp_path: Path) -> tuple[str, bytes]:
    """The version that a source turned out to be, and its file."""
    cache = Cache(tmp_path / "cache")
    source = locate("llvm", parse_source_spec(text), cache=cache)
    told, path = distro.fetch_distro(source, Store(cache.store), cache=cache, offline=False)
    return told.version, path.read_bytes()


def test_the_first_suite_that_has_it_and_the_named_one(archive: Archive, tmp_path: Path) -> None:
    archive.suite("bookworm", {"thing": "1.9"})
    archive.suite("sid", {"thing": "1.10", "other": "3"})
    archive.suite("bullseye", {"thing": "1.2"})
    assert fetched("distro:thing", tmp_path / "a")[0] == "1.9"
    assert fetched("distro:thing=1.10", tmp_path / "a")[0] == "1.10"
    assert fetched("distro:thing@bullseye", tmp_path / "b")[0] == "1.2"
    assert fetched("distro:thing=1.9", tmp_path / "c")[0] == "1.9"
    with refused("package-not-found", "other") as refusal:
        fetched("distro:other@bookworm", tmp_path / "d")
    assert "bookworm" in refusal.value.why


@pytest.mark.parametrize("scheme", ["file", "mirror+file"])
def test_an_archive_in_a_folder(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    archive.suite("bookworm", {"thing": "1.9"})
    (tmp_path / "list").write_text(f"file:{archive.root}/\n")
    site = f"{scheme}:{archive.root if scheme == 'file' else tmp_path / 'list'}"
    monkeypatch.setattr(distro, "apt_mirrors", lambda: [replace(archive.mirror("bookworm"), site=site)])
    version, content = fetched("distro:thing", tmp_path)
    pool = archive.root / "pool" / "thing_1.9.orig.tar.xz"
    assert (version, content) == ("1.9", pool.read_bytes()), "a link to the file is no copy of it"


def test_a_listed_file_that_is_gone(archive: Archive, tmp_path: Path) -> None:
    archive.suite("bookworm", {"thing": "1.9"})
    archive.suite("sid", {"thing": "1.10"})
    archive.lose("thing_1.10.orig.tar.xz")
    with refused("package-gone", "sid", "thing_1.10.orig.tar.xz"):
        fetched("distro:thing=1.10", tmp_path)


def test_a_file_that_is_here_is_not_fetched_again(archive: Archive, tmp_path: Path) -> None:
    """Nor is it missed when its mirror loses it."""
    archive.suite("bookworm", {"thing": "1"})
    archive.suite("bullseye", {"thing": "1"})
    content = fetched("distro:thing", tmp_path)
    archive.lose("thing_1.orig.tar.xz")
    assert fetched("distro:thing@bullseye", tmp_path) == content


def test_the_package_of_a_lock_is_fetched_without_a_note(archive: Archive, tmp_path: Path) -> None:
    """And only as it is locked."""
    archive.suite("bookworm", {"thing": "1"})
    cache = Cache(tmp_path / "cache")
    digest = f"sha256:{hashlib.sha256((archive.root / 'pool/thing_1.orig.tar.xz').read_bytes()).hexdigest()}"
    spec = parse_source_spec("distro:thing")
    source = locate("llvm", spec, cache=cache, held=("distro:thing=1", digest))
    assert source.locked
    assert distro.fetch_distro(source, Store(cache.store), cache=cache, offline=False)[0] == source
    other = locate("llvm", spec, cache=cache, held=("distro:thing=1", f"sha256:{'0' * 64}"))
    with refused("package-digest-mismatch"):
        distro.fetch_distro(other, Store(cache.store), cache=cache, offline=False)


def test_a_suite_that_the_mirror_has_not(archive: Archive, tmp_path: Path) -> None:
    archive.suite("bookworm", {"thing": "1"})
    with refused("suite-missing", "forky"):
        fetched("distro:thing@forky", tmp_path)


def test_a_mirror_that_does_not_answer_is_asked_once(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Mirror(site="http://127.0.0.1:9/debian", suite="bookworm", components=("main",), keyring=str(archive.key))
    monkeypatch.setattr(distro, "apt_mirrors", lambda: [silent])
    asked: list[tuple[str, str]] = []
    run = Suite._run

    def noted(suite: Suite, program: str, *words: str) -> str:
        asked.append((suite.name, program))
        return run(suite, program, "-o", "Acquire::Retries=0", *words)

    monkeypatch.setattr(Suite, "_run", noted)
    with refused("suite-unreachable", "bookworm") as refusal:
        fetched("distro:thing", tmp_path)
    assert asked == [("bookworm", "apt-get")]
    assert "127.0.0.1" not in str(refusal.value)


def test_an_index_out_of_date_serves_where_a_digest_binds_the_package(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.suite("bookworm", {"thing": "1"}, until="Tue, 03 Feb 2026 10:00:00 UTC")
    run = Suite._run
    strict = ("-o", "Acquire::Check-Valid-Until=true", "-o", "Acquire::Check-Date=true")
    # As apt is by default; this machine may say otherwise. What a caller adds comes later and wins.
    monkeypatch.setattr(Suite, "_run", lambda suite, program, *words: run(suite, program, *strict, *words))
    with refused("suite-outdated", "bookworm"):
        fetched("distro:thing", tmp_path / "a")
    file = archive.root / "pool" / "thing_1.orig.tar.xz"
    digest, size = hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_size
    row = Package(name="thing", version="1", file=file.name, sha256=digest, size=size, suites=("bookworm",))
    monkeypatch.setattr(distro, "known_packages", lambda: (row,))
    assert known_distro("llvm", "thing", "", cache=Cache(tmp_path)).locked
    assert fetched("distro:thing", tmp_path / "b") == ("1", file.read_bytes())


def test_which_suites_are_asked_in_which_order() -> None:
    main = Mirror(site="http://main", suite="trixie", components=("main",), keyring="")
    security = Mirror(site="http://security", suite="trixie-security", components=("main",), keyring="")
    known = ("sid", "trixie", "bookworm", "trixie-security", "bookworm-security")
    asked = suites([main, security], ["bookworm"], known)
    assert [(mirror.suite, mirror.site) for mirror in asked] == [
        ("bookworm", "http://main"),
        ("trixie", "http://main"),
        ("trixie-security", "http://security"),
        ("sid", "http://main"),
        ("bookworm-security", "http://security"),
    ]
    # Debian without a security archive, and another distribution.
    assert [mirror.suite for mirror in suites([main], [], known)] == ["trixie", "sid", "bookworm"]
    jammy = Mirror(site="http://main", suite="jammy", components=("main",), keyring="")
    assert [mirror.suite for mirror in suites([jammy], ["noble"], known)] == ["noble", "jammy"]
