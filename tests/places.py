"""Single calls to a place, for tests that name the place by a reference and may pass their own connection."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from toolchain.oci.descriptor import Descriptor, Platform
from toolchain.oci.layout import Layout
from toolchain.oci.layout_place import LayoutPlace
from toolchain.oci.manifest import subject_of
from toolchain.oci.place import Attached, Place, Published
from toolchain.oci.places import open_place
from toolchain.oci.reference import LayoutRef, RegistryRef, Target
from toolchain.oci.registry import Registry
from toolchain.oci.repository_place import RepositoryPlace
from toolchain.oci.tagged import Tagged
from toolchain.publish import attestations
from toolchain.publish.attestations import AttachedEvidence
from toolchain.trust import statements
from toolchain.trust import verify as trust


@contextlib.contextmanager
def at(ref: Target, registry: Registry | None = None) -> Iterator[Place]:
    """Yield the place; `registry` is its connection if it is given."""
    if registry is None:
        with open_place(ref) as place:
            yield place
        return
    assert isinstance(ref, RegistryRef)
    yield RepositoryPlace(ref, registry)


def folder(layout: Layout) -> LayoutPlace:
    """Return a layout as a place."""
    return LayoutPlace(LayoutRef(layout.root))


def publish(
    layout: Layout, item: Descriptor, ref: Target, tags: Sequence[str] = (), *, registry: Registry | None = None
) -> Published:
    """Call `Place.put`."""
    with at(ref, registry) as place:
        return place.put(layout, item, list(dict.fromkeys([*([ref.tag] if ref.tag else []), *tags])))


def fetch_image(
    ref: Target, layout: Layout, *, platform: Platform | None = None, registry: Registry | None = None
) -> Descriptor:
    """Call `Place.fetch`."""
    with at(ref, registry) as place:
        return place.fetch(layout, platform=platform)


def referrers(ref: Target, subject: str, *, registry: Registry | None = None) -> tuple[Descriptor, ...]:
    """Call `Place.referrers`."""
    with at(ref, registry) as place:
        return place.referrers(subject)


def attach(
    layout: Layout, artifacts: Sequence[Descriptor], ref: Target, *, registry: Registry | None = None
) -> Attached:
    """Call `Place.attach`."""
    with at(ref, registry) as place:
        return place.attach(layout, str(subject_of(layout.read_json(artifacts[0]))), artifacts)


def attach_layers(layout: Layout, said: Sequence[Tagged], ref: Target, *, registry: Registry | None = None) -> int:
    """Call `Place.attach_layers`."""
    with at(ref, registry) as place:
        return place.attach_layers(layout, said)


def attach_evidence(
    image_facts: Any, layout: Layout, manifest: Descriptor, index: Descriptor, ref: Target,
    *, registry: Registry | None = None, **how: Any,
) -> AttachedEvidence:  # fmt: skip
    """Call `attestations.attach_evidence`."""
    with at(ref, registry) as place:
        return attestations.attach_evidence(image_facts, layout, manifest, index, place, **how)


def gather(ref: Target, subjects: Sequence[str], scratch: Layout) -> list[statements.Evidence]:
    """Call `statements.gather`."""
    with at(ref) as place:
        return statements.gather(place, subjects, scratch)


def verify(
    ref: Target, layout: Layout, top: Descriptor, *, registry: Registry | None = None, **how: Any
) -> trust.Verdict:
    """Call `verify.verify`."""
    with at(ref, registry) as place:
        return trust.verify(place, layout, top, **how)


def tags(registry: Registry, repository: str) -> list[str]:
    """Return the sorted tags of a repository; the list is empty if the repository does not exist."""
    with registry.request("GET", f"/v2/{repository}/tags/list", repository) as got:
        return sorted(got.json()["tags"] or ()) if got.status_code == 200 else []
