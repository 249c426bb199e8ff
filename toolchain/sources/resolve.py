"""Locate sources without a network, and fetch them into the store."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache as memoize
from pathlib import Path
from typing import assert_never

from toolchain.core.cache import Cache
from toolchain.core.console import one_line
from toolchain.core.digest import sha256_file, sha256_json
from toolchain.core.errors import DigestError, SourceError, UnreachableError
from toolchain.core.filesystem import make_private
from toolchain.core.locks import held, in_use
from toolchain.data import load
from toolchain.sources.archive import archive_name, fetch_mirrored
from toolchain.sources.candidates import first_holder
from toolchain.sources.commit_archives import archive_of, commit_archives, commit_of
from toolchain.sources.distro import fetch_distro, known_distro, known_packages
from toolchain.sources.elsewhere import first_or_elsewhere
from toolchain.sources.git import fetch_git, git_digest
from toolchain.sources.local import TAR
from toolchain.sources.network import Mirrors, mirrored
from toolchain.sources.part import Part
from toolchain.sources.patch import apply_patches, copy_tree
from toolchain.sources.pypi import fetch_pypi, known_files, known_pypi, pypi_row
from toolchain.sources.spec import FORMS, SourceSpec, users_path
from toolchain.sources.store import Store
from toolchain.sources.tags import remembered, resolved
from toolchain.sources.tree import FetchedSource, Source, check_links, digests_of, tree_digest
from toolchain.sources.unpack import unpack_tar


def locate(name: str, spec: SourceSpec, *, cache: Cache, held: tuple[str, str] = ("", "")) -> Source:
    """Return a source with everything that is known about it without using the network.

    A local folder is hashed. A local file whose digest is listed in data/distro.toml, data/pypi.toml or
    data/archives.toml becomes the source that the row describes. The digest of the source is None if it cannot be
    determined without the network.

    Args:
        held: the ref and the digest of the source in a lock (see `known_distro`).
    """
    match spec.kind:
        case "local":
            return _locate_local(name, users_path(spec.where).absolute(), cache)
        case "stored":
            return _locate_stored(name, spec, cache)
        case "git":
            commit = spec.version or remembered(spec.where, spec.tag, cache)
            return Source(
                name=name,
                kind="git",
                where=spec.where,
                version=commit,
                digest=git_digest(spec.where, commit) if commit else None,
                path=None,
                locked=bool(spec.version),
                tag=spec.tag,
            )
        case "archive":
            return Source(
                name=name,
                kind="archive",
                where=spec.where,
                version=spec.version,
                digest=spec.version,
                path=None,
                locked=True,
                commit=commit_of(spec.version),
            )
        case "distro":
            return known_distro(name, spec.where, spec.version, cache=cache, suite=spec.suite, held=held)
        case "pypi":
            return known_pypi(name, spec.where, spec.version)
        case _:
            assert_never(spec.kind)


def _locate_stored(name: str, spec: SourceSpec, cache: Cache) -> Source:
    store = Store(cache.store)
    trees = (store.stored_tree(spec.version, part=part_of(name, tests=tests).name) for tests in (False, True))
    path = next((tree for tree in trees if tree is not None), None) or store.file(spec.version)
    if path is None:
        raise SourceError(
            "not-stored",
            f"the source {name} is not in the store: {spec.version}",
            fix=f"import the bundle that contains it: toolchain bundle import REF; or give --source {name}=PATH",
        )
    return Source(
        name=name, kind="local", where=spec.where, version="", digest=spec.version, path=path, locked=False,
    )  # fmt: skip


def _locate_local(name: str, path: Path, cache: Cache) -> Source:
    if path.is_file():
        digest = sha256_file(path)
        if (known := _known_file(name, digest, cache)) is not None:
            return replace(known, path=path)
    elif path.is_dir():
        with contextlib.suppress(OSError):  # the cache may be read-only while planning
            make_private(cache.store)
        digest = tree_digest(path, _stat_cache(path, cache))
    else:
        raise SourceError(
            "source-missing", f"the source {name} does not exist: {path}", fix=f"check --source {name}=...: {FORMS}"
        )
    shown = one_line(os.fsencode(path.name).decode("utf-8", "backslashreplace"))  # a lock needs valid UTF-8 on one line
    return Source(name=name, kind="local", where=shown, version="", digest=digest, path=path, locked=False)


def _known_file(name: str, digest: str, cache: Cache) -> Source | None:
    """Return the source whose row in a data file has the digest, or None if no row has it."""
    plain = digest.removeprefix("sha256:")
    for package in known_packages():
        if package.sha256 == plain:
            return known_distro(name, package.name, package.version, cache=cache)
    for row in known_files():
        if row.sha256 == plain:
            return known_pypi(name, row.project, row.version)
    for archive in commit_archives():
        if archive.sha256 == plain:
            return locate(name, SourceSpec(kind="archive", where=archive.url, version=archive.digest), cache=cache)
    return None


def _stat_cache(path: Path, cache: Cache) -> Path:
    return cache.store / "stat" / f"{hashlib.sha256(bytes(path.resolve())).hexdigest()[:24]}.json"


# This source stays a tar archive, because AOTriton's build unpacks its tuning database itself.
_PACKED = "aotriton-database"


@memoize
def part_of(name: str, *, tests: bool = False) -> Part:
    """Return the part of a source that builds use: some folders of a large monorepo, or the whole tree.

    Args:
        tests: whether the part includes the folders that only the source's own tests read.
    """
    for row in load("trees").values():
        if any(fnmatchcase(name, pattern) for pattern in row["sources"]):
            return Part((*row["only"], *(() if tests else (f"!{folder}" for folder in row["without"]))))
    return Part()


def fetch_source(
    source: Source,
    *,
    cache: Cache,
    offline: bool,
    patches: Sequence[Path] = (),
    verify: bool = False,
    mirrors: Mirrors = (),
    tests: bool = False,
) -> FetchedSource:
    """Fetch a source into the store, apply the patches to a copy, and return the source with its path.

    The returned digest does not cover the patches, because patches are separate inputs of a build.

    Args:
        verify: whether to read every file of a tree that the store already has (see `Store.tree`).
        mirrors: replacements for prefixes of the URLs of git repositories and archives.
        tests: whether to include the folders that only the source's own tests read. They are always included if there
            are patches.
    """
    source.require_commit()
    part = part_of(source.name, tests=tests or bool(patches))
    how = _How(part, verify, mirrors, packed=source.name == _PACKED)
    with in_use(cache, make=True):
        got = _fetched(source, cache, offline, how)
        for patch in patches:  # the store keeps them, so that the build can be repeated
            _keep(patch, sha256_file(patch), Store(cache.store), cache)
        return replace(got, path=_patched(got, patches, Store(cache.store), how)) if patches else got


def in_store(source: Source, *, cache: Cache, tests: bool = False, patched: bool = False) -> bool:
    """Return whether the store has a source, without reading its files; True for every source with a local path.

    Args:
        tests, patched: whether the build needs the source's tests, and whether it applies patches (see `fetch_source`).
    """
    store, part = Store(cache.store), part_of(source.name, tests=tests or patched)
    if source.kind == "local" or source.path is not None:
        return True
    if source.kind == "git":
        digests = [git_digest(url, source.version) for url in source.among] or [source.digest or ""]
        return any(digest and store.stored_tree(digest, part=part.name) for digest in digests)
    return source.digest is not None and store.file(source.digest) is not None


def _fetched(source: Source, cache: Cache, offline: bool, how: _How) -> FetchedSource:
    store = Store(cache.store)
    name = ""
    if source.kind not in {"local", "git"} and source.path is not None and source.path.is_file():
        _keep(source.path, str(source.digest), store, cache)  # a user's file that `locate` recognized by its digest
    match source.kind:
        case "local":
            return source.fetched(_fetch_local(source, store, cache, how))
        case "git" if source.among:
            return _fetch_among(source, store, cache, offline=offline, how=how)
        case "git":
            source = resolved(source, cache=cache, offline=offline, mirrors=how.mirrors)
            return source.fetched(_fetch_commit(source, store, offline=offline, how=how))
        case "archive":
            url, name = mirrored(source.where, how.mirrors), archive_name(source.where)
            file = fetch_mirrored(url, source.version, store, offline=offline, name=name)
        case "distro":
            source, file = fetch_distro(source, store, cache=cache, offline=offline)
        case "pypi":
            file = _fetch_row(source, store, offline=offline)
        case _:
            assert_never(source.kind)
    got = source.fetched(file)
    return replace(got, path=_tree_of(file, got.digest, store, how, name=name or file.name))


def _fetch_among(source: Source, store: Store, cache: Cache, *, offline: bool, how: _How) -> FetchedSource:
    """Fetch a commit from the first of several repositories that has it; return the source with that repository."""

    def fetch(url: str) -> Path:
        return _fetch_commit(replace(source, where=url, among=()), store, offline=offline, how=how)

    url, tree = first_holder(source.name, source.version, source.among, fetch, cache=cache)
    holder = replace(source, where=url, digest=git_digest(url, source.version), locked=True, among=())
    return holder.fetched(tree)


def _fetch_commit(source: Source, store: Store, *, offline: bool, how: _How) -> Path:
    """Fetch a commit's tree with git, and return its path; an error recommends the commit's archive if one is known."""
    try:
        return fetch_git(
            source.where, source.version, store, offline=offline, part=how.part, verify=how.verify, mirrors=how.mirrors
        )
    except (SourceError, UnreachableError) as error:
        if archive_of(source.version) is not None:
            instead = f"use the commit's archive: --source {source.name}=archive:{source.version}"
            error.fix = f"{error.fix}; or {instead}" if error.fix else instead
        raise


def _fetch_row(source: Source, store: Store, *, offline: bool) -> Path:
    """Return a file from the store, from the package index, or from a mirror in data/pypi.toml."""
    row = pypi_row(source.where, source.version)

    def fetch() -> Path:
        return fetch_pypi(source.where, source.version, row.file, row.sha256, store, offline=offline)

    return first_or_elsewhere(fetch, row, source, store, origin="the index", offline=offline)


@dataclass(frozen=True)
class _How:
    """The options of a fetch; with `packed`, a tar archive is not unpacked."""

    part: Part
    verify: bool
    mirrors: Mirrors
    packed: bool = False


def _tree_of(file: Path, digest: str, store: Store, how: _How, *, name: str) -> Path:
    """Unpack a tar archive into the store, and return the folder of the tree.

    `file` is returned if its name is not that of a tar archive, or if `packed` is set. The store may have got the file
    under another name than `name`.
    """
    if how.packed or not TAR.search(name):
        return file
    return store.tree(digest, lambda dest: unpack_tar(file, dest, part=how.part), part=how.part.name, verify=how.verify)


def _fetch_local(source: Source, store: Store, cache: Cache, how: _How) -> Path:
    """Store a snapshot of a user's file or folder, and return its path; later edits do not affect the snapshot."""
    top, digest = source.path, source.digest
    assert top is not None and digest is not None  # noqa: S101, PT018 - `locate` looked them up
    if top.is_file():
        return _tree_of(_keep(top, digest, store, cache), digest, store, how, name=source.where)

    stored = top.resolve().is_relative_to(store.root.resolve())  # a tree from a bundle
    # A bundle for a build with patches contains the part with tests, so the store may have only that part.
    if stored and store.stored_tree(digest, part=how.part.name) is None:
        how = replace(how, part=part_of(source.name, tests=True))

    def unpack(dest: Path) -> str:
        part = how.part
        for entry in sorted(top.iterdir()):
            if entry.name == ".git" or not part.holds(entry.name):
                continue
            if part.without and entry.is_dir() and not entry.is_symlink():
                (dest / entry.name).mkdir()
                for inner in sorted(entry.iterdir()):
                    if part.holds(f"{entry.name}/{inner.name}"):
                        copy_tree(inner, dest / entry.name / inner.name)
            else:
                copy_tree(entry, dest / entry.name)
        fix = "remove the link, or name a clean copy: a git worktree, or URL@COMMIT"
        check_links(dest, what=str(top), fix=fix)
        # Somebody else may write to the tree, and let `cp` follow a link for a moment. The scan follows none.
        whole, copied = digests_of(top, _stat_cache(top, cache), part)
        if whole != digest:
            raise SourceError("source-changed", f"{top} changed while it was copied", fix="run the command again")
        return copied

    path = store.tree(digest, unpack, part=how.part.name, verify=how.verify, take_brought=stored)
    info = store.tree_info(digest, part=how.part.name)
    if not how.part.name and (info is None or info.digest != digest):
        raise DigestError(
            "stored-tree-digest",
            f"the tree of {source.name} in the store does not match its digest",
            why=f"expected {digest}, found {info.digest if info else 'nothing'}",
            fix=f"remove {path}",
        )
    return path


def _keep(file: Path, digest: str, store: Store, cache: Cache) -> Path:
    """Store a copy of a user's file, and return the path of the copy."""
    if (there := store.file(digest, verify=True)) is not None:
        return there
    store.partial.mkdir(parents=True, exist_ok=True)
    plain = digest.removeprefix("sha256:")
    copy = store.partial / f"local-{plain}"
    with held(cache.locks / f"local-{plain}.lock", what=f"storing {file.name}"):
        copy.unlink(missing_ok=True)  # an interrupted copy may have the mode 0400
        copy_tree(file.resolve(), copy)
        try:
            return store.add_file(copy, digest, name=file.name)
        except DigestError as error:
            if file.is_relative_to(store.root):
                raise
            # `add_file` removed only the copy, so its advice, which mentions a removed file, would mislead the user.
            raise SourceError(
                "source-changed", f"{file} changed while it was copied", fix="run the command again"
            ) from error


def _patched(source: FetchedSource, patches: Sequence[Path], store: Store, how: _How) -> Path:
    digests = [sha256_file(patch) for patch in patches]
    stack = sha256_json(digests)
    part = f"{how.part.name}\npatches {stack}"
    brought = store.brought(source.digest, part=how.part.name)

    def unpack(dest: Path) -> None:
        store.partial.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=store.partial, prefix="patches-") as folder:
            copies = []
            for number, (patch, digest) in enumerate(zip(patches, digests, strict=True)):
                copies.append(Path(folder) / f"{number}" / patch.name)
                copies[-1].parent.mkdir()
                copy_tree(patch.resolve(), copies[-1])
                if sha256_file(copies[-1]) != digest:  # the name of the stored tree depends on the digests
                    raise SourceError(
                        "source-changed", f"{patch} changed while it was copied", fix="run the command again"
                    )
            apply_patches(source.path, copies, dest)

    return store.tree(source.digest, unpack, part=part, verify=how.verify, brought=brought, take_brought=brought)
