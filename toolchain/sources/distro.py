"""Source packages of the distribution, through the machine's own apt: its mirrors, its keys, its signed indexes."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache as memoize
from functools import cmp_to_key
from pathlib import Path

from toolchain import process
from toolchain.cache import Cache
from toolchain.data import load
from toolchain.deb822 import stanzas
from toolchain.digest import write_atomically
from toolchain.errors import DigestError, SourceError, ToolchainError, UnreachableError
from toolchain.locks import held
from toolchain.process import CommandError
from toolchain.sources.archive import fetch_archive
from toolchain.sources.elsewhere import Wanted, first_or_elsewhere
from toolchain.sources.mirrors import Mirror, apt_mirrors, groups
from toolchain.sources.network import network_environment, refuse_offline
from toolchain.sources.spec import PACKAGE
from toolchain.sources.store import Store
from toolchain.sources.tree import Source

_HELPER = Path("/usr/lib/apt/apt-helper")
_ORIG = re.compile(r"_(?P<version>[^_/]+)\.orig\.tar\.(?:xz|gz|bz2|zst)")


@dataclass(frozen=True, kw_only=True)
class Package:
    """A source package's upstream tarball, as the data or the signed Sources index names it.

    Where a bundle named it (`brought`) it counts until the index can be asked.
    """

    name: str
    version: str
    file: str
    sha256: str
    size: int
    license: str = ""
    suites: tuple[str, ...] = ()
    mirrors: tuple[str, ...] = ()
    package_version: str = ""
    brought: bool = False


@memoize
def known_packages() -> tuple[Package, ...]:
    """The rows of data/distro.toml; the first of a name is its default version."""
    lists = ("suites", "mirrors")
    rows = load("distro")["package"]
    return tuple(Package(**{**row, **{name: tuple(row.get(name, ())) for name in lists}}) for row in rows)


def _row(name: str, version: str) -> Package | None:
    rows = [row for row in known_packages() if row.name == name and version in ("", row.version)]
    return rows[0] if rows else None


def known_package(package: str, version: str, cache: Cache) -> Package | None:
    """What the data, else what an earlier fetch noted, says of a package; None when only the index can tell."""
    return _row(package, version) or _noted(package, version, cache)


def known_distro(name: str, package: str, version: str, *, cache: Cache) -> Source:
    """A source package as far as it is known without a network: by the data, else by what an earlier fetch noted.

    Args:
        name: the source's name.
        version: upstream version; empty for the data's default, else the newest.
    """
    row = known_package(package, version, cache)
    return Source(
        name=name,
        kind="distro",
        where=package,
        version=row.version if row is not None else version,
        digest=f"sha256:{row.sha256}" if row is not None else None,
        path=None,
        locked=_row(package, version) is not None,
        license=row.license if row is not None else "",
    )


def fetch_distro(source: Source, store: Store, *, cache: Cache, offline: bool) -> tuple[Source, Path]:
    """The upstream tarball of a source package, in the store: by apt, else from the data's second address.

    Returns:
        The source, with its version and digest where the index told them, and the file.

    Raises:
        DigestError: the index or the file does not agree with the digest that is known.
        SourceError: no such package or version, and no second address that has the file.
        UnreachableError: who was asked does not answer, or `offline` and not in the store.
    """
    package, version = source.where, source.version
    known = known_package(package, version, cache)
    unproved = known is not None and known.brought and not offline
    if source.digest is not None and not unproved and (there := store.file(source.digest, verify=True)) is not None:
        return source, there
    row = _row(package, version)
    if row is None:
        found, path = _by_apt(package, version, source, cache, offline=offline)
        return replace(source, version=found.version, digest=f"sha256:{found.sha256}"), path
    wanted = Wanted(
        source=source.name, file=row.file, sha256=row.sha256, size=row.size, first="apt", mirrors=row.mirrors
    )
    path = first_or_elsewhere(
        lambda: _by_apt(package, row.version, source, cache, offline=offline)[1], wanted, store, offline=offline
    )
    return replace(source, version=row.version, digest=f"sha256:{row.sha256}"), path


def _by_apt(package: str, version: str, source: Source, cache: Cache, *, offline: bool) -> tuple[Package, Path]:
    """What the signed index names, and its file."""
    refuse_offline(source.ref, offline=offline)
    row = _row(package, version)
    suites = row.suites if row is not None else ("security", "main", "sid")
    with held(cache.locks / "apt.lock", what="reading the distribution's source index"):
        apt = _Apt(cache.root / "apt")
        found, path = apt.fetch(package, version, source.digest, suites, Store(cache.store))
    note(found, cache)
    return found, path


def _notes(package: str, cache: Cache) -> Path:
    if not PACKAGE.fullmatch(package):
        raise SourceError(f"not a package: {package[:80]!r}", fix="write distro:NAME=VERSION")
    return cache.store / "distro" / f"{package}.toml"


def note(found: Package, cache: Cache) -> None:
    """Remember what the index said, for plans without a network."""
    text = "".join(f"{key} = {json.dumps(getattr(found, key))}\n" for key in ("name", "version", "file", "sha256"))
    text += f"size = {found.size}\n" + ("brought = true\n" if found.brought else "")
    write_atomically(_notes(found.name, cache), text.encode())


def _noted(package: str, version: str, cache: Cache) -> Package | None:
    try:
        row = Package(**tomllib.loads(_notes(package, cache).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return row if version in ("", row.version) else None


class _Apt:
    """apt with source indexes of its own, apart from the system's; the system's mirrors, keys and proxies serve it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.options = [
            *("-o", f"Dir::Etc::sourceparts={root / 'sources'}"),
            *("-o", "Dir::Etc::sourcelist=/dev/null"),
            *("-o", f"Dir::State::lists={root / 'lists'}"),
            *("-o", f"Dir::Cache={root / 'cache'}"),
            *("-o", "Dir::Cache::archives=archives"),
            *("-o", "APT::Get::List-Cleanup=true"),
            *("-o", "Acquire::Languages=none"),
            *("-o", "Acquire::Retries=3"),
            # An index that did not arrive is an error, not a warning.
            *("-o", "APT::Update::Error-Mode=any"),
            # The cache may lie where apt's own user cannot go.
            *("-o", "APT::Sandbox::User=root"),
            *("-o", "APT::Update::Post-Invoke-Success="),
        ]

    def fetch(
        self, package: str, version: str, digest: str | None, extra_suites: Sequence[str], store: Store
    ) -> tuple[Package, Path]:
        """The tarball, from the first suite that has it: an index may name what its pool lost."""
        seen: list[str] = []
        failed: ToolchainError | None = None
        for group in groups(apt_mirrors(), extra_suites):
            try:
                self._update(group)
                for found in self._versions(package):
                    if found.version not in seen:
                        seen.append(found.version)
                    if version in ("", found.version):
                        _agree(found, digest)
                        return found, self._download(self._uri(found), found, store)
            except (SourceError, UnreachableError) as error:
                failed = error
        if failed is not None:
            raise failed
        raise SourceError(
            f"the distribution has no source package {package}{'=' + version if version else ''}",
            why=f"its versions are {', '.join(seen)}" if seen else "no suite that apt knows here names it",
            fix="name another version, or give the archive itself as URL#sha256=DIGEST",
        )

    def _update(self, mirrors: Sequence[Mirror]) -> None:
        folder = self.root / "sources"
        shutil.rmtree(folder, ignore_errors=True)
        for path in (folder, self.root / "lists" / "partial", self.root / "cache" / "archives" / "partial"):
            path.mkdir(parents=True, exist_ok=True)
        entries = [
            f"Types: deb-src\nURIs: {mirror.site}\nSuites: {mirror.suite}\nComponents: {' '.join(mirror.components)}\n"
            + (f"Signed-By: {mirror.keyring}\n" if mirror.keyring else "")
            for mirror in mirrors
        ]
        write_atomically(folder / "mirrors.sources", "\n".join(entries).encode())
        try:
            self._run("apt-get", "-q", "update")
        except CommandError as error:
            raise UnreachableError(
                "the distribution's source index cannot be read",
                why=_worst(error),
                fix="check that apt-get update works here",
            ) from error

    def _versions(self, package: str) -> list[Package]:
        """Every version the indexes name, newest first."""
        try:
            text = self._run("apt-cache", "showsrc", "--only-source", package)
        except CommandError:
            return []  # apt-cache fails for a name it does not know
        found: dict[str, Package] = {}
        for stanza in stanzas(text):
            package_version = stanza.get("version", "")
            for line in stanza.get("checksums-sha256", "").splitlines():
                words = line.split()
                if len(words) == 3 and (match := _ORIG.search(words[2])) and stanza.get("package") == package:
                    found[package_version] = Package(
                        name=package,
                        version=match["version"],
                        file=words[2],
                        sha256=words[0],
                        size=int(words[1]),
                        package_version=package_version,
                    )
        order = sorted(found, key=cmp_to_key(_compare), reverse=True)
        return [found[version] for version in order]

    def _uri(self, found: Package) -> str:
        """Where the tarball lies, as apt itself would fetch it."""
        spec = f"{found.name}={found.package_version}"
        for line in self._run("apt-get", "source", "--print-uris", "--only-source", spec).splitlines():
            match = re.match(r"'([^']+)' (\S+) ", line)
            if match and match[2] == found.file:
                return match[1]
        raise SourceError(
            f"apt names no address for {found.file}", fix="apt-get update, then run it again; or give URL#sha256=DIGEST"
        )

    def _download(self, uri: str, found: Package, store: Store) -> Path:
        """The tarball in the store."""
        digest = f"sha256:{found.sha256}"
        if not os.access(_HELPER, os.X_OK):
            return fetch_archive(uri, digest, store, offline=False, name=found.file)
        partial = store.partial / f"apt-{found.sha256}"
        partial.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._run(os.fspath(_HELPER), "download-file", uri, os.fspath(partial), f"SHA256:{found.sha256}")
        except CommandError as error:
            partial.unlink(missing_ok=True)
            raise self._download_error(found, error) from error
        return store.add_file(partial, digest, name=found.file)

    def _download_error(self, found: Package, error: CommandError) -> ToolchainError:
        told = _worst(error)
        if "Hash Sum mismatch" in told or "mismatch" in told.lower():
            return DigestError(
                f"{found.file} has the wrong digest", why=told, fix="the mirror is out of step; try again later"
            )
        if "404" in told:
            return SourceError(
                f"the mirror names {found.file} but does not have it",
                why=told,
                fix="try again later, or give URL#sha256=DIGEST",
            )
        return UnreachableError(
            f"{found.file} could not be fetched", why=told, fix="check that apt-get update works here"
        )

    def _run(self, program: str, *words: str) -> str:
        return process.run(
            [program, *self.options, *words],
            capture=True,
            env={**network_environment(), "DEBIAN_FRONTEND": "noninteractive"},
            helpers=True,
        ).stdout


def _agree(found: Package, digest: str | None) -> None:
    """Refuse an index that names another digest than the one that is known."""
    if digest not in (None, f"sha256:{found.sha256}"):
        raise DigestError(
            f"the Sources index disagrees about {found.name}={found.version}",
            why=f"expected {digest}, the index says sha256:{found.sha256}",
            fix="the package changed under one version: check which is right before you trust either",
        )


def _worst(error: CommandError) -> str:
    """apt's own errors out of its output."""
    lines = [line for line in error.tail if line.startswith(("E:", "W:"))] or list(error.tail)
    # Which mirror this machine uses is nobody's business where messages are kept.
    return re.sub(r"\b[a-z+]+://[^/\s]+", "<mirror>", "\n".join(lines[-6:]))


def _compare(one: str, other: str) -> int:
    """Debian's order of package versions, by the program that defines it."""
    if one == other:
        return 0
    newer = process.run(["dpkg", "--compare-versions", one, "gt", other], check=False).returncode == 0
    return 1 if newer else -1
