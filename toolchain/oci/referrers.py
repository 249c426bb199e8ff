"""Referrers: artifacts beside an image whose `subject` is the image.

A registry with the referrers API keeps the list itself. For one without it the list is an index under the tag
`sha256-<hex of the subject>` that its publishers keep: read, add, write. No registry known here can do that in one
step: see `shared_tag`. In a layout folder an artifact is an entry of index.json without a name.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from toolchain.errors import DigestError, DocumentError, RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor, check_digest
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import parse_object
from toolchain.oci.registry import Registry
from toolchain.oci.shared_tag import CALM, SharedTag

LOG = logging.getLogger(__name__)
# What registries without the API answer.
_NO_API = frozenset({400, 404, 405, 406, 501})
_PAGES = 100


@dataclass(frozen=True)
class Attached:
    """The result of `Place.attach`.

    Args:
        how: `api`, `tag` (the fallback) or `layout`; `none` when there was nothing to do.
        new: artifacts that were not listed before.
        pushed_bytes: that were sent or written for it.
    """

    how: Literal["api", "tag", "layout", "none"]
    new: int
    pushed_bytes: int


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
    config = layout.put_bytes(b"{}", media.EMPTY)
    value: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": media.MANIFEST,
        "artifactType": artifact_type,
        "config": config.as_json(),
        "layers": [content.plain.as_json()],
        "subject": subject.plain.as_json(),
    }
    if annotations:
        value["annotations"] = dict(annotations)
    made = layout.put_json(value, media.MANIFEST)
    return replace(made, artifact_type=artifact_type, annotations=dict(annotations or {}))


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


def shared_subject(layout: Layout, artifacts: Sequence[Descriptor]) -> str:
    """The digest that all of the artifacts are about.

    Raises:
        RegistryError: they are of several subjects or of none.
    """
    subjects = {subject_of(layout.read_json(artifact)) for artifact in artifacts}
    subject = next(iter(subjects), None)
    if subject is None or len(subjects) != 1:
        raise RegistryError(
            "artifacts of one image are attached at a time",
            why=f"{len(subjects)} subjects",
            fix="attach to each image by itself",
        )
    return subject


# Layout folders


def referrers_in_layout(layout: Layout, subject: str) -> tuple[Descriptor, ...]:
    """`Place.referrers` for a folder."""
    artifacts = []
    for entry in layout.roots():
        if entry.media_type in media.IMAGES and layout.has(entry.digest):
            try:
                value = layout.read_json(entry)
            except (RegistryError, DigestError, DocumentError) as error:
                LOG.warning("%s in %s is left out: %s", entry.digest, layout.root, error.what)
                continue
            if subject_of(value) == subject:
                artifacts.append(replace(entry, artifact_type=str(value.get("artifactType") or "")))
    return tuple(dict.fromkeys(artifacts))


def attach_to_layout(layout: Layout, artifacts: Sequence[Descriptor], there: Layout) -> Attached:
    """`Place.attach` for a folder."""
    subject = shared_subject(layout, artifacts)
    there.blob(subject)
    listed = {entry.digest for entry in referrers_in_layout(there, subject)}
    pushed = 0
    for artifact in artifacts:
        for item in (*layout.children(artifact), artifact):
            if not there.holds(item.digest):
                there.put_file(layout.blob(item.digest), digest=item.digest)
                pushed += item.size
        there.add(artifact)
    return Attached("layout", sum(artifact.digest not in listed for artifact in artifacts), pushed)


# Registries


def referrers_in_repository(registry: Registry, repository: str, subject: str) -> tuple[Descriptor, ...]:
    """`Place.referrers` for a repository."""
    return tuple(dict.fromkeys(readable(_listed(registry, repository, subject))))


def _listed(registry: Registry, repository: str, subject: str) -> list[Any]:
    if (known := _by_api(registry, repository, subject)) is not None:
        return known
    index = _read_tag(registry, repository, subject)
    return index["manifests"] if index else []


def attach_to_repository(
    layout: Layout, artifacts: Sequence[Descriptor], registry: Registry, repository: str
) -> Attached:
    """`Place.attach` for a repository."""
    subject = shared_subject(layout, artifacts)
    before = registry.traffic.sent
    known = _listed(registry, repository, subject)
    missing = [artifact for artifact in artifacts if artifact.digest not in _digests(known)]
    if not missing:
        return Attached("none", 0, 0)
    by_api = True
    for artifact in missing:
        for blob in layout.children(artifact):
            registry.push_blob(repository, blob, layout.blob(blob.digest))
        content = layout.read(artifact)
        listed_for = registry.put_manifest(repository, artifact.digest, content, media.MANIFEST)
        by_api = by_api and listed_for == subject
        if registry.get_manifest(repository, artifact.digest)[1] != content:
            raise DigestError(f"{registry.host} does not hold the artifact that was published", fix="publish again")
    # A registry may know the header and yet not list; then what was published would not be found.
    if by_api and _listed_by_api(registry, repository, subject, missing):
        return Attached("api", len(missing), registry.traffic.sent - before)
    _add_to_tag(registry, repository, subject, missing)
    return Attached("tag", len(missing), registry.traffic.sent - before)


def _digests(entries: Sequence[Any]) -> set[str]:
    return {str(entry.get("digest")) for entry in entries if isinstance(entry, dict)}


def _listed_by_api(registry: Registry, repository: str, subject: str, artifacts: Sequence[Descriptor]) -> bool:
    for wait in (0.0, *CALM):
        time.sleep(wait)
        entries = _by_api(registry, repository, subject)
        if entries is None:
            return False
        if {artifact.digest for artifact in artifacts} <= _digests(entries):
            return True
    return False


def _by_api(registry: Registry, repository: str, subject: str) -> list[Any] | None:
    """The list that the registry keeps; None if it does not know the API."""
    path: str | None = f"/v2/{repository}/referrers/{check_digest(subject)}"
    entries: list[Any] = []
    for _ in range(_PAGES):
        if path is None:
            return entries
        with registry.translated(), registry.request("GET", path, repository, headers={"Accept": media.INDEX}) as got:
            kind = got.headers.get("Content-Type", "").partition(";")[0].strip()
            if got.status_code in _NO_API or (got.status_code == 200 and kind != media.INDEX):
                return None
            if got.status_code != 200:
                raise registry.failed(got, f"{registry.host} does not list what is attached in {repository}")
            index = _manifests(registry.content(got, "the list of referrers"), "the list of referrers")
            further = re.search(r'<([^<>]+)>;\s*rel="?next', got.headers.get("Link", ""))
        entries += index["manifests"]
        path = further[1] if further else None
    raise RegistryError(
        f"{registry.host} lists referrers without an end",
        why=f"more than {_PAGES} pages",
        fix="ask who runs the registry",
    )


def _manifests(content: bytes, name: str) -> dict[str, Any]:
    value = parse_object(content, name)
    if not isinstance(value.get("manifests"), list):
        raise RegistryError(
            f"{name} is not an index", why="it has no list of manifests", fix="ask who runs the registry"
        )
    return value


def _read_tag(registry: Registry, repository: str, subject: str) -> dict[str, Any] | None:
    tag = fallback_tag(subject)
    if registry.manifest_digest(repository, tag) is None:
        return None
    # Not an index: an unrelated image has this name, and must not be overwritten.
    return _manifests(registry.get_manifest(repository, tag)[1], f"{repository}:{tag}")


def _add_to_tag(registry: Registry, repository: str, subject: str, artifacts: Sequence[Descriptor]) -> None:
    """List artifacts in the index under the fallback tag."""

    def with_them(index: dict[str, Any] | None) -> dict[str, Any] | None:
        value = index or {}
        entries = list(value.get("manifests", ()))
        missing = [artifact for artifact in artifacts if artifact.digest not in _digests(entries)]
        return (
            {
                **value,
                "schemaVersion": 2,
                "mediaType": media.INDEX,
                "manifests": entries + [artifact.as_json() for artifact in missing],
            }
            if missing
            else None
        )

    def read() -> dict[str, Any] | None:
        return _read_tag(registry, repository, subject)

    SharedTag(registry, repository, fallback_tag(subject), media.INDEX, read, with_them).keep()
