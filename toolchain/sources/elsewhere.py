"""Fetch a file from a mirror if its origin does not provide it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain.core import console
from toolchain.core.errors import DigestError, SourceError, ToolchainError, UnreachableError
from toolchain.sources.archive import fetch_archive
from toolchain.sources.network import without_query
from toolchain.sources.store import Store


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file whose digest is known before it is fetched.

    Args:
        sha256: the digest, with or without the prefix `sha256:`.
        first: the name of the origin in messages, such as `apt`.
        mirrors: URLs of copies of the file.
    """

    source: str
    file: str
    sha256: str
    size: int
    first: str
    mirrors: Sequence[str] = ()

    @property
    def description(self) -> str:
        return f"expected: {self.file}, {self.size} bytes, SHA-256 {self.sha256.removeprefix('sha256:')}"

    @property
    def advice(self) -> str:
        """Return advice on how to provide the file if no server has it."""
        bundle = "run `toolchain bundle export` on a machine that has the file, and `toolchain bundle import REF` here"
        if self.source.startswith("wheel-"):  # --source does not accept these names
            return bundle
        return f"get the file in another way and give it with --source {self.source}=PATH/{self.file}\nor {bundle}"


def first_or_elsewhere(fetch: Callable[[], Path], wanted: Wanted, store: Store, *, offline: bool) -> Path:
    """Return a file from the store, from its origin, or from the first mirror that has it.

    If the origin sends a file with a wrong digest, DigestError is raised and no mirror is tried. If the file cannot be
    found, UnreachableError is raised if a server did not answer or `offline` is set, and SourceError otherwise.

    Args:
        fetch: a function that returns the file from the store or from its origin.
    """
    try:
        return fetch()
    except (SourceError, UnreachableError) as error:
        if offline:
            fix = "\n".join(filter(None, (error.fix, wanted.advice)))
            raise UnreachableError(error.id, error.what, why=wanted.description, fix=fix) from error
        failed: list[tuple[str, ToolchainError]] = [(wanted.first, error)]
    for url in wanted.mirrors:
        console.note(f"cannot get {wanted.file} from {wanted.first} ({failed[0][1].what}); trying {without_query(url)}")
        try:
            return fetch_archive(url, wanted.sha256, store, offline=False, name=wanted.file, limit_bytes=wanted.size)
        except (DigestError, SourceError, UnreachableError) as error:
            failed.append((without_query(url), error))
    raise _gone(wanted, failed)


def _gone(wanted: Wanted, failed: Sequence[tuple[str, ToolchainError]]) -> ToolchainError:
    causes = [f"{where}: {error.what}" + (f" ({_line(error.why)})" if error.why else "") for where, error in failed]
    if not wanted.mirrors:
        causes.append("no mirror of the file is known")
    # A server that did not answer may have the file.
    silent = any(isinstance(error, UnreachableError) for _, error in failed)
    kind = UnreachableError if silent else SourceError
    later = ["run the command again later"] if silent else []
    return kind(
        "nowhere-available",
        f"no server provides {wanted.file}",
        why="\n".join([wanted.description, *causes]),
        fix="\n".join([wanted.advice, *later]),
    )


def _line(text: str) -> str:
    """Return at most 300 characters of the last line of `text`, because programs print their error there."""
    return (text.strip().splitlines() or [""])[-1][:300]
