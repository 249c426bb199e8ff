"""Check a user's file or folder before it is used as a source."""

from __future__ import annotations

import re
from pathlib import Path

from toolchain.core.errors import SourceError
from toolchain.sources.spec import FORMS, SourceSpec
from toolchain.sources.tree import Source

TAR = re.compile(r"\.(tar(\.(gz|xz|bz2|zst))?|tgz|txz|tbz2|tzst)$")
_AR = b"!<arch>"
_ZIP = b"PK\x03\x04"
_SQLITE = b"SQLi"
_ZSTD = {b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"}  # pzstd writes the second one
_VERSION = re.compile(r"[vV]?[0-9]+(\.[0-9A-Za-z]+)+")
_COMMIT = re.compile(r"[0-9a-fA-F]{7,40}")


def check_local(name: str, spec: SourceSpec) -> None:
    """Raise SourceError if a local path does not exist or cannot be a source; other kinds of sources are accepted."""
    path = spec.path
    if path is None or path.is_dir():
        return
    given = f"--source {name}={spec.where}"
    if not path.exists():
        link = f"the link points to {path.readlink()}, which does not exist" if path.is_symlink() else ""
        why = link or f"{path.absolute()} does not exist"
        raise SourceError("not-a-source", f"{given} is not a source", why=why, fix=_meant(name, spec.where))
    if not path.is_file():
        fix = "name a folder, a tar archive or a wheel"
        raise SourceError("not-a-source", f"{given} is not a source", why="it is neither a file nor a folder", fix=fix)
    try:
        why = _not_a_source(path)
    except EOFError:
        why = "the file is truncated"
    except RecursionError:  # tarfile reads each extended header inside of the one before it
        why = "the file is damaged"
    except OSError as error:
        why = error.strerror or str(error)
        raise SourceError(
            "source-unreadable", f"{given} cannot be read", why=why, fix="check the path and its permissions"
        ) from error
    if why:
        fix = (
            "name a folder, a tar archive (.tar.gz, .tar.xz, .tar.bz2, .tar.zst, .tar), a wheel (.whl), "
            "a Debian package (.deb) or an SQLite database (.sqlite3)"
        )
        raise SourceError("not-a-source", f"{given} is not a source", why=why, fix=fix)


def check_tree_form(source: Source, what: str) -> None:
    """Raise SourceError for a source from the package index, and for a file whose name is not that of a tar archive."""
    file = source.path if source.path is not None and source.path.is_file() else None
    if source.kind == "pypi" or (file is not None and not TAR.search(file.name)):
        raise SourceError(
            "not-a-source-tree",
            f"{source.ref} is not a source tree of {what}",
            fix="give a folder, a tar archive or a commit",
        )


def _not_a_source(path: Path) -> str:
    """Return why a file cannot be a source, judged by its name and first bytes, or an empty string if it can."""
    with path.open("rb") as stream:
        head = stream.read(4)
    if path.name.endswith(".whl"):
        return "" if head == _ZIP else "it has the name of a wheel, but is not a ZIP archive"
    if path.name.endswith(".deb"):
        return "" if head == _AR[:4] else "it has the name of a Debian package, but is not one"
    if path.name.endswith(".sqlite3"):  # an empty file is refused later, when the database is read
        return "" if head in {b"", _SQLITE} else "it has the name of an SQLite database, but is not one"
    if not TAR.search(path.name):
        return "its name has the ending of no kind of source"
    if head in _ZSTD:
        return ""  # the content is not checked, because tarfile reads zstd only from Python 3.14 on
    import tarfile  # noqa: PLC0415

    return "" if tarfile.is_tarfile(path) else "it has the name of a tar archive, but is not one"


def _meant(name: str, text: str) -> str:
    """Return advice on what to write instead of a path that does not exist."""
    if _VERSION.fullmatch(text):
        return _version_of(name, text.lstrip("vV"))
    prefix, sign, rest = text.partition(":")
    if sign and prefix.lower() in {"distro", "pypi", "stored", "http", "https", "ssh", "file"}:
        slashes = "//" if prefix.lower() in {"http", "https", "ssh", "file"} else ""
        return f"write {prefix.lower()}:{slashes}{rest.lstrip('/')}"
    if _COMMIT.fullmatch(text):
        also = f"; for a commit in the release table: --triton {text}" if name == "triton" else ""
        return f"a commit needs its repository: --source {name}=URL@COMMIT, with all 40 digits{also}"
    return f"check --source {name}=...: {FORMS}"


def _version_of(name: str, plain: str) -> str:
    """Return advice on how to request a version of the source `name`, because a plain version is read as a path."""
    match name:
        case "triton":
            return f"to build Triton {plain}: --triton {plain}; to use its wheel: --source triton=pypi:{plain}"
        case "aotriton":
            return f"for a release: --aotriton {plain}; for your own source: --source aotriton=PATH or =URL@COMMIT"
        case "llvm":
            return "for a package: --source llvm=distro:PACKAGE, such as llvm-toolchain-22; or --source llvm=URL@COMMIT"
        case _:
            return f"for a version in the package index: --source {name}=pypi:{plain}; for a file: --source {name}=PATH"
