"""Mirrors: fetch a file from a second address if its first place does not have it."""

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
        source: the name of the source, such as `llvm`.
        file: the name of the file.
        sha256: with or without `sha256:` in front.
        size: bytes.
        first: name of the first place, for messages.
        mirrors: URLs of the same bytes.
    """

    source: str
    file: str
    sha256: str
    size: int
    first: str
    mirrors: Sequence[str] = ()

    @property
    def promised(self) -> str:
        """Return the expected digest, for messages."""
        return f"wanted: {self.file}, {self.size} bytes, SHA-256 {self.sha256.removeprefix('sha256:')}"

    @property
    def how_to_bring_it(self) -> str:
        """Return how to provide the file: by path if it is a named source, or in a bundle."""
        bundle = "on a machine that has it: toolchain bundle export, then here: toolchain bundle import REF"
        if self.source.startswith("wheel-"):  # no option names these wheels
            return bundle
        by_path = f"bring the file itself: --source {self.source}=PATH/{self.file}; the same bytes are the same source"
        return f"{by_path}\n{bundle}"


def first_or_elsewhere(fetch: Callable[[], Path], wanted: Wanted, store: Store, *, offline: bool) -> Path:
    """Return the file from the store, from its first place or from the first mirror that has it.

    A wrong digest from the first place is an error. If nobody has the file, the error is UnreachableError when one
    place did not answer, or when `offline`.

    Args:
        fetch: asks the first place, or finds the file in the store.
    """
    try:
        return fetch()
    except (SourceError, UnreachableError) as error:
        if offline:
            fix = "\n".join(filter(None, (error.fix, wanted.how_to_bring_it)))
            raise UnreachableError(error.id, error.what, why=wanted.promised, fix=fix) from error
        failed: list[tuple[str, ToolchainError]] = [(wanted.first, error)]
    for url in wanted.mirrors:
        console.note(f"{wanted.first} does not give {wanted.file} ({failed[0][1].what}); trying {without_query(url)}")
        try:
            return fetch_archive(url, wanted.sha256, store, offline=False, name=wanted.file, limit_bytes=wanted.size)
        except (DigestError, SourceError, UnreachableError) as error:
            failed.append((without_query(url), error))
    raise _gone(wanted, failed)


def _gone(wanted: Wanted, failed: Sequence[tuple[str, ToolchainError]]) -> ToolchainError:
    causes = [f"{where}: {error.what}" + (f" ({_line(error.why)})" if error.why else "") for where, error in failed]
    if not wanted.mirrors:
        causes.append("no second address of it is known")
    # A place that did not answer may have the file later.
    silent = any(isinstance(error, UnreachableError) for _, error in failed)
    kind = UnreachableError if silent else SourceError
    later = ["run the command again later"] if silent else []
    return kind(
        "nowhere-available",
        f"{wanted.file} is not available from any source",
        why="\n".join([wanted.promised, *causes]),
        fix="\n".join([wanted.how_to_bring_it, *later]),
    )


def _line(text: str) -> str:
    """Return the last line of a cause, where programs put the error."""
    return (text.strip().splitlines() or [""])[-1][:300]
