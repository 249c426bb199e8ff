"""The blobs of an OCI image layout: files that are named by their digest."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

from toolchain.digest import CHUNK, canonical, sha256_bytes, sha256_file, write_atomically
from toolchain.errors import DigestError, RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor, check_digest
from toolchain.oci.manifest import keys_of, parse_object

LOG = logging.getLogger(__name__)
MANIFEST_LIMIT = 16 << 20  # bytes of JSON that are read at once; registries allow 4 MiB


class Blobs:
    """The blobs of the layout below `root`. Several processes may use it at a time: blobs appear whole."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._blobs = root / "blobs" / "sha256"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.root)!r})"

    def _path(self, digest: str) -> Path:
        return self._blobs / check_digest(digest).removeprefix("sha256:")

    def has(self, digest: str) -> bool:
        """Whether the blob is there."""
        return self._path(digest).is_file()

    def holds(self, digest: str) -> bool:
        """Whether a blob is there as it must be: all of it is read.

        One that decayed stays until another takes its place: this may be looking at the file that somebody else is
        about to replace.
        """
        if not self.has(digest):
            return False
        try:
            self.verify(digest)
        except (DigestError, OSError) as error:
            LOG.warning("%s: %s", self.root, error)
            return False
        return True

    def blob(self, digest: str) -> Path:
        """The file of a blob.

        Raises:
            RegistryError: it is not there.
        """
        path = self._path(digest)
        if not path.is_file():
            raise RegistryError(f"{self.root} lacks {digest}", fix="build or fetch the image again")
        return path

    def partial(self, digest: str) -> Path:
        """A name of this process alone, beside the blobs, for a blob under way (see `adopt`)."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        return self._blobs / f".{check_digest(digest).removeprefix('sha256:')}.{os.getpid()}.partial"

    def adopt(self, partial: Path, digest: str) -> None:
        """Give a complete file, whose digest the caller has checked, its final name; flushed to disk first."""
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        partial.chmod(0o644)
        partial.replace(self._path(digest))

    def put_file(
        self, path: Path, *, digest: str | None = None, move: bool = False, media_type: str = media.LAYER
    ) -> Descriptor:
        """Store a file.

        Args:
            path: the file.
            digest: what it must have. If that is here, and whole, the file is not read.
            move: take the file away where it was.
            media_type: for the descriptor.

        Raises:
            DigestError: it has another digest; nothing is stored.
            RegistryError: it cannot be read or stored.
        """
        try:
            found, size = self._store(path, digest, move)
        except OSError as error:
            raise RegistryError(
                f"cannot store {path} in {self.root}", why=str(error), fix="check the path and its rights"
            ) from error
        return Descriptor(media_type, found, size)

    def _store(self, path: Path, digest: str | None, move: bool) -> tuple[str, int]:
        if digest is not None and self.holds(digest):
            if move and not path.samefile(self._path(digest)):
                path.unlink()
            return digest, self._path(digest).stat().st_size
        self._blobs.mkdir(parents=True, exist_ok=True)
        if move and path.stat().st_dev == self._blobs.stat().st_dev:
            found, size = sha256_file(path), path.stat().st_size
            _compare(path, digest, found)
            self.adopt(path, found)
            return found, size
        partial = self._blobs / f".{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}.{os.getpid()}.partial"
        try:
            hasher = hashlib.sha256()
            size = 0
            with path.open("rb", buffering=0) as source, partial.open("wb", buffering=0) as sink:
                while piece := source.read(CHUNK):
                    hasher.update(piece)
                    size += len(piece)
                    view = memoryview(piece)
                    while view:
                        view = view[sink.write(view) :]
            found = f"sha256:{hasher.hexdigest()}"
            _compare(path, digest, found)
            self.adopt(partial, found)
        finally:
            partial.unlink(missing_ok=True)
        if move:
            path.unlink()
        return found, size

    def put_bytes(self, content: bytes, media_type: str) -> Descriptor:
        """Store bytes: configs, manifests, indexes."""
        digest = sha256_bytes(content)
        if not self.holds(digest):
            try:
                write_atomically(self._path(digest), content)
            except OSError as error:
                raise RegistryError(
                    f"cannot write to {self.root}", why=str(error), fix="check its rights, or name another folder"
                ) from error
        return Descriptor(media_type, digest, len(content))

    def put_json(self, value: Any, media_type: str) -> Descriptor:
        """Store `value` as canonical JSON."""
        return self.put_bytes(canonical(value), media_type)

    def read(self, descriptor: Descriptor) -> bytes:
        """A small blob whole, its digest checked.

        Raises:
            RegistryError: missing, or larger than any manifest.
            DigestError: not the bytes it must be.
        """
        path = self.blob(descriptor.digest)
        if path.stat().st_size > MANIFEST_LIMIT:
            raise RegistryError(
                f"{descriptor.digest} is too large for a manifest",
                why=f"{path.stat().st_size} bytes",
                fix="name a manifest; this is something else",
            )
        content = path.read_bytes()
        _compare(path, descriptor.digest, sha256_bytes(content))
        return content

    def read_json(self, descriptor: Descriptor) -> dict[str, Any]:
        """A JSON blob.

        Raises:
            RegistryError: missing, or not a JSON object.
            DocumentError: JSON that programs read differently.
            DigestError: not the bytes it must be.
        """
        return parse_object(self.read(descriptor), descriptor.digest, keys=keys_of(descriptor.media_type))

    def verify(self, digest: str) -> None:
        """Hash a blob.

        Raises:
            RegistryError: missing.
            DigestError: other bytes than its name says.
        """
        path = self.blob(digest)
        _compare(path, digest, sha256_file(path))

    def forget(self, *digests: str) -> None:
        """Remove blobs of an image that was never tagged; a name of it stays nowhere."""
        for digest in digests:
            self._path(digest).unlink(missing_ok=True)


def _compare(path: Path, promised: str | None, found: str) -> None:
    if promised is not None and promised != found:
        raise DigestError(
            f"{path.name} has the wrong digest", why=f"expected {promised}, found {found}", fix="fetch it again"
        )
