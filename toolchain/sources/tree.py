"""Define sources, compute digests of source trees, and normalise and check the trees."""

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolchain.core import digest, strict_json
from toolchain.core.amounts import tell
from toolchain.core.digest import write_atomically
from toolchain.core.errors import HostileInputError, PinError, SourceError
from toolchain.sources.part import Part
from toolchain.sources.spec import Kind, ref_of
from toolchain.sources.walk import hash_file, target_of, walk

LOG = logging.getLogger(__name__)
# The hash of a file that changed within the last `_RACY_NS` nanoseconds is not cached, because another change within
# the same clock tick would be missed.
_RACY_NS = 2_000_000_000
_CACHE_FORMAT = 1
_TOLD_EVERY = 64  # number of files after which the progress is reported
_MAX_LINKS = 40  # the largest number of links that Linux follows in a path
_REPOSITORIES = {"distro": "debian"}  # kinds that have another name in records


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source tree or a single file.

    Args:
        name: the name that stages use, such as `llvm`.
        where: the URL of a repository or archive, a package, a project, or the name of a user's folder or file.
        version: the commit, `sha256:<hex>` of an archive, or the upstream version; empty for the kind `local`, and
            while the version is unknown because nothing was fetched yet.
        digest: `sha256:<hex>` or `git:<40 hex>@<repository>`; None while it is unknown because nothing was fetched yet.
        path: the user's folder or file, or its copy from a bundle; None for other sources.
        locked: whether a commit or digest fixed the content before the first fetch; False for the kind `local`, and
            while `among` is set.
        license: an SPDX expression; empty if the license is unknown.
        tag: the tag that was requested; empty if the request names no tag.
        commit: the commit of an archive, if data/archives.toml names it.
        among: the repositories that may have the commit, until it is known which one does; `where` is the first.
        pending: where the commit is named, for messages, while the full commit is unknown; otherwise empty.
        suite: the only suite in which a package is looked up (see `SourceSpec`).
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
        """Return the string that identifies the source in records, e.g. `distro:llvm-toolchain-22=22.1.8`.

        For a git source, it is the commit, or the tag while the commit is unknown, or else an empty string.
        """
        return ref_of(self.kind, self.where, self.version) or self.tag

    @property
    def repository(self) -> str:
        """Return the origin for records and messages: a repository's or archive's URL, `debian`, `pypi` or `local`."""
        return self.where if self.kind in {"git", "archive"} else _REPOSITORIES.get(self.kind, self.kind)

    @property
    def short_id(self) -> str:
        """Return a short id for names of images.

        It is the start of the commit, the version of a package or wheel, or "tree" and the start of the digest. While
        the commit of a git source is unknown, it is the tag or "pending", and while the version of a package is
        unknown, the `ref`.
        """
        if commit := self.version if self.kind == "git" else self.commit:
            return commit[:8]
        if self.kind == "git":
            return self.tag or "pending"
        if self.kind in {"distro", "pypi"}:
            # Versions such as 23~++20261101 or 22.1.0~+rc1 have characters that are not allowed in tags.
            return re.sub(r"[^A-Za-z0-9.]+", "-", self.version or self.ref)
        return f"tree{(self.digest or '').removeprefix('sha256:')[:8]}"

    def as_plan(self) -> dict[str, str | None]:
        """Return the source as `plan --json` prints it."""
        row = {"name": self.name, "ref": self.ref, "repository": self.repository, "digest": self.digest}
        more = {"tag": self.tag, "pending": self.pending}
        return row | {key: value for key, value in more.items() if value}

    def require_commit(self) -> None:
        """Raise PinError if `pending` is set, which means that the full commit is unknown."""
        if self.pending:
            raise PinError(
                "commit-unknown",
                f"the commit of the source {self.name} is not known",
                why=f"it is named only by {self.pending}",
                fix=f"give --source {self.name}=URL@COMMIT with all 40 digits, or a package of the distribution",
            )

    def fetched(self, path: Path) -> FetchedSource:
        """Return the source with its path in the store; raise PinError if its full commit is unknown."""
        self.require_commit()
        assert self.digest is not None  # noqa: S101 - a fetch determines it
        # fmt: off
        return FetchedSource(
            name=self.name, kind=self.kind, where=self.where, version=self.version, digest=self.digest, path=path,
            locked=self.locked, license=self.license, tag=self.tag, commit=self.commit,
        )
        # fmt: on


@dataclass(frozen=True, kw_only=True)
class FetchedSource(Source):
    """A source in the store; its path and digest are known."""

    digest: str
    path: Path


@dataclass(frozen=True)
class TreeInfo:
    """The digest of a tree, the number of its files and links, and the size of its files in bytes."""

    digest: str
    files: int
    bytes: int


def tree_digest(path: Path, stat_cache: Path | None = None) -> str:
    """Return the digest `sha256:<hex>` of a tree (see `scan_tree`)."""
    return scan_tree(path, stat_cache).digest


def digests_of(path: Path, stat_cache: Path, part: Part) -> tuple[str, str]:
    """Return the digest of a tree, and the digest of a copy that has only `part` of it, from one scan of the tree."""
    lines: list[tuple[bytes, bytes]] = []
    whole = scan_tree(path, stat_cache, lines=lines).digest
    kept = [line for line in lines if part.holds(os.fsdecode(line[0]))]
    # A folder of which nothing is copied is an empty folder of the copy.
    tops = {name.partition(b"/")[0] for name, _ in kept}
    emptied = {top for name, _ in lines if (top := name.partition(b"/")[0]) not in tops and b"/" in name}
    kept += [(top, b"d") for top in emptied if part.holds(os.fsdecode(top))]
    return whole, _digest(kept)


def _digest(lines: list[tuple[bytes, bytes]]) -> str:
    hasher = hashlib.sha256()
    for name, what in sorted(lines):
        hasher.update(b"%b\0%b\0" % (name, what))
    return f"sha256:{hasher.hexdigest()}"


def scan_tree(
    path: Path,
    stat_cache: Path | None = None,
    *,
    trust_cache: bool = True,
    expected: int = 0,
    lines: list[tuple[bytes, bytes]] | None = None,
) -> TreeInfo:
    """Return the digest and size of a tree.

    The digest covers the sorted relative paths of files, links and empty folders, the executable bit and SHA-256 of
    each file, and the target of each link. It ignores owners, times and `.git`. SourceError is raised for a socket, a
    pipe or a device, and for a file or folder that cannot be read.

    Args:
        stat_cache: a file that caches hashes of files by path, size, times and inode; it is created if missing.
        trust_cache: whether to use the hashes in `stat_cache`. Otherwise every file is read, and the cache is replaced.
        expected: the expected size in bytes, for progress messages; 0 if it is unknown.
        lines: a list to which the path and the content of each entry are added, as the digest covers them.
    """
    known = _load_cache(stat_cache) if stat_cache is not None and trust_cache else {}
    fresh: dict[str, str] = {}
    young = time.time_ns() - _RACY_NS
    lines = [] if lines is None else lines
    count = total = 0
    try:
        for rel, kind, entry, at in walk(path):
            if kind == "d":
                lines.append((os.fsencode(rel), b"d"))
                continue
            count += 1
            if kind == "l":
                lines.append((os.fsencode(rel), b"l" + os.fsencode(target_of(entry, at))))
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
                content = hash_file(entry.name, at, f"{path}/{rel}")
                if max(info.st_mtime_ns, info.st_ctime_ns) < young:
                    fresh[rel] = key + content
            lines.append((os.fsencode(rel), (b"x" if info.st_mode & 0o111 else b"f") + content.encode()))
    except OSError as error:
        raise SourceError(
            "source-unreadable",
            f"cannot read {error.filename or path}",
            why=str(error.strerror),
            fix="check the path and its permissions",
        ) from error
    if stat_cache is not None and fresh != known:
        try:
            write_atomically(stat_cache, json.dumps({"format": _CACHE_FORMAT, "files": fresh}).encode())
        except OSError as error:  # a full disk must not make a plan fail
            LOG.warning(
                "the hashes of the files in %s could not be cached, so the next plan computes them again: %s",
                path,
                error.strerror,
            )
    return TreeInfo(_digest(lines), count, total)


def _load_cache(path: Path) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
        content = strict_json.read(path.read_bytes())
        files = content.get("files") if isinstance(content, dict) and content.get("format") == _CACHE_FORMAT else None
        if isinstance(files, dict) and all(isinstance(known, str) for known in files.values()):
            return files
    return {}


def require(tree: Path, *paths: str, what: str = "source") -> None:
    """Raise SourceError if a tree lacks one of the given files or folders."""
    missing = [path for path in paths if not (tree / path).exists()]
    if missing:
        raise SourceError(
            "source-incomplete",
            f"the {what} tree lacks {', '.join(missing)}",
            why=f"{tree} is not a complete {'' if what == 'source' else what + ' '}source tree",
            fix="give the top folder of a complete checkout or archive",
        )


def make_writable(tree: Path) -> None:
    """Give the owner of a tree all permissions for its folders, so that entries can be removed from them."""
    for folder, folders, _ in os.walk(tree):
        for name in folders:
            path = f"{folder}/{name}"
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(path, stat.S_IMODE(mode) | stat.S_IRWXU)  # noqa: PTH101 - a Path for each folder would be slow


def normalise(tree: Path) -> None:
    """Set the modes of files and folders to 0644 or 0755, set modification times to `EPOCH`, and remove every `.git`.

    The times are fixed, because ninja and precompiled headers compare them. `.git` is removed, because the digest does
    not cover it.
    """
    stamp = (digest.EPOCH, digest.EPOCH)
    make_writable(tree)
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
            # A mode that is right is not set again, because that would change the ctime and invalidate the stat cache.
            if stat.S_IMODE(info.st_mode) != mode:
                os.chmod(path, mode)  # noqa: PTH101 - a Path for each file would be slow
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
    """Raise HostileInputError if a tree contains a link that points out of the tree or in a circle.

    Args:
        what: the name of the tree for the message; the default is its path.
    """
    links = {rel: target_of(entry, at) for rel, kind, entry, at in walk(tree) if kind == "l"}
    check_link_map(links, what=what or str(tree), fix=fix)


def check_link_map(links: Mapping[str, str], *, what: str, fix: str = _DO_NOT_USE) -> None:
    """Raise HostileInputError if a link points out of the tree or in a circle, directly or through other links.

    Args:
        links: the target of each link, by the link's path relative to the top.
    """
    for path, target in links.items():
        if reason := _escape(path, target, links):
            raise HostileInputError(
                "link-escapes", f"{what}: the link {path} {reason}", why=f"its target is {target[:200]!r}", fix=fix
            )


def _escape(path: str, target: str, links: Mapping[str, str]) -> str:
    """Return why a link is refused, or an empty string if its target is inside the tree."""
    at = path.split("/")[:-1]
    todo = [""]  # path components that are not resolved yet, in reverse order
    followed = 0
    onward: str | None = target
    while todo:
        if onward is not None:
            if onward.startswith("/"):
                return "points to an absolute path"
            todo.extend(reversed(onward.split("/")))
            onward = None
        step = todo.pop()
        if step == "..":
            if not at:
                return "points out of the tree"
            at.pop()
        elif step not in ("", "."):
            onward = links.get("/".join((*at, step)))
            followed += onward is not None
            if followed > _MAX_LINKS:
                return "points in a circle"
            if onward is None:
                at.append(step)
    return ""
