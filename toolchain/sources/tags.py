"""Tags: a fetch resolves a tag to its commit, and notes it for offline plans."""

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
    """Return the commit of a tag when it was last resolved; empty if it never was."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        value = strict_json.read(_note(repository, tag, cache).read_bytes())
        if (value["repository"], value["tag"]) == (repository, tag):
            return str(value["commit"])
    return ""


def resolved(source: Source, *, cache: Cache, offline: bool, mirrors: Mirrors = ()) -> Source:
    """Return a source at a tag with its commit, asking the repository if commit or tree are not here.

    LockedError is raised if the tag has moved.
    """
    store = Store(cache.store)
    known = source.digest is not None
    # A source at a tag is never taken in part, so its name in the store has no part.
    if not source.tag or (known and (offline or store.stored_tree(str(source.digest)) is not None)):
        return source
    commit = commit_of_tag(source.where, source.tag, store, offline=offline, mirrors=mirrors)
    if known and commit != source.version:
        raise _moved(source, commit)
    return _at_commit(source, commit, cache)


def _at_commit(source: Source, commit: str, cache: Cache) -> Source:
    """Return a source at a tag with `commit`, and note that commit."""
    if source.version != commit:
        console.note(f"{source.name}: tag {source.tag} of {source.where} is commit {commit}")
    if remembered(source.where, source.tag, cache) != commit:
        value = {"repository": source.where, "tag": source.tag, "commit": commit}
        write_atomically(_note(source.where, source.tag, cache), json.dumps(value, indent=1).encode())
    return replace(source, version=commit, digest=git_digest(source.where, commit))


def asked_again(source: Source, *, cache: Cache, locked: bool, mirrors: Mirrors = ()) -> Source:
    """Compare a source at a known tag with its repository; return it unchanged if that does not answer.

    Args:
        locked: whether a lock fixes the commit, so that a moved tag raises LockedError. Otherwise a note says that it
            moved.
    """
    try:
        now = commit_of_tag(source.where, source.tag, Store(cache.store), offline=False, mirrors=mirrors)
    except UnreachableError as error:
        console.note(f"{source.name}: could not check whether tag {source.tag} moved since ({error.what})")
        return source
    if now != source.version and locked:
        raise _moved(source, now)
    return _at_commit(source, now, cache)


def _moved(source: Source, now: str) -> LockedError:
    return LockedError(
        "tag-moved",
        f"the tag {source.tag} of {source.where} moved",
        why=f"it was at {source.version} when it was resolved or locked, and is at {now} now",
        fix=f"find out why; the commit it was at: --triton {source.version}; to take the new one: toolchain fetch, "
        "then toolchain lock, with the same options and without --locked",
    )


def _note(repository: str, tag: str, cache: Cache) -> Path:
    name = hashlib.sha256(f"{repository}\n{tag}".encode()).hexdigest()[:24]
    return cache.store / "tags" / f"{name}.json"
