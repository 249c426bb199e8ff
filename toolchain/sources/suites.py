"""Source indexes of a distribution's suites, read by the machine's own apt."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from functools import cmp_to_key
from pathlib import Path

from toolchain.core import process
from toolchain.core.amounts import watched
from toolchain.core.deb822 import stanzas
from toolchain.core.digest import write_atomically
from toolchain.core.environment import network_environment
from toolchain.core.errors import DigestError, SourceError, ToolchainError, UnreachableError
from toolchain.core.process import CommandError
from toolchain.sources.archive import fetch_archive
from toolchain.sources.mirrors import Mirror
from toolchain.sources.store import Store

_HELPER = Path("/usr/lib/apt/apt-helper")
_ORIG = re.compile(r"_(?P<version>[^_/]+)\.orig\.tar\.(?:xz|gz|bz2|zst)")
# apt's messages for a mirror without the suite or file.
_GONE = re.compile(r"does not have a Release file|404 +Not Found|File not found|Failed to stat")
# The machine's apt.conf may name programs to run around an update. A command-line option cannot empty that list.
_NO_HOOKS = b"".join(
    f"#clear APT::Update::{name};\n".encode() for name in ("Pre-Invoke", "Post-Invoke", "Post-Invoke-Success")
)
_HOST = re.compile(r"\b[a-z+]+://[^/\s]+|(?<=connect to )\S+( \([^)]*\))?|(?<=resolve ')[^']+")
_EXPIRED = re.compile(r"Release file for .* is expired|invalid since")


@dataclass(frozen=True, kw_only=True)
class Package:
    """A source package's upstream tarball, from the data or the signed Sources index.

    A row that a bundle `brought` is used until the index can be asked. With `pool`, a folder of the archive, it is a
    binary package's file that only the data names.
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
    pool: str = ""


class NoSuiteError(SourceError):
    """The mirror answers and does not have the suite."""


class Suite:
    """The source index of one suite, in a folder apart from the system's."""

    def __init__(self, root: Path, mirror: Mirror) -> None:
        self.mirror = mirror
        self.root = root / re.sub(r"[^a-z0-9-]", "-", mirror.suite.lower())
        self.options = [
            *("-o", f"Dir::Etc::sourceparts={self.root / 'sources'}"),
            *("-o", "Dir::Etc::sourcelist=/dev/null"),
            *("-o", f"Dir::State::lists={self.root / 'lists'}"),
            *("-o", f"Dir::Cache={self.root / 'cache'}"),
            *("-o", "Dir::Cache::archives=archives"),
            *("-o", "APT::Get::List-Cleanup=true"),
            *("-o", "Acquire::Languages=none"),
            *("-o", "Acquire::Retries=3"),
            # Without this option apt only warns about an index that it could not fetch.
            *("-o", "APT::Update::Error-Mode=any"),
            # apt's own user may have no access to the cache.
            *("-o", "APT::Sandbox::User=root"),
            *("-c", os.fspath(self.root / "no-hooks")),
        ]

    @property
    def name(self) -> str:
        """Return the usual name: `trixie`."""
        return self.mirror.suite

    def update(self, *, bound: bool) -> None:
        """Bring the index up to date.

        Args:
            bound: whether the digest of the package is known. Then an expired index is accepted, because only the
                address is needed.
        """
        folder = self._folders()
        mirror = self.mirror
        lines = ["Types: deb-src", f"URIs: {mirror.site}", f"Suites: {mirror.suite}"]
        lines += [f"Components: {' '.join(mirror.components)}"]
        lines += [f"Signed-By: {mirror.keyring}"] if mirror.keyring else []
        write_atomically(folder / "mirrors.sources", ("\n".join(lines) + "\n").encode())
        lax = ("-o", "Acquire::Check-Valid-Until=false") if bound else ()
        try:
            self._run("apt-get", *lax, "-q", "update")
        except CommandError as error:
            raise self._update_error(error) from error

    def _folders(self) -> Path:
        """Make the folders that apt needs, and return the empty one for its sources."""
        folder = self.root / "sources"
        shutil.rmtree(folder, ignore_errors=True)
        for path in (folder, self.root / "lists" / "partial", self.root / "cache" / "archives" / "partial"):
            path.mkdir(parents=True, exist_ok=True)
        return folder

    def _update_error(self, error: CommandError) -> ToolchainError:
        output = _worst(error)
        if _EXPIRED.search(output):
            return SourceError(
                "suite-outdated",
                f"the index of the suite {self.name} is out of date",
                why=f"{output}\nan old index hides newer versions, and no digest of this package is on record",
                fix="use a mirror that is kept up to date, or give the archive itself as URL#sha256=DIGEST; "
                "for a mirror that is frozen on purpose apt has Acquire::Check-Valid-Until",
            )
        if _GONE.search(output):
            return NoSuiteError(
                "suite-missing",
                f"the mirror does not have the suite {self.name}",
                why=output,
                fix="name another one after the @",
            )
        return UnreachableError(
            "suite-unreachable",
            f"the source index of the suite {self.name} cannot be read",
            why=output,
            fix="check that apt-get update works here",
        )

    def versions(self, names: Collection[str]) -> list[Package]:
        """Return every version of these packages in the index, newest first."""
        try:
            text = self._run("apt-cache", "-q", "showsrc", "--only-source", *sorted(names))
        except CommandError:
            return []  # apt-cache fails if it knows none of the names
        packages: dict[tuple[str, str], Package] = {}
        for stanza in stanzas(text):
            package_version = stanza.get("version", "")
            for line in stanza.get("checksums-sha256", "").splitlines():
                words = line.split()
                if len(words) == 3 and (match := _ORIG.search(words[2])) and stanza.get("package") in names:
                    packages[stanza["package"], package_version] = Package(
                        name=stanza["package"],
                        version=match["version"],
                        file=words[2],
                        sha256=words[0],
                        size=int(words[1]),
                        package_version=package_version,
                        suites=(self.name,),
                    )
        return _newest_first(packages.values())

    def uri(self, package: Package) -> str:
        """Return the URL from which apt itself would fetch the file."""
        if package.pool:
            return f"{self.mirror.site.rstrip('/')}/{package.pool}/{package.file}"
        spec = f"{package.name}={package.package_version}"
        for line in self._run("apt-get", "source", "--print-uris", "--only-source", spec).splitlines():
            match = re.match(r"'([^']+)' (\S+) ", line)
            if match and match[2] == package.file:
                return match[1]
        raise SourceError(
            "package-without-address",
            f"apt names no address for {package.file}",
            fix="apt-get update, then run it again; or give URL#sha256=DIGEST",
        )

    def download(self, package: Package, store: Store) -> Path:
        """Return the tarball in the store, downloaded if it is not there."""
        digest = f"sha256:{package.sha256}"
        if (there := store.file(digest, verify=True)) is not None:
            return there
        uri = self.uri(package)
        if package.pool:
            self._folders()
        if not os.access(_HELPER, os.X_OK):
            return fetch_archive(uri, digest, store, offline=False, name=package.file)
        partial = store.partial / f"apt-{package.sha256}"
        partial.parent.mkdir(parents=True, exist_ok=True)
        try:
            with watched(f"fetching {package.file}", partial, package.size):
                self._run(os.fspath(_HELPER), "download-file", uri, os.fspath(partial), f"SHA256:{package.sha256}")
        except CommandError as error:
            partial.unlink(missing_ok=True)
            raise self._download_error(package, error) from error
        return store.add_file(partial, digest, name=package.file)

    def _download_error(self, package: Package, error: CommandError) -> ToolchainError:
        output = _worst(error)
        if "mismatch" in output.lower():
            return DigestError(
                "package-digest-mismatch",
                f"{package.file} has the wrong digest",
                why=output,
                fix="the mirror is out of step; try again later",
            )
        if _GONE.search(output):
            return SourceError(
                "package-gone",
                f"the mirror no longer has {package.file}"
                if package.pool
                else f"the suite {self.name} names {package.file}, but the mirror no longer has that file",
                why=output,
                fix="name another version or suite (see `toolchain pins --distro`), or give URL#sha256=DIGEST",
            )
        return UnreachableError(
            "package-unreachable",
            f"{package.file} could not be fetched",
            why=output,
            fix="check that apt-get update works here",
        )

    def _run(self, program: str, *words: str) -> str:
        self.root.mkdir(parents=True, exist_ok=True)
        write_atomically(self.root / "no-hooks", _NO_HOOKS)
        return process.run(
            [program, *self.options, *words],
            capture=True,
            env={**network_environment(), "DEBIAN_FRONTEND": "noninteractive"},
            helpers=True,
        ).stdout


def _newest_first(packages: Collection[Package]) -> list[Package]:
    """Sort by Debian's order of package versions, which dpkg defines."""
    return sorted(packages, key=cmp_to_key(_compare), reverse=True)


def _compare(first: Package, second: Package) -> int:
    version, than = first.package_version, second.package_version
    if version == than:
        return 0
    newer = process.run(["dpkg", "--compare-versions", version, "gt", than], check=False).returncode == 0
    return 1 if newer else -1


def _worst(error: CommandError) -> str:
    """Return apt's own errors from its output."""
    lines = [line for line in error.tail if line.startswith(("E:", "W:", "Err:"))] or list(error.tail)
    # The machine's mirror must not appear in messages, which may be published.
    return _HOST.sub("<mirror>", re.sub(r" *\[IP: [^\]]*\]", "", "\n".join(lines[-6:])))
