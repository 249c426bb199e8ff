"""Fetch packages of the distribution with the machine's apt, which verifies the signatures of the source indexes."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache as memoize
from pathlib import Path

from toolchain.core.cache import Cache
from toolchain.core.digest import write_atomically
from toolchain.core.errors import DigestError, SourceError, UnreachableError
from toolchain.core.locks import held
from toolchain.core.typed import typed
from toolchain.data import load
from toolchain.sources.elsewhere import first_or_elsewhere
from toolchain.sources.mirrors import apt_mirrors, suites
from toolchain.sources.network import refuse_offline
from toolchain.sources.spec import PACKAGE, VERSION
from toolchain.sources.store import Store
from toolchain.sources.suites import NoSuiteError, Package, Suite
from toolchain.sources.tree import Source


@memoize
def known_packages() -> tuple[Package, ...]:
    """Return the rows of data/distro.toml; the first row of a package is its default version."""
    lists = ("suites", "mirrors")
    rows = load("distro")["package"]
    return tuple(Package(**{**row, **{name: tuple(row.get(name, ())) for name in lists}}) for row in rows)


def _row(name: str, version: str) -> Package | None:
    rows = [row for row in known_packages() if row.name == name and version in ("", row.version)]
    return rows[0] if rows else None


def known_package(package: str, version: str, cache: Cache, *, suite: str = "") -> Package | None:
    """Return a package as data/distro.toml, an earlier fetch or an imported bundle describes it; None if none does.

    Args:
        suite: the suite that the description from a fetch or bundle must name if `version` is empty; empty for any.
    """
    return _row(package, version) or _noted(package, version, cache, suite)


def known_distro(
    name: str, package: str, version: str, *, cache: Cache, suite: str = "", held: tuple[str, str] = ("", "")
) -> Source:
    """Return a package as a source, as data/distro.toml, a lock, or an earlier fetch or import describes it.

    The network is not used. The digest is None if none of them contains the package.

    SourceError is raised for an unknown suite whose name resembles that of a Debian suite. Any other unknown name is
    accepted, because the machine's mirrors may have such a suite.

    Args:
        version: the upstream version. If it is empty, the default in data/distro.toml is used, or else the version in
            the lock or of an earlier fetch.
        held: the ref and the digest of the source in a lock, or empty strings. They have priority over an earlier
            fetch, but not over data/distro.toml.
    """
    known = load("distro")["suites"]
    if suite not in known and (close := difflib.get_close_matches(suite, known, n=1, cutoff=0.85)):
        raise SourceError(
            "unknown-suite",
            f"unknown suite {suite!r}; did you mean {close[0]}?",
            why=f"known: {', '.join(known)}",
            fix=f"write distro:{package}@{close[0]}",
        )
    promised, digest = _row(package, version) is not None, None
    row = known_package(package, version, cache, suite=suite)
    in_lock = held[0].removeprefix(f"distro:{package}=")
    if not promised and in_lock != held[0] and version in ("", in_lock):
        promised, version, digest = True, in_lock, held[1]
    elif row is not None:
        version, digest = row.version, f"sha256:{row.sha256}"
    return Source(
        name=name,
        kind="distro",
        where=package,
        version=version,
        digest=digest,
        path=None,
        suite=suite,
        locked=promised,
        license=row.license if row is not None else "",
    )


def fetch_distro(source: Source, store: Store, *, cache: Cache, offline: bool) -> tuple[Source, Path]:
    """Return a package with its version and digest, and the path of its file (see `suites.Package`) in the store.

    If the store lacks the file, it is fetched with apt or from a mirror in data/distro.toml. If only a bundle describes
    the package, apt reads the index even if the store has the file, unless `offline` is set.
    """
    package, version = source.where, source.version
    known = known_package(package, version, cache)
    unproved = known is not None and known.brought and not offline
    if source.digest is not None and not unproved and (there := store.file(source.digest, verify=True)) is not None:
        return source, there
    row = _row(package, version)
    if row is None:
        entry, path = _by_apt(package, version, source, cache, offline=offline)
        return replace(source, version=entry.version, digest=f"sha256:{entry.sha256}"), path

    def fetch() -> Path:
        return _by_apt(package, row.version, source, cache, offline=offline)[1]

    path = first_or_elsewhere(fetch, row, source, store, origin="apt", offline=offline)
    return replace(source, version=row.version, digest=f"sha256:{row.sha256}"), path


def _by_apt(package: str, version: str, source: Source, cache: Cache, *, offline: bool) -> tuple[Package, Path]:
    """Fetch the file of a package with apt; return a description of the package, and the file's path."""
    refuse_offline(source.ref, offline=offline)
    row = _row(package, version)
    if row is not None and row.pool:
        with held(cache.locks / "apt.lock", what="fetching a package"):
            return row, _suites(cache, [])[0].download(row, Store(cache.store))
    noted = _noted(package, version, cache)
    brought = row is None and noted is not None and noted.brought
    bound = source.digest is not None and not brought
    with held(cache.locks / "apt.lock", what="reading the distribution's source index"):
        indexes = _suites(
            cache, [source.suite] if source.suite else row.suites if row is not None else [], source.suite
        )
        entry, path = _first(indexes, package, version, source.digest, Store(cache.store), bound=bound)
    note(entry, cache)
    return entry, path


def _suites(cache: Cache, hints: Sequence[str], only: str = "") -> list[Suite]:
    mirrors = suites(apt_mirrors(), hints, load("distro")["suites"])
    return [Suite(cache.apt, mirror) for mirror in mirrors if only in ("", mirror.suite)]


def _first(
    indexes: Sequence[Suite], package: str, version: str, digest: str | None, store: Store, *, bound: bool
) -> tuple[Package, Path]:
    """Download a package from the first suite that has it; return its row in the index and the tarball's path.

    If `version` is empty, any version matches. See `Suite.update` for `bound`.
    """
    listed: list[str] = []
    failures: dict[str, SourceError | UnreachableError] = {}
    silent: set[str] = set()  # the sites that did not answer
    for suite in indexes:
        if suite.mirror.site in silent:
            continue
        try:
            suite.update(bound=bound)
        except (SourceError, UnreachableError) as error:
            failures[suite.name] = error
            silent |= {suite.mirror.site} if isinstance(error, UnreachableError) else set()
            continue
        for entry in suite.versions([package]):
            listed.append(f"{entry.version} ({suite.name})")
            if version in ("", entry.version):
                _agree(entry, digest)
                return entry, suite.download(entry, store)
    wanted = f"{package}{'=' + version if version else ''}"
    answered = ", ".join(suite.name for suite in indexes if suite.name not in failures)
    known = f"its versions are {', '.join(listed)}" if listed else f"suites that were read: {answered or 'none'}"
    unread = [error for error in failures.values() if not isinstance(error, NoSuiteError)]
    if unread:
        what = f"no suite that could be read has {wanted}; {unread[0].what}"
        raise type(unread[0])(unread[0].id, what, why=f"{known}\n{unread[0].why}", fix=unread[0].fix)
    if failures and not answered:
        raise next(iter(failures.values()))
    raise SourceError(
        "package-not-found",
        f"the distribution has no source package {wanted}",
        why=known,
        fix="check the name of the source package, or give the archive as URL#sha256=DIGEST",
    )


def _notes(package: str, version: str, cache: Cache) -> Path:
    if not PACKAGE.fullmatch(package) or not VERSION.fullmatch(version):
        raise SourceError(
            "not-a-package", f"{package[:80]!r} is not the name of a package", fix="write distro:NAME=VERSION"
        )
    return cache.store / "distro" / f"{package}{'=' if version else ''}{version}.toml"


def note(package: Package, cache: Cache) -> None:
    """Record a package for later plans that name its version or no version."""
    keys = ("name", "version", "file", "sha256", "suites")
    text = "".join(f"{key} = {json.dumps(getattr(package, key))}\n" for key in keys)
    text += f"size = {package.size}\n" + ("brought = true\n" if package.brought else "")
    for version in (package.version, ""):
        write_atomically(_notes(package.name, version, cache), text.encode())


def _noted(package: str, version: str, cache: Cache, suite: str = "") -> Package | None:
    for at in dict.fromkeys((version, "")):
        try:
            row = typed(Package, tomllib.loads(_notes(package, at, cache).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
        if version == row.version or (not version and suite in ("", *row.suites)):
            return row
    return None


def _agree(package: Package, digest: str | None) -> None:
    if digest not in (None, f"sha256:{package.sha256}"):
        raise DigestError(
            "package-digest-mismatch",
            f"the Sources index names another digest for {package.name}={package.version}",
            why=f"expected {digest}, the index says sha256:{package.sha256}",
            fix="find out why the package changed without a new version before you trust either file",
        )
