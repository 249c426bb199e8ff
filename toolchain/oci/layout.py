"""Read and write an OCI image layout, which is a folder with index.json and blobs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolchain.core.digest import canonical, write_atomically
from toolchain.core.errors import ConfigError, DigestError, DocumentError, RegistryError, ToolchainError
from toolchain.core.filesystem import read_regular
from toolchain.oci import descriptor as media
from toolchain.oci.blobs import MANIFEST_LIMIT, Blobs
from toolchain.oci.descriptor import Descriptor, check_digest
from toolchain.oci.manifest import children_of, media_type_of, parse_object, subject_of

LOG = logging.getLogger(__name__)
_MARKER = {"imageLayoutVersion": None}
_MARKER_LIMIT = 64 << 10
_CONTAINERD_NAME = "io.containerd.image.name"
_WRITERS = "`toolchain publish oci:DIR`, `buildah push` or `skopeo copy`"
_EMPTY = {"schemaVersion": 2, "mediaType": media.INDEX, "manifests": []}
_STALE = 24 * 3600
_NAME = re.compile(r"[A-Za-z0-9]+(?:[-._:@/+]+[A-Za-z0-9]+)*")


class Layout(Blobs):
    """The layout in the folder `root`. A lock protects index.json, because several processes may change it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._index = root / "index.json"

    def ensure(self) -> Layout:
        """Create the layout if it does not exist, and return this object."""
        marker = self.root / "oci-layout"
        try:
            self._folder().mkdir(parents=True, exist_ok=True)
            with self._lock():
                if not os.path.lexists(marker):
                    write_atomically(marker, b'{"imageLayoutVersion":"1.0.0"}', check=True)
                if not os.path.lexists(self._index):
                    write_atomically(self._index, canonical(_EMPTY), check=True)
        except OSError as error:
            raise RegistryError(
                "layout-unusable",
                f"cannot create an OCI layout in {self.root}",
                why=error.strerror or "",
                fix="check its permissions and the free space, or name another folder",
            ) from error
        self._require_version()
        return self

    def _require_version(self) -> None:
        content = self._small("oci-layout", _MARKER_LIMIT)
        version = parse_object(content, str(self.root / "oci-layout"), keys=_MARKER).get("imageLayoutVersion")
        if version != "1.0.0":
            raise RegistryError(
                "layout-version",
                f"{self.root} is an OCI layout of the unknown version {str(version)[:20]!r}",
                why="only version 1.0.0 is supported",
                fix="name another folder",
            )

    def _small(self, name: str, limit: int) -> bytes:
        try:
            return read_regular(self.root / name, limit, within=self.root)
        except FileNotFoundError as error:
            raise RegistryError(
                "not-a-layout",
                f"{self.root} is not an OCI layout",
                why=f"it has no {name}" if self.root.exists() else "it does not exist",
                fix=f"name a folder that was written by {_WRITERS}",
            ) from error
        except OSError as error:
            raise RegistryError(
                "layout-unreadable",
                f"{self.root} cannot be read as an OCI layout",
                why=f"{name}: {error.strerror}",
                fix=f"check its permissions, and name a folder that was written by {_WRITERS}",
            ) from error

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        from filelock import FileLock  # noqa: PLC0415 - reading a layout needs no lock

        try:
            held = FileLock(self.root / ".index.lock").acquire()
        except OSError as error:
            raise RegistryError(
                "layout-unwritable",
                f"{self.root} cannot be changed",
                why=f".index.lock: {error.strerror}",
                fix="check its permissions, and remove that file if it is a link",
            ) from error
        with held:
            yield

    def _no_index(self, why: str) -> RegistryError:
        return RegistryError("not-an-index", f"{self._index} is not an index", why=why, fix="publish to another folder")

    def _entries(self) -> dict[str, Any]:
        content = parse_object(self._small(self._index.name, MANIFEST_LIMIT), str(self._index))
        if not isinstance(content.get("manifests"), list):
            raise self._no_index("it has no list of manifests")
        if str(content.get("mediaType", media.INDEX)) not in media.INDEXES or content.keys() & {"config", "layers"}:
            raise self._no_index("other programs could read it as an image")
        if not all(isinstance(entry, dict) for entry in content["manifests"]):
            raise self._no_index("its list of manifests has an entry that is not an object")
        for entry in content["manifests"]:
            notes = entry.get("annotations")
            if not isinstance(notes, dict | None) or not all(isinstance(text, str) for text in (notes or {}).values()):
                raise self._no_index("an entry has annotations that are not strings")
        return content

    def tag(self, descriptor: Descriptor, name: str) -> None:
        """Make the tag `name` point to a blob of the layout; other tags are not changed."""
        check_name(name)
        self.blob(descriptor.digest)
        self.retag(name, lambda _: descriptor)

    def retag(self, name: str, make: Callable[[Descriptor | None], Descriptor]) -> None:
        """Make the tag `name` point to the descriptor that `make` returns.

        `make` is called with the current target of the tag, or with None if the tag does not exist. index.json is
        locked during the call.
        """
        with self._changing() as entries:
            now = next((Descriptor.from_json(old) for old in entries if _ref_name(old) == name), None)
            made = make(_untagged(now) if now is not None else None)
            entries[:] = [old for old in entries if _ref_name(old) != name]
            entries.append(made.annotated({media.REF_NAME: name}).as_json())

    def add(self, descriptor: Descriptor) -> None:
        """Add an entry without a tag to index.json, unless the entry exists."""
        self.blob(descriptor.digest)
        with self._changing() as entries:
            if not any(old.get("digest") == descriptor.digest and not _ref_name(old) for old in entries):
                entries.append(_untagged(descriptor).as_json())

    def roots(self) -> tuple[Descriptor, ...]:
        """Return all entries of index.json, tagged or not, without the annotation `media.REF_NAME`."""
        return tuple(_untagged(Descriptor.from_json(entry)) for entry in self._entries()["manifests"])

    def tagged(self, name: str) -> tuple[Descriptor, ...]:
        """Return the targets of a tag, which are several only in an ambiguous folder (see `refs`)."""
        entries = self._entries()["manifests"]
        return tuple(_untagged(Descriptor.from_json(entry)) for entry in entries if _ref_name(entry) == name)

    def untag(self, *names: str) -> None:
        """Remove the tags `names`, but no blobs."""
        gone = set(names)
        with self._changing() as entries:
            entries[:] = [old for old in entries if _ref_name(old) not in gone]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[Any]]:
        """Yield the entries of index.json, and write them at the end of the block if they changed."""
        with self._lock():
            content = self._entries()
            before = canonical(content)
            yield content["manifests"]
            content["manifests"].sort(key=lambda entry: (_ref_name(entry), str(entry.get("digest"))))
            if canonical(content) != before:
                write_atomically(self._index, canonical(content), check=True)
                # Old partial files are removed here, because `gc` only runs on caches. Errors are ignored, because the
                # change is already written.
                with contextlib.suppress(OSError):
                    self._sweep()

    def _sweep(self) -> int:
        freed = 0
        for path in self._blobs.glob(".*.partial"):
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if time.time() - status.st_mtime > _STALE:
                    path.unlink()
                    freed += status.st_size
        return freed

    def refs(self) -> dict[str, Descriptor]:
        """Return the descriptor of each tag, sorted by tag.

        DigestError is raised for a tag with two targets, because programs could choose different targets.
        """
        self._require_version()
        named: dict[str, Descriptor] = {}
        others: list[tuple[str, Descriptor]] = []
        for entry in self._entries()["manifests"]:
            names = [name for key in (media.REF_NAME, _CONTAINERD_NAME) if (name := _annotation(entry, key))]
            if not names:
                continue
            descriptor = Descriptor.from_json(entry)
            others += [(name.rpartition(":")[2], descriptor) for name in names]
            if name := _ref_name(entry):
                _require_same(self.root, name, named.setdefault(name, descriptor), descriptor)
        # containerd reads its own annotation, in which a repository precedes the tag.
        for name, descriptor in others:
            _require_same(self.root, name, named.get(name, descriptor), descriptor)
        return {name: named[name] for name in sorted(named)}

    def require_one_reading(self) -> None:
        """Raise DigestError for a folder that is also in the format of `docker save`.

        `docker load` could read other images from such a folder than programs that read index.json.
        """
        for name in ("manifest.json", "repositories"):
            if os.path.lexists(self.root / name):
                raise DigestError(
                    "layout-of-docker",
                    f"{self.root} is an OCI layout, but also contains docker's {name}",
                    why="`docker load` reads that file, and other programs read index.json",
                    fix=f"remove {name}, or copy the image: skopeo copy oci:DIR:TAG oci:OTHER:TAG",
                )

    def images(self) -> dict[str, Descriptor]:
        """Return the descriptor of each tag, except those for signatures, attestations and lists of referrers."""
        return {name: ref for name, ref in self.refs().items() if not self._is_about(name, ref)}

    def _is_about(self, name: str, descriptor: Descriptor) -> bool:
        # The content must be checked too, because an image may have a tag of this form.
        if media.REFERRERS_TAG.fullmatch(name) and descriptor.media_type in media.INDEXES:
            listed = (item for item in self.children(descriptor) if self.has(item.digest))
            return all(subject_of(self.read_json(item)) == name.replace("-", ":") for item in listed)
        if media.ABOUT_TAG.fullmatch(name) is None or descriptor.media_type not in media.IMAGES:
            return False
        _, *layers = self.children(descriptor)
        return all(layer.media_type in media.STATEMENTS for layer in layers)

    def resolve(self, name: str) -> Descriptor:
        """Return the descriptor for a tag or digest, without the annotation `media.REF_NAME`.

        A digest may also belong to content that index.json does not list. RegistryError is raised if the layout does
        not contain the tag or digest.
        """
        if name.startswith("sha256:"):
            check_digest(name)
            for entry in self._entries()["manifests"]:
                if entry.get("digest") == name:
                    return _untagged(Descriptor.from_json(entry))
            size = self.blob(name).lstat().st_size
            value = self.read_json(Descriptor("", name, size))
            return Descriptor(media_type_of(value), name, size)
        refs = self.refs()
        if name not in refs:
            known = ", ".join(refs) or "none"
            raise RegistryError(
                "layout-image-missing",
                f"{self.root} has no image {name!r}",
                why=f"it has the images {known}" if refs else "it has no images",
                fix="name another image or folder",
            )
        return _untagged(refs[name])

    def children(self, descriptor: Descriptor) -> tuple[Descriptor, ...]:
        """Return the entries of an index, or the config and layers of a manifest; an empty tuple for any other blob."""
        if descriptor.media_type not in media.MANIFESTS:
            return ()
        return children_of(self.read_json(descriptor), descriptor)

    def walk(
        self, descriptor: Descriptor, *, damaged: Callable[[ToolchainError], None] | None = None
    ) -> Iterator[Descriptor]:
        """Yield a descriptor and everything that it refers to, parents first.

        A blob is yielded once for each media type with which it is listed. Only manifests and indexes are read, so
        other blobs may be missing.

        Args:
            damaged: called with the error for a manifest that cannot be read, instead of raising the error.
        """
        seen: set[tuple[str, str]] = set()
        waiting = [descriptor]
        while waiting:
            this = waiting.pop()
            if (this.digest, this.media_type) in seen:
                continue
            seen.add((this.digest, this.media_type))
            yield this
            try:
                waiting.extend(reversed(self.children(this)))
            except (RegistryError, DigestError, DocumentError) as error:
                if damaged is None:
                    raise
                damaged(error)

    def images_below(self, descriptor: Descriptor) -> list[Descriptor]:
        """Return the images in an index, or the image itself; artifacts are skipped."""
        return [
            item for item in self.walk(descriptor) if item.media_type in media.IMAGES and not self.is_artifact(item)
        ]

    def is_artifact(self, manifest: Descriptor) -> bool:
        """Return whether a manifest has an empty config or is an attestation of docker buildx, so it is not an image.

        buildx stores an attestation as an image that cannot run: its config names the platform `unknown/unknown`,
        and its layers are in-toto statements instead of archives.
        """
        config, *layers = self.children(manifest)
        if config.media_type == media.EMPTY:
            return True
        if not layers or any(layer.media_type != media.IN_TOTO for layer in layers):
            return False
        value = self.read_json(config)
        return value.get("os") == value.get("architecture") == "unknown"

    def gc(self, keep: Iterable[str] = (), *, older_than: float = 0) -> int:
        """Remove blobs that cannot be reached from index.json, and old partial files; return the number of freed bytes.

        A damaged manifest is kept, but the blobs that only it refers to are removed.

        Args:
            keep: the digests of manifests and blobs that are not tagged yet, but must be kept with everything that they
                refer to.
            older_than: the minimum age in seconds of the blobs to remove.
        """

        def warn(error: ToolchainError) -> None:
            LOG.warning("%s: %s", self.root, error)

        with self._lock():
            freed = self._sweep()
            used = set(keep)
            for digest in {*used, *(str(entry.get("digest")) for entry in self._entries()["manifests"])}:
                try:
                    if self.has(digest):
                        used.update(item.digest for item in self.walk(self.resolve(digest), damaged=warn))
                except (RegistryError, DigestError, DocumentError) as error:
                    used.add(digest)
                    warn(error)
            for path in self._blobs.iterdir() if self._blobs.is_dir() else []:
                if path.name.startswith(".") or f"sha256:{path.name}" in used:
                    continue
                with contextlib.suppress(FileNotFoundError):
                    status = path.lstat()
                    if time.time() - status.st_mtime >= older_than:
                        path.unlink()
                        freed += status.st_size
        return freed


def check_name(name: str) -> None:
    """Raise ConfigError for a name that cannot be a tag in a layout; a registry has other rules for tags."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "not-a-tag",
            f"{name!r} is not a valid tag in a folder",
            why="a tag has letters and digits, with . _ or - between them",
            fix="name another tag",
        )


def _annotation(entry: Mapping[str, Any], key: str) -> str:
    return str((entry.get("annotations") or {}).get(key, ""))


def _ref_name(entry: Mapping[str, Any]) -> str:
    return _annotation(entry, media.REF_NAME)


def _require_same(root: Path, name: str, descriptor: Descriptor, again: Descriptor) -> None:
    if descriptor.plain != again.plain:
        raise DigestError(
            "layout-tag-twice",
            f"{root} lists {name!r} twice",
            why=f"{descriptor.digest} and {again.digest}",
            fix="name the image by its digest, or publish it again",
        )


def _untagged(descriptor: Descriptor) -> Descriptor:
    rest = {key: text for key, text in descriptor.annotations.items() if key != media.REF_NAME}
    return replace(descriptor, annotations=rest)
