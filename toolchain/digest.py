"""Digests and canonical JSON: the same value has the same bytes everywhere."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any, BinaryIO

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
    """`sha256:<64 hex>` of a file.

    Raises:
        OSError: it cannot be read.
    """
    with Path(path).open("rb") as stream:
        return sha256_stream(stream)


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write `content` under a partial name, flush it to disk, then give it its final name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two threads may write the same file; two processes in containers may have the same number.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.chmod(mode)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
