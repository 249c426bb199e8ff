"""Remove entries of the cache that were not used for a while."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    unread_records,
    used_mark,
)

DAY = 86400.0
_MALFORMED = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, kw_only=True)
class Item:
    """An entry of the cache.

    Args:
        key: the path to remove; for an image its record's, or empty if it has none.
        tag: for an image, its name in the cache's layout.
        bytes: on disk; for an image, without the blobs that it shares with images used later.
        used: the last use, in seconds of the epoch. The sources and wheels of an image are used when the image is.
        unfinished: whether it is work that a later build or campaign may continue.
        stays: whether it is never removed for its age.
        left: whether it belonged to one invocation. If none is running, that one was killed.
    """

    name: str
    key: str
    bytes: int
    used: float
    unfinished: bool = False
    stays: bool = False
    left: bool = False
    tag: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the form of `cache prune --json`."""
        return {"name": self.name, "bytes": self.bytes, "used": timestamp(self.used)}


@dataclass(frozen=True)
class Pruned:
    """Removed entries, or those that would be removed, and entries that could not be removed: names with the reason."""

    gone: tuple[Item, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Finished:
    """A finished image.

    Args:
        path: of its record.
        used: when it or an image built on it was last used.
        made_of: the names of its sources and wheels, by digest.
    """

    path: Path
    record: Record
    used: float
    made_of: Mapping[str, str]

    @property
    def tag(self) -> str:
        """Its name in the cache's layout."""
        return image_tag(self.record.image, self.record.input_digest)


def survey(cache: Cache) -> list[Item]:
    """Return every entry of the cache that can be removed, the last used first."""
    images = _records(cache)
    logs = [_kept(log.name, log, _touched(log)) for log in _children(cache.logs)]
    items = [*_images(cache, images), *_sources(cache, images), *_unfinished(cache), *logs]
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
    """Remove what was not used for `unused_for` seconds, and what killed invocations left behind.

    The caller makes sure that no other invocation is running.

    Bases that a bundle brought without the record of how they were made stay. Images in the engine's storage that match
    no finished image are removed too.

    Args:
        unfinished: also remove recent unfinished work: trees of failed builds, ledgers of campaigns.
        images: remove these, however recent they are, and nothing else.

    Raises:
        ConfigError: the folder is not one that this tool made; or other images are built on one of `images`.
    """
    if not cache.is_ours:
        raise ConfigError(
            f"{cache.root} is not a cache of this tool alone",
            why=f"it holds no {cache.mark.name}, which this tool writes into a folder that it made or found empty",
            fix="name another cache: --cache; what is in this one remove by hand",
        )
    cutoff = (time.time() if now is None else now) - unused_for

    def goes(item: Item) -> bool:
        return item.left or item.used < cutoff or (unfinished and item.unfinished)

    aged = () if images else survey(cache)
    going = _named(cache, images) if images else [entry for entry in aged if goes(entry) and not entry.stays]
    if dry:
        return Pruned(tuple(going))
    gone, failed = [], []
    for entry in going:
        try:
            _remove(cache, entry)
            gone.append(entry)
        except OSError as error:
            failed.append((entry.name, str(error.strerror or error)))
    if (cache.images / "index.json").is_file():
        # A record keeps its image even if its tag was lost. Whoever names an image wants the space at once.
        kept = [image.record.manifest for image in _records(cache)]
        Layout(cache.images).gc(kept, older_than=0 if images else DAY)
    return Pruned((*gone, *_tidy_engine(cache)), tuple(failed))


def _named(cache: Cache, images: Sequence[Record]) -> list[Item]:
    """The entries of these images; ConfigError if other images are built on them."""
    paths = {str(cache.record(record.input_digest)) for record in images}
    digests = {record.input_digest for record in images}
    standing = [
        image.tag
        for image in _records(cache)
        if digests & set(digests_below(image.record.inputs)) and image.record.input_digest not in digests
    ]
    if standing:
        raise ConfigError(
            f"{len(standing)} images are built on what is to be removed",
            why="\n".join(standing[:20]),
            fix="name them too, or remove those first: their SBOM and provenance describe the stages below",
        )
    return [image for image in _images(cache, _records(cache)) if image.key in paths]


def _records(cache: Cache) -> list[_Finished]:
    images = []
    for path, record in finished(cache):
        with contextlib.suppress(*_MALFORMED):
            mark = used_mark(path)
            used = max(file.stat().st_mtime for file in (path, mark) if file.exists())
            made_of = {str(source["digest"]): str(source["name"]) for source in record.inputs.get("sources", ())}
            made_of |= {str(row["digest"]): str(row["file"]) for row in record.rows("wheels")}
            images.append(_Finished(path, record, used, made_of))
    return _used_together(images)


def _used_together(images: Sequence[_Finished]) -> list[_Finished]:
    """Give a stage below the time of the images built on it: publishing one needs the records of the other."""
    by_digest = {image.record.input_digest: image for image in images}
    for image in sorted(images, key=lambda image: -image.used):
        waiting = digests_below(image.record.inputs)
        while waiting:
            digest = waiting.pop()
            if (below := by_digest.get(digest)) is not None and below.used < image.used:
                by_digest[digest] = replace(below, used=image.used)
                waiting += digests_below(below.record.inputs)
    return list(by_digest.values())


def _images(cache: Cache, images: list[_Finished]) -> Iterator[Item]:
    if not (cache.images / "index.json").is_file():
        return
    layout = Layout(cache.images)
    rows = [
        (image.used, f"{image.record.image} {image.path.stem[:12]}", str(image.path), image.tag, image.record.manifest)
        for image in images
    ]
    of_records = {image.tag for image in images}
    unread = {path.stem[:12]: path for path in unread_records(cache)}
    for tag, manifest in layout.refs().items():
        if path := unread.pop(tag.rpartition(".")[2], None):
            yield _unread(path, tag)
        elif tag not in of_records:
            there = layout.has(manifest.digest)
            used = layout.blob(manifest.digest).stat().st_ctime if there else 0.0
            rows.append((used, f"{tag} (no record)", "", tag, manifest.digest))
    counted: set[str] = set()
    for used, name, key, tag, digest in sorted(rows, key=lambda image: -image[0]):
        parts: set[str] = set()
        with contextlib.suppress(ToolchainError):  # an image whose blobs are missing can still be removed
            parts = {part.digest for part in layout.walk(layout.resolve(digest)) if layout.has(part.digest)} - counted
        counted |= parts
        size = sum(layout.blob(part).stat().st_size for part in parts)
        # Nothing here can rebuild what came with a bundle.
        stays = not key and tag.endswith(f".{BROUGHT}")
        yield Item(name=name, key=key, tag=tag, bytes=size, used=used, stays=stays)
    yield from (_unread(path, "") for path in unread.values())


def _unread(path: Path, tag: str) -> Item:
    """An image whose record this version cannot read. The next `cache prune` removes it."""
    name = f"{tag or path.stem[:12]} (record of another format, or damaged)"
    return Item(name=name, key=str(path), tag=tag, bytes=0, used=path.stat().st_mtime, left=True)


def _sources(cache: Cache, images: list[_Finished]) -> Iterator[Item]:
    if cache.store.is_symlink():  # a reproduction's; who owns the store removes from it
        return
    used_by: dict[str, float] = {}
    names: dict[str, str] = {}
    for image in images:
        names |= image.made_of
        used_by |= {digest: max(image.used, used_by.get(digest, 0.0)) for digest in image.made_of}
    for home in _children(cache.store / "files"):
        name = next((child.name for child in _children(home)), home.name)
        used = max(home.lstat().st_mtime, used_by.get(f"sha256:{home.name}", 0.0))
        yield _kept(name, home, used)
    for tree in _children(cache.store / "trees"):
        if not tree.is_dir():
            continue
        facts = tree.with_name(f"{tree.name}.json")
        name, used = tree.name[:24], tree.stat().st_ctime
        with contextlib.suppress(*_MALFORMED):
            used = facts.stat().st_mtime
            digest = strict_json.read(facts.read_bytes())["digest"]
            used = max(used, used_by.get(digest, 0.0))
            name = f"{names[digest]} {name}"
        yield _kept(name, tree, used)
    for left in _children(cache.store / "partial"):
        yield _kept(left.name, left, _touched(left), unfinished=True)


def _unfinished(cache: Cache) -> Iterator[Item]:
    compiler = {place: known for known in compiler_caches(cache) for place in known.places}
    for folder in _children(cache.mounts):
        inside = folder.name.startswith("buildah-cache") and "lockfiles" not in folder.name
        for place in _children(folder) if inside else [folder]:
            if known := compiler.get(place):
                name = f"{known.sources} {known.key}".strip()
                yield _kept(name, place, known.used)
            else:
                yield _kept(place.name, place, _touched(place), unfinished=True)
    for child in _children(cache.work):
        if child != cache.mounts:
            yield _kept(child.name, child, _touched(child), unfinished=True)
    for child in _children(cache.root / "reproduce"):
        yield _kept(f"reproduction {child.name}", child, _touched(child), unfinished=True)


def _kept(name: str, path: Path, used: float, *, unfinished: bool = False) -> Item:
    """Return the entry of a file or folder. One whose removal was interrupted goes at once, as if never used."""
    if path.name.endswith(DELETED):
        name, used = path.name, 0.0
    left = unfinished and SCRATCH.fullmatch(path.name) is not None
    return Item(name=name, key=str(path), bytes=disk_bytes(path), used=used, unfinished=unfinished, left=left)


def _children(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):  # a build that ends meanwhile removes what it worked with
        return sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []
    return []


def _touched(path: Path) -> float:
    """When something in a folder was last made, removed or written, looking two levels deep.

    What was removed in the meantime was in use.
    """
    try:
        times = [path.lstat().st_mtime]
    except FileNotFoundError:
        return time.time()
    for child in _children(path):
        with contextlib.suppress(OSError):
            times += [child.lstat().st_mtime, *(below.lstat().st_mtime for below in _children(child))]
    return max(times)


def _remove(cache: Cache, item: Item) -> None:
    path = Path(item.key)
    if item.tag or path.parent == cache.records:
        if item.key:
            # The record before its image: without a record the image is not used, even where its blobs remain.
            for beside in (used_mark(path), published_mark(path)):
                beside.unlink(missing_ok=True)
            path.unlink()
        Layout(cache.images).untag(item.tag)
        return
    for known in list(compiler_caches(cache)):
        if path in known.places:
            known.note.unlink(missing_ok=True)
    if path.parent == cache.store / "trees":
        for beside in (path.with_name(f"{path.name}.json"), path.with_name(f"{path.name}.stat.json")):
            beside.unlink(missing_ok=True)
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    if not discard(path):
        raise OSError(f"{path} cannot be removed")


def _tidy_engine(cache: Cache) -> list[Item]:
    """Remove the images from the engine's storage that no finished image here is; the layout has the others."""
    storage = Storage(cache)
    if not storage.root.is_dir() or process.find("buildah") is None:
        return []
    before = disk_bytes(cache.engine)
    storage.cleanup()
    kept = {image.record.manifest.removeprefix("sha256:")[:12] for image in _records(cache)}
    removed = []
    for image in strict_json.read(storage.call("images", "--json").stdout or "null") or []:
        names = image.get("names") or []
        if not any(name.rpartition(":")[2] in kept for name in names):
            storage.call("rmi", "--force", image["id"], check=False)
            removed.append(next(iter(names), image["id"][:12]))
    if not removed:
        return []
    freed = max(0, before - disk_bytes(cache.engine))
    return [Item(name=", ".join(removed), key="", bytes=freed, used=time.time())]
