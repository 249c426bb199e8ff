"""From what the user writes to a source: what it is (no network), and its tree in the store."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache as memoize
from pathlib import Path
from typing import assert_never

from toolchain.cache import Cache
from toolchain.console import one_line
from toolchain.digest import sha256_file, sha256_json
from toolchain.errors import DigestError, SourceError
from toolchain.locks import held, in_use
from toolchain.sources.archive import archive_name, check_sha256, fetch_archive
from toolchain.sources.distro import PACKAGE, VERSION, fetch_distro, known_distro, known_packages
from toolchain.sources.elsewhere import Wanted, first_or_elsewhere
from toolchain.sources.git import fetch_git, git_digest
from toolchain.sources.network import Mirrors, check_http_url, mirrored, refuse_credentials, without_query
from toolchain.sources.patch import apply_patches, copy_tree
from toolchain.sources.pypi import PROJECT, fetch_pypi, known_files, known_pypi, pypi_row
from toolchain.sources.store import Store
from toolchain.sources.tags import remembered, resolved
from toolchain.sources.tree import Kind, Source, check_links, require, tree_digest
from toolchain.sources.unpack import unpack_tar

__all__ = ["SourceSpec", "fetch_source", "locate", "of_index", "parse_source_spec", "require"]

_TAR = re.compile(r"\.(tar(\.(gz|xz|bz2|zst))?|tgz|txz|tbz2|tzst)$")
_FORMS = "PATH, URL@COMMIT, URL#sha256=DIGEST, distro:PACKAGE[=VERSION] or pypi:PROJECT[==VERSION]"
_VERSION = re.compile(r"\d+(\.\w+)+")
_STORED = re.compile(r"stored:([A-Za-z0-9][A-Za-z0-9._+-]*)@(sha256:[0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """What the user named.

    Args:
        kind: what brings it.
        where: path, URL, package or project; for a tree that is in the store alone, what the checkout was called.
        version: commit, `sha256:<hex>`, upstream version; empty for what the data says, for a path, and for a tag whose
            commit is to be asked.
        tag: the tag that stands for the commit; only our own data names one, users name commits.
    """

    kind: Kind
    where: str
    version: str = ""
    tag: str = ""


def parse_source_spec(text: str, *, project: str = "") -> SourceSpec:
    """Read a source as users write it: a path, URL@COMMIT, URL#sha256=DIGEST, distro:PACKAGE[=VERSION] or pypi:PROJECT.

    With `project`, `pypi:VERSION` is that project's. `stored:NAME@DIGEST` is a checkout called NAME whose tree a bundle
    brought into the store.

    Raises:
        SourceError: it is none of these, or a URL without a commit or digest.
    """
    if not text or "\0" in text or "\n" in text:
        raise SourceError("a source cannot be empty or span lines", fix=f"give {_FORMS}")
    for prefix, kind, separator, pattern in (
        ("distro:", "distro", "=", PACKAGE),
        ("pypi:", "pypi", "==", PROJECT),
    ):
        if text.startswith(prefix):
            where, _, version = text.removeprefix(prefix).partition(separator)
            if project and kind == "pypi" and not version and _VERSION.fullmatch(where):
                where, version = project, where
            if not pattern.fullmatch(where) or not VERSION.fullmatch(version):
                raise SourceError(f"not a package and version: {text!r}", fix=f"write {prefix}NAME{separator}VERSION")
            return SourceSpec(kind="distro" if kind == "distro" else "pypi", where=where, version=version)
    if text.startswith("stored:"):
        if (found := _STORED.fullmatch(text)) is None:
            raise SourceError(f"not a tree in the store: {text!r}", fix="write stored:NAME@sha256:DIGEST")
        return SourceSpec(kind="local", where=found[1], version=found[2])
    if re.match(r"[a-z][a-z0-9+.\-]*://", text):
        return _parse_url(text)
    if re.match(r"[\w.\-]+@[\w.\-]+:", text):
        raise SourceError(
            f"not a source: {text!r}", why="git's short form names no scheme", fix="write ssh://git@HOST/PATH@COMMIT"
        )
    return SourceSpec(kind="local", where=text)


def of_index(text: str) -> bool:
    """Whether these words name a file of the Python index, by name or as a wheel that lies here."""
    return text.startswith("pypi:") or (text.endswith(".whl") and "://" not in text)


def _parse_url(text: str) -> SourceSpec:
    refuse_credentials(text)
    url, mark, digest = text.rpartition("#sha256=")
    if mark:
        return SourceSpec(kind="archive", where=check_http_url(url), version=check_sha256(digest))
    url, _, sha = text.rpartition("@")
    if url and re.fullmatch(r"[0-9a-fA-F]{40}", sha):
        return SourceSpec(kind="git", where=url, version=sha.lower())
    if url and re.fullmatch(r"(sha256:)?[0-9a-fA-F]{64}", sha):
        return SourceSpec(kind="archive", where=check_http_url(url), version=check_sha256(sha))
    raise SourceError(
        f"{without_query(text)} names no commit and no digest",
        why="what a URL, branch or tag gives can change",
        fix="append @<40 hex digits of the commit>, or #sha256=<digest> for an archive",
    )


def locate(name: str, spec: SourceSpec, *, cache: Cache, offline: bool = False) -> Source:  # noqa: ARG001 - no network either way
    """The source as far as it is known without a network; what `plan` shows.

    A local checkout is hashed (a second time from a stat cache). A file that the data knows by its digest is
    that source of the distribution or index. The digest is None when only a fetch can tell it.

    Raises:
        SourceError: a path that is not there, or a project that only the data could name.
    """
    match spec.kind:
        case "local":
            return _locate_stored(name, spec, cache) if spec.version else _locate_local(name, spec, cache)
        case "git":
            commit = spec.version or remembered(spec.where, spec.tag, cache)
            return Source(
                name=name,
                kind="git",
                ref=commit or spec.tag,
                repository=spec.where,
                digest=git_digest(spec.where, commit) if commit else None,
                path=None,
                locked=bool(spec.version),
                tag=spec.tag,
            )
        case "archive":
            return Source(
                name=name,
                kind="archive",
                ref=f"{spec.where}#{spec.version.replace(':', '=')}",
                repository=spec.where,
                digest=spec.version,
                path=None,
                locked=True,
            )
        case "distro":
            return known_distro(name, spec.where, spec.version, cache=cache)
        case "pypi":
            return known_pypi(name, spec.where, spec.version)
        case _:
            assert_never(spec.kind)


def _locate_stored(name: str, spec: SourceSpec, cache: Cache) -> Source:
    store = Store(cache.store)
    path = store.stored_tree(spec.version, part=part_of(name)) or store.file(spec.version)
    if path is None:
        raise SourceError(
            f"the source {name} is not in the store: {spec.version}", fix="bring it in: toolchain bundle import REF"
        )
    return Source(
        name=name, kind="local", ref=f"local:{spec.where}", repository="local", digest=spec.version, path=path,
        locked=False,
    )  # fmt: skip


def _locate_local(name: str, spec: SourceSpec, cache: Cache) -> Source:
    path = Path(spec.where).expanduser().absolute()
    if path.is_file():
        digest = sha256_file(path)
        if (known := _known_file(name, digest, cache)) is not None:
            return replace(known, path=path)
    elif path.is_dir():
        digest = tree_digest(path, _stat_cache(path, cache))
    else:
        raise SourceError(f"the source {name} is not there: {path}", fix=f"check --source {name}=...: {_FORMS}")
    return Source(
        name=name, kind="local", ref=f"local:{_shown(path.name)}", repository="local", digest=digest, path=path,
        locked=False,
    )  # fmt: skip


def _known_file(name: str, digest: str, cache: Cache) -> Source | None:
    """The source of the distribution or index that has these very bytes: what counts is not how they came."""
    plain = digest.removeprefix("sha256:")
    for package in known_packages():
        if package.sha256 == plain:
            return known_distro(name, package.name, package.version, cache=cache)
    for row in known_files():
        if row.sha256 == plain:
            return known_pypi(name, row.project, row.version)
    return None


def _shown(name: str) -> str:
    """A file's name as a lock can hold it."""
    return one_line(os.fsencode(name).decode("utf-8", "backslashreplace"))


def _stat_cache(path: Path, cache: Cache) -> Path:
    return cache.store / "stat" / f"{hashlib.sha256(bytes(path.resolve())).hexdigest()[:24]}.json"


@memoize
def parts() -> dict[str, tuple[str, ...]]:
    """Of the large monorepos, the folders that are built from; the rest is never unpacked."""
    data = Path(__file__).resolve().parent.parent / "data" / "trees.toml"
    content = tomllib.loads(data.read_text(encoding="utf-8"))
    return {name: tuple(row["only"]) for name, row in content.items()}


def part_of(name: str) -> str:
    """How the store calls the part that is taken of the source `name`; empty for the whole."""
    return ",".join(parts().get(name, ()))


def fetch_source(
    source: Source,
    *,
    cache: Cache,
    offline: bool,
    patches: Sequence[Path] = (),
    verify: bool = False,
    mirrors: Mirrors = (),
) -> Source:
    """The source with its tree or file in the store, patched when patches are given.

    Args:
        source: as `locate` gave it.
        patches: files, in order, applied to a copy.
        verify: read a tree that is there already, file by file, before it is believed (see `Store.tree`).
        mirrors: where git and archives are asked for in the place of their own URLs.

    Returns:
        The source with `path`, and with `digest` where it was not known before. The digest stays the one of the source
        alone: patches count apart.

    Raises:
        ToolchainError: see the modules of each kind; PatchError for a patch that does not apply.
    """
    how = _How(parts().get(source.name), part_of(source.name), verify, mirrors)
    with in_use(cache, make=True):
        return _fetched(source, cache, offline, patches, how)


def _fetched(source: Source, cache: Cache, offline: bool, patches: Sequence[Path], how: _How) -> Source:
    store = Store(cache.store)
    path: Path
    if source.kind in {"distro", "pypi"} and source.path is not None and source.path.is_file():
        _keep(source.path, str(source.digest), store, cache)
    match source.kind:
        case "local":
            path = _fetch_local(source, store, cache, how)
        case "git":
            source = resolved(source, cache=cache, offline=offline, mirrors=how.mirrors)
            path = fetch_git(
                source.repository,
                source.ref,
                store,
                offline=offline,
                only=how.only,
                verify=how.verify,
                mirrors=how.mirrors,
            )
        case "archive":
            assert source.digest is not None  # noqa: S101 - an archive without one is not accepted
            url = mirrored(source.repository, how.mirrors)
            file = fetch_archive(url, source.digest, store, offline=offline, name=archive_name(source.repository))
            path = _tree_of(file, source.digest, store, how)
        case "distro":
            source, file = fetch_distro(source, store, cache=cache, offline=offline)
            path = _tree_of(file, str(source.digest), store, how)
        case "pypi":
            file = _fetch_row(source, store, offline=offline)
            path = _tree_of(file, str(source.digest), store, how)
        case _:
            assert_never(source.kind)
    if patches:
        path = _patched(source, path, patches, store, how)
    return replace(source, path=path)


def _fetch_row(source: Source, store: Store, *, offline: bool) -> Path:
    """A file of the Python index, from there or from the data's second address."""
    project, _, version = source.ref.removeprefix("pypi:").partition("==")
    row = pypi_row(project, version)
    wanted = Wanted(
        source=source.name, file=row.file, sha256=row.sha256, size=row.size, first="the index", mirrors=row.mirrors
    )
    return first_or_elsewhere(
        lambda: fetch_pypi(project, version, row.file, row.sha256, store, offline=offline),
        wanted,
        store,
        offline=offline,
    )


@dataclass(frozen=True)
class _How:
    """Which part of a source is taken, what the store calls it, whether a tree is read again, and where it is asked."""

    only: tuple[str, ...] | None
    part: str
    verify: bool
    mirrors: Mirrors


def _tree_of(file: Path, digest: str, store: Store, how: _How) -> Path:
    """The tree of a tar archive; any other file is a source as it is."""
    if not _TAR.search(file.name):
        return file
    return store.tree(digest, lambda dest: unpack_tar(file, dest, only=how.only), part=how.part, verify=how.verify)


def _fetch_local(source: Source, store: Store, cache: Cache, how: _How) -> Path:
    """A snapshot of a checkout: builds read the store, and what is edited meanwhile does not reach them."""
    if source.path is None or source.digest is None:
        raise SourceError(f"the source {source.name} has no path", fix="give --source NAME=PATH")
    top, digest = source.path, source.digest
    if top.is_file():
        return _tree_of(_keep(top, digest, store, cache), digest, store, how)

    def unpack(dest: Path) -> None:
        for entry in sorted(top.iterdir()):
            if entry.name != ".git" and (how.only is None or entry.name in how.only):
                copy_tree(entry, dest / entry.name)
        check_links(dest)
        if tree_digest(top, _stat_cache(top, cache)) != digest:
            raise SourceError(f"{top} was changed while it was copied", fix="run the command again")

    stored = top.resolve().is_relative_to(store.root.resolve())  # by `stored:`, which means what a bundle brought
    path = store.tree(digest, unpack, part=how.part, verify=how.verify, take_brought=stored)
    info = store.tree_info(digest, part=how.part)
    if not how.part and (info is None or info.digest != digest):
        raise DigestError(
            f"the tree of {source.name} in the store is not what names it",
            why=f"expected {digest}, found {info.digest if info else 'nothing'}",
            fix=f"remove {path}",
        )
    return path


def _keep(file: Path, digest: str, store: Store, cache: Cache) -> Path:
    """A copy of a user's file in the store."""
    if (there := store.file(digest, verify=True)) is not None:
        return there
    store.partial.mkdir(parents=True, exist_ok=True)
    plain = digest.removeprefix("sha256:")
    copy = store.partial / f"local-{plain}"
    with held(cache.locks / f"local-{plain}.lock", what=f"storing {file.name}"):
        copy_tree(file.resolve(), copy)
        return store.add_file(copy, digest, name=file.name)


def _patched(source: Source, path: Path, patches: Sequence[Path], store: Store, how: _How) -> Path:
    if source.digest is None:
        raise SourceError(f"the source {source.name} has no digest", why="patches count on top of one")
    stack = sha256_json([sha256_file(patch) for patch in patches])
    part = f"{how.part}\npatches {stack}"
    brought = store.brought(source.digest, part=how.part)

    def unpack(dest: Path) -> None:
        apply_patches(path, patches, dest)

    return store.tree(source.digest, unpack, part=part, verify=how.verify, brought=brought, take_brought=brought)
