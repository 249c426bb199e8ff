"""Fetch a file from a mirror if its origin does not provide it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from toolchain.core import console
from toolchain.core.errors import DigestError, SourceError, ToolchainError, UnreachableError
from toolchain.sources.archive import fetch_archive
from toolchain.sources.network import without_query
from toolchain.sources.pypi import PypiFile
from toolchain.sources.store import Store
from toolchain.sources.suites import Package
from toolchain.sources.tree import Source


def first_or_elsewhere(
    fetch: Callable[[], Path], row: Package | PypiFile, source: Source, store: Store, *, origin: str, offline: bool
) -> Path:
    """Return a file from the store, from its origin, or from the first mirror that has it.

    If the origin sends a file with a wrong digest, DigestError is raised and no mirror is tried. If the file cannot be
    found, UnreachableError is raised if a server did not answer or `offline` is set, and SourceError otherwise.

    Args:
        fetch: a function that returns the file from the store or from its origin.
        origin: the name of the origin in messages, such as `apt`.
    """
    expected = f"expected: {row.file}, {row.size} bytes, SHA-256 {row.sha256}"
    advice = "run `toolchain bundle export` on a machine that has the file, and `toolchain bundle import REF` here"
    if not source.name.startswith("wheel-"):  # --source does not accept these names
        advice = f"get the file in another way and give it with --source {source.name}=PATH/{row.file}\nor {advice}"
    try:
        return fetch()
    except (SourceError, UnreachableError) as error:
        if offline:
            fix = "\n".join(filter(None, (error.fix, advice)))
            raise UnreachableError(error.id, error.what, why=expected, fix=fix) from error
        failed: list[tuple[str, ToolchainError]] = [(origin, error)]
    for url in row.mirrors:
        console.note(f"cannot get {row.file} from {origin} ({failed[0][1].what}); trying {without_query(url)}")
        try:
            return fetch_archive(url, row.sha256, store, offline=False, name=row.file, limit_bytes=row.size)
        except (DigestError, SourceError, UnreachableError) as error:
            failed.append((without_query(url), error))
    causes = [f"{where}: {error.what}" + (f" ({_line(error.why)})" if error.why else "") for where, error in failed]
    if not row.mirrors:
        causes.append("no mirror of the file is known")
    # A server that did not answer may have the file.
    silent = any(isinstance(error, UnreachableError) for _, error in failed)
    kind = UnreachableError if silent else SourceError
    later = ["run the command again later"] if silent else []
    what, why = f"no server provides {row.file}", "\n".join([expected, *causes])
    raise kind("nowhere-available", what, why=why, fix="\n".join([advice, *later]))


def _line(text: str) -> str:
    """Return at most 300 characters of the last line of `text`, because programs print their error there."""
    return (text.strip().splitlines() or [""])[-1][:300]
