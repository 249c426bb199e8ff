"""Find the revisions of the LLVMs in a library, from texts that LLVM's build compiles into it.

The 40 digits of a revision can come from several parts of LLVM, and prove different things; see `KINDS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from toolchain.core.errors import HostileInputError

# These are the kinds of texts that contain a revision, with the origin of each kind and what such a text proves.
KINDS = {
    "lld": "lld prints it with its version: this lld is linked in, and its source is from the repository in the text",
    "asm-printer": "LLVM's AsmPrinter writes it into file directives: this LLVM's code generator is linked in",
    "symtab": "LLVM's symbol tables of bitcode name their producer by it: this LLVM's Object library is linked in",
    "bare": "the key of LLVM's LTO cache, for example, has only the digits: they support other texts, but prove little",
    "codegen": "the build of a codegen library was given it: the text has LLVM's commit and the number of the build",
    "compiler": "a clang or lld writes its version into its output: it made the file, and its LLVM is not in it",
}
# Texts of these kinds name an LLVM that is linked into the library.
INSIDE = ("lld", "asm-printer", "symtab")

_DIGITS = 40
_BEFORE, _AFTER = 320, 32
_MOST = 64
_HEX = bytes(104 if chr(code) in "0123456789abcdef" else 120 if chr(code).isascii() and chr(code).isalnum() else 46
             for code in range(256))  # fmt: skip
_RUN = b"h" * _DIGITS
_VERSION = rb"(?P<version>[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}[0-9A-Za-z.+-]{0,24})"
_URL = rb"(?P<repository>[!-'*-~]{1,200})"
# Each kind of text has a pattern for the bytes before the digits, and a pattern for the bytes after them.
_FORMS = {
    # This form is tried before lld's own, because an lld writes its version into each file that it links.
    "compiler": (
        re.compile(
            rb"(?:clang version |Linker: [ -'*-~]{0,40}LLD )"
            + _VERSION
            + rb" \((?:"
            + _URL
            + rb" (?:[ -'*-~]{1,80} )?)?\Z"
        ),
        re.compile(rb"\)"),
    ),
    "lld": (re.compile(rb"LLD " + _VERSION + rb" \(" + _URL + rb" \Z"), re.compile(rb"\)")),
    "asm-printer": (re.compile(rb"LLVM version " + _VERSION + rb" \(\Z"), re.compile(rb"\)")),
    "symtab": (re.compile(rb"\0" + _VERSION + rb" \Z"), re.compile(rb"\0")),
    "codegen": (re.compile(rb"\0\Z"), re.compile(rb"-(?P<build>[0-9]{1,6})\0")),
    "bare": (re.compile(rb"\0\Z"), re.compile(rb"\0")),
}


# LLVM's bitcode writer stores this name in bitcode.
_WRITER = re.compile(rb"LLVM(?P<version>[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(?:git|-?rc[0-9])?)\0")
_WRITER_LENGTH = 24


@dataclass(frozen=True, kw_only=True)
class Revision:
    """A revision in a text that a file contains.

    Args:
        kind: a key of `KINDS`.
        revision: 40 hexadecimal digits.
        version: LLVM's version, such as `23.0.0git`; empty if the text contains none.
        repository: the repository of LLVM's source; empty if the text contains none.
        build: the build number, for a codegen library; otherwise None.
        at: the offset in the file at which the digits first appear.
    """

    kind: str
    revision: str
    version: str = ""
    repository: str = ""
    build: int | None = None
    at: int


def revisions(pieces: Iterable[bytes], name: str) -> tuple[Revision, ...]:
    """Return the revisions that a file names, in the order of their offsets; equal ones are returned once.

    Args:
        pieces: the bytes of the file, in order. Little more than one piece is kept in memory at a time.

    HostileInputError is raised if the file names more than 64 revisions.
    """
    by_content: dict[tuple[str, str, str, str, int | None], Revision] = {}
    held, start = b"", 0
    for piece, last in _with_last(pieces):
        held += piece
        for at in _runs(held, first=start == 0):
            if at + _DIGITS + _AFTER > len(held) and not last:
                break  # the digits are found again when the next piece is appended
            if (revision := _revision_at(held, at, start)) is not None:
                by_content.setdefault(
                    (revision.kind, revision.revision, revision.version, revision.repository, revision.build), revision
                )
        if len(by_content) > _MOST:
            raise HostileInputError(
                "too-many-revisions", f"{name} names more than {_MOST} revisions", fix="get the file again"
            )
        keep = max(0, len(held) - _BEFORE - _DIGITS - _AFTER)
        held, start = held[keep:], start + keep
    return tuple(sorted(by_content.values(), key=lambda revision: (revision.at, revision.kind)))


class VersionText:
    """A collector for the versions of LLVM's bitcode writers in a library, such as `17.0.0git`."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._held = b""

    def watch(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the pieces unchanged, and add the versions in them to `found`."""
        for piece in pieces:
            held = self._held + piece
            if len(self.found) <= _MOST:
                self.found.update(match["version"].decode() for match in _WRITER.finditer(held))
            self._held = held[-_WRITER_LENGTH:]
            yield piece


def _with_last(pieces: Iterable[bytes]) -> Iterable[tuple[bytes, bool]]:
    """Yield each piece with False, and then an empty piece with True."""
    for piece in pieces:
        yield piece, False
    yield b"", True


def _runs(held: bytes, *, first: bool) -> Iterable[int]:
    """Yield the offsets of runs of exactly 40 hexadecimal digits, with no letter or digit next to them.

    Args:
        first: whether `held` is the beginning of the file; if not, a run at its start may be the end of a longer run.
    """
    kinds = held.translate(_HEX)
    at = kinds.find(_RUN)
    while at >= 0:
        end = at + _DIGITS
        alone = kinds[at - 1] == 46 if at else first
        if alone and kinds[end : end + 1] in {b"", b"."}:
            yield at
        while end < len(kinds) and kinds[end] != 46:
            following = kinds.find(b".", end)
            end = following if following >= 0 else len(kinds)
        at = kinds.find(_RUN, end)


def _revision_at(held: bytes, at: int, start: int) -> Revision | None:
    before = held[max(0, at - _BEFORE) : at] if at or start else b"\0"
    after = held[at + _DIGITS : at + _DIGITS + _AFTER] + b"\0"  # the end of the file also ends a text
    for kind, (form, end) in _FORMS.items():
        if (head := form.search(before)) and (tail := end.match(after)):
            groups = {**head.groupdict(), **tail.groupdict()}
            return Revision(
                kind=kind,
                revision=held[at : at + _DIGITS].decode(),
                version=(groups.get("version") or b"").decode(),
                repository=(groups.get("repository") or b"").decode(),
                build=int(groups["build"]) if groups.get("build") else None,
                at=start + at,
            )
    return None
