"""Resolve a tag to its commit, and remember the commit for later plans."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import replace
from pathlib import Path

from toolchain.core import console, strict_json
from toolchain.core.cache import Cache
from toolchain.core.digest import write_atomically
from toolchain.core.errors import LockedError, UnreachableError
from toolchain.sources.git import commit_of_tag, git_digest
from toolchain.sources.network import Mirrors
from toolchain.sources.store import Store
from toolchain.sources.tree import Source


def remembered(repository: str, tag: str, cache: Cache) -> str:
    """Return the commit to which a tag was last resolved, or an empty string if no commit is recorded."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        value = strict_json.read(_note(repository, tag, cache).read_bytes())
        if (value["repository"], value["tag"]) == (repository, tag):
            return str(value["commit"])
    return ""


def resolved(source: Source, *, cache: Cache, offline: bool, mirrors: Mirrors = ()) -> Source:
    """Return a source with the commit of its tag; a source without a tag is returned unchanged.

    The repository is queried if the commit is unknown, or if its tree is not stored and `offline` is not set.
    LockedError is raised if the tag no longer points to the commit that the source names. The errors of `commit_of_tag`
    are raised if the repository has no such tag or cannot be queried, for example because `offline` is set.
    """
    store = Store(cache.store)
    known = source.digest is not None
    # A source at a tag is always stored as a whole tree, so `stored_tree` needs no part.
    if not source.tag or (known and (offline or store.stored_tree(str(source.digest)) is not None)):
        return source
    commit = commit_of_tag(source.where, source.tag, store, offline=offline, mirrors=mirrors)
    if known and commit != source.version:
        raise _moved(source, commit)
    return _at_commit(source, commit, cache)


def _at_commit(source: Source, commit: str, cache: Cache) -> Source:
    """Return a source with the commit of its tag, and remember the commit."""
    if source.version != commit:
        console.note(f"{source.name}: tag {source.tag} of {source.where} is commit {commit}")
    if remembered(source.where, source.tag, cache) != commit:
        value = {"repository": source.where, "tag": source.tag, "commit": commit}
        write_atomically(_note(source.where, source.tag, cache), json.dumps(value, indent=1).encode())
    return replace(source, version=commit, digest=git_digest(source.where, commit))


def asked_again(source: Source, *, cache: Cache, locked: bool, mirrors: Mirrors = ()) -> Source:
    """Query the repository again for the commit of a source's tag; return the source with that commit.

    If the repository does not answer, a note is printed, and the source is returned unchanged.

    Args:
        locked: whether to raise LockedError if the tag moved. Otherwise the new commit is used, and a note is printed.
    """
    try:
        now = commit_of_tag(source.where, source.tag, Store(cache.store), offline=False, mirrors=mirrors)
    except UnreachableError as error:
        console.note(f"{source.name}: could not check whether the tag {source.tag} moved ({error.what})")
        return source
    if now != source.version and locked:
        raise _moved(source, now)
    return _at_commit(source, now, cache)


def _moved(source: Source, now: str) -> LockedError:
    return LockedError(
        "tag-moved",
        f"the tag {source.tag} of {source.where} moved",
        why=f"it pointed to {source.version} when it was resolved or locked, and points to {now} now",
        fix=f"find out why it moved; use --triton {source.version} for the old commit, or for the new commit run "
        "`toolchain fetch` and `toolchain lock` with the same options, but without --locked",
    )


def _note(repository: str, tag: str, cache: Cache) -> Path:
    name = hashlib.sha256(f"{repository}\n{tag}".encode()).hexdigest()[:24]
    return cache.store / "tags" / f"{name}.json"
