"""Publishing: children first, each read back, the index last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolchain.errors import DigestError, RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci import rules
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.files import TYPE as FILES
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef, RegistryRef, check_tag
from toolchain.oci.registry import Registry


@dataclass(frozen=True)
class Published:
    """A published image index.

    Args:
        ref: by digest; `oci:DIR@sha256:…` or `REGISTRY/NAME@sha256:…`.
        digest: of the index.
        tags: that point to it.
        pushed_bytes: that were sent or written for this.
        skipped_bytes: that were there already.
        blobs: configs, layers, manifests and indexes.
    """

    ref: str
    digest: str
    tags: tuple[str, ...]
    pushed_bytes: int
    skipped_bytes: int
    blobs: int


def require_publishable(descriptor: Descriptor) -> None:
    """Refuse anything but an image index or an artifact.

    Raises:
        RegistryError: it is neither.
    """
    if descriptor.media_type not in media.INDEXES and not descriptor.artifact_type:
        raise RegistryError(
            f"{descriptor.digest} is not an image index",
            why="only indexes are published",
            fix="name an image that `toolchain publish` wrote",
        )


def _children_first(
    layout: Layout, descriptor: Descriptor, seen: set[str] | None = None, depth: int = 0
) -> Iterator[Descriptor]:
    require_shallow(descriptor, depth)
    seen = set() if seen is None else seen
    if descriptor.digest in seen:
        return
    seen.add(descriptor.digest)
    for child in layout.children(descriptor):
        yield from _children_first(layout, child, seen, depth + 1)
    yield descriptor


def require_shallow(item: Descriptor, depth: int) -> None:
    """Refuse indexes that are nested deeper than any image needs.

    Raises:
        RegistryError: it does.
    """
    if depth > media.DEEPEST:
        raise RegistryError(
            f"{item.digest} is below more than {media.DEEPEST} indexes", fix="name an image that is less deep"
        )


def put_in_layout(layout: Layout, descriptor: Descriptor, dest: LayoutRef, tags: tuple[str, ...]) -> Published:
    """`Place.put` for a folder."""
    there = Layout(dest.path).ensure()
    same = there.root.resolve() == layout.root.resolve()
    pushed = skipped = count = 0
    for item in _children_first(layout, descriptor):
        count += 1
        if same or there.holds(item.digest):
            layout.blob(item.digest)
            skipped += item.size
        else:
            there.put_file(layout.blob(item.digest), digest=item.digest)
            pushed += item.size
        _require_size(there, item)
    for tag in tags:
        there.tag(descriptor, tag)
    if there.read(descriptor) != layout.read(descriptor):
        raise DigestError(f"{dest} does not hold what was published", fix="publish again")
    return Published(str(dest.at(digest=descriptor.digest)), descriptor.digest, tags, pushed, skipped, count)


def put_in_repository(
    layout: Layout, descriptor: Descriptor, dest: RegistryRef, tags: tuple[str, ...], *, registry: Registry
) -> Published:
    """`Place.put` for a repository."""
    before = registry.traffic.sent
    skipped = count = 0
    items = tuple(_children_first(layout, descriptor))
    # What the registry is known to refuse is an error now, not after an hour of uploading.
    rules.check_repository(registry.rules, registry.host, dest.repository)
    rules.check_sizes(registry.rules, items)
    for tag in tags:
        check_tag(tag)
    for item in items:
        count += 1
        if item.media_type in media.MANIFESTS:
            content = layout.read(item)
            if registry.manifest_digest(dest.repository, item.digest) == item.digest:
                skipped += item.size
            else:
                registry.put_manifest(dest.repository, item.digest, content, item.media_type)
            _read_back(registry, dest, item.digest, content)
            continue
        if not registry.push_blob(dest.repository, item, _require_size(layout, item)):
            skipped += item.size
        elif registry.blob_size(dest.repository, item.digest) is None:
            raise RegistryError(f"{registry.host} took {item.digest} but does not have it", fix="publish again")
    content = layout.read(descriptor)
    for tag in tags:
        if registry.manifest_digest(dest.repository, tag) != descriptor.digest:
            registry.put_manifest(dest.repository, tag, content, descriptor.media_type)
        _read_back(registry, dest, tag, content)
    return Published(
        str(dest.at(digest=descriptor.digest)),
        descriptor.digest,
        tags,
        pushed_bytes=registry.traffic.sent - before,
        skipped_bytes=skipped,
        blobs=count,
    )


def _require_size(layout: Layout, item: Descriptor) -> Path:
    path = layout.blob(item.digest)
    if path.stat().st_size != item.size:
        raise DigestError(
            f"{item.digest} has the wrong size in {layout.root}",
            why=f"expected {item.size} bytes",
            fix="fetch or build it again",
        )
    return path


def _read_back(registry: Registry, dest: RegistryRef, reference: str, content: bytes) -> None:
    _, there = registry.get_manifest(dest.repository, reference)
    if there != content:
        raise DigestError(
            f"{dest.at()}: {reference} is not what was published",
            why="the registry holds other bytes, or another publisher wrote at the same time",
            fix="publish again",
        )


def resolve(ref: LayoutRef) -> Descriptor:
    """The image that a layout reference names; without tag and digest the one that is there.

    Raises:
        RegistryError: none, or several and no tag.
    """
    there = Layout(ref.path)
    if ref.digest or ref.tag:
        return there.resolve(ref.digest or ref.tag or "")
    refs = there.images()
    # Other tools leave an image without a name. An artifact without a name is a statement about an image. The files of
    # an image have names of their own, and a reference to the folder does not mean them.
    named = [image for image in refs.values() if image.artifact_type != FILES] or refs.values()
    digests = {image.digest for image in named} or {root.digest for root in there.roots() if not root.artifact_type}
    if len(digests) != 1:
        raise RegistryError(
            f"{ref} holds {'several images' if digests else 'no image'}",
            why=f"images there: {', '.join(refs or sorted(digests)) or 'none'}",
            fix=f"name one: {ref}{':TAG' if refs else '@DIGEST'}" if digests else "build or fetch one",
        )
    return there.resolve(next(iter(digests)))
