"""Publishing: children first, each read back, the index last; and the way back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolchain.errors import DigestError, RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci import rules
from toolchain.oci.check import verify_layout
from toolchain.oci.descriptor import Descriptor, Platform
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import children_of, parse_object
from toolchain.oci.reference import LayoutRef, RegistryRef, Target, check_tag
from toolchain.oci.registry import Registry

__all__ = ["Published", "fetch_image", "find_image", "publish", "verify_layout"]


@dataclass(frozen=True)
class Published:
    """Where an image index now is.

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


def publish(
    layout: Layout,
    descriptor: Descriptor,
    dest: Target,
    tags: Sequence[str] = (),
    *,
    registry: Registry | None = None,
    mount_from: Sequence[str] = (),
) -> Published:
    """Bring an image index, or an artifact, with all it names to `dest`. What is there already is not sent again.

    Args:
        layout: where it is.
        descriptor: the index, or the manifest of an artifact (with its artifact type).
        dest: a layout folder or a repository; a tag in it counts as one of `tags`.
        tags: names that shall point to the index.
        registry: an open connection to use; else one is made.
        mount_from: repositories of the same registry that may hold the blobs.

    Raises:
        ConfigError: the destination can have no such name or tag.
        RegistryError: neither index nor artifact, something is missing or too large, or the destination refuses.
        DigestError: what is read back, or what lies in the layout, is not what it must be.
        UnreachableError: no answer.
    """
    if descriptor.media_type not in media.INDEXES and not descriptor.artifact_type:
        raise RegistryError(
            f"{descriptor.digest} is not an image index", why="only indexes are published", fix="use write_index"
        )
    names = tuple(dict.fromkeys([*([dest.tag] if dest.tag else []), *tags]))
    if isinstance(dest, LayoutRef):
        return _to_layout(layout, descriptor, dest, names)
    with _connection(dest, registry) as connection:
        return _to_registry(layout, descriptor, dest, names, registry=connection, mount_from=mount_from)


def _children_first(
    layout: Layout, descriptor: Descriptor, seen: set[str] | None = None, depth: int = 0
) -> Iterator[Descriptor]:
    _require_shallow(descriptor, depth)
    seen = set() if seen is None else seen
    if descriptor.digest in seen:
        return
    seen.add(descriptor.digest)
    for child in layout.children(descriptor):
        yield from _children_first(layout, child, seen, depth + 1)
    yield descriptor


def _require_shallow(item: Descriptor, depth: int) -> None:
    if depth > media.DEEPEST:
        raise RegistryError(f"{item.digest} lies below more than {media.DEEPEST} indexes")


@contextlib.contextmanager
def _connection(ref: RegistryRef, registry: Registry | None) -> Iterator[Registry]:
    if registry is not None:
        yield registry
        return
    with Registry(ref.host) as made:
        yield made


def _to_layout(layout: Layout, descriptor: Descriptor, dest: LayoutRef, tags: tuple[str, ...]) -> Published:
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
        if there.blob(item.digest).stat().st_size != item.size:
            raise DigestError(f"{item.digest} has the wrong size in {there.root}", why=f"expected {item.size} bytes")
    for tag in tags:
        there.tag(descriptor, tag)
    if there.read(descriptor) != layout.read(descriptor):
        raise DigestError(f"{dest} does not hold what was published", fix="publish again")
    return Published(str(dest.at(digest=descriptor.digest)), descriptor.digest, tags, pushed, skipped, count)


def _to_registry(
    layout: Layout,
    descriptor: Descriptor,
    dest: RegistryRef,
    tags: tuple[str, ...],
    *,
    registry: Registry,
    mount_from: Sequence[str],
) -> Published:
    before = registry.traffic.sent
    skipped = count = 0
    items = tuple(_children_first(layout, descriptor))
    # What the registry is known to refuse is told now, not after an hour of uploading.
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
        path = layout.blob(item.digest)
        if path.stat().st_size != item.size:
            raise DigestError(f"{item.digest} has the wrong size in {layout.root}", why=f"expected {item.size} bytes")
        if not registry.push_blob(dest.repository, item, path, mount_from=mount_from):
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


def _read_back(registry: Registry, dest: RegistryRef, reference: str, content: bytes) -> None:
    _, there = registry.get_manifest(dest.repository, reference)
    if there != content:
        raise DigestError(
            f"{dest.at()}: {reference} is not what was published",
            why="the registry holds other bytes, or somebody else published at the same time",
            fix="publish again",
        )


def fetch_image(
    ref: Target, layout: Layout, *, platform: Platform | None = None, registry: Registry | None = None
) -> Descriptor:
    """Bring an image, or an index with all its images, into `layout`; nothing is tagged there.

    Args:
        ref: where it is; without tag and digest `latest`, or the one image of a layout folder.
        layout: where it shall go.
        platform: take this one image out of an index, and nothing else of it.
        registry: an open connection to use; else one is made.

    Returns:
        The index, or the manifest (with its platform if an index named it).

    Raises:
        RegistryError: there is none.
        DigestError: other bytes came; none of them is kept.
        UnreachableError: no answer.
    """
    if isinstance(ref, LayoutRef):
        return _from_layout(ref, layout, platform)
    with _connection(ref, registry) as connection:
        top, content = find_image(ref, connection, platform)
        _pull(connection, ref.repository, top, content, layout)
    return top


def find_image(ref: RegistryRef, registry: Registry, platform: Platform | None) -> tuple[Descriptor, bytes]:
    """The image or index at `ref`, or of an index its one image for `platform`, with its bytes; nothing is stored.

    Raises:
        RegistryError: there is none.
        DigestError: other bytes came.
        UnreachableError: no answer.
    """
    top, content = registry.get_manifest(ref.repository, ref.digest or ref.tag or "latest")
    if platform is not None and top.media_type in media.INDEXES:
        top = _choose(children_of(parse_object(content, top.digest), top), platform, str(ref))
        content = registry.get_manifest(ref.repository, top.digest)[1]
    return top, content


def _pull(
    registry: Registry, repository: str, item: Descriptor, content: bytes, layout: Layout, *, depth: int = 0
) -> None:
    _require_shallow(item, depth)
    for child in children_of(parse_object(content, item.digest), item):
        if child.media_type not in media.MANIFESTS:
            registry.pull_blob(repository, child, layout)
        elif layout.has(child.digest):
            _pull(registry, repository, child, layout.read(child), layout, depth=depth + 1)
        else:
            below = registry.get_manifest(repository, child.digest)[1]
            _pull(registry, repository, child, below, layout, depth=depth + 1)
    layout.put_bytes(content, item.media_type)


def _from_layout(ref: LayoutRef, layout: Layout, platform: Platform | None) -> Descriptor:
    there = Layout(ref.path)
    top = resolve(ref)
    if platform is not None and top.media_type in media.INDEXES:
        top = _choose(there.children(top), platform, str(ref))
    for item in _children_first(there, top):
        layout.put_file(there.blob(item.digest), digest=item.digest)
    return top


def resolve(ref: LayoutRef) -> Descriptor:
    """The image that a layout reference names; without tag and digest the one that is there.

    Raises:
        RegistryError: none, or several and no tag.
    """
    there = Layout(ref.path)
    if ref.digest or ref.tag:
        return there.resolve(ref.digest or ref.tag or "")
    refs = there.images()
    # Other tools leave an image without a name; an artifact without one is what is said about an image.
    found = {one.digest for one in refs.values()} or {one.digest for one in there.roots() if not one.artifact_type}
    if len(found) != 1:
        raise RegistryError(
            f"{ref} holds {'several images' if found else 'no image'}",
            why=f"images there: {', '.join(refs or sorted(found)) or 'none'}",
            fix=f"name one: {ref}{':TAG' if refs else '@DIGEST'}" if found else "build or fetch one",
        )
    return there.resolve(next(iter(found)))


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
