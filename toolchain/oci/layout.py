"""An OCI image layout: a folder that is a registry without a server."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolchain.digest import CHUNK, canonical, sha256_bytes, sha256_file, write_atomically
from toolchain.errors import DigestError, RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor, check_digest
from toolchain.oci.manifest import children_of, media_type_of, parse_object

if TYPE_CHECKING:
    from filelock import FileLock

LOG = logging.getLogger(__name__)
MANIFEST_LIMIT = 16 << 20  # bytes of JSON that are read at once; registries allow 4 MiB
_STALE = 24 * 3600
_NAME = re.compile(r"[A-Za-z0-9]+(?:[-._:@/+]+[A-Za-z0-9]+)*")


class Layout:
    """The layout below `root`. Several processes may use one at a time: blobs appear whole, index.json has a lock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._blobs = root / "blobs" / "sha256"
        self._index = root / "index.json"

    def __repr__(self) -> str:
        return f"Layout({str(self.root)!r})"

    def ensure(self) -> Layout:
        """Make the folder a layout if it is none yet.

        Raises:
            RegistryError: it is a layout of another version, or no folder can be made there.
        """
        marker = self.root / "oci-layout"
        try:
            self._blobs.mkdir(parents=True, exist_ok=True)
            if not marker.exists():
                write_atomically(marker, b'{"imageLayoutVersion":"1.0.0"}')
            version = json.loads(marker.read_bytes())["imageLayoutVersion"]
            with self._lock():
                if not self._index.exists():
                    write_atomically(self._index, canonical(_empty_index()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RegistryError(
                f"{self.root} cannot be an OCI layout", why=str(error), fix="name another folder"
            ) from error
        if version != "1.0.0":
            raise RegistryError(
                f"{self.root} is an OCI layout of version {version}",
                why="only 1.0.0 is known",
                fix="name another folder",
            )
        return self

    def _lock(self) -> FileLock:
        from filelock import FileLock  # noqa: PLC0415 - who only reads takes no lock

        return FileLock(self.root / ".index.lock")

    # Blobs

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
            DigestError: not the bytes it must be.
        """
        return parse_object(self.read(descriptor), descriptor.digest)

    def verify(self, digest: str) -> None:
        """Hash a blob.

        Raises:
            RegistryError: missing.
            DigestError: other bytes than its name says.
        """
        path = self.blob(digest)
        _compare(path, digest, sha256_file(path))

    # Names

    def _no_index(self, why: str) -> RegistryError:
        return RegistryError(f"{self._index} is not an index", why=why, fix="publish to another folder")

    def _entries(self) -> dict[str, Any]:
        try:
            content = parse_object(self._index.read_bytes(), str(self._index))
        except FileNotFoundError as error:
            raise RegistryError(
                f"{self.root} is not an OCI layout",
                why="it has no index.json",
                fix="name a folder that `toolchain publish oci:DIR` wrote",
            ) from error
        if not isinstance(content.get("manifests"), list):
            raise self._no_index("it has no list of manifests")
        if not all(isinstance(entry, dict) for entry in content["manifests"]):
            raise self._no_index("its list holds something else than manifests")
        return content

    def tag(self, descriptor: Descriptor, name: str) -> None:
        """Let `name` point to `descriptor`, whatever it pointed to before. Entries of others stay.

        Raises:
            RegistryError: not a name, or the blob is missing.
        """
        if not _NAME.fullmatch(name):
            raise RegistryError(
                f"{name!r} cannot be a tag",
                why="letters, digits and single separators . _ - are allowed",
                fix="name another tag",
            )
        self.blob(descriptor.digest)
        self.retag(name, lambda _: descriptor)

    def retag(self, name: str, make: Callable[[Descriptor | None], Descriptor]) -> None:
        """Let `name` point to what `make` gives for what it points to now; nobody else changes names meanwhile.

        Raises:
            RegistryError: as `make` does.
        """

        def change(entries: list[Any]) -> list[Any]:
            now = next((Descriptor.from_json(old) for old in entries if _ref_name(old) == name), None)
            made = make(_untagged(now) if now is not None else None)
            entry = made.annotated({media.REF_NAME: name}).as_json()
            return [old for old in entries if _ref_name(old) != name] + [entry]

        self._change(change)

    def add(self, descriptor: Descriptor) -> None:
        """List `descriptor` without a name: an artifact that is found by its subject. Twice is once.

        Raises:
            RegistryError: the blob is missing.
        """
        self.blob(descriptor.digest)
        entry = _untagged(descriptor).as_json()

        def change(entries: list[Any]) -> list[Any]:
            there = any(old.get("digest") == descriptor.digest and not _ref_name(old) for old in entries)
            return entries if there else [*entries, entry]

        self._change(change)

    def roots(self) -> tuple[Descriptor, ...]:
        """Everything that index.json lists, with and without a name."""
        return tuple(_untagged(Descriptor.from_json(entry)) for entry in self._entries()["manifests"])

    def untag(self, name: str) -> None:
        """Forget `name`; its blobs stay until `gc`."""
        self._change(lambda entries: [old for old in entries if _ref_name(old) != name])

    def _change(self, change: Any) -> None:
        with self._lock():
            content = self._entries()
            before = canonical(content)
            content["manifests"] = sorted(
                change(content["manifests"]), key=lambda entry: (_ref_name(entry), str(entry.get("digest")))
            )
            if canonical(content) != before:
                write_atomically(self._index, canonical(content))

    def refs(self) -> dict[str, Descriptor]:
        """What each name points to, sorted by name.

        Raises:
            DigestError: a name points to two things; of those programs choose differently.
        """
        named: dict[str, Descriptor] = {}
        for entry in self._entries()["manifests"]:
            if name := _ref_name(entry):
                found = Descriptor.from_json(entry)
                if named.setdefault(name, found).plain != found.plain:
                    raise DigestError(
                        f"{self.root} lists {name!r} twice",
                        why=f"{named[name].digest} and {found.digest}",
                        fix="name what is meant by its digest, or publish it again",
                    )
        return {name: named[name] for name in sorted(named)}

    def images(self) -> dict[str, Descriptor]:
        """As `refs`, without the tags that signatures about an image lie under."""
        return {name: one for name, one in self.refs().items() if not self._is_about(name, one)}

    def _is_about(self, name: str, descriptor: Descriptor) -> bool:
        # By its content too: an image that somebody gave such a name is an image.
        if media.ABOUT_TAG.fullmatch(name) is None or descriptor.media_type not in media.IMAGES:
            return False
        _, *layers = self.children(descriptor)
        return all(layer.media_type in media.STATEMENTS for layer in layers)

    def resolve(self, name: str) -> Descriptor:
        """The descriptor behind a tag or a digest, without the annotation that holds the tag.

        Raises:
            RegistryError: unknown.
        """
        if name.startswith("sha256:"):
            check_digest(name)
            for entry in self._entries()["manifests"]:
                if entry.get("digest") == name:
                    return _untagged(Descriptor.from_json(entry))
            size = self.blob(name).stat().st_size
            value = self.read_json(Descriptor("", name, size))
            return Descriptor(media_type_of(value), name, size)
        refs = self.refs()
        if name not in refs:
            known = ", ".join(refs) or "none"
            raise RegistryError(
                f"{self.root} has no image {name!r}",
                why=f"images there: {known}",
                fix="name one of these, or publish it there",
            )
        return _untagged(refs[name])

    def children(self, descriptor: Descriptor) -> tuple[Descriptor, ...]:
        """What a manifest or index names directly: manifests, or config and layers; nothing for other blobs.

        Raises:
            RegistryError: missing or malformed.
        """
        if descriptor.media_type not in media.MANIFESTS:
            return ()
        return children_of(self.read_json(descriptor), descriptor)

    def walk(self, descriptor: Descriptor) -> Iterator[Descriptor]:
        """`descriptor` and everything below it, each digest once, parents first.

        Raises:
            RegistryError: a manifest below is missing or malformed. Other blobs are named, not looked at.
        """
        seen: set[str] = set()
        waiting = [descriptor]
        while waiting:
            this = waiting.pop()
            if this.digest in seen:
                continue
            seen.add(this.digest)
            yield this
            waiting.extend(reversed(self.children(this)))

    def forget(self, *digests: str) -> None:
        """Remove blobs of an image that was never tagged; a name of it stays nowhere."""
        for digest in digests:
            self._path(digest).unlink(missing_ok=True)

    def gc(self, keep: Iterable[str] = (), *, older_than: float = 0) -> int:
        """Remove the blobs that neither index.json nor a digest in `keep` reaches, and day-old partial files.

        Whoever stores blobs and has not yet tagged them must give their digests, or hold off. Of a manifest that is
        damaged nobody can tell what it holds: it stays, and what it alone holds goes.

        Args:
            older_than: seconds; younger blobs stay.

        Returns:
            Bytes freed.
        """
        freed = 0
        with self._lock():
            used = set(keep)
            for digest in {*used, *(str(entry.get("digest")) for entry in self._entries()["manifests"])}:
                try:
                    if self.has(digest):
                        used.update(found.digest for found in self.walk(self.resolve(digest)))
                except (RegistryError, DigestError) as error:
                    used.add(digest)
                    LOG.warning("%s: %s", self.root, error)
            for path in self._blobs.iterdir() if self._blobs.is_dir() else []:
                status = path.lstat()
                age = time.time() - status.st_mtime
                stale = path.name.endswith(".partial") and age > _STALE
                lost = not path.name.startswith(".") and f"sha256:{path.name}" not in used and age >= older_than
                if stale or lost:
                    with contextlib.suppress(FileNotFoundError):
                        path.unlink()
                        freed += status.st_size
        return freed


def _empty_index() -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": media.INDEX, "manifests": []}


def _ref_name(entry: Any) -> str:
    return str((entry.get("annotations") or {}).get(media.REF_NAME, "")) if isinstance(entry, dict) else ""


def _untagged(descriptor: Descriptor) -> Descriptor:
    rest = {key: text for key, text in descriptor.annotations.items() if key != media.REF_NAME}
    return Descriptor(
        descriptor.media_type, descriptor.digest, descriptor.size, descriptor.platform, rest, descriptor.artifact_type
    )


def _compare(path: Path, promised: str | None, found: str) -> None:
    if promised is not None and promised != found:
        raise DigestError(
            f"{path.name} has the wrong digest", why=f"expected {promised}, found {found}", fix="fetch it again"
        )
