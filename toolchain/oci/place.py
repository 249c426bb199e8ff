"""Places of images: a layout folder or a repository of a registry, opened once for all operations."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain.errors import ConfigError, DigestError, RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor, Platform
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import children_of, parse_object
from toolchain.oci.publish import (
    Published,
    put_in_layout,
    put_in_repository,
    require_publishable,
    require_shallow,
    resolve,
)
from toolchain.oci.reference import LayoutRef, RegistryRef, Target
from toolchain.oci.referrers import (
    Attached,
    attach_to_layout,
    attach_to_repository,
    referrers_in_layout,
    referrers_in_repository,
)
from toolchain.oci.registry import Registry
from toolchain.oci.tagged import Tagged, add_to_layout, add_to_repository


@dataclass(frozen=True)
class NamedImage:
    """An image or index in a place, with its name for messages.

    Args:
        name: its tag in a folder that was named as a whole, else the reference.
        ref: that names it alone.
    """

    name: str
    ref: Target
    image: Descriptor


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
        """The images that `ref` names, and a layout that holds them: the folder itself, or one made below `scratch`.

        Raises:
            ConfigError: an empty folder.
            DigestError: other bytes came.
        """

    def require_one_reading(self) -> None:  # noqa: B027 - a registry gives only what was requested
        """Refuse a place in which other programs would find another image under the same name.

        Raises:
            DigestError: some would find another image.
        """

    @abstractmethod
    def tags(self) -> tuple[str, ...]:
        """All tags, sorted; empty if nothing has been put yet."""

    def put(self, layout: Layout, descriptor: Descriptor, tags: Sequence[str] = ()) -> Published:
        """Bring an image index, or an artifact, with all it names here. What is here already is not sent again.

        Args:
            layout: where it is.
            descriptor: the index, or the manifest of an artifact (with its artifact type).
            tags: names that shall point to it, besides the tag in `ref`.

        Raises:
            ConfigError: the place can have no such name or tag.
            RegistryError: neither index nor artifact, or something is missing or too large.
            DigestError: what is read back, or what is in the layout, has another digest.
        """
        require_publishable(descriptor)
        return self._put(layout, descriptor, tuple(dict.fromkeys([*([self.ref.tag] if self.ref.tag else []), *tags])))

    @abstractmethod
    def _put(self, layout: Layout, descriptor: Descriptor, tags: tuple[str, ...]) -> Published: ...

    @abstractmethod
    def referrers(self, subject: str) -> tuple[Descriptor, ...]:
        """The artifacts about a digest, as the place lists them. The list is untrusted: check each manifest's subject.

        Raises:
            RegistryError: the list is malformed.
        """

    @abstractmethod
    def attach(self, layout: Layout, artifacts: Sequence[Descriptor]) -> Attached:
        """Bring artifacts of one subject, which is here, and have them listed. What is listed is not sent again.

        Args:
            layout: where they are (see `referrers.write_artifact`).
            artifacts: their manifests.

        Raises:
            RegistryError: they are of several subjects or of none, or other publishers keep replacing the list.
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

    @abstractmethod
    def name_of(self, image: str) -> str:
        """The name of `image` in a signature."""

    @abstractmethod
    def tagged(self, tag: str) -> Place:
        """The same folder or repository, reached the same way, with another tag in `ref`."""

    def find(self, platform: Platform | None = None) -> tuple[Descriptor, bytes]:
        """The image or index that `ref` names, or of an index its one image for `platform`, with its bytes.

        Nothing is stored. The image has its platform if an index named it.

        Raises:
            RegistryError: there is none.
            DigestError: other bytes came.
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


class LayoutPlace(Place):
    """A layout folder. It is made when something is put there."""

    def __init__(self, ref: LayoutRef) -> None:
        self.ref: LayoutRef = ref
        self._layout = Layout(ref.path)

    def manifest(self, reference: str = "") -> tuple[Descriptor, bytes]:
        image = self._layout.resolve(reference) if reference else resolve(self.ref)
        return image, self._layout.read(image)

    def blob(self, blob: Descriptor, into: Layout) -> Path:
        path = self._layout.blob(blob.digest)
        if (size := path.stat().st_size) != blob.size:
            raise DigestError(
                f"{blob.digest} is not whole", why=f"{size} of {blob.size} bytes", fix="fetch or build it again"
            )
        into.put_file(path, digest=blob.digest)
        return into.blob(blob.digest)

    def images(self, scratch: Path) -> tuple[Layout, tuple[NamedImage, ...]]:  # noqa: ARG002 - they are at hand
        if name := self.ref.tag or self.ref.digest:
            return self._layout, (NamedImage(str(self.ref), self.ref, self._layout.resolve(name)),)
        images = self._layout.images()
        if not images:
            raise ConfigError(f"{self.ref} holds no image", fix="publish one there first")
        return self._layout, tuple(NamedImage(tag, self.ref.at(tag=tag), image) for tag, image in images.items())

    def require_one_reading(self) -> None:
        self._layout.require_one_reading()

    def tags(self) -> tuple[str, ...]:
        return tuple(self._layout.refs()) if self._layout.root.exists() else ()

    def _put(self, layout: Layout, descriptor: Descriptor, tags: tuple[str, ...]) -> Published:
        return put_in_layout(layout, descriptor, self.ref, tags)

    def referrers(self, subject: str) -> tuple[Descriptor, ...]:
        return referrers_in_layout(self._layout, subject)

    def attach(self, layout: Layout, artifacts: Sequence[Descriptor]) -> Attached:
        return attach_to_layout(layout, artifacts, self._layout.ensure())

    def attach_layers(self, layout: Layout, additions: Sequence[Tagged]) -> int:
        return add_to_layout(layout, additions, self._layout.ensure())

    def name_of(self, image: str) -> str:
        """The image's own name: a folder's path means nothing elsewhere."""
        return image

    def tagged(self, tag: str) -> LayoutPlace:
        return LayoutPlace(self.ref.at(tag=tag))


class RepositoryPlace(Place):
    """A repository, reached by an open connection to its registry."""

    def __init__(self, ref: RegistryRef, registry: Registry) -> None:
        self.ref: RegistryRef = ref
        self._registry = registry

    def manifest(self, reference: str = "") -> tuple[Descriptor, bytes]:
        return self._registry.get_manifest(
            self.ref.repository, reference or self.ref.digest or self.ref.tag or "latest"
        )

    def blob(self, blob: Descriptor, into: Layout) -> Path:
        self._registry.pull_blob(self.ref.repository, blob, into)
        return into.blob(blob.digest)

    def images(self, scratch: Path) -> tuple[Layout, tuple[NamedImage, ...]]:
        layout = Layout(scratch / "layout").ensure()
        return layout, (NamedImage(str(self.ref), self.ref, self.fetch(layout)),)

    def tags(self) -> tuple[str, ...]:
        return self._registry.tags(self.ref.repository)

    def _put(self, layout: Layout, descriptor: Descriptor, tags: tuple[str, ...]) -> Published:
        return put_in_repository(layout, descriptor, self.ref, tags, registry=self._registry)

    def referrers(self, subject: str) -> tuple[Descriptor, ...]:
        return referrers_in_repository(self._registry, self.ref.repository, subject)

    def attach(self, layout: Layout, artifacts: Sequence[Descriptor]) -> Attached:
        return attach_to_repository(layout, artifacts, self._registry, self.ref.repository)

    def attach_layers(self, layout: Layout, additions: Sequence[Tagged]) -> int:
        return add_to_repository(layout, additions, self._registry, self.ref.repository)

    def name_of(self, image: str) -> str:  # noqa: ARG002
        """The repository, with its registry."""
        return str(self.ref.at())

    def tagged(self, tag: str) -> RepositoryPlace:
        return RepositoryPlace(self.ref.at(tag=tag), self._registry)


@contextlib.contextmanager
def open_place(ref: Target) -> Iterator[Place]:
    """The place of a reference, until the end of the `with`. A registry is not asked before it has to be."""
    if isinstance(ref, LayoutRef):
        yield LayoutPlace(ref)
        return
    with Registry(ref.host) as registry:
        yield RepositoryPlace(ref, registry)


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
