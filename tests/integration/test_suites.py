"""A distribution's suites as sources: the installed apt reads a signed archive with several suites."""

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
    """Fetch a source, and return its version and the content of its file."""
    cache = Cache(tmp_path / "cache")
    source = locate("llvm", parse_source_spec(text), cache=cache)
    told, path = distro.fetch_distro(source, Store(cache.store), cache=cache, offline=False)
    return told.version, path.read_bytes()


def test_package_comes_from_the_first_or_the_named_suite(archive: Archive, tmp_path: Path) -> None:
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
def test_archive_in_a_folder_is_read(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    archive.suite("bookworm", {"thing": "1.9"})
    (tmp_path / "list").write_text(f"file:{archive.root}/\n")
    site = f"{scheme}:{archive.root if scheme == 'file' else tmp_path / 'list'}"
    monkeypatch.setattr(distro, "apt_mirrors", lambda: [replace(archive.mirror("bookworm"), site=site)])
    version, content = fetched("distro:thing", tmp_path)
    pool = archive.root / "pool" / "thing_1.9.orig.tar.xz"
    assert (version, content) == ("1.9", pool.read_bytes()), "a link to the file is no copy of it"


def test_listed_file_that_is_gone_is_reported(archive: Archive, tmp_path: Path) -> None:
    archive.suite("bookworm", {"thing": "1.9"})
    archive.suite("sid", {"thing": "1.10"})
    archive.lose("thing_1.10.orig.tar.xz")
    with refused("package-gone", "sid", "thing_1.10.orig.tar.xz"):
        fetched("distro:thing=1.10", tmp_path)


def test_stored_file_is_not_fetched_again(archive: Archive, tmp_path: Path) -> None:
    """The store has the file, so the fetch succeeds although the mirror has lost it."""
    archive.suite("bookworm", {"thing": "1"})
    archive.suite("bullseye", {"thing": "1"})
    content = fetched("distro:thing", tmp_path)
    archive.lose("thing_1.orig.tar.xz")
    assert fetched("distro:thing@bullseye", tmp_path) == content


def test_locked_package_is_fetched_only_with_its_digest(archive: Archive, tmp_path: Path) -> None:
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


def test_suite_that_the_mirror_lacks_is_reported(archive: Archive, tmp_path: Path) -> None:
    archive.suite("bookworm", {"thing": "1"})
    with refused("suite-missing", "forky"):
        fetched("distro:thing@forky", tmp_path)


def test_unreachable_mirror_is_asked_once(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_expired_index_is_accepted_for_a_package_of_known_digest(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.suite("bookworm", {"thing": "1"}, until="Tue, 03 Feb 2026 10:00:00 UTC")
    run = Suite._run
    strict = ("-o", "Acquire::Check-Valid-Until=true", "-o", "Acquire::Check-Date=true")
    # These are apt's defaults, which the installed configuration may change. Options of the caller come later and win.
    monkeypatch.setattr(Suite, "_run", lambda suite, program, *words: run(suite, program, *strict, *words))
    with refused("suite-outdated", "bookworm"):
        fetched("distro:thing", tmp_path / "a")
    file = archive.root / "pool" / "thing_1.orig.tar.xz"
    digest, size = hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_size
    row = Package(name="thing", version="1", file=file.name, sha256=digest, size=size, suites=("bookworm",))
    monkeypatch.setattr(distro, "known_packages", lambda: (row,))
    assert known_distro("llvm", "thing", "", cache=Cache(tmp_path)).locked
    assert fetched("distro:thing", tmp_path / "b") == ("1", file.read_bytes())


def test_requested_suites_and_those_of_the_mirrors_are_first() -> None:
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
    # The next mirrors are Debian's without a security archive, and those of another distribution.
    assert [mirror.suite for mirror in suites([main], [], known)] == ["trixie", "sid", "bookworm"]
    jammy = Mirror(site="http://main", suite="jammy", components=("main",), keyring="")
    assert [mirror.suite for mirror in suites([jammy], ["noble"], known)] == ["noble", "jammy"]
