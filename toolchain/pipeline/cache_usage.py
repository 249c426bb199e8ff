"""List the entries of the cache, and remove those that were not used recently."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.core import process, strict_json
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError, ToolchainError
from toolchain.core.record import Record
from toolchain.engine.resources import disk_bytes
from toolchain.engine.storage import DELETED, SCRATCH, Storage, discard
from toolchain.oci.image import timestamp
from toolchain.oci.layout import Layout
from toolchain.pipeline.compiler_cache import compiler_caches
from toolchain.pipeline.records import (
    BROUGHT,
    digests_below,
    finished,
    image_tag,
    published_mark,
    records,
    unread_records,
    used_mark,
)
from toolchain.sources.store import INCOMPLETE

DAY = 86400.0
_MALFORMED = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, kw_only=True)
class Item:
    """An entry of the cache.

    Args:
        bytes: the size on disk. For an image, it is the size of the stage's own layer; for an image without a record,
            the size of all its blobs, or 0 if its manifest cannot be read; for an image whose record cannot be read, 0.
        used: the Unix time of the last known use; 0 for an entry that `prune` removes however new it is.
        paths: the files and folders to remove, in this order.
        tag: the tag of the image in the cache's layout; empty if the entry has none.
        unfinished: whether the entry is unfinished work, such as a partial download or the tree of a failed build.
    """

    name: str
    bytes: int
    used: float
    paths: tuple[Path, ...] = ()
    tag: str = ""
    unfinished: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the entry as `cache prune --json` prints it."""
        return {"name": self.name, "bytes": self.bytes, "used": timestamp(self.used)}


@dataclass(frozen=True)
class Pruned:
    """The result of `prune`.

    Args:
        gone: the removed entries; with `dry`, the entries that would be removed.
        failed: the name of each entry that could not be removed, and the reason.
    """

    gone: tuple[Item, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()


def survey(cache: Cache) -> list[Item]:
    """Return the entries of the cache that can be removed, the most recently used first.

    The images in the engine's storage are not included.
    """
    logs = (_entry(log) for log in _children(cache.logs))
    items = [*_images(cache), *_sources(cache), *_compiler_caches(cache), *_unfinished(cache), *logs]
    return sorted(items, key=lambda entry: (-entry.used, entry.name))


def prune(
    cache: Cache,
    *,
    unused_for: float,
    now: float | None = None,
    unfinished: bool = False,
    dry: bool = False,
    images: Sequence[Record] = (),
) -> Pruned:
    """Remove entries that were not used for `unused_for` seconds, and files that killed invocations left behind.

    Images in the engine's storage that match no finished image are removed too. Blobs that no image contains are
    removed if they are a day old or if `images` is not empty. The caller must make sure that no other invocation is
    running. ConfigError is raised if the cache folder is not marked as this tool's, or if other images are built on one
    of `images`.

    Args:
        now: the Unix time from which `unused_for` counts back; None for the current time.
        unfinished: whether to also remove recent unfinished work, such as partial downloads, trees of failed builds
            and ledgers of campaigns.
        dry: whether to remove nothing, and only return the entries that would be removed.
        images: if not empty, these images are removed instead of the unused entries, however recently they were used.
    """
    if not cache.is_ours:
        raise ConfigError(
            "not-our-cache",
            f"{cache.root} is not a cache of this tool alone",
            why=f"it contains no {cache.mark.name}, which this tool writes into a folder that it made or found empty",
            fix="name another cache with --cache, or delete the contents of this one by hand",
        )
    cutoff = (time.time() if now is None else now) - unused_for
    if images:
        going = _named(cache, images)
    else:
        going = [item for item in survey(cache) if item.used < cutoff or (unfinished and item.unfinished)]
    if dry:
        return Pruned(tuple(going))
    gone, failed = [], []
    for entry in going:
        try:
            _remove(entry)
            gone.append(entry)
        except OSError as error:
            failed.append((entry.name, error.strerror or "the system refused it"))
    if tagged := [entry for entry in gone if entry.tag]:
        try:  # all tags are removed at once, because each change of the layout's index rewrites the whole file
            Layout(cache.images).untag(*(entry.tag for entry in tagged))
        except OSError as error:
            gone = [entry for entry in gone if not entry.tag]
            failed += [(entry.name, error.strerror or "the system refused it") for entry in tagged]
    if (cache.images / "index.json").is_file():
        # The manifest of every finished image is kept, even if its tag was lost. A blob that no kept image contains is
        # removed if it is a day old, or at any age if the user named images, because their space must become free.
        kept = [record.manifest for record in records(cache)]
        Layout(cache.images).gc(kept, older_than=0 if images else DAY)
    return Pruned((*gone, *_tidy_engine(cache)), tuple(failed))


def _named(cache: Cache, images: Sequence[Record]) -> list[Item]:
    """Return the entries of these images; raise ConfigError if any other image is built on one of them."""
    digests = {record.input_digest for record in images}
    standing = [
        image_tag(record.image, record.input_digest)
        for record in records(cache)
        if digests & set(digests_below(record.inputs)) and record.input_digest not in digests
    ]
    if standing:
        raise ConfigError(
            "images-in-use",
            f"other finished images ({len(standing)}) are built on the named images",
            why="\n".join(standing[:20]),
            fix="name them too, or remove them first, because their SBOM and provenance describe the stages below",
        )
    paths = {cache.record(digest) for digest in digests}
    return [item for item in _images(cache) if paths & set(item.paths)]


def _images(cache: Cache) -> Iterator[Item]:
    if not (cache.images / "index.json").is_file():
        return
    layout = Layout(cache.images)
    left = layout.refs()
    for path, record in finished(cache):
        tag = image_tag(record.image, record.input_digest)
        left.pop(tag, None)
        yield Item(
            name=f"{record.image} {path.stem[:12]}",
            # The record is removed after its marks, because the marks are found only through it. Without a record the
            # image is no longer used, even if an interruption leaves its tag.
            paths=(used_mark(path), published_mark(path), path),
            tag=tag,
            bytes=sum(int(layer.get("size", 0)) for layer in record.layers[-1:]),
            used=_last_use(path),
        )
    for path in unread_records(cache):
        tag = next((tag for tag in left if tag.endswith(f".{path.stem[:12]}")), "")
        left.pop(tag, None)
        name = f"{tag or path.stem[:12]} (record of another format, or damaged)"
        yield Item(name=name, paths=(path,), tag=tag, bytes=0, used=0.0)
    for tag, manifest in left.items():
        # A base that a bundle brought without a record is kept, because a build may not be able to make it again.
        if not tag.endswith(f".{BROUGHT}"):
            size, used = 0, 0.0
            with contextlib.suppress(ToolchainError, OSError):  # an image whose blobs are missing can still be removed
                used = layout.blob(manifest.digest).stat().st_ctime
                size = sum(part.size for part in layout.walk(layout.resolve(manifest.digest)))
            yield Item(name=f"{tag} (no record)", tag=tag, bytes=size, used=used)


def _last_use(record: Path) -> float:
    return max(file.stat().st_mtime for file in (record, used_mark(record)) if file.exists())


def _sources(cache: Cache) -> Iterator[Item]:
    """Yield the entries of the store: files, unpacked trees and partial downloads.

    The last use of a finished image is also a use of the sources and patches that the image was built from and of the
    wheels that its stage built.
    """
    if cache.store.is_symlink():  # the cache of a reproduction links to the store of another cache
        return
    images: dict[str, tuple[float, str]] = {}
    for path, record in finished(cache):
        with contextlib.suppress(*_MALFORMED):
            sources = record.inputs.get("sources", ())
            rows = [(str(row["digest"]), str(row["name"])) for row in sources]
            rows += [(str(patch), str(row["name"])) for row in sources for patch in row.get("patches", ())]
            rows += [(str(row["digest"]), str(row["file"])) for row in record.rows("wheels")]
            for digest, name in rows:
                images[digest] = max((_last_use(path), name), images.get(digest, (0.0, "")))
    for home in _children(cache.store / "files"):
        name = next((child.name for child in _children(home)), home.name)
        used, _ = images.get(f"sha256:{home.name}", (0.0, ""))
        yield _entry(home, name, max(home.lstat().st_mtime, used))
    for tree in _children(cache.store / "trees"):
        if not tree.is_dir():
            continue
        facts = tree.with_name(f"{tree.name}.json")
        name, used = tree.name[:24], tree.stat().st_ctime
        with contextlib.suppress(*_MALFORMED):
            used = facts.stat().st_mtime
            last, source = images[strict_json.read(facts.read_bytes())["digest"]]
            name, used = f"{source} {name}", max(used, last)
        yield _entry(tree, name, used, notes=(facts, tree.with_name(f"{tree.name}.stat.json")))
    for left in _children(cache.store / "partial"):
        yield _entry(left, unfinished=True)


def _compiler_caches(cache: Cache) -> Iterator[Item]:
    for known in compiler_caches(cache):
        size = sum(map(disk_bytes, known.places))
        name = f"{known.sources} {known.key}".strip()
        yield Item(name=name, paths=(known.note, *known.places), bytes=size, used=known.used)


def _unfinished(cache: Cache) -> Iterator[Item]:
    known = {place for known in compiler_caches(cache) for place in known.places}
    for folder in _children(cache.mounts):
        inside = folder.name.startswith("buildah-cache") and "lockfiles" not in folder.name
        for place in _children(folder) if inside else [folder]:
            if place not in known:
                yield _entry(place, unfinished=True)
    for child in _children(cache.work):
        if child != cache.mounts:
            yield _entry(child, unfinished=True)
    for child in _children(cache.root / "reproduce"):
        yield _entry(child, f"reproduction {child.name}", unfinished=True)


def _entry(
    path: Path, name: str = "", used: float | None = None, *, notes: Sequence[Path] = (), unfinished: bool = False
) -> Item:
    """Return the entry for a file or folder. If `used` is None, the last use is the result of `_touched`.

    `used` is set to 0 if an interrupted removal left the path, if it is an incomplete entry of the store, or if the
    entry is unfinished and has the name of a temporary file, which no invocation continues. `notes` are files that
    describe the entry and are removed before it.
    """
    if path.name.endswith((DELETED, INCOMPLETE)) or (unfinished and SCRATCH.fullmatch(path.name)):
        used = 0.0
    elif used is None:
        used = _touched(path)
    size = disk_bytes(path)
    return Item(name=name or path.name, paths=(*notes, path), bytes=size, used=used, unfinished=unfinished)


def _children(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):  # a build that is just ending removes its folders
        return sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []
    return []


def _touched(path: Path) -> float:
    """Return the latest modification time of a path and, if it is a folder, of the two levels below it.

    If the path no longer exists, return the current time.
    """
    try:
        times = [path.lstat().st_mtime]
    except FileNotFoundError:
        return time.time()  # another process has just removed it
    for child in _children(path):
        with contextlib.suppress(OSError):
            times += [child.lstat().st_mtime, *(below.lstat().st_mtime for below in _children(child))]
    return max(times)


def _remove(item: Item) -> None:
    for path in item.paths:
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
        elif not discard(path):
            raise OSError(errno.EACCES, "files in it belong to another user, or are mounted")


def _tidy_engine(cache: Cache) -> list[Item]:
    """Remove the images in the engine's storage that match no finished image, and the remains of killed invocations.

    Return a list of one entry, which contains the names of the removed images and the freed space. The list is empty if
    no image was removed. Nothing is removed if the storage does not exist or buildah is not installed.
    """
    storage = Storage(cache)
    if not storage.root.is_dir() or process.find("buildah") is None:
        return []
    before = disk_bytes(cache.engine)
    storage.cleanup()
    kept = {record.manifest.removeprefix("sha256:")[:12] for record in records(cache)}
    removed = []
    for image in strict_json.read(storage.call("images", "--json").stdout or "null") or []:
        names = image.get("names") or []
        if any(name.rpartition(":")[2] in kept for name in names):
            continue
        if storage.call("rmi", "--force", image["id"], check=False).returncode == 0:
            removed.append(next(iter(names), image["id"][:12]))
    if not removed:
        return []
    freed = max(0, before - disk_bytes(cache.engine))
    return [Item(name=", ".join(removed), bytes=freed, used=time.time())]
