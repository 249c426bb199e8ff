"""Store files and source trees by digest; each entry is complete or missing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolchain.core import console, strict_json
from toolchain.core.digest import sha256_file, write_atomically
from toolchain.core.errors import DigestError, SourceError
from toolchain.core.filesystem import make_private
from toolchain.core.locks import held
from toolchain.sources.tree import TreeInfo, make_writable, normalise, scan_tree

INCOMPLETE = ".partial"
"""The suffix of files and trees that are not complete; no invocation continues them."""
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_GIT = re.compile(r"git:[0-9a-f]{40}@.+", re.DOTALL)
# This process has read or written every file of these trees, so it need not verify them again.
_READ: set[Path] = set()


class Store:
    """A folder that only its owner may enter; it contains files and unpacked trees by digest.

    `files/<hex>/<name>` is a file with its original name, because installers parse the name of a wheel. `trees/<key>/`
    is a tree, `trees/<key>.json` contains its digest, and `trees/<key>.stat.json` caches the hashes of its files.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def partial(self) -> Path:
        """Return the folder of temporary files and incomplete downloads."""
        return self.root / "partial"

    def add_file(self, path: Path, digest: str, *, name: str = "") -> Path:
        """Move a file into the store, and return its path there; if the store already has the file, remove `path`.

        A file with the wrong digest is removed, and DigestError is raised. SourceError is raised for anything other
        than a regular file.

        Args:
            path: the file, which is copied if it is on another file system than the store.
            name: the name in the store; the default is the current name.
        """
        if not _is_plain(path):
            raise SourceError(
                "not-a-plain-file", f"{path.name} is not a regular file", fix="give a file, not a link or folder"
            )
        actual = sha256_file(path)
        if actual != digest:
            path.unlink()
            raise DigestError(
                "file-digest-mismatch",
                f"{name or path.name} has the wrong digest",
                why=f"expected {digest}, found {actual}",
                fix="check the expected digest and the origin of the file, which was removed from the store",
            )
        home = self._file_home(digest)
        name = Path(name or path.name).name
        make_private(self.root)
        with held(self.root / "locks" / f"file-{home.name}.lock", what=f"storing {name}"):
            if (there := self.file(digest, verify=True)) is not None:
                path.unlink()
                return there
            staging = home.with_name(f".{home.name}{INCOMPLETE}")
            shutil.rmtree(staging, ignore_errors=True)
            shutil.rmtree(home, ignore_errors=True)
            staging.mkdir(parents=True)
            target = staging / name
            shutil.move(path, target)
            target.chmod(0o644)
            _flush(target)
            staging.rename(home)
            _flush(home.parent)
        return home / name

    def file(self, digest: str, *, verify: bool = False) -> Path | None:
        """Return the path of the stored file with a digest; None if the store does not have it.

        Args:
            verify: whether to compare the content with the digest. If they differ, a warning is printed, and None is
                returned.
        """
        home = self._file_home(digest)
        # Links are skipped, because the target of a link could change.
        files = [path for path in sorted(home.iterdir()) if _is_plain(path)] if home.is_dir() else []
        if not files:
            return None
        mark_used(home)
        if verify and (is_now := sha256_file(files[0])) != digest:
            console.warn(f"ignoring {files[0].name} in the store, because it is damaged: {is_now}, expected {digest}")
            return None
        return files[0]

    def tree(
        self,
        digest: str,
        unpack: Callable[[Path], str | None],
        *,
        part: str = "",
        verify: bool = False,
        brought: bool = False,
        take_brought: bool = False,
    ) -> Path:
        """Return the folder of a source's tree, after unpacking the tree if it is missing or was changed.

        The files have the mode 0644 or 0755, and the modification time `core.digest.EPOCH`.

        Args:
            digest: the digest of the source (see `Source`).
            unpack: a function that writes the tree into an empty folder, and may return the digest that the tree must
                then have; SourceError is raised if it has another.
            part: the name of the part (`Part.name`) that `unpack` writes; empty for the whole source.
            verify: whether to read every file of a stored tree, but only once per process. Otherwise a file whose size,
                times and inode are unchanged is trusted.
            brought: whether `unpack` takes the tree from a bundle; this is recorded.
            take_brought: whether to accept a stored tree that came from a bundle. It is unpacked again unless this or
                `brought` is set.
        """
        key = self._key(digest, part)
        path = self.root / "trees" / key
        make_private(self.root)
        with held(self.root / "locks" / f"tree-{key}.lock", what=f"unpacking {key}"):
            if path.is_dir() and not (brought or take_brought) and self.brought(digest, part=part):
                console.note(f"the tree {key} came from a bundle; fetching it again from its source")
            elif path.is_dir():
                if self._intact(digest, part, verify=verify and path not in _READ):
                    _READ.update([path] if verify else [])
                    mark_used(path.with_name(f"{key}.json"))
                    return path
                console.warn(f"the tree {key} in the store was changed or damaged; unpacking it again")
            partial = path.with_name(f".{key}{INCOMPLETE}")
            _discard(partial)
            partial.mkdir(parents=True)
            try:
                wanted = unpack(partial)
                normalise(partial)
                info = scan_tree(partial, self._stat_cache(key), trust_cache=False)
                if info.files == 0:
                    raise SourceError(
                        "source-empty", f"the source {digest} has no files", fix="check the specification of the source"
                    )
                if wanted is not None and info.digest != wanted:
                    raise SourceError(
                        "source-changed",
                        f"the source {digest} changed while it was copied",
                        fix="run the command again",
                    )
            except BaseException:
                _discard(partial)
                raise
            _discard(path)
            record = {"digest": digest, "part": part, "tree": info.digest, "files": info.files, "bytes": info.bytes}
            record |= {"brought": True} if brought else {}
            write_atomically(path.with_name(f"{key}.json"), json.dumps(record, indent=2).encode())
            # The files are not synced one by one, because `_intact` detects a file that a power failure truncated.
            partial.rename(path)
            _flush(path.parent)
            _READ.add(path)
        return path

    def stored_tree(self, digest: str, *, part: str = "") -> Path | None:
        """Return the folder of a tree without checking its files; None if the store does not have it."""
        path = self.root / "trees" / self._key(digest, part)
        if not path.is_dir():
            return None
        mark_used(path.with_name(f"{path.name}.json"))
        return path

    def brought(self, digest: str, *, part: str = "") -> bool:
        """Return whether a tree came from a bundle, or was patched from a tree that did."""
        return bool(self._sidecar(digest, part).get("brought"))

    def tree_info(self, digest: str, *, part: str = "") -> TreeInfo | None:
        """Return the digest and the size that a tree had when it was unpacked; None if they are not recorded."""
        record = self._sidecar(digest, part)
        try:
            return TreeInfo(str(record["tree"]), int(record["files"]), int(record["bytes"]))
        except (ValueError, KeyError, TypeError):
            return None

    def _intact(self, digest: str, part: str, *, verify: bool) -> bool:
        recorded, key = self.tree_info(digest, part=part), self._key(digest, part)
        if recorded is None:
            return False
        tree, stat_cache = self.root / "trees" / key, self._stat_cache(key)
        try:
            return scan_tree(tree, stat_cache, trust_cache=not verify, expected=recorded.bytes) == recorded
        except SourceError:
            return False

    def _sidecar(self, digest: str, part: str) -> dict[str, Any]:
        """Return the content of a tree's JSON file, or an empty dictionary if there is no such file or JSON object."""
        try:
            record = strict_json.read((self.root / "trees" / f"{self._key(digest, part)}.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def _stat_cache(self, key: str) -> Path:
        return self.root / "trees" / f"{key}.stat.json"

    def _file_home(self, digest: str) -> Path:
        if not _SHA256.fullmatch(digest):
            raise DigestError(
                "digest-malformed",
                f"{digest!r} is not a valid digest",
                why="expected sha256: and 64 hexadecimal digits",
                fix="give sha256: and all 64 digits",
            )
        return self.root / "files" / digest.removeprefix("sha256:")

    def _key(self, digest: str, part: str) -> str:
        if not (_SHA256.fullmatch(digest) or _GIT.fullmatch(digest)):
            raise DigestError(
                "digest-malformed",
                f"{digest!r} is not a valid digest of a source",
                why="expected sha256:<64 hex> or git:<40 hex>@<repository>",
                fix="give all digits",
            )
        kind, _, rest = digest.partition(":")
        head, _, repository = rest.partition("@")
        suffix = f"{repository}\n{part}"
        return f"{kind}-{head}" + (f"-{hashlib.sha256(suffix.encode()).hexdigest()[:12]}" if suffix.strip() else "")


def _discard(tree: Path) -> None:
    make_writable(tree)
    shutil.rmtree(tree, ignore_errors=True)


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def mark_used(path: Path) -> None:
    """Set the modification time of a path to now, so that `cache prune` keeps it.

    Errors are ignored, because the store may be read-only.
    """
    with contextlib.suppress(OSError):
        os.utime(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
