"""What a bundle must hold before anything of it is taken: all that its lock names, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain.bundle import Entry
from toolchain.errors import HostileInputError
from toolchain.lockdiff import differences
from toolchain.lockfile import Lock, LockedSource
from toolchain.locking import refused

DO_NOT = "do not use this bundle; have it exported again"


def require_agreement(own: Lock, lock: Lock, what: str) -> None:
    """Insist that a bundle is within a lock that is here, which must say of each tree what it is.

    Raises:
        LockedError: with what differs.
    """
    found = differences(own, lock, whole=False)
    for one in lock.sources:
        was = own.source(one.name)
        whole = was is not None and was.kind == "local" and not was.parts  # its digest is the tree's
        if was is not None and not is_file(one) and not was.tree and not whole:
            found.append(
                f"the lock does not say which tree {one.name} ({was.ref}) is; make it again with the source at hand"
            )
    if found:
        raise refused(found, what)


def is_file(source: LockedSource) -> bool:
    """Whether a source is one file; else it is a tree."""
    return source.digest.startswith("sha256:") and bool(source.file)


def require_whole(lock: Lock, entries: Sequence[Entry]) -> None:
    """Insist that a bundle holds what its lock names: all of it, and nothing else."""
    expected: set[tuple[str, str, str]] = set()
    for one in lock.sources:
        plain = is_file(one)
        expected.add(("file", one.name, one.digest) if plain else ("tree", one.name, ""))
        expected |= {("patch", one.name, patch.digest) for patch in one.patches}
        # Nobody could tell whether a tree is what the digest of an archive names.
        if not plain and one.kind not in {"git", "local"}:
            raise HostileInputError(f"the bundle's lock names no file of {one.name}", fix=DO_NOT)
        if not plain and not one.tree:
            raise HostileInputError(f"the bundle's lock names no tree of {one.name}", fix=DO_NOT)
        if not plain and one.kind == "local" and not one.parts and one.tree != one.digest:
            raise HostileInputError(
                f"the bundle's lock calls one tree of {one.name} by two digests",
                why=f"{one.digest} and {one.tree}", fix=DO_NOT,
            )  # fmt: skip
    for base in lock.bases:
        if base.state not in {"resolved", "image"} or not base.image:
            raise HostileInputError(f"the bundle's lock leaves {base} open", fix=DO_NOT)
        expected.add(("blob", base.owner, base.image))
        if base.state == "resolved":
            expected |= {("base", base.owner, ""), ("record", base.owner, "")}
    images = {base.owner for base in lock.bases}
    there = set()
    for entry in entries:
        known = entry.kind not in {"file", "patch"}
        key = (entry.kind, entry.name, "" if known and entry.kind != "blob" else entry.blob.digest)
        if entry.kind == "blob" and key not in expected and entry.name in images:
            continue  # a part of that image, which its manifest names
        if entry.kind != "lock" and key not in expected:
            raise HostileInputError(
                f"the bundle holds a {entry.kind} that its lock does not name: {entry.name}, {entry.title}",
                why=entry.blob.digest,
                fix=DO_NOT,
            )
        there.add(key)
        source = lock.source(entry.name)
        if entry.kind == "file" and source is not None and entry.title != source.file:
            raise HostileInputError(
                f"the bundle calls {source.file} otherwise than its lock: {entry.title}", fix=DO_NOT
            )
    for kind, name, digest in sorted(expected - there):
        raise HostileInputError(f"the bundle lacks the {kind} {name} that its lock names", why=digest, fix=DO_NOT)
