"""Digests, canonical JSON, and atomic writing of files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from toolchain.core.errors import ConfigError
from toolchain.core.filesystem import NewFile, open_regular
from toolchain.core.permissions import for_user

CHUNK = 1 << 20
EPOCH = 1767225600  # 2026-01-01T00:00:00Z, the latest modification time of files in layers
FORMAT = 2  # part of input digests; increase it when a change to the tool changes the bytes made from the same inputs


def canonical(value: Any) -> bytes:
    """Return `value` as JSON in UTF-8 with sorted keys and no whitespace."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha256_bytes(content: bytes) -> str:
    """Return the SHA-256 digest of `content` as `sha256:<64 hex>`."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def sha256_json(value: Any) -> str:
    """Return the SHA-256 digest of the canonical JSON of `value`."""
    return sha256_bytes(canonical(value))


def sha256_stream(stream: BinaryIO) -> str:
    """Return the SHA-256 digest of the rest of `stream`."""
    hasher = hashlib.sha256()
    while chunk := stream.read(CHUNK):
        hasher.update(chunk)
    return f"sha256:{hasher.hexdigest()}"


def sha256_file(path: Path | os.PathLike[str]) -> str:
    """Return the SHA-256 digest of a regular file after following links; raise an OSError for other kinds of files."""
    with open_regular(Path(os.path.realpath(path))) as stream:
        return sha256_stream(stream)


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644, check: bool = False) -> None:
    """Write `content` to a temporary file, flush the file to disk, and rename it to `path`.

    Args:
        check: whether to read the file back, and raise a DigestError if another process has changed it meanwhile.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NewFile(path, mode=mode) as new:
        new.stream.write(content)
        new.finish(sha256_bytes(content) if check else "")


def write_output(path: Path, content: bytes, *, option: str) -> None:
    """Atomically write a file that the user named with `option`.

    A link whose target is below the link's own folder is followed and kept. Raise a ConfigError for any other link or
    a file that cannot be written, and a DigestError if another process changes the written file.
    """
    with _output(path, option) as real:
        write_atomically(real, content, mode=for_user(0o644), check=True)


def require_output(path: Path, *, option: str, make_folder: bool = False) -> None:
    """Raise the ConfigError with which `write_output` would refuse a path, or one for a folder that does not exist.

    Verbs that work for a long time call it first. The check creates a file next to the path and removes it, because
    the permissions of a folder do not show whether the file system accepts new files.

    Args:
        make_folder: whether to accept a folder that does not exist, if `write_output` can make it.
    """
    with _output(path, option) as real:
        folder = next(each for each in real.parents if each.exists()) if make_folder else real.parent
        with NewFile(folder / real.name):
            pass


def clear_output(path: Path, *, option: str) -> None:
    """Remove the file that `write_output` would replace, so that no outdated file remains after a failure.

    Raise a ConfigError for a path that `write_output` refuses, or a file that cannot be removed.
    """
    with _output(path, option) as real:
        real.unlink(missing_ok=True)


@contextlib.contextmanager
def _output(path: Path, option: str) -> Iterator[Path]:
    """Yield the path to write to, and convert an OSError that the block raises to a ConfigError."""
    fix = f"choose another file: {option} FILE"
    try:
        real = Path(os.path.realpath(path))
        if path.is_symlink() and not real.is_relative_to(os.path.realpath(path.parent)):
            raise ConfigError(
                "output-is-link",
                f"cannot write {path}",
                why=f"it is a link out of its folder, to {real}",
                fix=f"give that file instead: {option} FILE",
            )
        # `write_output` renames a new file to this path, and so would replace a device such as /dev/null.
        if path.exists() and not path.is_file():
            raise ConfigError("output-unwritable", f"cannot write {path}", why="it is not a regular file", fix=fix)
        yield real
    except OSError as error:
        raise ConfigError(
            "output-unwritable", f"cannot write {path}", why=error.strerror or str(error), fix=fix
        ) from error
