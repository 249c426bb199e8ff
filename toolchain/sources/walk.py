"""Read a source tree that another user may change meanwhile, without following a link out of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from toolchain.core.digest import CHUNK
from toolchain.core.errors import SourceError


def walk(top: Path) -> Iterator[tuple[str, str, os.DirEntry[str], int]]:
    """Yield the relative path, kind and directory entry of every file, link and empty folder, and its open folder.

    The kinds are `f`, `l` and `d`. Entries with the name `.git` are skipped. Each folder is opened below the open
    folder above it, because another user could replace a folder by a link while the tree is read.
    """
    # A row has the path and the descriptor of an open folder, and the entries of its folders that are still to be read.
    rows: list[tuple[str, int, list[os.DirEntry[str]]]] = []
    try:
        rows.append(("", os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), []))
        yield from _entries(top, *rows[-1])
        while rows:
            prefix, at, folders = rows[-1]
            if not folders:
                os.close(rows.pop()[1])
                continue
            entry = folders.pop()
            inside = f"{prefix}{entry.name}/"
            rows.append((inside, _open(entry.name, at, f"{top}/{inside[:-1]}", os.O_DIRECTORY), []))
            empty = True
            for found in _entries(top, *rows[-1]):
                empty = False
                yield found
            if empty and not rows[-1][2]:
                yield inside[:-1], "d", entry, at
    finally:
        for _, at, _ in rows:
            os.close(at)


def _entries(
    top: Path, prefix: str, at: int, folders: list[os.DirEntry[str]]
) -> Iterator[tuple[str, str, os.DirEntry[str], int]]:
    """Yield the files and links in the open folder `at`, as `walk` does, and add its folders to `folders`."""
    with os.scandir(at) as entries:
        for entry in entries:
            rel = prefix + entry.name
            if entry.name == ".git":
                continue
            if entry.is_symlink():
                yield rel, "l", entry, at
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry)
            elif entry.is_file(follow_symlinks=False):
                yield rel, "f", entry, at
            else:
                raise SourceError(
                    "special-file-in-source",
                    f"{top}/{rel} is a socket, a pipe or a device",
                    why="a source may only contain files, folders and links",
                    fix="remove it, or give the source as a commit or an archive",
                )


def target_of(entry: os.DirEntry[str], at: int) -> str:
    """Return the target of a link in the open folder `at`."""
    return os.readlink(entry.name, dir_fd=at)


def _open(name: str, at: int, path: str, more: int) -> int:
    """Open a file or folder that is not a link, in the open folder `at`; `path` is its path for an error."""
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | more, dir_fd=at)
    except OSError as error:
        error.filename = path
        raise


def hash_file(name: str, at: int, path: str) -> str:
    """Return the SHA-256 of a file in the open folder `at`; `path` is its path for an error."""
    hasher = hashlib.sha256()
    descriptor = _open(name, at, path, 0)
    try:
        while chunk := os.read(descriptor, CHUNK):
            hasher.update(chunk)
    finally:
        os.close(descriptor)
    return hasher.hexdigest()
