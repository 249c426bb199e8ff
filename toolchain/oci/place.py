"""Define the common interface of layout folders (`layout_place`) and repositories (`repository_place`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolchain.core.errors import DigestError, RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor, Platform
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import children_of, parse_object
from toolchain.oci.reference import Target
from toolchain.oci.tagged import Tagged


@dataclass(frozen=True)
class NamedImage:
    """An image or index in a folder or repository, and its reference.

    Args:
        name: the name in messages: the reference, or, if a whole folder was given, the tag of the image. If the folder
            has no tagged images, it is the digest of the image.
    """

    name: str
    ref: Target
    image: Descriptor


@dataclass(frozen=True)
class Published:
    """An image, index or artifact that `Place.put` stored.

    Args:
        ref: the reference with a digest, `oci:DIR@sha256:…` or `REGISTRY/NAME@sha256:…`.
        pushed_bytes: the number of bytes that were sent or written.
        skipped_bytes: the number of bytes that the place already had.
    """

    ref: str
    digest: str
    tags: tuple[str, ...]
    pushed_bytes: int
    skipped_bytes: int


@dataclass(frozen=True)
class Attached:
    """The result of `Place.attach`.

    Args:
        how: where the artifacts are listed: by the referrers API (`api`), in an index under a tag (`tag`), or in a
            layout folder (`layout`); `none` if a registry had and listed all artifacts already.
        pushed_bytes: the number of bytes that were sent or written.
    """

    how: Literal["api", "tag", "layout", "none"]
    pushed_bytes: int


class Place(ABC):
    """A folder or repository with images.

    Methods may raise RegistryError if something is missing or refused, ConfigError if a tag or the name of a repository
    is invalid, and UnreachableError if the registry does not answer. Content that is requested by its digest is
    compared with the digest before it is returned, and DigestError is raised if they differ.
    """

    ref: Target

    @abstractmethod
    def manifest(self, reference: str = "") -> tuple[Descriptor, bytes]:
        """Return the descriptor and the bytes of a manifest or index.

        Args:
            reference: a tag or digest; empty for the tag or digest of `ref`. If `ref` has neither, the tag is `latest`
                in a repository, and the only image of a folder is used.
        """

    @abstractmethod
    def blob(self, blob: Descriptor, into: Layout) -> Path:
        """Copy a blob into a layout, and return its path there."""

    @abstractmethod
    def images(self, scratch: Path) -> tuple[Layout, tuple[NamedImage, ...]]:
        """Return a layout and the images in it that `ref` names; images of a registry are downloaded into `scratch`.

        ConfigError is raised if `ref` names a folder without images.
        """

    def require_one_reading(self) -> None:  # noqa: B027 - a repository needs no check
        """Raise DigestError if two programs could read different images from this place."""

    @abstractmethod
    def tags(self) -> tuple[str, ...]:
        """Return all tags, sorted; an empty tuple if the folder or repository does not exist."""

    @abstractmethod
    def put(self, layout: Layout, descriptor: Descriptor, tags: Sequence[str]) -> Published:
        """Store an image, index or artifact from `layout` with everything that it refers to, and set its tags.

        Content that exists already is skipped. The manifest or index is read back, and DigestError is raised if it
        differs from that in `layout`.
        """

    @abstractmethod
    def tag(self, layout: Layout, descriptor: Descriptor, tags: Sequence[str]) -> None:
        """Set tags of an image or artifact that `put` stored and `layout` contains.

        To publish an image with attestations, call `put` without tags, then `attach`, and then `tag`, so that a tag
        never points to an image that lacks its attestations.
        """

    @abstractmethod
    def referrers(self, subject: str) -> tuple[Descriptor, ...]:
        """Return the descriptors of the artifacts about the image or index with the digest `subject`.

        The list is not trusted, so the caller must check the subject of each manifest.
        """

    @abstractmethod
    def attach(self, layout: Layout, subject: str, artifacts: Sequence[Descriptor]) -> Attached:
        """Store artifacts from `layout` about the image with the digest `subject`, so that `referrers` lists them.

        The image must already be in this place. Artifacts that are already there and listed are skipped.
        """

    @abstractmethod
    def attach_layers(self, layout: Layout, additions: Sequence[Tagged]) -> int:
        """Add layers to the manifests under cosign's tags, and return the number of bytes sent or written.

        Layers of other publishers are kept. `layout` must contain the blobs of the layers, and the new configs are
        stored in it.
        """

    def find(self, platform: Platform | None = None) -> tuple[Descriptor, bytes]:
        """Return the descriptor and the bytes of the image or index that `ref` names.

        Args:
            platform: if `ref` names an index, return its image for this platform.
        """
        top, content = self.manifest()
        if platform is not None and top.media_type in media.INDEXES:
            top = _choose(children_of(parse_object(content, top.digest), top), platform, str(self.ref))
            content = self.manifest(top.digest)[1]
        return top, content

    def fetch(self, layout: Layout, *, platform: Platform | None = None) -> Descriptor:
        """Copy the result of `find`, with everything that it refers to, into a layout; return its descriptor."""
        top, content = self.find(platform)
        self.fetch_below(top, content, layout)
        return top

    def fetch_below(
        self,
        item: Descriptor,
        content: bytes,
        layout: Layout,
        *,
        depth: int = 0,
        seen: set[tuple[str, str, int]] | None = None,
    ) -> None:
        """Copy a manifest or index, with everything that it refers to, into a layout.

        Args:
            depth: the number of indexes above the item.
            seen: the digests, media types and sizes of the content that was already copied.
        """
        require_shallow(item, depth)
        seen = set() if seen is None else seen
        for child in children_of(parse_object(content, item.digest), item):
            if (key := (child.digest, child.media_type, child.size)) in seen:
                continue
            seen.add(key)
            if child.media_type not in media.MANIFESTS:
                self.blob(child, layout)
                continue
            below = layout.read(child) if layout.has(child.digest) else self.manifest(child.digest)[1]
            self.fetch_below(child, below, layout, depth=depth + 1, seen=seen)
        layout.put_bytes(content, item.media_type)


def children_first(
    layout: Layout, descriptor: Descriptor, seen: set[str] | None = None, depth: int = 0
) -> Iterator[Descriptor]:
    """Yield a descriptor and everything that it refers to, children first, and each digest once."""
    require_shallow(descriptor, depth)
    seen = set() if seen is None else seen
    if descriptor.digest in seen:
        return
    seen.add(descriptor.digest)
    for child in layout.children(descriptor):
        yield from children_first(layout, child, seen, depth + (child.media_type in media.MANIFESTS))
    yield descriptor


def require_shallow(item: Descriptor, depth: int) -> None:
    """Raise RegistryError if `depth`, the number of indexes above an item, exceeds `media.DEEPEST`."""
    if depth > media.DEEPEST:
        raise RegistryError(
            "index-too-deep",
            f"{item.digest} is nested in more than {media.DEEPEST} indexes",
            fix="name one of the images in the index",
        )


def with_size(layout: Layout, item: Descriptor) -> Path:
    """Return the path of a blob; raise RegistryError if the layout lacks it, and DigestError if its size is wrong."""
    path = layout.blob(item.digest)
    if path.stat().st_size != item.size:
        raise DigestError(
            "blob-size-mismatch",
            f"{item.digest} has the wrong size in {layout.root}",
            why=f"expected {item.size} bytes",
            fix="download or build it again",
        )
    return path


def _choose(images: Sequence[Descriptor], platform: Platform, ref: str) -> Descriptor:
    fitting = [
        image
        for image in images
        if image.platform is not None
        and (image.platform.os, image.platform.arch) == (platform.os, platform.arch)
        and platform.variant in {"", image.platform.variant}
    ]
    if not fitting:
        known = ", ".join(str(image.platform) for image in images if image.platform) or "none"
        raise RegistryError(
            "platform-missing",
            f"{ref} has no image for {platform}",
            why=f"it has images for {known}",
            fix="choose another --arch",
        )
    return fitting[0]
