"""One step at a place, for tests that name it by a reference and now and then bring a connection of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from toolchain.oci.descriptor import Descriptor, Platform
from toolchain.oci.layout import Layout
from toolchain.oci.layout_place import LayoutPlace
from toolchain.oci.place import Attached, Place, Published
from toolchain.oci.places import open_place
from toolchain.oci.reference import LayoutRef, RegistryRef, Target
from toolchain.oci.referrers import subject_of
from toolchain.oci.registry import Registry
from toolchain.oci.repository_place import RepositoryPlace
from toolchain.oci.tagged import Tagged
from toolchain.publish import attestations
from toolchain.publish.attestations import AttachedEvidence
from toolchain.trust import statements
from toolchain.trust import verify as trust


@contextlib.contextmanager
def at(ref: Target, registry: Registry | None = None) -> Iterator[Place]:
    """The place, reached by `registry` if there is one."""
    if registry is None:
        with open_place(ref) as place:
            yield place
        return
    assert isinstance(ref, RegistryRef)
    yield RepositoryPlace(ref, registry)


def folder(layout: Layout) -> LayoutPlace:
    """A layout as a place."""
    return LayoutPlace(LayoutRef(layout.root))


def publish(
    layout: Layout, item: Descriptor, ref: Target, tags: Sequence[str] = (), *, registry: Registry | None = None
) -> Published:
    """`Place.put`."""
    with at(ref, registry) as place:
        return place.put(layout, item, list(dict.fromkeys([*([ref.tag] if ref.tag else []), *tags])))


def fetch_image(
    ref: Target, layout: Layout, *, platform: Platform | None = None, registry: Registry | None = None
) -> Descriptor:
    """`Place.fetch`."""
    with at(ref, registry) as place:
        return place.fetch(layout, platform=platform)


def referrers(ref: Target, subject: str, *, registry: Registry | None = None) -> tuple[Descriptor, ...]:
    """`Place.referrers`."""
    with at(ref, registry) as place:
        return place.referrers(subject)


def attach(
    layout: Layout, artifacts: Sequence[Descriptor], ref: Target, *, registry: Registry | None = None
) -> Attached:
    """`Place.attach`."""
    with at(ref, registry) as place:
        return place.attach(layout, str(subject_of(layout.read_json(artifacts[0]))), artifacts)


def attach_layers(layout: Layout, said: Sequence[Tagged], ref: Target, *, registry: Registry | None = None) -> int:
    """`Place.attach_layers`."""
    with at(ref, registry) as place:
        return place.attach_layers(layout, said)


def attach_evidence(
    image_facts: Any, layout: Layout, manifest: Descriptor, index: Descriptor, ref: Target,
    *, registry: Registry | None = None, **how: Any,
) -> AttachedEvidence:  # fmt: skip
    """`attestations.attach_evidence`."""
    with at(ref, registry) as place:
        return attestations.attach_evidence(image_facts, layout, manifest, index, place, **how)


def gather(ref: Target, subjects: Sequence[str], scratch: Layout) -> list[statements.Evidence]:
    """`verify.gather`."""
    with at(ref) as place:
        return statements.gather(place, subjects, scratch)


def verify(
    ref: Target, layout: Layout, top: Descriptor, *, registry: Registry | None = None, **how: Any
) -> trust.Verdict:
    """`verify.verify`."""
    with at(ref, registry) as place:
        return trust.verify(place, layout, top, **how)


def tags(registry: Registry, repository: str) -> list[str]:
    """All tags of a repository, sorted; none if there is no such repository."""
    with registry.request("GET", f"/v2/{repository}/tags/list", repository) as got:
        return sorted(got.json()["tags"] or ()) if got.status_code == 200 else []
