"""The common interface of layout folders (`layout_place`) and repositories (`repository_place`)."""

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
    """An image or index in a place, and its reference.

    Args:
        name: for messages: the tag if a whole folder was named, else the reference.
    """

    name: str
    ref: Target
    image: Descriptor


@dataclass(frozen=True)
class Published:
    """A published image index.

    Args:
        ref: the reference with a digest, `oci:DIR@sha256:…` or `REGISTRY/NAME@sha256:…`.
        digest: the digest of the index.
        tags: the tags that point to it.
        pushed_bytes: bytes that were sent or written.
        skipped_bytes: bytes that were there already.
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
        how: `api`, `tag` (the fallback) or `layout`; `none` if there was nothing to do.
        pushed_bytes: bytes that were sent or written.
    """

    how: Literal["api", "tag", "layout", "none"]
    pushed_bytes: int


class Place(ABC):
    """A folder or repository.

    Every method may raise RegistryError (missing or refused) and UnreachableError (no answer). All bytes are compared
    with their digests; DigestError says that they differ, and nothing wrong is kept.
    """

    ref: Target

    @abstractmethod
    def manifest(self, reference: str = "") -> tuple[Descriptor, bytes]:
        """Return a manifest or index with its bytes.

        Args:
            reference: tag or digest; by default the one in `ref`, else `latest`, or the only image of a folder.
        """

    @abstractmethod
    def blob(self, blob: Descriptor, into: Layout) -> Path:
        """Bring a blob into a layout, and return its file there."""

    @abstractmethod
    def images(self, scratch: Path) -> tuple[Layout, tuple[NamedImage, ...]]:
        """Return the images that `ref` names, and a layout that holds them, which may be below `scratch`."""

    def require_one_reading(self) -> None:  # noqa: B027 - a registry gives only what was requested
        """Refuse a place in which other programs would find another image under the same name."""

    @abstractmethod
    def tags(self) -> tuple[str, ...]:
        """Return all tags, sorted; empty for a place that does not exist yet."""

    @abstractmethod
    def put(self, layout: Layout, descriptor: Descriptor, tags: Sequence[str]) -> Published:
        """Store an image index or artifact with everything below it, and read it back. Existing content is skipped.

        Args:
            tags: the tags that shall point to it.
        """

    @abstractmethod
    def tag(self, layout: Layout, descriptor: Descriptor, tags: Sequence[str]) -> None:
        """Let tags name an image or artifact that `put` stored; `layout` holds it.

        `put` the image without tags first and `attach` its evidence, so that a tag never names an image without it.
        """

    @abstractmethod
    def referrers(self, subject: str) -> tuple[Descriptor, ...]:
        """Return the artifacts about a digest. The list is untrusted: check the subject of each manifest."""

    @abstractmethod
    def attach(self, layout: Layout, subject: str, artifacts: Sequence[Descriptor]) -> Attached:
        """Store artifacts about a digest, which is here, and have them listed. Listed artifacts are not sent again.

        Args:
            artifacts: their manifests, in `layout`.
        """

    @abstractmethod
    def attach_layers(self, layout: Layout, additions: Sequence[Tagged]) -> int:
        """Add layers to the manifests under cosign's tags, and return the bytes sent. Layers of others stay.

        Args:
            layout: holds the layers' blobs, and receives the manifests.
        """

    def find(self, platform: Platform | None = None) -> tuple[Descriptor, bytes]:
        """Return the image or index that `ref` names, or the image for `platform` in that index, with its bytes."""
        top, content = self.manifest()
        if platform is not None and top.media_type in media.INDEXES:
            top = _choose(children_of(parse_object(content, top.digest), top), platform, str(self.ref))
            content = self.manifest(top.digest)[1]
        return top, content

    def fetch(self, layout: Layout, *, platform: Platform | None = None) -> Descriptor:
        """Bring the result of `find` with everything below it into `layout`, without a tag."""
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
        """Bring a manifest or index whose bytes are known into `layout`, after everything below it.

        Args:
            seen: digests, media types and sizes that were brought, because indexes may name each other many times.
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
    """Yield `descriptor` and everything below it, children first, each digest once."""
    require_shallow(descriptor, depth)
    seen = set() if seen is None else seen
    if descriptor.digest in seen:
        return
    seen.add(descriptor.digest)
    for child in layout.children(descriptor):
        yield from children_first(layout, child, seen, depth + 1)
    yield descriptor


def require_shallow(item: Descriptor, depth: int) -> None:
    """Refuse indexes that are nested deeper than any image needs."""
    if depth > media.DEEPEST:
        raise RegistryError(
            "index-too-deep",
            f"{item.digest} is below more than {media.DEEPEST} indexes",
            fix="name an image that is less deep",
        )


def with_size(layout: Layout, item: Descriptor) -> Path:
    """Return the file of a blob, and check its size."""
    path = layout.blob(item.digest)
    if path.stat().st_size != item.size:
        raise DigestError(
            "blob-size-mismatch",
            f"{item.digest} has the wrong size in {layout.root}",
            why=f"expected {item.size} bytes",
            fix="fetch or build it again",
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
            "platform-missing", f"{ref} has no image for {platform}", why=f"it has {known}", fix="choose another --arch"
        )
    return fitting[0]
