"""Digests and canonical JSON: the same value has the same bytes everywhere."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from toolchain.core.errors import ConfigError
from toolchain.core.filesystem import NewFile, open_regular

CHUNK = 1 << 20
EPOCH = 1767225600  # 2026-01-01T00:00:00Z: the one timestamp of all layers
FORMAT = 2  # raised when the same inputs would make other bytes, or are written in another form


def canonical(value: Any) -> bytes:
    """`value` as JSON with sorted keys and no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha256_bytes(content: bytes) -> str:
    """`sha256:<64 hex>` of `content`."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def sha256_json(value: Any) -> str:
    """`sha256:<64 hex>` of the canonical form of `value`."""
    return sha256_bytes(canonical(value))


def sha256_stream(stream: BinaryIO) -> str:
    """`sha256:<64 hex>` of what is left in `stream`, read in pieces."""
    hasher = hashlib.sha256()
    while chunk := stream.read(CHUNK):
        hasher.update(chunk)
    return f"sha256:{hasher.hexdigest()}"


def sha256_file(path: Path | os.PathLike[str]) -> str:
    """`sha256:<hex>` of a file, or of the one that a link leads to.

    Raises:
        OSError: it cannot be read, or is not a regular file: a pipe would hang, a device has no end.
    """
    with open_regular(Path(os.path.realpath(path))) as stream:
        return sha256_stream(stream)


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644, check: bool = False) -> None:
    """Write `content` under a partial name, flush it to disk, then give it its final name.

    Args:
        check: read it back. Only where no other process writes something else there meanwhile.

    Raises:
        DigestError: what is read back is something else.
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NewFile(path, mode=mode) as new:
        new.stream.write(content)
        new.finish(sha256_bytes(content) if check else "")


def write_output(path: Path, content: bytes, *, option: str) -> None:
    """Write a file that the user named, likewise. A link inside its folder stays.

    Args:
        option: names another file.

    Raises:
        ConfigError: it cannot be written there, or what is there is not a plain file, or a link out of its folder.
    """
    fix = f"name another file: {option} FILE"
    try:
        real = Path(os.path.realpath(path))
        if path.is_symlink() and not real.is_relative_to(os.path.realpath(path.parent)):
            raise ConfigError(
                f"cannot write {path}", why=f"it is a link to {real}", fix=f"name that file: {option} FILE"
            )
        # The file takes the place of what has its name, and a device like /dev/null serves others too.
        if path.exists() and not path.is_file():
            raise ConfigError(f"cannot write {path}", why="it is not a plain file", fix=fix)
        write_atomically(real, content, check=True)
    except OSError as error:
        raise ConfigError(f"cannot write {path}", why=error.strerror or str(error), fix=fix) from error
