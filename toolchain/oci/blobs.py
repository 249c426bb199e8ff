"""Read and write the blobs of an OCI image layout."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from toolchain.core.amounts import tell
from toolchain.core.digest import CHUNK, canonical, sha256_bytes, sha256_stream, write_atomically
from toolchain.core.errors import DigestError, RegistryError
from toolchain.core.filesystem import NewFile, open_regular, read_back
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor, check_digest
from toolchain.oci.manifest import keys_of, parse_object

LOG = logging.getLogger(__name__)
MANIFEST_LIMIT = 16 << 20  # bytes; the largest manifest, index or config that is read


class Blobs:
    """The blobs of the layout in the folder `root`.

    Several processes may use the same folder, because a blob gets its name only when it is complete.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._blobs = root / "blobs" / "sha256"

    def _folder(self) -> Path:
        for folder in (self._blobs.parent, self._blobs):
            if folder.is_symlink() and not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(self.root)):
                raise RegistryError(
                    "blobs-link-escapes",
                    f"{folder} is a link that points out of {self.root}",
                    why="blobs would be read and written outside of the layout",
                    fix="replace the link with a folder, or give the folder that it points to",
                )
        return self._blobs

    def _path(self, digest: str) -> Path:
        return self._folder() / check_digest(digest).removeprefix("sha256:")

    def has(self, digest: str) -> bool:
        """Return whether the layout has a blob, without reading it; a symlink is not accepted."""
        path = self._path(digest)
        return path.is_file() and not path.is_symlink()

    def holds(self, digest: str) -> bool:
        """Return whether the layout has a blob whose content matches the digest; log a warning for a damaged blob.

        A damaged blob is not removed, because another process may be replacing it. An unreadable blob is treated as
        damaged.
        """
        if not self.has(digest):
            return False
        try:
            self.verify(digest)
        except (DigestError, RegistryError, OSError) as error:
            LOG.warning("%s: %s", self.root, error)
            return False
        return True

    def blob(self, digest: str) -> Path:
        """Return the path of a blob; raise RegistryError if the layout does not have it."""
        if not self.has(digest):
            raise RegistryError(
                "blob-missing", f"{self.root} has no blob {digest}", fix="build or download the image again"
            )
        return self._path(digest)

    def open(self, digest: str) -> BinaryIO:
        """Open a blob for reading; raise RegistryError if it is missing or cannot be read."""
        path = self.blob(digest)
        try:
            return open_regular(path)
        except OSError as error:
            raise RegistryError(
                "blob-unreadable", f"cannot read {path}", why=str(error.strerror), fix="download the image again"
            ) from error

    def digest_of(self, digest: str) -> str:
        """Return the digest of a blob's content, which differs from `digest` if the blob is damaged."""
        with self.open(digest) as stream:
            return sha256_stream(stream)

    def new(self, digest: str) -> NewFile:
        """Return an open file for a new blob; the caller writes the content and calls `finish` with the digest."""
        self._folder().mkdir(parents=True, exist_ok=True)
        return NewFile(self._path(digest))

    def link(self, path: Path, digest: str) -> Path:
        """Add a file as a blob, unless the layout has the blob already; return the path of the blob.

        The file is hard-linked, and its digest is not checked. If linking fails, `put_file` copies the file and checks
        its digest.
        """
        there = self._path(digest)
        there.parent.mkdir(parents=True, exist_ok=True)
        if not self.has(digest):
            try:
                os.link(path, there)
            except OSError:
                self.put_file(path, digest=digest)
        return there

    def put_file(
        self, path: Path, *, digest: str | None = None, move: bool = False, media_type: str = media.LAYER
    ) -> Descriptor:
        """Store a file as a blob, and return its descriptor.

        Args:
            digest: the expected digest; None to accept any content. If the layout has an undamaged blob with this
                digest, the file is not read; otherwise, DigestError is raised if the digest of the file differs.
            move: whether to move the file instead of copying it. If the layout has the blob already, the file is
                removed.
        """
        try:
            actual, size = self._store(path, digest, move)
        except OSError as error:
            raise RegistryError(
                "layout-unwritable",
                f"cannot store {path} in {self.root}",
                why=error.strerror or "",
                fix="check the path, its permissions and the free space",
            ) from error
        return Descriptor(media_type, actual, size)

    def _store(self, path: Path, digest: str | None, move: bool) -> tuple[str, int]:
        if digest is not None and self.holds(digest):
            if move and not path.samefile(self._path(digest)):
                path.unlink()
            return digest, self._path(digest).stat().st_size
        folder = self._folder()
        folder.mkdir(parents=True, exist_ok=True)
        with open_regular(path, within=path.parent) as source:
            status = os.fstat(source.fileno())
            if move and status.st_dev == folder.stat().st_dev and not path.is_symlink():
                actual, size = sha256_stream(source), status.st_size
                _compare(path, digest, actual)
                os.fsync(source.fileno())
                os.fchmod(source.fileno(), 0o644)
                path.replace(self._path(actual))
                read_back(self._path(actual), actual)
                return actual, size
            with NewFile(folder / path.name) as new:
                hasher = hashlib.sha256()
                size = 0
                while piece := source.read(CHUNK):
                    hasher.update(piece)
                    size += len(piece)
                    new.stream.write(piece)
                    if status.st_size > CHUNK:
                        tell("copying a blob", size, status.st_size)
                actual = f"sha256:{hasher.hexdigest()}"
                _compare(path, digest, actual)
                new.path = self._path(actual)
                new.finish(actual)
        if move:
            path.unlink()
        return actual, size

    def put_bytes(self, content: bytes, media_type: str) -> Descriptor:
        """Store bytes as a blob, e.g. a config, manifest or index, and return its descriptor."""
        digest = sha256_bytes(content)
        if not self.holds(digest):
            try:
                write_atomically(self._path(digest), content, check=True)
            except OSError as error:
                raise RegistryError(
                    "layout-unwritable",
                    f"cannot write to {self.root}",
                    why=error.strerror or "",
                    fix="check its permissions and the free space, or name another folder",
                ) from error
        return Descriptor(media_type, digest, len(content))

    def put_json(self, value: Any, media_type: str) -> Descriptor:
        """Store a value as a blob of canonical JSON, and return its descriptor."""
        return self.put_bytes(canonical(value), media_type)

    def put_artifact(self, kind: str, layers: Iterable[Descriptor], **more: Any) -> Descriptor:
        """Store the manifest of an artifact with an empty config, and return its descriptor.

        Args:
            kind: the artifact type.
            layers: the layers, whose blobs are in the layout.
            more: more keys of the manifest, such as `subject` and `annotations`.
        """
        value = {
            "schemaVersion": 2,
            "mediaType": media.MANIFEST,
            "artifactType": kind,
            "config": self.put_bytes(b"{}", media.EMPTY).as_json(),
            "layers": [layer.as_json() for layer in layers],
            **more,
        }
        return replace(self.put_json(value, media.MANIFEST), artifact_type=kind)

    def read(self, descriptor: Descriptor) -> bytes:
        """Return the content of a blob.

        RegistryError is raised if the blob is missing, unreadable or larger than `MANIFEST_LIMIT`, and DigestError if
        it is damaged.
        """
        with self.open(descriptor.digest) as stream:
            content = stream.read(MANIFEST_LIMIT + 1)
        if len(content) > MANIFEST_LIMIT:
            raise RegistryError(
                "manifest-too-large",
                f"{descriptor.digest} is too large for a manifest",
                why=f"it has more than {MANIFEST_LIMIT} bytes",
                fix="give the digest of a manifest",
            )
        _compare(self._path(descriptor.digest), descriptor.digest, sha256_bytes(content))
        return content

    def read_json(self, descriptor: Descriptor) -> dict[str, Any]:
        """Return the JSON object in a blob; raise the errors of `read` and of `parse_object`."""
        return parse_object(self.read(descriptor), descriptor.digest, keys=keys_of(descriptor.media_type))

    def verify(self, digest: str) -> None:
        """Raise DigestError if a blob does not match its digest, and RegistryError if the blob cannot be read."""
        _compare(self._path(digest), digest, self.digest_of(digest))

    def forget(self, *digests: str) -> None:
        """Remove blobs; the caller must ensure that no tagged image contains them."""
        for digest in digests:
            self._path(digest).unlink(missing_ok=True)


def _compare(path: Path, expected: str | None, actual: str) -> None:
    if expected is not None and expected != actual:
        raise DigestError(
            "blob-digest-mismatch",
            f"{path.name} has the wrong digest",
            why=f"expected {expected}, found {actual}",
            fix="download or build it again",
        )
