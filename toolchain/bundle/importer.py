"""Import a bundle into a cache, after checking that its entries match its lock."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain.bundle.checks import (
    DO_NOT,
    hostile,
    require_agreement,
    require_fitting,
    require_packages,
    require_record,
    require_whole,
)
from toolchain.bundle.export import TYPE, Entry
from toolchain.core import strict_json
from toolchain.core.cache import Cache, default_cache
from toolchain.core.console import one_line
from toolchain.core.digest import require_output, write_atomically
from toolchain.core.errors import DigestError, RegistryError, UnreachableError
from toolchain.core.locks import held
from toolchain.core.record import KEYS, Record
from toolchain.oci import descriptor as media
from toolchain.oci.blobs import MANIFEST_LIMIT
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import diff_ids_of
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import CONFIG_KEYS, children_of, parse_object
from toolchain.oci.place import Place
from toolchain.oci.places import open_place
from toolchain.oci.reference import Target
from toolchain.pipeline import lockfile
from toolchain.pipeline.lockfile import Lock, LockedBase, LockedSource
from toolchain.pipeline.locking import refused
from toolchain.pipeline.records import image_tag, known_record, write_record
from toolchain.request.model import DEFAULT_GLIBC, build_command
from toolchain.sources.distro import known_package, note
from toolchain.sources.store import Store
from toolchain.sources.suites import Package
from toolchain.sources.tree import tree_digest
from toolchain.sources.unpack import unpack_tar


@dataclass(frozen=True)
class ImportedEntry:
    """An imported entry; `new` is whether the cache lacked it, and is always true for the lock."""

    entry: Entry
    new: bool


@dataclass(frozen=True)
class Imported:
    """The result of importing a bundle."""

    digest: str
    lock: Lock
    taken: tuple[ImportedEntry, ...]
    command: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "digest": self.digest,
            "entries": [entry.entry.as_json() | {"new": entry.new} for entry in self.taken],
            "command": list(self.command),
        }


def import_bundle(ref: Target, cache: Cache, lock_path: Path) -> Imported:
    """Import a bundle into a cache; sources, patches and layers that the cache already has are not downloaded again.

    RegistryError is raised if `ref` does not name a bundle, HostileInputError if the bundle does not contain exactly
    what its lock names, DigestError if content has a wrong digest, LockedError if the bundle contradicts an existing
    lock or the content of the cache, UnsupportedError if this machine or this version cannot use the bundle, and
    ConfigError if a lock is malformed, or cannot be read or written.

    Args:
        lock_path: the path of the user's lock. If this file exists, the bundle must agree with it. Otherwise, the
            bundle's lock is written to it after everything else.
    """
    if not lock_path.exists():
        require_output(lock_path, option="--lock-file", make_folder=True)
    with open_place(ref) as place:
        manifest, content = place.manifest()
        entries = _entries(manifest, content, str(ref))
        short = manifest.digest.removeprefix("sha256:")[:12]
        folder = cache.work / f"bundle-import-{short}"
        with held(cache.locks / f"bundle-{short}.lock", what=f"importing {ref}"):
            try:
                taker = _Taker(cache, place, Layout(folder).ensure(), entries)
                lock = taker.lock()
                if lock_path.exists():
                    require_agreement(lockfile.read(lock_path), lock, f"{ref} does not agree with {lock_path}")
                taken = taker.take(lock)
                if not lock_path.exists():
                    lockfile.write(lock, lock_path, option="--lock-file")
            except (UnreachableError, RegistryError):
                raise  # keep the folder, so that the next import continues with its blobs
            except Exception:  # Ctrl-C and SIGTERM, which are no instances of Exception, keep the folder too
                shutil.rmtree(folder, ignore_errors=True)
                raise
            shutil.rmtree(folder, ignore_errors=True)
    return Imported(manifest.digest, lock, tuple(taken), _command(cache, lock, lock_path))


def _entries(manifest: Descriptor, content: bytes, ref: str) -> tuple[Entry, ...]:
    value = parse_object(content, ref)
    kind = value.get("artifactType")
    if manifest.media_type not in media.IMAGES or kind != TYPE:
        raise RegistryError(
            "not-a-bundle",
            f"{ref} is not a bundle",
            why=f"its artifact type is {repr(kind) if kind else 'missing'}, and {TYPE} was expected",
            fix="give the reference of a bundle from `toolchain bundle export`",
        )
    return tuple(Entry.parse(layer) for layer in children_of(value, manifest)[1:])


class _Taker:
    def __init__(self, cache: Cache, place: Place, scratch: Layout, entries: Sequence[Entry]) -> None:
        self._cache = cache
        self._place = place
        self._scratch = scratch
        self._entries = entries
        self._store = Store(cache.store)
        self._images = Layout(cache.images)
        # These map the digest of each image's manifest to the image's layers and diff ids, lowest first.
        self._layers: dict[str, list[dict[str, Any]]] = {}
        self._diff_ids: dict[str, list[str]] = {}

    def _of(self, *kinds: str) -> list[Entry]:
        return [entry for entry in self._entries if entry.kind in kinds]

    def _pull(self, entry: Entry) -> Path:
        return self._place.blob(entry.blob, self._scratch)

    def _small(self, entry: Entry) -> bytes:
        if entry.blob.size > MANIFEST_LIMIT:
            raise hostile("bundle-entry-size", f"{entry.title} is too large: {entry.blob.size} bytes")
        self._pull(entry)
        return self._scratch.read(entry.blob)

    def lock(self) -> Lock:
        """Return the lock of the bundle; raise HostileInputError unless the bundle contains exactly one."""
        locks = self._of("lock")
        if len(locks) != 1:
            raise hostile("bundle-lock-count", f"the bundle contains {len(locks)} locks")
        return lockfile.parse(self._small(locks[0]), "the bundle's lock", again="toolchain bundle export")

    def take(self, lock: Lock) -> list[ImportedEntry]:
        """Check all entries against the lock, import them, and return them."""
        require_fitting(lock)
        require_whole(lock, self._entries)
        self._named_parts(lock)
        records, bases = self._records(lock), self._bases(lock)
        done = [ImportedEntry(self._of("lock")[0], True)]
        done += [ImportedEntry(entry, self._source(entry, lock)) for entry in self._of("file", "tree", "patch")]
        self._images.ensure()
        # Manifests are stored after the blobs that they refer to.
        blobs = sorted(self._of("blob"), key=lambda entry: entry.of in media.MANIFESTS)
        done += [ImportedEntry(entry, self._blob(entry)) for entry in blobs]
        for base in lock.bases:
            self._tag(base, records)
        done += [ImportedEntry(entry, self._record(record)) for entry, record in records.items()]
        done += [ImportedEntry(entry, _write(path, value)) for entry, (path, value) in bases.items()]
        return done

    def _named_parts(self, lock: Lock) -> None:
        """Check the blobs of each image in the lock, and fill `_layers` and `_diff_ids`.

        HostileInputError is raised if the bundle lacks a blob of an image or contains other blobs, or if an image does
        not have the architecture in the lock.
        """
        for base in lock.bases:
            parts = {entry.blob.digest: entry for entry in self._of("blob") if entry.name == base.owner}
            manifest = parts[base.image]  # `require_whole` has checked that it exists
            if manifest.of not in media.IMAGES:
                raise hostile(
                    "bundle-entry-media-type",
                    f"the bundle's image of {base} is not an image",
                    f"its media type is {manifest.of[:80]!r}",
                )
            value = parse_object(self._small(manifest), base.image)
            named = children_of(value, replace(manifest.blob, media_type=manifest.of))
            expected = {base.image, *(child.digest for child in named)}
            for digest in sorted(parts.keys() ^ expected):
                if digest in parts:
                    raise hostile(
                        "bundle-part-unlocked", f"the bundle contains a blob that no image in its lock has: {digest}"
                    )
                raise hostile("bundle-part-missing", f"the bundle lacks a blob of the image of {base}", digest)
            config = parse_object(self._small(parts[named[0].digest]), named[0].digest, keys=CONFIG_KEYS)
            if config.get("architecture") != base.arch:
                raise hostile(
                    "bundle-image-platform",
                    f"the image of {base} is for another architecture",
                    f"its config says {str(config.get('architecture'))[:80]!r}",
                )
            self._layers[base.image] = [child.plain.as_json() for child in named[1:]]
            self._diff_ids[base.image] = diff_ids_of(config)

    def _record(self, record: Record) -> bool:
        new = known_record(self._cache, record.input_digest) != record
        if new:
            write_record(self._cache, record)
        return new

    def _records(self, lock: Lock) -> dict[Entry, Record]:
        records = {}
        for entry in self._of("record"):
            value = parse_object(self._small(entry), entry.title, keys=KEYS)
            base = _owner(entry, lock)
            layers, diff_ids = self._layers[base.image], self._diff_ids[base.image]
            record = require_record(value, base, layers, diff_ids, entry.title)
            known = known_record(self._cache, record.input_digest)
            if known is not None and known.manifest != base.image:
                raise refused([f"{base} has another image in this cache"], "the bundle contains another base")
            # A record that the cache already has is kept, because its facts may be more complete.
            records[entry] = known if known is not None else record
        return records

    def _bases(self, lock: Lock) -> dict[Entry, tuple[Path, dict[str, Any]]]:
        lists = {}
        for entry in self._of("base"):
            value = parse_object(self._small(entry), entry.title, keys=None)
            base = _owner(entry, lock)
            require_packages(value, base)
            path = self._cache.package_list(base.stage, base.name, base.arch)
            if path.name != entry.title:
                raise hostile("bundle-entry-renamed", f"the file {path.name} has the name {entry.title} in the bundle")
            if (known := _read(path)) is not None and known != value:
                raise refused([f"{base} has other packages in this cache"], "the bundle contains another base")
            lists[entry] = (path, value)
        return lists

    def _tag(self, base: LockedBase, records: Mapping[Entry, Record]) -> None:
        """Tag the image of a base, so that `gc` does not remove its blobs; raise RegistryError if a blob is missing."""
        manifest = self._images.resolve(base.image)
        for child in self._images.children(manifest):
            self._images.blob(child.digest)
        record = next((candidate for candidate in records.values() if candidate.manifest == base.image), None)
        digest = record.input_digest if record else ""
        self._images.tag(manifest, image_tag(base.image_name, digest))

    def _source(self, entry: Entry, lock: Lock) -> bool:
        source = lock.source(entry.name)
        assert source is not None  # noqa: S101 - checked by `require_whole`
        if entry.kind == "tree":
            return self._tree(entry, source)
        digest = entry.blob.digest
        new = self._store.file(digest, verify=True) is None
        if new:
            self._store.partial.mkdir(parents=True, exist_ok=True)
            self._store.add_file(self._pull(entry), digest, name=entry.title)
        if entry.kind == "file" and source.kind == "distro":
            spec = source.spec
            if known_package(spec.where, spec.version, self._cache) is None:
                plain, size = digest.removeprefix("sha256:"), entry.blob.size
                row = Package(
                    name=spec.where, version=spec.version, file=source.file, sha256=plain, size=size, brought=True
                )
                note(row, self._cache)
        return new

    def _tree(self, entry: Entry, source: LockedSource) -> bool:
        came = False

        def unpack(dest: Path) -> None:
            nonlocal came
            came = True
            unpack_tar(self._pull(entry), dest, strip=0, portable_names=False)  # a user's folder may have any names
            actual = tree_digest(dest)
            if actual != source.tree:
                raise DigestError(
                    "stored-tree-digest",
                    f"the tree of {source.name} in the bundle has the wrong digest",
                    why=f"expected {source.tree}, found {actual}",
                    fix=DO_NOT,
                )

        part = ",".join(source.parts)
        self._store.tree(source.digest, unpack, part=part, verify=True, brought=True)
        info = self._store.tree_info(source.digest, part=part)
        if info is None or info.digest != source.tree:
            raise DigestError(
                "stored-tree-digest",
                f"the tree of {source.name} in this cache differs from the lock",
                why=f"expected {source.tree}, found {info.digest if info else 'none'}",
                fix="remove it from the store, or use another cache",
            )
        return came

    def _blob(self, entry: Entry) -> bool:
        digest = entry.blob.digest
        if self._images.holds(digest):
            return False
        self._images.put_file(self._pull(entry), digest=digest, move=True)
        return True


def _owner(entry: Entry, lock: Lock) -> LockedBase:
    return next(base for base in lock.bases if base.owner == entry.name)  # checked by `require_whole`


def _read(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file cannot be read or contains something else."""
    with contextlib.suppress(OSError, ValueError):
        value = strict_json.read(path.read_bytes())
        return value if isinstance(value, dict) else None
    return None


def _write(path: Path, value: Mapping[str, Any]) -> bool:
    content = json.dumps(value, indent=1).encode()
    with contextlib.suppress(OSError):
        if path.read_bytes() == content:
            return False
    write_atomically(path, content)
    return True


def _command(cache: Cache, lock: Lock, lock_path: Path) -> tuple[str, ...]:
    """Return the command that builds from the bundle, with local sources, patches and a user's base from the cache."""
    instead: dict[str, Any] = {}
    stored = {source.name: str(source.spec) for source in lock.sources if source.kind == "local"}
    if stored:
        instead["source"] = {**dict(lock.request.get("source") or {}), **stored}
    patches: dict[str, list[str]] = {}
    for source in lock.sources:
        for patch in source.patches:
            file = Store(cache.store).file(patch.digest)
            patches.setdefault(source.name, []).append(str(file))
    if patches:
        instead["patch"] = patches
    if image := next((base for base in lock.bases if base.state == "image"), None):
        instead["base"] = f"oci:{cache.images}:{image.image_name}.bundle"
    stage = str(lock.request.get("stage", "all"))
    named = ["--locked"] if lock_path == Path(lockfile.DEFAULT) else ["--lock-file", str(lock_path)]
    if cache != Cache(default_cache()):
        named += ["--cache", str(cache.root)]
    if lock.request.get("glibc") == DEFAULT_GLIBC:
        instead["glibc"] = ()
    words = build_command(stage, ["--offline", *named, *lockfile.options(lock, **instead)])
    # Unsafe characters are replaced, because the options come from the untrusted bundle and are shown in a terminal.
    return tuple(shlex.quote(one_line(word)) for word in words)
