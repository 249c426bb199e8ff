"""Look up the archives of commits, and their SHA-256, in data/archives.toml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as memoize

from toolchain.data import load


@dataclass(frozen=True, kw_only=True)
class CommitArchive:
    """A row of data/archives.toml; a comment in that file describes the fields."""

    commit: str
    url: str
    sha256: str
    source: str
    tried: bool

    @property
    def digest(self) -> str:
        return f"sha256:{self.sha256}"


@memoize
def commit_archives() -> tuple[CommitArchive, ...]:
    """Return all rows of data/archives.toml."""
    return tuple(CommitArchive(**row) for row in load("archives")["archive"])


def archive_of(commit: str) -> CommitArchive | None:
    """Return the archive of a commit, or None if data/archives.toml does not list one."""
    return next((row for row in commit_archives() if row.commit == commit), None)


def commit_of(digest: str) -> str:
    """Return the commit whose archive has the digest `sha256:<hex>`, or an empty string if no row has that digest."""
    return next((row.commit for row in commit_archives() if row.digest == digest), "")
