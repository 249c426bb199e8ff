"""Archives of commits that the data knows by SHA-256; data/archives.toml describes each field."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as memoize

from toolchain.data import load


@dataclass(frozen=True, kw_only=True)
class CommitArchive:
    """A row of data/archives.toml."""

    commit: str
    url: str
    sha256: str
    source: str
    tried: bool

    @property
    def digest(self) -> str:
        """Return the digest as in sources: `sha256:<hex>`."""
        return f"sha256:{self.sha256}"


@memoize
def commit_archives() -> tuple[CommitArchive, ...]:
    """Return every row, in the order of the data."""
    return tuple(CommitArchive(**row) for row in load("archives")["archive"])


def archive_of(commit: str) -> CommitArchive | None:
    """Return the archive of a commit."""
    return next((row for row in commit_archives() if row.commit == commit), None)


def commit_of(digest: str) -> str:
    """Return the commit whose archive has this digest, `sha256:<hex>`; empty if no row knows it."""
    return next((row.commit for row in commit_archives() if row.digest == digest), "")
