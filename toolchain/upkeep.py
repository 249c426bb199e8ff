"""What the cache holds, when it was last used, and how what nobody uses any more goes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toolchain.errors import ToolchainError
from toolchain.oci.layout import Layout
from toolchain.settings import Cache
from toolchain.shop import image_tag, used_mark

Kind = Literal["image", "source", "unfinished", "compiler cache", "engine", "log"]
KINDS: tuple[Kind, ...] = ("image", "source", "unfinished", "compiler cache", "engine", "log")
DAY = 86400.0
_TAG = "tag:"
# buildah up to 1.28 names a cache mount as it is called, later versions by a digest of that.
_COMPILER = {name for one in ["toolchain-ccache"] for name in (one, hashlib.sha256(one.encode()).hexdigest()[:16])}


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing in the cache.

    Args:
        kind: what it is good for.
        name: for people.
        key: how it is removed: a record's or a tag's name, or a path.
        bytes: on disk; of an image what no image used later holds too.
        used: when it was last used, in seconds of the epoch.
    """

    kind: Kind
    name: str
    key: str
    bytes: int
    used: float

    def as_json(self) -> dict[str, Any]:
        """As `cache ls --json` prints it."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.used))
        return {"kind": self.kind, "name": self.name, "bytes": self.bytes, "used": when}


def survey(cache: Cache) -> list[Item]:
    """Everything in the cache, by kind, what was used last first."""
    found = [*_images(cache), *_sources(cache), *_unfinished(cache), *_rest(cache)]
    return sorted(found, key=lambda one: (KINDS.index(one.kind), -one.used, one.name))


def prune(cache: Cache, *, unused_for: float, now: float | None = None, dry: bool = False) -> list[Item]:
    """Remove what was not used for `unused_for` seconds. The caller sees to it that nobody else is at work.

    The compiler cache stays, it has a limit of its own; of the engine's storage go the images that no finished image
    here is.

    Args:
        dry: only look.

    Returns:
        What went, or would go.
    """
    cutoff = (time.time() if now is None else now) - unused_for
    going = [one for one in survey(cache) if one.used < cutoff and one.kind not in {"compiler cache", "engine"}]
    if dry:
        return going
    for one in going:
        if one.kind != "image":
            _remove(Path(one.key))
        elif one.key.startswith(_TAG):
            Layout(cache.images).untag(one.key.removeprefix(_TAG))
        else:
            _forget(cache, one.key)
    if (cache.images / "index.json").is_file():
        # A build that began in an empty folder holds no lock yet; what it stores is young.
        Layout(cache.images).gc(older_than=DAY)
    _tidy_engine(cache)
    return going


def _images(cache: Cache) -> Iterator[Item]:
    if not (cache.images / "index.json").is_file():
        return
    layout = Layout(cache.images)
    found: list[tuple[str, str, str, float]] = []
    of_records = set()
    for path in cache.records.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(path.read_bytes())
            of_records.add(image_tag(record["image"], record["input_digest"]))
            mark = used_mark(path)
            mark = mark if mark.exists() else path
            found.append((f"{record['image']} {path.stem[:12]}", path.stem, record["manifest"], mark.stat().st_mtime))
    for tag, manifest in layout.refs().items():
        if tag not in of_records and layout.has(manifest.digest):
            used = layout.blob(manifest.digest).stat().st_ctime
            found.append((f"{tag} (no record)", f"{_TAG}{tag}", manifest.digest, used))
    counted: set[str] = set()
    for name, key, digest, used in sorted(found, key=lambda one: -one[3]):
        parts: set[str] = set()
        with contextlib.suppress(ToolchainError):  # one whose blobs are gone is still there to be removed
            parts = {one.digest for one in layout.walk(layout.resolve(digest)) if layout.has(one.digest)} - counted
        counted |= parts
        size = sum(layout.blob(part).stat().st_size for part in parts)
        yield Item(kind="image", name=name, key=key, bytes=size, used=used)


def _forget(cache: Cache, key: str) -> None:
    path = cache.records / f"{key}.json"
    record = json.loads(path.read_bytes())
    # The record first: without it the image does not count, however much of it is still there.
    path.unlink()
    used_mark(path).unlink(missing_ok=True)
    Layout(cache.images).untag(image_tag(record["image"], record["input_digest"]))


def _sources(cache: Cache) -> Iterator[Item]:
    names = {}
    for path in cache.records.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            for source in json.loads(path.read_bytes())["inputs"]["sources"]:
                names[source["digest"]] = source["name"]
    for home in _children(cache.store / "files"):
        if home.is_dir():
            name = next((one.name for one in home.iterdir()), home.name)
            yield Item(kind="source", name=name, key=str(home), bytes=_size(home), used=home.stat().st_mtime)
    for tree in _children(cache.store / "trees"):
        if not tree.is_dir():
            continue
        said = tree.with_name(f"{tree.name}.json")
        name, used = tree.name[:24], tree.stat().st_ctime
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            used = said.stat().st_mtime
            name = f"{names[json.loads(said.read_bytes())['digest']]} {name}"
        yield Item(kind="source", name=name, key=str(tree), bytes=_size(tree), used=used)
    for left in _children(cache.store / "partial"):
        yield Item(kind="unfinished", name=left.name, key=str(left), bytes=_size(left), used=_touched(left))


def _unfinished(cache: Cache) -> Iterator[Item]:
    for folder in _children(cache.work):
        inside = folder.name.startswith("buildah-cache") and "lockfiles" not in folder.name
        for one in _children(folder) if inside else [folder]:
            kind: Kind = "compiler cache" if inside and one.name in _COMPILER else "unfinished"
            yield Item(kind=kind, name=one.name, key=str(one), bytes=_size(one), used=_touched(one))
    for one in _children(cache.root / "reproduce"):
        yield Item(
            kind="unfinished", name=f"reproduction {one.name}", key=str(one), bytes=_size(one), used=_touched(one)
        )


def _rest(cache: Cache) -> Iterator[Item]:
    if cache.engine.is_dir():
        yield Item(
            kind="engine", name="containers' storage", key="", bytes=_size(cache.engine), used=_touched(cache.engine)
        )
    for log in _children(cache.logs):
        yield Item(kind="log", name=log.name, key=str(log), bytes=_size(log), used=log.stat().st_mtime)


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _touched(path: Path) -> float:
    """When something in a folder was last made, removed or written, as far as one level tells."""
    times = [path.lstat().st_mtime]
    for one in _children(path):
        with contextlib.suppress(OSError):
            times.append(one.lstat().st_mtime)
    return max(times)


def _size(path: Path) -> int:
    """Bytes on disk; what has several names counts once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    waiting = [path]
    while waiting:
        this = waiting.pop()
        with contextlib.suppress(OSError):
            status = this.lstat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            total += status.st_blocks * 512
            if stat.S_ISDIR(status.st_mode):
                waiting.extend(Path(entry.path) for entry in os.scandir(this))
    return total


def _remove(path: Path) -> None:
    """First under another name: nobody may go on with half a tree, or read one."""
    from toolchain.engine.storage import remove_tree  # noqa: PLC0415 - knows how engines protect their folders

    for beside in (path.with_name(f"{path.name}.json"), path.with_name(f"{path.name}.stat.json")):
        beside.unlink(missing_ok=True)
    if path.is_dir() and not path.is_symlink():
        doomed = path.with_name(f".{path.name}.deleted")
        path.rename(doomed)
        remove_tree(doomed)
    else:
        path.unlink(missing_ok=True)


def _tidy_engine(cache: Cache) -> None:
    """Remove the images from the engine's storage that no finished image here is; the layout has the others."""
    if not (cache.engine / "storage").is_dir() or shutil.which("buildah") is None:
        return
    from toolchain.engine.storage import Storage  # noqa: PLC0415 - only where there is one

    storage = Storage(cache)
    storage.cleanup()
    kept = set()
    for path in cache.records.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            kept.add(json.loads(path.read_bytes())["manifest"].removeprefix("sha256:")[:12])
    for image in json.loads(storage.call("images", "--json").stdout or "null") or []:
        names = image.get("names") or []
        if not any(name.rpartition(":")[2] in kept for name in names):
            storage.call("rmi", "--force", image["id"], check=False)
