"""Places of images: what a layout folder (`layout_place`) and a repository (`repository_place`) can do alike."""

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
    """An image or index in a place, and the reference that names it alone.

    Args:
        name: for messages: its tag in a folder that was named as a whole, else the reference.
    """

    name: str
    ref: Target
    image: Descriptor


@dataclass(frozen=True)
class Published:
    """A published image index.

    Args:
        ref: by digest; `oci:DIR@sha256:…` or `REGISTRY/NAME@sha256:…`.
        digest: of the index.
        tags: that point to it.
        pushed_bytes: that were sent or written for this.
        skipped_bytes: that were there already.
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
        how: `api`, `tag` (the fallback) or `layout`; `none` when there was nothing to do.
        pushed_bytes: that were sent or written for it.
    """

    how: Literal["api", "tag", "layout", "none"]
    pushed_bytes: int


class Place(ABC):
    """A folder or repository. Every method may raise RegistryError (it lacks or refuses something) and
    UnreachableError (no answer).
    """

    ref: Target

    @abstractmethod
    def manifest(self, reference: str = "") -> tuple[Descriptor, bytes]:
        """A manifest or index with its bytes.

        Args:
            reference: tag or digest; by default the one in `ref`, else `latest`, or the one image of a folder.

        Raises:
            DigestError: other bytes than the digest says.
        """

    @abstractmethod
    def blob(self, blob: Descriptor, into: Layout) -> Path:
        """Bring a blob into a layout; its file there.

        Raises:
            DigestError: other bytes than the digest says, or another size; none of them is kept.
        """

    @abstractmethod
    def images(self, scratch: Path) -> tuple[Layout, tuple[NamedImage, ...]]:
        """The images that `ref` names, and a layout that holds them: the folder itself, or one made below `scratch`."""

    def require_one_reading(self) -> None:  # noqa: B027 - a registry gives only what was requested
        """Refuse a place in which other programs would find another image under the same name."""

    @abstractmethod
    def tags(self) -> tuple[str, ...]:
        """All tags, sorted; empty if nothing has been put yet."""

    @abstractmethod
    def put(self, layout: Layout, descriptor: Descriptor, tags: Sequence[str]) -> Published:
        """Bring an image index, or an artifact, with all it names here. What is here already is not sent again.

        Args:
            tags: names that shall point to it.

        Raises:
            ConfigError: the place can have no such name or tag.
            RegistryError: something is missing or too large.
            DigestError: what is read back, or what is in the layout, has another digest.
        """

    @abstractmethod
    def tag(self, layout: Layout, descriptor: Descriptor, tags: Sequence[str]) -> None:
        """Let tags name an image or artifact that `put` brought here; `layout` holds it.

        `put` the image without tags first and `attach` its evidence, so that a tag never names an image without it.

        Raises:
            ConfigError: the place cannot have such a tag.
            DigestError: what is read back has another digest.
        """

    @abstractmethod
    def referrers(self, subject: str) -> tuple[Descriptor, ...]:
        """Return the artifacts about a digest. The list is untrusted: check the subject of each manifest."""

    @abstractmethod
    def attach(self, layout: Layout, subject: str, artifacts: Sequence[Descriptor]) -> Attached:
        """Bring artifacts about a digest, which is here, and have them listed. What is listed is not sent again.

        Args:
            artifacts: their manifests, in `layout`.

        Raises:
            RegistryError: the subject is not here, or other publishers keep replacing the list.
            DigestError: what is read back is not what was written.
        """

    @abstractmethod
    def attach_layers(self, layout: Layout, additions: Sequence[Tagged]) -> int:
        """Add layers to what is under tags. What is there stays; what is ours already is not sent again.

        Args:
            layout: holds the layers' blobs, and takes the manifests.

        Returns:
            Bytes sent or written.

        Raises:
            RegistryError: an image has this tag, or other publishers keep replacing the list.
        """

    def find(self, platform: Platform | None = None) -> tuple[Descriptor, bytes]:
        """The image or index that `ref` names, or of an index its one image for `platform`, with its bytes.

        Nothing is stored. The image has its platform if an index named it.
        """
        top, content = self.manifest()
        if platform is not None and top.media_type in media.INDEXES:
            top = _choose(children_of(parse_object(content, top.digest), top), platform, str(self.ref))
            content = self.manifest(top.digest)[1]
        return top, content

    def fetch(self, layout: Layout, *, platform: Platform | None = None) -> Descriptor:
        """Bring what `find` finds, with all it names, into `layout`; nothing is tagged there.

        Raises:
            RegistryError: there is none.
            DigestError: other bytes came; none of them is kept.
        """
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
        """Bring a manifest or index whose bytes are known into `layout`, after all that it names.

        Args:
            seen: digests, media types and sizes that were brought; indexes may name one another many times over.

        Raises:
            DigestError: other bytes came; none of them is kept.
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
    """`descriptor` and everything below it, each digest once, what is below first.

    Raises:
        RegistryError: something is missing, or below too many indexes.
    """
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
            f"{item.digest} is below more than {media.DEEPEST} indexes", fix="name an image that is less deep"
        )


def with_size(layout: Layout, item: Descriptor) -> Path:
    """The file of a blob, which must be as large as its descriptor says."""
    path = layout.blob(item.digest)
    if path.stat().st_size != item.size:
        raise DigestError(
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
        raise RegistryError(f"{ref} has no image for {platform}", why=f"it has {known}", fix="choose another --arch")
    return fitting[0]
