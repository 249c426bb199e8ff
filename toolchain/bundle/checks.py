"""Check that a bundle contains exactly what its lock names, before the bundle is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolchain.bundle.export import Entry
from toolchain.catalog.architectures import this_machine
from toolchain.core.console import one_line
from toolchain.core.digest import sha256_json
from toolchain.core.errors import HostileInputError, SourceError, UnsupportedError
from toolchain.core.record import LayerFacts, OtherVersionError, Record, RecordError
from toolchain.pipeline.lock_differences import differences
from toolchain.pipeline.lockfile import Lock, LockedBase, LockedSource
from toolchain.pipeline.locking import locked_packages, refused
from toolchain.stages.unpacked import PARTIAL

DO_NOT = "do not use this bundle, and ask its author for a new export"


def hostile(id: str, what: str, why: str = "") -> HostileInputError:
    """Return the error for a bundle that must not be used."""
    return HostileInputError(id, what, why=why, fix=DO_NOT)


def require_agreement(own: Lock, lock: Lock, what: str) -> None:
    """Raise LockedError if the lock of a bundle contradicts an existing lock.

    Args:
        own: the existing lock; LockedError is also raised if it lacks the digest of a tree.
    """
    problems = differences(own, lock, whole=False)
    for key in ("allow-binary", "drop-binary"):
        if more := sorted(set(lock.request.get(key, ())) - set(own.request.get(key, ()))):
            problems.append(f"--{key} {','.join(more)} is not in the lock")
    for source in lock.sources:
        was = own.source(source.name)
        whole = was is not None and was.kind == "local" and not was.parts  # then `digest` is the digest of the tree
        if was is not None and not is_file(source) and not was.tree and not whole:
            problems.append(
                f"the lock has no digest of the tree {source.name} ({was.ref}); write the lock where the tree is"
            )
    if problems:
        raise refused(problems, what)


def require_fitting(lock: Lock) -> None:
    """Raise UnsupportedError if a base or sysroot in a bundle is for a build on another kind of machine."""
    here = this_machine()
    for base in lock.bases:
        # A base must have the architecture of this machine. A sysroot must have another one, because it is for cross
        # builds, unless it is the sysroot of an old system, which is for portable builds.
        of_here = base.arch == here
        if (base.stage == "base" and not of_here) or (base.stage == "sysroot" and of_here and not base.old):
            raise UnsupportedError(
                "bundle-other-machine",
                f"the bundle contains the {base}, but this machine is {here}",
                why="a bundle can only be used on the kind of machine on which it was exported",
                fix=f"import it on such a machine, or export a bundle on a machine with {here}",
            )


def require_record(
    value: Any, base: LockedBase, layers: Sequence[Mapping[str, Any]], diff_ids: Sequence[str], title: str
) -> Record:
    """Return the record of a `LockedBase`; raise HostileInputError if it is malformed or contradicts the lock.

    Of the record's facts, only the number of packages and the facts about the layer are kept, because the other facts
    are not checked. UnsupportedError is raised if this version cannot read the format of the record.

    Args:
        layers: the layers in the manifest of the image.
        diff_ids: the digests of the uncompressed layers in the config of the image.
    """
    try:
        record = Record.parse(value)
        known = LayerFacts.parse(record.facts).as_json()
    except OtherVersionError as error:
        raise UnsupportedError(
            "bundle-format",
            f"{title} has another format than this version reads",
            why=str(error),
            fix="export the bundle again with this version: toolchain bundle export",
        ) from error
    except RecordError as error:
        why = one_line(str(error))[:200]
        raise hostile("bundle-record-malformed", f"{title} is not a valid record of a {base.stage}", why) from error
    inputs, packages = record.inputs, record.facts.get("packages")
    # The other inputs are not compared, because a plan finds a record by the digest of all its inputs.
    given = (record.stage, inputs.get("stage"), record.image, record.arch, inputs.get("arch"), inputs.get("base"),
             inputs.get("packages"), record.manifest, record.input_digest, record.partial)  # fmt: skip
    wanted = (base.stage, base.stage, base.image_name, base.arch, base.arch, base.name,
              base.packages_digest, base.image, sha256_json(dict(inputs)),
              "" if base.stage == "base" else PARTIAL)  # fmt: skip
    more = record.sources or record.binaries or record.taken_from is not None
    if given != wanted or more or type(packages) is not int:
        raise hostile("bundle-record-mismatch", f"the bundle's record does not match the {base.stage} in its lock")
    if list(record.layers) != list(layers):
        raise hostile("bundle-record-mismatch", f"the bundle's record names other layers than the image of {base}")
    # Provenance of the images that are built on the base repeats the digest of its uncompressed layer.
    own = [(diff_id, layer["size"]) for diff_id, layer in zip(diff_ids, layers, strict=False)][-1:]
    if own != [(known["diff_id"], known["blob_bytes"])]:
        raise hostile("bundle-record-mismatch", f"the bundle's record describes another layer than that of {base}")
    return replace(record, facts={"packages": packages, **known}).without_claims()


def require_packages(value: Mapping[str, Any], base: LockedBase) -> None:
    """Raise HostileInputError if a list of packages is malformed or differs from the lock."""
    rows = value.get("packages")
    try:
        packages = locked_packages(value) if isinstance(rows, list) and value.keys() == {"recipe", "packages"} else ()
    except SourceError as error:
        raise HostileInputError(
            "bundle-packages-malformed", f"the bundle's list of packages of {base} is malformed", why=error.what
        ) from error
    same = sha256_json(dict(value)) == base.packages_digest and value.get("recipe") == base.recipe
    if not same or set(packages) != set(base.packages):
        raise hostile("bundle-packages-mismatch", "the bundle's list of packages differs from its lock")


def is_file(source: LockedSource) -> bool:
    """Return whether a locked source is a single file; otherwise it is a tree."""
    return source.digest.startswith("sha256:") and bool(source.file)


def _expected(lock: Lock) -> set[tuple[str, str, str]]:
    """Return the kind, name and digest of each entry that a lock names; an unknown digest is an empty string.

    HostileInputError is raised if the lock is incomplete or contradicts itself.
    """
    expected: set[tuple[str, str, str]] = set()
    for source in lock.sources:
        plain = is_file(source)
        expected.add(("file", source.name, source.digest) if plain else ("tree", source.name, ""))
        expected |= {("patch", source.name, patch.digest) for patch in source.patches}
        # A tree in place of an archive is refused, because it cannot be compared with the archive's digest.
        if not plain and source.kind not in {"git", "local"}:
            raise hostile("bundle-lock-incomplete", f"the bundle's lock names no file of {source.name}")
        if not plain and not source.tree:
            raise hostile("bundle-lock-incomplete", f"the bundle's lock names no tree of {source.name}")
        if not plain and source.kind == "local" and not source.parts and source.tree != source.digest:
            raise hostile(
                "bundle-lock-contradictory",
                f"the bundle's lock names two digests of the tree of {source.name}",
                f"{source.digest} and {source.tree}",
            )
    for base in lock.bases:
        if base.state not in {"resolved", "image"} or not base.image:
            raise hostile("bundle-lock-incomplete", f"the bundle's lock does not resolve {base}")
        expected.add(("blob", base.owner, base.image))
        if base.state == "resolved":
            expected |= {("base", base.owner, ""), ("record", base.owner, "")}
    return expected


def require_whole(lock: Lock, entries: Sequence[Entry]) -> None:
    """Raise HostileInputError unless a bundle contains exactly what its lock names.

    The configs and layers of images are not named in a lock, so they are compared with the manifests later.
    """
    expected = _expected(lock)
    images = {base.owner for base in lock.bases}
    there: set[tuple[str, str, str]] = set()
    for entry in entries:
        known = entry.kind not in {"file", "patch"}
        key = (entry.kind, entry.name, "" if known and entry.kind != "blob" else entry.blob.digest)
        if entry.kind == "blob" and key not in expected and entry.name in images:
            continue  # a config or layer, which is compared with the image's manifest later
        if entry.kind != "lock" and key not in expected:
            raise hostile(
                "bundle-entry-unlocked",
                f"the bundle contains a {entry.kind} that its lock does not name: {entry.name}, {entry.title}",
                entry.blob.digest,
            )
        if key in there and entry.kind in {"base", "record", "tree"}:
            raise hostile("bundle-entry-twice", f"the bundle contains the {entry.kind} {entry.name} twice")
        there.add(key)
        source = lock.source(entry.name)
        if entry.kind == "file" and source is not None and entry.title != source.file:
            raise hostile(
                "bundle-entry-renamed", f"the file {source.file} of the lock has the name {entry.title} in the bundle"
            )
    for kind, name, digest in sorted(expected - there):
        raise hostile("bundle-entry-missing", f"the bundle lacks the {kind} {name}, which its lock names", digest)
