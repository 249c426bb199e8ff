"""Write and read referrers: artifacts whose `subject` is another manifest."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolchain.core.errors import RegistryError
from toolchain.oci.descriptor import Descriptor, check_digest
from toolchain.oci.layout import Layout

LOG = logging.getLogger(__name__)
_MOST_WARNINGS = 10


def fallback_tag(subject: str) -> str:
    """Return the tag `sha256-<hex>` that points to the list of referrers in registries without the referrers API."""
    return check_digest(subject).replace(":", "-")


def write_artifact(
    layout: Layout,
    subject: Descriptor,
    content: Descriptor,
    *,
    artifact_type: str,
    annotations: Mapping[str, str] | None = None,
) -> Descriptor:
    """Store the manifest of an artifact about an image, and return its descriptor for a list of referrers.

    Args:
        content: the only layer of the artifact; its blob must be in the layout.
    """
    layout.blob(content.digest)
    notes = dict(annotations or {})
    more = {"annotations": notes} if notes else {}
    made = layout.put_artifact(artifact_type, [content.plain], subject=subject.plain.as_json(), **more)
    return replace(made, annotations=notes)


def readable(entries: Sequence[Any]) -> Iterator[Descriptor]:
    """Yield the valid descriptors in a list; log and skip invalid entries, because anyone who may push can add them."""
    invalid = 0
    for entry in entries:
        try:
            yield Descriptor.from_json(entry)
        except RegistryError as error:
            invalid += 1
            if invalid <= _MOST_WARNINGS:
                LOG.warning("ignoring an entry in the list of referrers: %s (%s)", error.what, error.why)
    if invalid > _MOST_WARNINGS:
        LOG.warning("ignoring %d more entries in the list of referrers", invalid - _MOST_WARNINGS)
