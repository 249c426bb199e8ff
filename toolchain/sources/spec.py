"""Parse and format the specifications of sources that `--source NAME=SPEC` and locks contain."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, assert_never

from toolchain.core.errors import DigestError, SourceError
from toolchain.sources.commit_archives import archive_of, commit_archives
from toolchain.sources.network import check_address, check_http_url, git_protocol, refuse_credentials, without_query

Kind = Literal["git", "archive", "distro", "local", "pypi"]

FORMS = (
    "PATH, URL@COMMIT, URL#sha256=DIGEST, archive:COMMIT, distro:PACKAGE[=VERSION][@SUITE] or pypi:PROJECT[==VERSION]"
)
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.\-]+")
PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]*")
VERSION = re.compile(r"[A-Za-z0-9.+~!_\-]*")
_SUITE = re.compile(r"[a-z][a-z0-9-]{1,40}")
_BARE_VERSION = re.compile(r"\d+(\.\w+)+")
_STORED = re.compile(r"stored:([^/\x00-\x1f\x7f]+)@(sha256:[0-9a-f]{64})")  # a tree or file from a bundle


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """A parsed specification of a source.

    Args:
        kind: the kind of origin; `stored` is a tree or file that the store got from a bundle.
        where: the path, URL, package or project; for `stored`, the name of the user's folder or file.
        version: the commit, `sha256:<hex>` or upstream version; empty for the default version, for a path, and for a
            tag whose commit is unknown.
        tag: the tag of the commit; empty if no tag is known.
        suite: the only suite in which the package is looked up; empty for all suites. It is ignored in comparisons.
        text: the string from which the specification was parsed. It is ignored in comparisons.
    """

    kind: Kind | Literal["stored"]
    where: str
    version: str = ""
    tag: str = ""
    suite: str = field(default="", compare=False)
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        if self.text:
            return self.text
        match self.kind:
            case "git":
                return f"{self.where}@{self.version or self.tag}"
            case "stored":
                return f"stored:{self.where}@{self.version}"
            case "local":
                return self.where
            case _:
                return ref_of(self.kind, self.where, self.version)

    @property
    def wheel(self) -> bool:
        """Return whether the source is a file from the package index or a local wheel."""
        return self.kind == "pypi" or (self.kind == "local" and self.where.endswith(".whl"))

    @property
    def path(self) -> Path | None:
        """Return the path of a local source; None for other kinds."""
        return users_path(self.where) if self.kind == "local" else None


def users_path(text: str) -> Path:
    """Return a path, which need not exist, with `~` expanded.

    SourceError is raised if `~` cannot be expanded, or if the path cannot be looked up.
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except RuntimeError as error:
        fix = "write the path of the folder, or ./~NAME if its name begins with ~"
        why = "no user of that name has a home folder"
        raise SourceError("source-missing", f"{text} does not exist", why=why, fix=fix) from error
    except OSError as error:
        why = error.strerror or ""
        raise SourceError(
            "source-unreadable", f"{text} cannot be read", why=why, fix="check the path and its permissions"
        ) from error
    return path


def ref_of(kind: Kind, where: str, version: str) -> str:
    """Return the string that identifies a source in records, locks and messages, such as `pypi:PROJECT==VERSION`.

    For a git source, it is only the commit.
    """
    match kind:
        case "git":
            return version
        case "archive":
            return f"{where}#{version.replace(':', '=')}"
        case "distro":
            return f"distro:{where}" + (f"={version}" if version else "")
        case "pypi":
            return f"pypi:{where}" + (f"=={version}" if version else "")
        case "local":
            return f"local:{where}"
        case _:
            assert_never(kind)


def of_github(repository: str, commit: str) -> SourceSpec:
    """Return the specification of a commit in the GitHub repository OWNER/NAME."""
    return SourceSpec(kind="git", where=f"https://github.com/{repository}", version=commit)


def of_folder(path: Path) -> SourceSpec:
    """Return the specification of a local folder or file."""
    return SourceSpec(kind="local", where=str(path))


def parse_source_spec(text: str, *, project: str = "") -> SourceSpec:
    """Parse a specification in one of `FORMS`.

    `stored:NAME@DIGEST` is also accepted, for a folder or file NAME that came into the store from a bundle. Text
    without a prefix or a URL scheme is a path, which need not exist. SourceError or DigestError is raised for invalid
    text.

    Args:
        project: the project in the package index that `pypi:VERSION` belongs to; empty if a project must be named.
    """
    if not text or "\0" in text or "\n" in text:
        raise SourceError("not-a-source", "a source cannot be empty or contain a newline", fix=f"give {FORMS}")
    if text.startswith("distro:"):
        named, sign, suite = text.partition("@")
        if sign and not _SUITE.fullmatch(suite):
            raise SourceError(
                "not-a-package",
                f"{text!r} is not a package",
                why=f"{suite!r} is not the name of a suite",
                fix="write distro:PACKAGE@trixie",
            )
        where, version = _pair(named, "distro:", "=", PACKAGE, "package")
        return SourceSpec(kind="distro", where=where, version=version, suite=suite, text=text)
    if text.startswith("pypi:"):
        where, version = _pair(text, "pypi:", "==", PROJECT, "project")
        if project and not version and _BARE_VERSION.fullmatch(where):
            where, version = project, where
        return SourceSpec(kind="pypi", where=where, version=version, text=text)
    if text.startswith("archive:"):
        return _commit_archive(text)
    if text.startswith("stored:"):
        if (match := _STORED.fullmatch(text)) is None:
            raise SourceError(
                "not-a-source", f"{text!r} is not a tree in the store", fix="write stored:NAME@sha256:DIGEST"
            )
        return SourceSpec(kind="stored", where=match[1], version=match[2], text=text)
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.\-]*://", text):
        return _parse_url(text)
    if re.match(r"[\w.\-]+@[\w.\-]+:", text):
        raise SourceError(
            "not-a-source",
            f"{text!r} is not a source",
            why="git's short form of an ssh URL has no scheme",
            fix="write ssh://git@HOST/PATH@COMMIT",
        )
    return SourceSpec(kind="local", where=text, text=text)


def _commit_archive(text: str) -> SourceSpec:
    row = archive_of(text.removeprefix("archive:").lower())
    if row is None:
        known = ", ".join(archive.commit for archive in commit_archives())
        raise SourceError(
            "archive-unknown",
            f"no archive is known for {text[:120]!r}",
            why=f"archives are known for the commits {known}",
            fix="give the archive as URL#sha256=DIGEST, or fetch the commit by git as URL@COMMIT",
        )
    return SourceSpec(kind="archive", where=row.url, version=row.digest, text=text)


def _pair(text: str, prefix: str, separator: str, pattern: re.Pattern[str], what: str) -> tuple[str, str]:
    """Split a specification into the name of a package or project and its version; the version may be empty."""
    where, sign, version = text.removeprefix(prefix).partition(separator)
    if not where:
        why = f"the name of the {what} is missing"
    elif not pattern.fullmatch(where):
        why = f"{where!r} is not a valid name of a {what}"
    elif sign and not version:
        why = f"the version after {separator} is missing"
    elif not VERSION.fullmatch(version):
        why = f"{version!r} is not a valid version"
    else:
        return where, version
    fix = f"write {prefix}{what.upper()} or {prefix}{what.upper()}{separator}VERSION"
    raise SourceError("not-a-source", f"{text!r} is not a {what}", why=why, fix=fix)


def _parse_url(text: str) -> SourceSpec:
    refuse_credentials(text)
    url, mark, digest = text.rpartition("#sha256=")
    if mark:
        return SourceSpec(kind="archive", where=check_http_url(url), version=check_sha256(digest), text=text)
    url, _, sha = text.rpartition("@")
    if url and re.fullmatch(r"[0-9a-fA-F]{40}", sha):
        url = check_address(url)
        git_protocol(url)
        return SourceSpec(kind="git", where=url, version=sha.lower(), text=text)
    if url and re.fullmatch(r"(sha256:)?[0-9a-fA-F]{64}", sha):
        return SourceSpec(kind="archive", where=check_http_url(url), version=check_sha256(sha), text=text)
    check_address(url or text)
    raise SourceError(
        "source-not-pinned",
        f"{without_query(text)} names neither a commit nor a digest",
        why="the content of a URL, branch or tag can change",
        fix="append @COMMIT with 40 hexadecimal digits, or #sha256=DIGEST for an archive",
    )


def check_sha256(text: str) -> str:
    """Return a SHA-256, given with or without its prefix, as `sha256:<64 hex>`; raise DigestError if it is invalid."""
    value = text.strip().lower().removeprefix("sha256:")
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise DigestError(
            "digest-malformed",
            f"{text[:100]!r} is not a SHA-256",
            why="expected 64 hexadecimal digits",
            fix="give all 64 digits",
        )
    return f"sha256:{value}"
