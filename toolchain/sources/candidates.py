"""Find out which of several repositories has a commit, and remember that repository for later plans."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from toolchain.core import console, strict_json
from toolchain.core.cache import Cache
from toolchain.core.digest import write_atomically
from toolchain.core.errors import SourceError, UnreachableError
from toolchain.sources.git import git_digest
from toolchain.sources.store import Store


def holder_of(commit: str, repositories: Sequence[str], cache: Cache, *, parts: Collection[str]) -> str:
    """Return the URL of the repository from which a commit was fetched before, or an empty string if none is known.

    Args:
        parts: the names (`Part.name`) of the parts of the tree to look for in the store.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        value = strict_json.read(_note(commit, cache).read_bytes())
        if value["commit"] == commit and value["repository"] in repositories:
            return str(value["repository"])
    store = Store(cache.store)

    def stored(url: str) -> bool:
        return any(store.stored_tree(git_digest(url, commit), part=part) is not None for part in parts)

    return next((url for url in repositories if stored(url)), "")


def first_holder(
    name: str, commit: str, repositories: Sequence[str], fetch: Callable[[str], Path], *, cache: Cache
) -> tuple[str, Path]:
    """Fetch a commit from the first repository that has it; return the URL of the repository and the tree's folder.

    The URL is remembered for `holder_of`. If no repository has the commit, SourceError is raised, or UnreachableError
    if one of the repositories could not be queried, because that repository may have the commit.

    Args:
        fetch: a function that fetches the tree from a URL and returns the tree's folder.
    """
    silent: UnreachableError | None = None
    failures: list[str] = []
    for url in repositories:
        try:
            tree = fetch(url)
        except UnreachableError as error:
            silent = silent or error
            failures.append(error.what)
            continue
        except SourceError as error:
            failures.append(error.what)
            continue
        console.note(f"{name}: {url} has commit {commit}")
        value = {"commit": commit, "repository": url}
        write_atomically(_note(commit, cache), json.dumps(value, indent=1).encode())
        return url, tree
    fix = f"name a repository that has it: --source {name}=URL@{commit}"
    kind = SourceError if silent is None else UnreachableError
    raise kind("commit-not-found", f"no known repository has commit {commit}", why="\n".join(failures), fix=fix)


def _note(commit: str, cache: Cache) -> Path:
    return cache.store / "holders" / f"{commit}.json"
