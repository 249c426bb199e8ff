"""Files of the Python index by name and SHA-256, through the configured pip."""

from __future__ import annotations

import contextlib
import html
import re
import tempfile
from dataclasses import dataclass
from functools import cache as memoize
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

from toolchain.core.errors import DigestError, SourceError, UnreachableError
from toolchain.core.locks import held
from toolchain.core.process import CommandError
from toolchain.data import load
from toolchain.sources.archive import fetch_archive
from toolchain.sources.network import check_http_url, refuse_offline, session
from toolchain.sources.pip import DOWNLOAD, index_url, pip, pip_error
from toolchain.sources.spec import check_sha256
from toolchain.sources.store import Store
from toolchain.sources.tree import Source

_WHEEL = re.compile(r"-(?P<python>[a-z]{2}\d+(\.[a-z]{2}\d+)*)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl$")
# A wheel for any Python 3 may need a minimum, and pip reads a bare 3 as 3.0.
_ANY_PYTHON = "3.13"
# Tried in this order; and minor versions of glibc that wheels are built for.
_PYTHONS = ("3.13", "3.12", "3.11", "3.10")
_GLIBCS = (17, 24, 26, 27, 28, 31, 34, 35)


@dataclass(frozen=True, kw_only=True)
class PypiFile:
    """A file of a release, as data/pypi.toml names it."""

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
    """Return the file for a project and version (empty: the default); refuse versions that the data does not have."""
    wanted = _normal(project)
    rows = [row for row in known_files() if _normal(row.project) == wanted]
    for row in rows:
        if version in ("", row.version):
            return row
    known = ", ".join(f"{row.project}=={row.version}" for row in rows or known_files())
    raise SourceError(
        "wheel-digest-unknown",
        f"no digest is known for {project}{'==' + version if version else ''}",
        why=f"known: {known}",
        fix="use one of these, or give the file as PATH or URL#sha256=DIGEST",
    )


def python_of_wheel(file: str) -> tuple[str, bool]:
    """Return the CPython in a wheel's name, and whether later ones accept it too.

    Returns:
        `("3.13", False)` for a wheel with that CPython's own ABI, `("3.12", True)` for one with the stable ABI since
            3.12, or without machine code.
    """
    match = _wheel_name(file)
    first = match["python"].rpartition(".")[2]
    return f"{first[2]}.{first[3:] or 0}", match["abi"] in {"abi3", "none"}


def _wheel_name(file: str) -> re.Match[str]:
    match = _WHEEL.search(file)
    if match is None:
        raise SourceError(
            "not-a-wheel-name",
            f"{file} is not named as a wheel",
            fix="give the file by its whole name: NAME-VERSION-…-PLATFORM.whl",
        )
    return match


def known_pypi(name: str, project: str, version: str) -> Source:
    """Return a file of the index as a source; needs no network."""
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
    """Return a wheel or sdist in the store.

    Wheels are fetched by `pip download`. For an sdist only the index page is read, because pip would run the sdist's
    code.

    Args:
        sha256: with or without `sha256:` in front.
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


def download_wheel(name: str, version: str, folder: Path, *, machine: str) -> Path:
    """Download a wheel without a known digest into a folder, for the newest CPython that this release supports.

    Args:
        machine: the kernel's name, such as `x86_64`.
    """
    what = f"wheel of {name} {version} for {machine}"
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBCS] + [f"manylinux2014_{machine}"]
    for python in _PYTHONS:
        try:
            pip(
                *DOWNLOAD, "--implementation=cp", f"--python-version={python}",
                *(f"--platform={platform}" for platform in platforms), f"--dest={folder}", f"{name}=={version}",
            )  # fmt: skip
            break
        except CommandError as error:
            problem = pip_error(what, error)
            if not isinstance(problem, SourceError) or python == _PYTHONS[-1] or "has no pip" in problem.what:
                raise problem from error
    came = sorted(folder.glob("*.whl"))
    if len(came) != 1:
        raise SourceError(
            "not-in-index",
            f"the index has no {what}",
            why=f"pip brought {len(came)} files",
            fix="give a version that it has, or the wheel as a file",
        )
    return came[0]


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
                f"the index gave another file than {filename}",
                why=f"it gave {came or 'nothing'}",
                fix="check `pip config list`: the index that serves this machine is at fault",
            )
        return store.add_file(path, digest, name=filename)


def _address(project: str, filename: str) -> str:
    """Return the URL of a file in the index."""
    page_url = f"{index_url()}/{_normal(project)}/"
    check_http_url(page_url)
    try:
        with session() as web, web.get(page_url, timeout=60, headers={"Accept": "text/html"}) as answer:
            status, page, base = answer.status_code, answer.text, answer.url
    except OSError as error:
        raise UnreachableError(
            "index-unreachable",
            "the Python index does not answer",
            why=type(error).__name__,
            fix="check the network and `pip config list`",
        ) from error
    if status >= 500:
        raise UnreachableError(
            "index-unreachable", "the Python index fails", why=f"it answered {status}", fix="try again later"
        )
    for link in re.findall(r"""<a\s[^>]*href=["']([^"']+)["']""", page, re.IGNORECASE):
        with contextlib.suppress(ValueError):  # an invalid URL
            address, _ = urldefrag(urljoin(base, html.unescape(link)))
            if unquote(address.rpartition("/")[2]) == filename:
                return address
    raise SourceError(
        "not-in-index",
        f"the index has no {filename}",
        why=f"its page of {project} answered {status}",
        fix="check `pip config list`",
    )


def _normal(project: str) -> str:
    return re.sub(r"[-_.]+", "-", project).lower()
