"""Safe access to files in folders where untrusted users or builds may have planted links, pipes or devices."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self, cast

from toolchain.core import strict_json
from toolchain.core.errors import DigestError, HostileInputError, ResourceError, SourceError
from toolchain.core.typed import Kind, TypedError, typed

if TYPE_CHECKING:
    from io import BufferedReader

_CHUNK = 1 << 20
_LARGEST_BUILT = 16 << 20  # bytes; the limit for a text file that a build wrote
_LARGEST_TEXT = 16 << 20  # bytes; the limit for a text file of a source tree
_BUILD = "check what the sources do during the build; the log shows what was built"
_LONGEST_NAME = 200  # bytes of the final name that a temporary name repeats; file systems allow 255 bytes in a name


def open_regular(path: Path, *, within: Path | None = None) -> BinaryIO:
    """Open a regular file for reading; raise an OSError for anything else, such as a device or a pipe that would block.

    Args:
        within: a folder that the file must be in after links are followed. Without it, the file must not be a link.
    """
    if within is not None:
        path = Path(os.path.realpath(path, strict=True))
        if not path.is_relative_to(os.path.realpath(within)):
            raise OSError(errno.ELOOP, f"it is a link that leads out of {within}", str(path))
    # This check comes before `open`, because opening a device may already have an effect.
    _require_regular(path.lstat(), path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require_regular(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require_regular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "it is a link", str(path))
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_regular(path: Path, limit: int, *, within: Path | None = None) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; raise an OSError for any other file.

    For `within`, see `open_regular`. Memory is allocated for the size of the file, not for the limit.
    """
    with open_regular(path, within=within) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > limit:
            raise _too_large(path, limit)
        # One more byte is read, because it shows whether the file is larger than its reported size.
        content = stream.read(size + 1)
        if len(content) > size:  # the file has grown, or reports the size 0, as files in /proc may
            content = b"".join([content, *_rest(stream, limit + 1 - len(content))])
    if len(content) > limit:
        raise _too_large(path, limit)
    return content


def _too_large(path: Path, limit: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {limit} bytes", str(path))


def _rest(stream: BinaryIO, most: int) -> Iterator[bytes]:
    while most > 0 and (piece := stream.read(min(most, _CHUNK))):
        most -= len(piece)
        yield piece


def read_built(tree: Path, name: str) -> str:
    """Return the content of a text file that a build wrote.

    Raise a HostileInputError unless it is a regular file inside `tree`, has at most 16 MiB and is UTF-8.
    """
    try:
        return read_regular(tree / name, _LARGEST_BUILT, within=tree).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise HostileInputError(
            "build-left-unreadable", f"the file {name} from a build cannot be read", why=str(why), fix=_BUILD
        ) from error


def read_built_json(tree: Path, name: str, kind: type[Kind]) -> Kind:
    """Return the value of a JSON document that a build wrote, converted by `typed`.

    Raise a HostileInputError if `read_built` does, or if the document is malformed or does not fit `kind`.
    """
    try:
        return typed(kind, strict_json.read(read_built(tree, name), name))
    except ValueError as error:
        raise HostileInputError(
            "build-left-unreadable",
            f"the file {name} from a build is not the expected JSON document",
            why=str(error) if isinstance(error, TypedError) else "it is malformed",
            fix=_BUILD,
        ) from error


def source_text(tree: Path, name: str) -> str:
    """Return the text of a file in a source tree; bytes that are not UTF-8 and ends of lines are replaced.

    Raise a SourceError unless it is a regular file inside `tree` and has at most 16 MiB.
    """
    try:
        text = read_regular(tree / name, _LARGEST_TEXT, within=tree).decode("utf-8", errors="replace")
    except OSError as error:
        raise SourceError(
            "source-unreadable",
            f"cannot read {tree / name}",
            why=str(error.strerror),
            fix="check the path and its permissions",
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def copy_built(tree: Path, name: str, target: Path) -> None:
    """Copy a file that a build wrote, and keep its executable bit.

    Raise a HostileInputError if it is not a regular file inside `tree`, and a ResourceError if it cannot be copied.
    """
    try:
        source = open_regular(tree / name, within=tree)
    except OSError as error:
        raise HostileInputError(
            "build-left-unreadable",
            f"the file {name} from a build cannot be read",
            why=str(error.strerror),
            fix=_BUILD,
        ) from error
    try:
        with source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, _CHUNK)
            target.chmod(0o755 if os.fstat(source.fileno()).st_mode & 0o100 else 0o644)
    except OSError as error:
        raise ResourceError(
            "build-not-copied",
            f"the file {name} from a build cannot be copied to {target}",
            why=str(error.strerror),
            fix="free disk space, or give another --cache DIR",
        ) from error


def remove_links(folder: Path) -> None:
    """Remove all symbolic links below a folder, so that nothing is written through them."""
    for above, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(above, name)
            if path.is_symlink():
                path.unlink()


def emptied(folder: Path) -> Path:
    """Remove a folder with its content if it exists, create it again, and return its path."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def make_private(folder: Path) -> None:
    """Create a folder that only its owner can enter, or remove the permissions of other users from an existing folder.

    A folder of another user keeps its permissions.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.stat()
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        with contextlib.suppress(PermissionError):  # some file systems refuse chmod even to the owner
            folder.chmod(0o700)


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is in a folder after following all links except one in the last part of the path."""
    return Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(folder))


class NewFile:
    """A file that is written under a temporary name, and removed unless `finish` renames it.

    Args:
        path: the final path. A link at this path is never followed. The temporary file is in the same folder.
            Callers can change the attribute `path` until they call `finish`.
        mode: the permissions after `finish`; until then, only the owner can read the file.
    """

    def __init__(self, path: Path, *, mode: int = 0o644) -> None:
        if not path.name:  # `.` and `/` are folders, which a file cannot replace
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        self.path = path
        self._mode = mode
        short = os.fsdecode(os.fsencode(path.name)[:_LONGEST_NAME])
        self._partial = path.with_name(f".{short}.{secrets.token_hex(8)}.partial")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self.stream: BinaryIO = os.fdopen(os.open(self._partial, flags, 0o600), "w+b", buffering=_CHUNK)

    def finish(self, digest: str = "", *, replace: bool = True, flush: bool = True) -> bool:
        """Rename the file to its final path.

        Args:
            digest: the digest (`sha256:<hex>`) that the renamed file must have, or else a DigestError is raised; empty
                for no check.
            flush: whether to flush the content to disk first; otherwise a crash of the machine may leave an empty file.

        Returns:
            False if the path exists already and `replace` is not set, True otherwise.
        """
        self.stream.flush()
        if flush:
            os.fsync(self.stream.fileno())
        os.fchmod(self.stream.fileno(), self._mode)
        if replace:
            self._partial.replace(self.path)
        else:
            try:
                os.link(self._partial, self.path, follow_symlinks=False)
            except FileExistsError:
                return False
        if digest:
            read_back(self.path, digest)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        try:
            if isinstance(value, OSError) and value.errno in {errno.ENOSPC, errno.EDQUOT} and value.filename is None:
                value.filename = os.fspath(self.path)  # an error from `write` does not name the file
            # Closing flushes the rest, which fails again on a full disk.
            with contextlib.suppress(OSError) if value is not None else contextlib.nullcontext():
                self.stream.close()
        finally:
            self._partial.unlink(missing_ok=True)


def read_back(path: Path, digest: str) -> None:
    """Raise a DigestError unless a file that was just written has the expected digest."""
    try:
        with open_regular(path) as stream:
            actual = f"sha256:{hashlib.file_digest(cast('BufferedReader', stream), 'sha256').hexdigest()}"
        why = f"expected {digest}, found {actual}" if actual != digest else ""
    except OSError as error:
        why = str(error.strerror or error)
    if why:
        raise DigestError(
            "written-file-changed",
            f"the content of {path} differs from what was written",
            why=why,
            fix="write to a folder that only you can write to",
        )
