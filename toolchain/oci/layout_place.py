"""Implement `Place` for a layout folder; artifacts about an image are entries of index.json without a tag.

Artifacts that another program listed in an index under the tag for referrers (see `referrers`) are found too.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolchain.core.digest import sha256_json
from toolchain.core.errors import ConfigError, DigestError, DocumentError, RegistryError, ToolchainError
from toolchain.core.permissions import make_named
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.files import TYPE as FILES
from toolchain.oci.files import are_files
from toolchain.oci.layout import Layout, check_name
from toolchain.oci.manifest import subject_of
from toolchain.oci.place import Attached, NamedImage, Place, Published, children_first, with_size
from toolchain.oci.reference import LayoutRef
from toolchain.oci.referrers import fallback_tag, readable
from toolchain.oci.tagged import Tagged, manifest_with, read_layers_under

LOG = logging.getLogger(__name__)


class LayoutPlace(Place):
    """A layout folder; it is created when something is stored in it."""

    def __init__(self, ref: LayoutRef) -> None:
        self.ref: LayoutRef = ref
        self._layout = Layout(ref.path)

    def _made(self) -> Layout:
        """Return the layout, which is created if it does not exist."""
        with contextlib.suppress(OSError):  # `ensure` reports the error
            make_named(self.ref.path)
        return self._layout.ensure()

    def manifest(self, reference: str = "") -> tuple[Descriptor, bytes]:
        image = self._layout.resolve(reference) if reference else resolve(self.ref)
        return image, self._layout.read(image)

    def blob(self, blob: Descriptor, into: Layout) -> Path:
        into.put_file(with_size(self._layout, blob), digest=blob.digest)
        return into.blob(blob.digest)

    def images(self, scratch: Path) -> tuple[Layout, tuple[NamedImage, ...]]:  # noqa: ARG002 - the images are not copied
        if name := self.ref.digest or self.ref.tag:
            return self._layout, (NamedImage(str(self.ref), self.ref, self._layout.resolve(name)),)
        named = [NamedImage(tag, self.ref.at(tag=tag), image) for tag, image in self._layout.images().items()]
        images = named or [
            NamedImage(image.digest, self.ref.at(digest=image.digest), image) for image in _unnamed(self._layout)
        ]
        if not images:
            raise ConfigError("place-empty", f"{self.ref} contains no image", fix="publish an image to it first")
        return self._layout, tuple(images)

    def require_one_reading(self) -> None:
        self._layout.require_one_reading()

    def tags(self) -> tuple[str, ...]:
        return tuple(self._layout.refs()) if self._layout.root.exists() else ()

    def _copy(self, layout: Layout, blob: Descriptor) -> int:
        path = layout.blob(blob.digest)
        if self._layout.holds(blob.digest):
            return 0
        self._layout.put_file(path, digest=blob.digest)
        return blob.size

    def put(self, layout: Layout, descriptor: Descriptor, tags: Sequence[str]) -> Published:
        for tag in tags:
            check_name(tag)
        there = self._made()
        same = there.root.resolve() == layout.root.resolve()
        pushed = 0
        items = tuple(children_first(layout, descriptor))
        for item in items:
            pushed += 0 if same else self._copy(layout, item)
            with_size(there, item)
        if there.read(descriptor) != layout.read(descriptor):
            raise DigestError("publish-changed", f"{self.ref} differs from the published image", fix="publish it again")
        for tag in tags:
            there.tag(descriptor, tag)
        ref, skipped = str(self.ref.at(digest=descriptor.digest)), sum(item.size for item in items) - pushed
        return Published(ref, descriptor.digest, tuple(tags), pushed, skipped)

    def tag(self, layout: Layout, descriptor: Descriptor, tags: Sequence[str]) -> None:  # noqa: ARG002
        for tag in tags:
            check_name(tag)
            self._layout.tag(descriptor, tag)

    def referrers(self, subject: str) -> tuple[Descriptor, ...]:
        artifacts: dict[str, Descriptor] = {}
        for entry in (*self._layout.roots(), *self._under_tag(subject)):
            if entry.media_type in media.MANIFESTS and self._layout.has(entry.digest):
                value = self._read(entry)
                if subject_of(value) == subject:
                    named = replace(entry, artifact_type=str(value.get("artifactType") or ""))
                    artifacts.setdefault(entry.digest, named)
        return tuple(artifacts.values())

    def _under_tag(self, subject: str) -> Iterator[Descriptor]:
        """Yield the entries of the index under the tag for referrers, in which programs such as regctl list them."""
        for index in self._layout.tagged(fallback_tag(subject)):
            if index.media_type in media.INDEXES and self._layout.has(index.digest):
                yield from readable(self._read(index).get("manifests") or ())

    def _read(self, entry: Descriptor) -> dict[str, Any]:
        """Return the content of a manifest or index; log a warning and return an empty object if it is damaged."""
        try:
            return self._layout.read_json(entry)
        except (RegistryError, DigestError, DocumentError) as error:
            LOG.warning("ignoring %s in %s: %s", entry.digest, self._layout.root, error.what)
            return {}

    def attach(self, layout: Layout, subject: str, artifacts: Sequence[Descriptor]) -> Attached:
        there = self._made()
        there.blob(subject)
        pushed = 0
        for artifact in artifacts:
            pushed += sum(self._copy(layout, item) for item in children_first(layout, artifact))
            there.add(artifact)
        return Attached("layout", pushed)

    def attach_layers(self, layout: Layout, additions: Sequence[Tagged]) -> int:
        self._made()
        return sum(self._add_layers(layout, addition) for addition in additions)

    def _add_layers(self, layout: Layout, addition: Tagged) -> int:
        pushed = 0

        def change(now: Descriptor | None) -> Descriptor:
            nonlocal pushed
            value = self._read_again(now, addition.tag)
            # Layers that the manifest already lists are copied too, because their blobs may be missing or damaged.
            pushed += sum(self._copy(layout, layer) for layer in addition.layers)
            missing = addition.missing(value)
            if now is not None and value is not None and not missing:
                return now
            made = layout.put_json(manifest_with(value, missing, layout), media.MANIFEST)
            pushed += self._copy(layout, layout.children(made)[0]) + self._copy(layout, made)
            return made

        self._layout.retag(addition.tag, change)
        return pushed

    def _read_again(self, now: Descriptor | None, tag: str) -> dict[str, Any] | None:
        try:
            return read_layers_under(self._layout.read(now), tag) if now is not None else None
        except DigestError as error:
            LOG.warning("%s: replacing the damaged manifest under the tag %s: %s", self._layout.root, tag, error.what)
            return None


def resolve(ref: LayoutRef) -> Descriptor:
    """Return the descriptor of the image that a reference names; without a tag or digest, the only image in the folder.

    RegistryError is raised if there is no such image, or if a reference without a tag or digest could mean
    several images.
    """
    there = Layout(ref.path)
    if ref.digest or ref.tag:
        return there.resolve(ref.digest or ref.tag or "")
    refs = there.images()
    # An artifact with plain files is returned only if no tag names an image, because users usually mean an image.
    named = [image for image in refs.values() if image.artifact_type != FILES] or refs.values()
    digests = {image.digest for image in named} or {image.digest for image in _unnamed(there)}
    if len(digests) != 1:
        raise RegistryError(
            "place-ambiguous",
            f"{ref} contains {'several images' if digests else 'no image'}",
            why=f"its images are {', '.join(refs or sorted(digests))}" if digests else "",
            fix=f"name one of them: {ref}{':TAG' if refs else '@DIGEST'}"
            if digests
            else "publish an image to it first",
        )
    return there.resolve(next(iter(digests)))


def _unnamed(there: Layout) -> list[Descriptor]:
    """Return the entries of index.json that have no tag and no artifact type."""
    named = {image.digest for image in there.refs().values()}
    return [root for root in dict.fromkeys(there.roots()) if not root.artifact_type and root.digest not in named]


def is_artifact(layout: Layout, entry: Descriptor) -> bool:
    """Return whether an entry of index.json is an artifact, such as a bundle, and not an image.

    The result is False for a damaged manifest, because the checks of an image report it.
    """
    with contextlib.suppress(ToolchainError):
        return entry.media_type in media.IMAGES and layout.is_artifact(entry)
    return False


def without_others(layout: Layout, named: Sequence[NamedImage]) -> tuple[list[NamedImage], list[NamedImage]]:
    """Return the images and plain files, and the other artifacts next to them; alone, an artifact is not left out."""
    others = [row for row in named if _is_other(layout, row.image)]
    if len(others) == len(named):
        others = []
    return [row for row in named if row not in others], others


def _is_other(layout: Layout, entry: Descriptor) -> bool:
    """Return whether an entry is neither an image nor plain files.

    An entry whose config is not `{}` must be checked as an image, because some programs run it whatever the media type
    of its config is.
    """
    if not is_artifact(layout, entry) or are_files(layout.read_json(entry)):
        return False
    config, *_ = layout.children(entry)
    return config.digest == sha256_json({})
