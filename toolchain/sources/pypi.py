"""Fetch files from the package index that pip is configured to use; data/pypi.toml contains the known digests."""

from __future__ import annotations

import contextlib
import html
import re
import tempfile
from dataclasses import dataclass
from functools import cache as memoize
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from toolchain.core.errors import DigestError, SourceError, UnreachableError
from toolchain.core.locks import held
from toolchain.core.process import CommandError
from toolchain.core.web import whole_body
from toolchain.data import load
from toolchain.sources.archive import fetch_archive
from toolchain.sources.network import check_http_url, refuse_offline, session
from toolchain.sources.pip import DOWNLOAD, index_url, pip, pip_error
from toolchain.sources.spec import check_sha256
from toolchain.sources.store import Store
from toolchain.sources.tree import Source

_WHEEL = re.compile(r"-(?P<python>[a-z]{2}\d+(\.[a-z]{2}\d+)*)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl$")
# This version of Python is requested for a `py3` wheel, because pip would read 3 as 3.0, which is older than many
# wheels require.
_ANY_PYTHON = "3.13"
_LARGEST_PAGE = 32 << 20  # bytes; the list of a project with thousands of files has some megabytes


@dataclass(frozen=True, kw_only=True)
class PypiFile:
    """A row of data/pypi.toml, which describes a file of a release."""

    project: str
    version: str
    file: str
    sha256: str
    size: int
    license: str = ""
    mirrors: tuple[str, ...] = ()


@memoize
def known_files() -> tuple[PypiFile, ...]:
    """Return the rows of data/pypi.toml; the first row of a project is its default version."""
    return tuple(PypiFile(**{**row, "mirrors": tuple(row.get("mirrors", ()))}) for row in load("pypi")["file"])


def pypi_row(project: str, version: str) -> PypiFile:
    """Return the row for a project and version; raise SourceError if data/pypi.toml does not contain one.

    Args:
        version: the version; empty for the project's default version.
    """
    wanted = _normal(project)
    rows = [row for row in known_files() if _normal(row.project) == wanted]
    for row in rows:
        if version in ("", row.version):
            return row
    known = ", ".join(f"{row.project}=={row.version}" for row in rows or known_files())
    raise SourceError(
        "wheel-digest-unknown",
        f"no digest is known for {project}{'==' + version if version else ''}",
        why=f"digests are known for {known}",
        fix="use one of these versions, or give the file as PATH or URL#sha256=DIGEST",
    )


def python_of_wheel(file: str) -> tuple[str, bool]:
    """Return the CPython version in a wheel's name, and whether later versions can install the wheel too.

    SourceError is raised if `file` is not the name of a wheel.

    Returns:
        `("3.13", False)` for a wheel with the ABI of CPython 3.13; `("3.12", True)` for a wheel with the stable ABI of
            3.12; `("3.0", True)` for a wheel with the tags `py3-none`.
    """
    match = _wheel_name(file)
    first = match["python"].rpartition(".")[2]
    later = match["abi"] == "abi3" or (match["abi"] == "none" and first.startswith("py"))
    return f"{first[2]}.{first[3:] or 0}", later


def _wheel_name(file: str) -> re.Match[str]:
    match = _WHEEL.search(file)
    if match is None:
        raise SourceError(
            "not-a-wheel-name",
            f"{file} is not the name of a wheel",
            fix="give the full name of the file: NAME-VERSION-…-PLATFORM.whl",
        )
    return match


def known_pypi(name: str, project: str, version: str) -> Source:
    """Return a file in data/pypi.toml as a source, without using the network."""
    row = pypi_row(project, version)
    return Source(
        name=name,
        kind="pypi",
        where=row.project,
        version=row.version,
        digest=f"sha256:{row.sha256}",
        path=None,
        locked=True,
        license=row.license,
    )


def fetch_pypi(name: str, version: str, filename: str, sha256: str, store: Store, *, offline: bool) -> Path:
    """Return the path of a wheel or sdist in the store, after downloading it if the store lacks it.

    A wheel is downloaded by pip. An sdist is downloaded by its URL in the index, because pip would run the sdist's
    code.

    Args:
        sha256: the expected digest, with or without the prefix `sha256:`.
    """
    digest = check_sha256(sha256)
    if (there := store.file(digest, verify=True)) is not None:
        return there
    refuse_offline(filename, offline=offline)
    with held(store.root / "locks" / f"pypi-{digest.removeprefix('sha256:')}.lock", what=f"fetching {filename}"):
        if (there := store.file(digest, verify=True)) is not None:
            return there
        if filename.endswith(".whl"):
            return _wheel(name, version, filename, digest, store)
        return fetch_archive(_address(name, filename), digest, store, offline=offline, name=filename)


def _wheel(name: str, version: str, filename: str, digest: str, store: Store) -> Path:
    match = _wheel_name(filename)
    python = match["python"].rpartition(".")[2]
    store.partial.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pip-", dir=store.partial) as folder:
        # fmt: off
        argv = [
            *DOWNLOAD,
            f"--implementation={python[:2]}",
            f"--python-version={python[2:] if len(python) > 3 else _ANY_PYTHON}", f"--abi={match['abi']}",
            *(f"--platform={platform}" for platform in match["platform"].split(".")),
            f"--dest={folder}", f"{name}=={version}",
        ]
        # fmt: on
        try:
            pip(*argv)
        except CommandError as error:
            raise pip_error(filename, error) from error
        path = Path(folder) / filename
        if not path.is_file():
            came = ", ".join(sorted(p.name for p in Path(folder).iterdir()))
            raise DigestError(
                "index-file-mismatch",
                f"the index sent another file than {filename}",
                why=f"pip downloaded {came or 'nothing'}",
                fix="check which index `pip config list` names, and report the error to its operator",
            )
        return store.add_file(path, digest, name=filename)


def _address(project: str, filename: str) -> str:
    """Return the URL of a file in the index; if the index has an https URL, a link to http is refused."""
    page_url = f"{index_url()}/{_normal(project)}/"
    check_http_url(page_url)
    try:
        with session() as web, web.get(page_url, timeout=60, headers={"Accept": "text/html"}, stream=True) as answer:
            status, content, base = answer.status_code, whole_body(answer, _LARGEST_PAGE), answer.url
    except OSError as error:
        raise UnreachableError(
            "index-unreachable",
            "the package index does not answer",
            why=f"the page for {project} could not be read",
            fix="check the network and `pip config list`",
        ) from error
    if status >= 500:
        raise UnreachableError(
            "index-unreachable", "the package index failed", why=f"it answered {status}", fix="try again later"
        )
    if content is None:
        raise SourceError(
            "not-in-index",
            f"the index has no {filename}",
            why=f"its page for {project} has more than {_LARGEST_PAGE} bytes, and is not read",
            fix="check which index `pip config list` names",
        )
    # The page is split first, because the time of a search in the whole page can grow with the square of its size.
    for tag in re.split(r"<a(?=\s)", content.decode("utf-8", "replace"), flags=re.IGNORECASE)[1:]:
        if (link := re.match(r"""[^>]*href=["']([^"']+)["']""", tag, re.IGNORECASE)) is None:
            continue
        with contextlib.suppress(ValueError):  # skip invalid URLs
            address, _ = urldefrag(urljoin(base, html.unescape(link[1])))
            if unquote(address.rpartition("/")[2]) == filename:
                return check_http_url(address, plain_allowed=urlsplit(base).scheme == "http")
    raise SourceError(
        "not-in-index",
        f"the index has no {filename}",
        why=f"its page for {project} answered {status} and does not list the file",
        fix="check which index `pip config list` names",
    )


def _normal(project: str) -> str:
    return re.sub(r"[-_.]+", "-", project).lower()
