"""Referrers: artifacts beside an image whose `subject` is the image, listed by the place that holds them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolchain.core.errors import RegistryError
from toolchain.oci.descriptor import Descriptor, check_digest
from toolchain.oci.layout import Layout

LOG = logging.getLogger(__name__)


def fallback_tag(subject: str) -> str:
    """The tag under which the referrers of a digest are listed if there is no API: `sha256-<hex>`."""
    return check_digest(subject).replace(":", "-")


def write_artifact(
    layout: Layout,
    subject: Descriptor,
    content: Descriptor,
    *,
    artifact_type: str,
    annotations: Mapping[str, str] | None = None,
) -> Descriptor:
    """Store the manifest of an artifact about `subject`; its one blob, `content`, must be in the layout already.

    Returns:
        The manifest as a list of referrers names it, with artifact type and annotations.
    """
    layout.blob(content.digest)
    notes = dict(annotations or {})
    more = {"annotations": notes} if notes else {}
    made = layout.put_artifact(artifact_type, [content.plain], subject=subject.plain.as_json(), **more)
    return replace(made, annotations=notes)


def subject_of(value: Mapping[str, Any]) -> str | None:
    """The digest that a manifest's JSON names as its subject, None without one."""
    subject = value.get("subject")
    digest = subject.get("digest") if isinstance(subject, dict) else None
    return digest if isinstance(digest, str) else None


def readable(entries: Sequence[Any]) -> Iterator[Descriptor]:
    """The entries of a list that are descriptors: anyone who may push can add others, which must not hide them."""
    for entry in entries:
        try:
            yield Descriptor.from_json(entry)
        except RegistryError as error:
            LOG.warning("an entry in the list of referrers is left out: %s (%s)", error.what, error.why)
