"""Read the source index of a distribution's suite, and download packages, with the machine's apt."""

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
from toolchain.sources.patch import copy_tree
from toolchain.sources.store import Store

_HELPER = Path("/usr/lib/apt/apt-helper")
_ORIG = re.compile(r"_(?P<version>[^_/]+)\.orig\.tar\.(?:xz|gz|bz2|zst)$")
# This pattern matches apt's messages for a suite or file that the mirror does not have.
_GONE = re.compile(r"does not have a Release file|404 +Not Found|File not found|Failed to stat")
# The machine's apt.conf may list programs that apt runs before and after an update. A command-line option cannot clear
# these lists, but a configuration file can.
_NO_HOOKS = b"".join(
    f"#clear APT::Update::{name};\n".encode() for name in ("Pre-Invoke", "Post-Invoke", "Post-Invoke-Success")
)
_HOST = re.compile(r"\b[a-z+]+://[^/\s]+|(?<=connect to )\S+( \([^)]*\))?|(?<=resolve ')[^']+")
_EXPIRED = re.compile(r"Release file for .* is expired|invalid since")


@dataclass(frozen=True, kw_only=True)
class Package:
    """The upstream tarball of a source package, or the file of a binary package that data/distro.toml names.

    Args:
        sha256: the digest of the file, as hexadecimal digits.
        package_version: the version of the package, with the Debian revision.
        brought: whether this description came from a bundle. It is replaced when the suite's index can be read.
        pool: the folder of a binary package's file on the mirror; empty for a source package.
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
    """An error for a suite that the mirror does not have."""


class Suite:
    """The source index of a suite, in a folder of its own, so that the lists of the machine's apt are not changed."""

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
            # Without this option, apt only prints a warning if it cannot fetch an index.
            *("-o", "APT::Update::Error-Mode=any"),
            # apt must not switch to the user `_apt`, who may have no access to the cache.
            *("-o", "APT::Sandbox::User=root"),
            *("-c", os.fspath(self.root / "no-hooks")),
        ]
        # apt reads the login from a file, because it prints the URLs of a source with their login, and other users can
        # read the URL in the arguments of apt-helper.
        self.auth = self.root / "auth.conf"
        self.options += ["-o", f"Dir::Etc::netrc={self.auth}"] if mirror.login else []

    @property
    def name(self) -> str:
        return self.mirror.suite

    def update(self, *, bound: bool) -> None:
        """Download the current index.

        NoSuiteError is raised if the mirror does not have the suite, SourceError if the index is expired and `bound` is
        False, and UnreachableError if the index cannot be read for another reason.

        Args:
            bound: whether the digest of the wanted package is known. If so, an expired index is accepted, because the
                caller refuses a package with a different digest.
        """
        folder = self._folders()
        write_atomically(folder / "mirrors.sources", self.mirror.stanza("deb-src", login=False).encode())
        lax = ("-o", "Acquire::Check-Valid-Until=false") if bound else ()
        try:
            self._run("apt-get", *lax, "-q", "update")
        except CommandError as error:
            raise self._update_error(error) from error

    def _folders(self) -> Path:
        """Create the folders that apt needs, and return the empty folder for its list of sources."""
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
                why=f"{output}\nan expired index may hide newer versions, and the digest of this package is not known",
                fix="use a mirror that is kept up to date, or give the archive as URL#sha256=DIGEST; "
                "if the mirror is a snapshot, set Acquire::Check-Valid-Until in apt's configuration",
            )
        if _GONE.search(output):
            return NoSuiteError(
                "suite-missing",
                f"the mirror does not have the suite {self.name}",
                why=output,
                fix="name another suite after the @",
            )
        return UnreachableError(
            "suite-unreachable",
            f"the source index of the suite {self.name} cannot be read",
            why=output,
            fix="check that `apt-get update` works on this machine",
        )

    def versions(self, names: Collection[str]) -> list[Package]:
        """Return the versions of the named packages whose upstream tarball the index lists, newest first."""
        try:
            text = self._run("apt-cache", "-q", "showsrc", "--only-source", *sorted(names))
        except CommandError:
            return []  # apt-cache fails if the index has none of the packages
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
        return sorted(packages.values(), key=cmp_to_key(_compare), reverse=True)

    def uri(self, package: Package) -> str:
        """Return the URL from which apt would download the file of a package."""
        if package.pool:
            return f"{self.mirror.site.rstrip('/')}/{package.pool}/{package.file}"
        spec = f"{package.name}={package.package_version}"
        for line in self._run("apt-get", "source", "--print-uris", "--only-source", spec).splitlines():
            match = re.match(r"'([^']+)' (\S+) ", line)
            if match and match[2] == package.file:
                return match[1]
        raise SourceError(
            "package-without-address",
            f"apt does not know the URL of {package.file}",
            fix="run `apt-get update` and try again, or give the file as URL#sha256=DIGEST",
        )

    def download(self, package: Package, store: Store) -> Path:
        """Return the path of a package's file in the store, after downloading the file if the store lacks it."""
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
        if partial.is_symlink():  # apt links to a file of a folder (`file:/DIR`) instead of copying it
            there = partial.resolve()
            partial.unlink()
            copy_tree(there, partial)
        return store.add_file(partial, digest, name=package.file)

    def _download_error(self, package: Package, error: CommandError) -> ToolchainError:
        output = _worst(error)
        if "mismatch" in output.lower():
            return DigestError(
                "package-digest-mismatch",
                f"{package.file} has the wrong digest",
                why=output,
                fix="try again later, because the mirror may be in the middle of an update",
            )
        if _GONE.search(output):
            return SourceError(
                "package-gone",
                f"the mirror no longer has {package.file}"
                if package.pool
                else f"the suite {self.name} lists {package.file}, but the mirror no longer has that file",
                why=output,
                fix="name another version or suite (see `toolchain pins --distro`), or give URL#sha256=DIGEST",
            )
        return UnreachableError(
            "package-unreachable",
            f"{package.file} could not be downloaded",
            why=output,
            fix="check that `apt-get update` works on this machine",
        )

    def _run(self, program: str, *words: str) -> str:
        self.root.mkdir(parents=True, exist_ok=True)
        write_atomically(self.root / "no-hooks", _NO_HOOKS)
        if self.mirror.login:
            write_atomically(self.auth, self.mirror.auth().encode(), mode=0o600)
        try:
            return process.run(
                [program, *self.options, *words],
                capture=True,
                env={**network_environment(), "DEBIAN_FRONTEND": "noninteractive"},
                helpers=True,
            ).stdout
        finally:
            self.auth.unlink(missing_ok=True)


def _compare(first: Package, second: Package) -> int:
    version, than = first.package_version, second.package_version
    if version == than:
        return 0
    newer = process.run(["dpkg", "--compare-versions", version, "gt", than], check=False).returncode == 0
    return 1 if newer else -1


def _worst(error: CommandError) -> str:
    """Return the last errors and warnings in apt's output, or its last lines if it has none, without host names."""
    lines = [line for line in error.tail if line.startswith(("E:", "W:", "Err:"))] or list(error.tail)
    # Messages may be published, so they must not name the machine's mirror.
    return _HOST.sub("<mirror>", re.sub(r" *\[IP: [^\]]*\]", "", "\n".join(lines[-6:])))
