"""Define the facts for an image's SBOM and provenance, parse lists of packages, and make package URLs (purls)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from toolchain.catalog.bases import load_bases
from toolchain.core.deb822 import stanzas
from toolchain.core.digest import EPOCH
from toolchain.core.record import Fate, Record, RecordedSource

# These are the names of distributions in package URLs that differ from the names of bases.
_NAMESPACE = {"ubi": "redhat", "rhel": "redhat", "manylinux": "almalinux"}


def distribution(base: str) -> tuple[str, str]:
    """Return the name and the release of a base's distribution, in the spelling of package URLs.

    For example, they are `debian` and `13` for the base `debian13`. The release is empty if the base's name has none.
    """
    match = re.match(r"([a-z]+)[-_]?([0-9][0-9_.]*)?", base)
    family, release = (match[1], match[2] or "") if match else (base, "")
    if family == "manylinux":  # the name has the release of glibc
        release = load_bases()[base].os_release["version_id"] if base in load_bases() else ""
    return _NAMESPACE.get(family, family), release


@dataclass(frozen=True, order=True)
class Package:
    """A package of a Linux distribution.

    Args:
        sha256: the SHA-256 of the package file in hex; empty if the list of packages does not contain it.
        source: the name and version of the source package, such as `glibc 2.41-12`; empty if they are unknown, or
            equal to those of the package.
        system: the distribution of the package (`debian11`); empty if it is the distribution of the base.
    """

    name: str
    version: str
    arch: str
    kind: Literal["deb", "rpm"] = "deb"
    sha256: str = ""
    source: str = ""
    system: str = ""

    def purl(self, base: str) -> str:
        """Return the package URL.

        Args:
            base: the name of the base (`debian13`); its distribution is used if `system` is empty.
        """
        family, release = distribution(self.system or base)
        distro = f"{family}-{release}" if release else family
        upstream = self.source.replace(" ", "@")
        more = {"arch": self.arch, "distro": distro, "upstream": upstream}
        return purl(self.kind, family, self.name, version=self.version, **more)


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """The facts from which the SBOM and the provenance of an image are made.

    Args:
        dependencies: the records of the stages on which the image was built, lowest first.
        packages: the packages of the base, and other packages whose code was compiled or copied into a stage.
        isolation: the result of the isolation probe on the machine that publishes, for a record without a result; None
            if it is unknown.
        finished: the Unix time at which the build ended, for a record without this time.
        system: the distribution in the base's os-release (`debian12`), for a base without a recipe; otherwise empty.
        compressors: the compressor of each published layer whose compressor is known (`gzip/zlib-1.2.13/9`), by the
            digest of the layer's blob.
    """

    record: Record
    dependencies: tuple[Record, ...] = ()
    packages: tuple[Package, ...] = ()
    isolation: Mapping[str, Any] | None = None
    finished: float = float(EPOCH)
    system: str = ""
    compressors: Mapping[str, str] = field(default_factory=dict)

    @property
    def base(self) -> Record | None:
        """The record of the base, which is the image's own record if the image is a base; None if there is no base."""
        return next(
            (dependency for dependency in (*self.dependencies, self.record) if dependency.stage == "base"), None
        )

    @property
    def base_name(self) -> str:
        """The name of the base (`debian13`) for package URLs; `linux` if it is unknown."""
        named = self.base.inputs.get("base") if self.base is not None else ""
        return str(named or self.system or "linux")

    def binaries(self) -> Iterator[tuple[str, Record]]:
        """Yield the name of each prebuilt input and the record of the lowest stage that used it.

        The names are those of `--allow-binary`.
        """
        seen: set[str] = set()
        for record in (*self.dependencies, self.record):
            for name in sorted(_names_let_in(record) - seen):
                seen.add(name)
                yield name, record

    def prebuilt_files(self) -> Iterator[tuple[Mapping[str, Any], Record]]:
        """Yield the entry of each prebuilt file that was found in a source and allowed, and the record of its stage."""
        for record in (*self.dependencies, self.record):
            for row in _found(record):
                yield row, record


def _found(record: Record) -> list[Mapping[str, Any]]:
    return [row for row in record.rows("found_binaries") if row.get("fate") == Fate.ALLOWED]


def _names_let_in(record: Record) -> set[str]:
    # A prebuilt file may also have been allowed by its path.
    choices = record.inputs.get("binaries")
    allowed = set(choices.get("allow") or ()) if isinstance(choices, dict) else set()
    files = {str(row["path"]).partition("!")[0] for row in _found(record)}
    return {*record.binaries, *(files & allowed)}


@dataclass(frozen=True)
class Origin:
    """The public identity of a source.

    Args:
        version: the commit, the version, or the first digits of the digest.
        location: the download location in SPDX's form: a repository or URL, or else NOASSERTION.
        sha256: the SHA-256 of the source's archive or package in hex; empty if it is unknown, or if the source is a
            commit or a tree.
        commit: the commit, as 40 hex digits; empty if the source is not from git.
    """

    purl: str
    version: str
    location: str
    sha256: str = ""
    commit: str = ""


def origin(row: RecordedSource) -> Origin:
    name, ref, repository, digest = row.name, row.ref, row.repository, row.digest or ""
    plain = digest.removeprefix("sha256:") if digest.startswith("sha256:") else ""
    match row.kind:
        case "git":
            return _git(name, ref, repository)
        case "distro":
            package, _, version = ref.removeprefix("distro:").partition("=")
            return Origin(purl("generic", package, version=version, checksum=digest), version, "NOASSERTION", plain)
        case "pypi":
            project, _, version = ref.removeprefix("pypi:").partition("==")
            project = re.sub(r"[-_.]+", "-", project).lower()
            return Origin(purl("pypi", project, version=version, checksum=digest), version, "NOASSERTION", plain)
        case "archive":
            url = repository
            url_name = purl("generic", name, version=plain[:12], checksum=digest, download_url=url)
            return Origin(url_name, plain[:12], url, plain)
        case _:
            # `sha256` stays empty, because SPDX has only checksums of files, and this is the digest of a tree.
            return Origin(purl("generic", name, version=plain[:12]), plain[:12], "NOASSERTION")


def _git(name: str, commit: str, repository: str) -> Origin:
    scheme = urlsplit(repository).scheme
    where = f"git+{repository}@{commit}" if scheme in {"https", "http", "ssh"} else "NOASSERTION"
    if match := re.fullmatch(r"https://github\.com/([^/]+)/([^/]+?)(?:\.git)?/?", repository):
        return Origin(purl("github", match[1].lower(), match[2].lower(), version=commit), commit, where, commit=commit)
    extra = {"vcs_url": where} if where != "NOASSERTION" else {}
    return Origin(purl("generic", name, version=commit, **extra), commit, where, commit=commit)


def is_tool(row: RecordedSource) -> bool:
    """Return whether a source is a wheel that the build only imports, so that the image does not contain it."""
    return row.name.startswith("wheel-")


def binary_row(name: str, record: Record) -> RecordedSource | None:
    """Return the recorded source of a prebuilt input; None if the input is not a wheel from a package index.

    The prebuilt input `triton-wheel`, for example, belongs to the source `triton`.
    """
    return next((row for row in record.sources if f"{row.name}-wheel" == name and row.kind == "pypi"), None)


def purl(kind: str, *path: str, version: str, **qualifiers: str) -> str:
    """Return a package URL, whose qualifiers are sorted by name; empty qualifiers are omitted.

    Args:
        kind: the type of the package, such as `deb`.
        path: the namespace and the name of the package.
    """
    name = "/".join(quote(part, safe=".-_~") for part in path)
    rest = "&".join(f"{key}={quote(text, safe='/:.-_~')}" for key, text in sorted(qualifiers.items()) if text)
    return f"pkg:{kind}/{name}" + (f"@{quote(version, safe=':.-_~')}" if version else "") + (f"?{rest}" if rest else "")


def parse_dpkg_status(text: str) -> tuple[Package, ...]:
    """Return the installed packages in the text of a dpkg status file, sorted."""
    packages = []
    for fields in stanzas(text):
        if fields.get("status", "").endswith(" installed") and fields.keys() >= {"package", "version", "architecture"}:
            name, version = fields["package"], fields["version"]
            source = _source(name, version, fields.get("source", ""))
            packages.append(Package(name, version, fields["architecture"], source=source))
    return tuple(sorted(packages))


def _source(name: str, version: str, field: str) -> str:
    """Return `NAME VERSION` of a package's source package; an empty string if both are equal to the package's own."""
    source, _, source_version = field.strip().partition(" ")
    pair = (source or name, source_version.strip("()") or version)
    return "" if pair == (name, version) else " ".join(pair)


def with_sources(packages: Sequence[Package], known: Sequence[Package]) -> tuple[Package, ...]:
    """Return the packages; a missing source package is taken from the known package of the same name and version."""
    sources = {(package.name, package.version): package.source for package in known}
    return tuple(
        replace(package, source=package.source or sources.get((package.name, package.version), ""))
        for package in packages
    )


def parse_os_release(text: str) -> str:
    """Return the name and release of a distribution, such as `debian12`, from the text of its os-release file.

    An empty string is returned if the text has no `ID`.
    """
    fields = dict(re.findall(r"^(ID|VERSION_ID)=[\"']?([^\"'\n]*)", text, re.MULTILINE))
    return fields.get("ID", "") + fields.get("VERSION_ID", "") if fields.get("ID") else ""


def parse_lock(packages: Sequence[Any]) -> tuple[Package, ...]:
    """Return the packages in the list of a lock, sorted.

    The entry of a deb package is an object. The entry of an rpm package is a string of the form
    `NAME:ARCH=EPOCH:VERSION,SHA256HEADER`, whose digest is not that of the package file and is therefore not used.
    A string of another form is skipped.
    """
    parsed = []
    for row in packages:
        if isinstance(row, dict):
            parsed.append(
                Package(row["name"], row.get("version", ""), row.get("architecture", ""), "deb", row.get("sha256", ""))
            )
        elif matched := re.match(r"([^:=]+):([^=]+)=([^,]+)", str(row)):
            version = matched[3].removeprefix("0:")
            parsed.append(Package(matched[1], version, matched[2], "rpm"))
    return tuple(sorted(parsed))
