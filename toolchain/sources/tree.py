"""Sources as values, digests of trees, and the rules for every tree."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolchain.core import digest, strict_json
from toolchain.core.amounts import tell
from toolchain.core.digest import CHUNK, write_atomically
from toolchain.core.errors import HostileInputError, PinError, SourceError
from toolchain.sources.spec import Kind, ref_of

LOG = logging.getLogger(__name__)
# A change within the clock tick of hashing would stay unnoticed, so young files are not remembered.
_RACY_NS = 2_000_000_000
_CACHE_FORMAT = 1
_TOLD_EVERY = 64  # files
_MAX_LINKS = 40  # the kernel's limit
_REPOSITORIES = {"distro": "debian"}  # others are named by their kind


@dataclass(frozen=True, kw_only=True)
class Source:
    """A tree or a single file with a digest.

    Args:
        name: the name in the stages, such as `llvm`.
        kind: its origin.
        where: a git or archive URL, a package, a project, or the name of a user's folder or file.
        version: commit, `sha256:<hex>` of an archive, or upstream version; empty for a user's own, and if only a fetch
            can tell.
        digest: `sha256:<hex>`, or `git:<40 hex>@<repository>`; None if only a fetch can tell.
        path: the user's own folder or file, or the tree that a bundle brought; otherwise None.
        locked: whether the digest was known before the bytes came.
        license: SPDX expression, if the data names one.
        tag: the tag of the repository by which it was requested.
        commit: the commit that the data names for an archive.
        among: the repositories one of which holds the commit, while it is unknown which; `where` is the first.
        pending: what names the commit, while the commit itself is unknown: a tree that is not fetched yet, or a file
            that holds a part of its digits.
        suite: the suite in which a package is looked for; see `SourceSpec`.
    """

    name: str
    kind: Kind
    where: str
    version: str
    digest: str | None
    path: Path | None
    locked: bool
    license: str = ""
    tag: str = ""
    commit: str = ""
    among: tuple[str, ...] = ()
    pending: str = ""
    suite: str = field(default="", compare=False)

    @property
    def ref(self) -> str:
        """Return the source for people and records, e.g. `distro:llvm-toolchain-22=22.1.8`, without a mirror's host.

        Of git it is the commit, or the tag until the commit is known.
        """
        return ref_of(self.kind, self.where, self.version) or self.tag

    @property
    def repository(self) -> str:
        """Return its origin for display and records: a git or archive URL, `debian`, `pypi`, `local`."""
        return self.where if self.kind in {"git", "archive"} else _REPOSITORIES.get(self.kind, self.kind)

    @property
    def short_id(self) -> str:
        """Return the id in names: a commit's first 8 digits, a release's version, otherwise `tree` and 8 digits of the
        digest."""
        if commit := self.version if self.kind == "git" else self.commit:
            return commit[:8]
        if self.kind == "git":
            return self.tag or "pending"
        if self.kind in {"distro", "pypi"}:
            # Versions such as 23~++20261101 or 22.1.0~+rc1 have characters that a name of an image cannot have.
            return re.sub(r"[^A-Za-z0-9.]+", "-", self.version or self.ref)
        return f"tree{(self.digest or '').removeprefix('sha256:')[:8]}"

    def as_plan(self) -> dict[str, str | None]:
        """Return the source as `plan --json` prints it."""
        row = {"name": self.name, "ref": self.ref, "repository": self.repository, "digest": self.digest}
        more = {"tag": self.tag, "pending": self.pending}
        return row | {key: value for key, value in more.items() if value}

    def require_commit(self) -> None:
        """Refuse a source whose commit is named by something that is not here, or in part only."""
        if self.pending:
            raise PinError(
                "commit-unknown",
                f"the commit of the source {self.name} is not known",
                why=f"all that names it is {self.pending}",
                fix=f"name it: --source {self.name}=URL@COMMIT with all 40 digits, or a package of the distribution",
            )

    def fetched(self, path: Path) -> FetchedSource:
        """Return the source with its place in the store; its digest must be known."""
        self.require_commit()
        if self.digest is None:
            raise SourceError(
                "source-without-digest",
                f"the source {self.name} has no digest",
                why="without one nothing can be recorded",
                fix="name it by a commit or with a digest",
            )
        # fmt: off
        return FetchedSource(
            name=self.name, kind=self.kind, where=self.where, version=self.version, digest=self.digest, path=path,
            locked=self.locked, license=self.license, tag=self.tag,
        )
        # fmt: on


@dataclass(frozen=True, kw_only=True)
class FetchedSource(Source):
    """A source in the store at `path`, with the digest that it was checked against."""

    digest: str
    path: Path


@dataclass(frozen=True)
class TreeInfo:
    """The digest of a tree, the number of its files and links, and the bytes of its files."""

    digest: str
    files: int
    bytes: int


def tree_digest(path: Path, stat_cache: Path | None = None) -> str:
    """Return `sha256:<hex>` of a tree; see `scan_tree`."""
    return scan_tree(path, stat_cache).digest


def scan_tree(path: Path, stat_cache: Path | None = None, *, trust_cache: bool = True, expected: int = 0) -> TreeInfo:
    """Digest and measure a tree.

    The digest covers sorted relative paths, each with its kind, its executable bit and its content's SHA-256 or link
    target, and empty folders. Owners, times and `.git` are left out. Sockets, pipes and devices are refused.

    Args:
        path: the tree's top folder.
        stat_cache: file that remembers content hashes by path, size, times and inode; made if missing.
        trust_cache: False reads every file again, and then renews the cache.
        expected: its size in bytes, for the progress; 0 if unknown.
    """
    known = _load_cache(stat_cache) if stat_cache is not None and trust_cache else {}
    fresh: dict[str, str] = {}
    young = time.time_ns() - _RACY_NS
    lines: list[tuple[bytes, bytes]] = []
    count = total = 0
    try:
        for rel, kind, entry in _walk(path):
            if kind == "d":
                lines.append((os.fsencode(rel), b"d"))
                continue
            count += 1
            if kind == "l":
                lines.append((os.fsencode(rel), b"l" + os.fsencode(_target(entry))))
                continue
            info = entry.stat(follow_symlinks=False)
            total += info.st_size
            if count % _TOLD_EVERY == 0:
                tell("reading the source again" if expected else "reading what was unpacked", total, expected)
            key = f"{info.st_size} {info.st_mtime_ns} {info.st_ctime_ns} {info.st_ino} "
            remembered = known.get(rel)
            if remembered is not None and remembered.startswith(key):
                content = remembered[len(key) :]
                fresh[rel] = remembered
            else:
                content = _hash_file(entry.path)
                if max(info.st_mtime_ns, info.st_ctime_ns) < young:
                    fresh[rel] = key + content
            lines.append((os.fsencode(rel), (b"x" if info.st_mode & 0o111 else b"f") + content.encode()))
    except OSError as error:
        raise SourceError(
            "source-unreadable",
            f"cannot read {error.filename or path}",
            why=str(error.strerror),
            fix="check path and rights",
        ) from error
    if stat_cache is not None and fresh != known:
        try:
            write_atomically(stat_cache, json.dumps({"format": _CACHE_FORMAT, "files": fresh}).encode())
        except OSError as error:  # such as a full disk, which must not fail a plan
            LOG.warning(
                "digests of the files in %s could not be saved, so they are computed again next time: %s",
                path,
                error.strerror,
            )
    lines.sort()
    hasher = hashlib.sha256()
    for name, what in lines:
        hasher.update(b"%b\0%b\0" % (name, what))
    return TreeInfo(f"sha256:{hasher.hexdigest()}", count, total)


def _walk(top: Path) -> Iterator[tuple[str, str, os.DirEntry[str]]]:
    """Yield every file (`f`), link (`l`) and empty folder (`d`) below `top`, with its relative path, in no order."""
    todo: list[tuple[str, str, os.DirEntry[str] | None]] = [("", os.fspath(top), None)]
    while todo:
        prefix, folder, self_entry = todo.pop()
        empty = True
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == ".git":
                    continue
                empty = False
                rel = prefix + entry.name
                if entry.is_symlink():
                    yield rel, "l", entry
                elif entry.is_dir(follow_symlinks=False):
                    todo.append((rel + "/", entry.path, entry))
                elif entry.is_file(follow_symlinks=False):
                    yield rel, "f", entry
                else:
                    raise SourceError(
                        "special-file-in-source",
                        f"{entry.path} is a socket, a pipe or a device",
                        why="a source holds files, folders and links only",
                        fix="remove it, or give the source as a commit or an archive",
                    )
        if empty and self_entry is not None:
            yield prefix[:-1], "d", self_entry


def _target(entry: os.DirEntry[str]) -> str:
    return os.readlink(entry.path)  # noqa: PTH115 - str, as entries are


def _hash_file(path: str) -> str:
    hasher = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while chunk := os.read(descriptor, CHUNK):
            hasher.update(chunk)
    finally:
        os.close(descriptor)
    return hasher.hexdigest()


def _load_cache(path: Path) -> dict[str, str]:
    # An unreadable cache only costs time.
    with contextlib.suppress(OSError, ValueError):
        content = strict_json.read(path.read_bytes())
        files = content.get("files") if isinstance(content, dict) and content.get("format") == _CACHE_FORMAT else None
        if isinstance(files, dict) and all(isinstance(known, str) for known in files.values()):
            return files
    return {}


def require(tree: Path, *paths: str, what: str = "source") -> None:
    """Check that a tree holds the given files or folders.

    Args:
        what: kind of the tree for the message, e.g. `LLVM`.
    """
    missing = [path for path in paths if not (tree / path).exists()]
    if missing:
        raise SourceError(
            "source-incomplete",
            f"the {what} tree lacks {', '.join(missing)}",
            why=f"{tree} is not a whole {'' if what == 'source' else what + ' '}source tree",
            fix="give the top folder of a complete checkout or archive",
        )


def normalise(tree: Path) -> None:
    """Give files mode 0644 or 0755, folders 0755, and everything one timestamp, because ninja and PCH look at times.

    `.git` is removed at any depth: it is not part of the digest, so nothing may be built from it.
    """
    stamp = (digest.EPOCH, digest.EPOCH)
    for folder, folders, files in os.walk(tree, topdown=False):
        for name in (*files, *folders):
            path = f"{folder}/{name}"
            if name == ".git":
                _remove(path)
                continue
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                os.utime(path, stamp, follow_symlinks=False)
                continue
            mode = 0o755 if stat.S_ISDIR(info.st_mode) or info.st_mode & 0o111 else 0o644
            # A correct mode is not set again, because a new ctime would invalidate the stat cache.
            if stat.S_IMODE(info.st_mode) != mode:
                os.chmod(path, mode)  # noqa: PTH101 - a Path for each of a hundred thousand files costs seconds
            if info.st_mtime_ns != digest.EPOCH * 10**9:
                os.utime(path, stamp)
    tree.chmod(0o755)
    os.utime(tree, stamp)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
        shutil.rmtree(path)
    else:
        os.unlink(path)  # noqa: PTH108


_DO_NOT_USE = "do not use this source"


def check_links(tree: Path, *, what: str = "", fix: str = _DO_NOT_USE) -> None:
    """Refuse a tree with a link that leads out of it.

    Args:
        what: name of the tree in the message; by default its path.
        fix: remedy in the message.
    """
    links = {rel: _target(entry) for rel, kind, entry in _walk(tree) if kind == "l"}
    check_link_map(links, what=what or str(tree), fix=fix)


def check_link_map(links: Mapping[str, str], *, what: str, fix: str = _DO_NOT_USE) -> None:
    """Refuse links (path from the top → target) that lead out, also through other links, or in a circle."""
    for path, target in links.items():
        if reason := _escape(path, target, links):
            raise HostileInputError(
                "link-escapes", f"{what}: the link {path} {reason}", why=f"its target is {target[:200]!r}", fix=fix
            )


def _escape(path: str, target: str, links: Mapping[str, str]) -> str:
    """Return why a link leads out of the tree; empty if it does not."""
    at = path.split("/")[:-1]
    todo = [""]  # components still to walk, the next one last
    followed = 0
    onward: str | None = target
    while todo:
        if onward is not None:
            if onward.startswith("/"):
                return "leads to an absolute path"
            todo.extend(reversed(onward.split("/")))
            onward = None
        step = todo.pop()
        if step == "..":
            if not at:
                return "leads out of the tree"
            at.pop()
        elif step not in ("", "."):
            onward = links.get("/".join((*at, step)))
            followed += onward is not None
            if followed > _MAX_LINKS:
                return "leads round in a circle"
            if onward is None:
                at.append(step)
    return ""
