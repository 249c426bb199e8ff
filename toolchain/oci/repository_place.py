"""Implement `Place` for a repository of a registry.

A registry with the referrers API lists the artifacts about an image. In other registries, publishers keep the list in
an index under a tag (see `referrers.fallback_tag` and `shared_tag`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolchain.core.errors import DigestError, RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci import registry_rules as rules
from toolchain.oci.descriptor import Descriptor, check_digest
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import parse_object
from toolchain.oci.place import Attached, NamedImage, Place, Published, children_first, with_size
from toolchain.oci.reference import RegistryRef, check_tag
from toolchain.oci.referrers import fallback_tag, readable
from toolchain.oci.registry import Registry
from toolchain.oci.shared_tag import CALM, SharedTag, add_to_all
from toolchain.oci.tagged import Tagged, manifest_with, read_layers_under

# Registries without the referrers API answer requests to it with these statuses.
_NO_API = frozenset({400, 404, 405, 406, 501})
_MOST_REFERRERS = 20_000


class RepositoryPlace(Place):
    """A repository of a registry, with an open connection to the registry."""

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

    def put(self, layout: Layout, descriptor: Descriptor, tags: Sequence[str]) -> Published:
        registry, repository = self._registry, self.ref.repository
        before = registry.traffic.sent
        skipped = 0
        items = tuple(children_first(layout, descriptor))
        # The known limits are checked first, because an upload may take long.
        rules.check_repository(registry.rules, registry.host, repository)
        rules.check_sizes(registry.rules, items)
        for tag in tags:
            check_tag(tag)
        for item in items:
            if item.media_type in media.MANIFESTS:
                skipped += 0 if self._put_manifest(layout, item, item.digest) else item.size
            elif not registry.push_blob(repository, item, with_size(layout, item)):
                skipped += item.size
            elif registry.blob_size(repository, item.digest) is None:
                raise RegistryError(
                    "registry-lost-blob",
                    f"{registry.host} accepted {item.digest}, but does not have it",
                    fix="publish the image again",
                )
        for tag in tags:
            self._put_manifest(layout, descriptor, tag)
        ref, pushed = str(self.ref.at(digest=descriptor.digest)), registry.traffic.sent - before
        return Published(ref, descriptor.digest, tuple(tags), pushed, skipped)

    def tag(self, layout: Layout, descriptor: Descriptor, tags: Sequence[str]) -> None:
        for tag in tags:
            check_tag(tag)
        for tag in tags:
            self._put_manifest(layout, descriptor, tag)

    def _put_manifest(self, layout: Layout, manifest: Descriptor, reference: str) -> bool:
        """Upload a manifest unless `reference` already names it, and read it back; return whether it was uploaded."""
        content, repository = layout.read(manifest), self.ref.repository
        missing = self._registry.manifest_digest(repository, reference) != manifest.digest
        if missing:
            self._registry.put_manifest(repository, reference, content, manifest.media_type)
        if self._registry.get_manifest(repository, reference)[1] != content:
            raise DigestError(
                "publish-changed",
                f"{self.ref.at()}: {reference} differs from the published image",
                why="the registry changed the manifest, or another publisher replaced it at the same time",
                fix="publish the image again",
            )
        return missing

    def referrers(self, subject: str) -> tuple[Descriptor, ...]:
        return tuple(dict.fromkeys(readable(self._listed(subject))))

    def _listed(self, subject: str) -> list[Any]:
        # The tag is also read if the API returns an empty list, because the API of some registries lists nothing.
        if known := self._by_api(subject):
            return known
        index = self._read_tag(subject)
        return index["manifests"] if index else []

    def attach(self, layout: Layout, subject: str, artifacts: Sequence[Descriptor]) -> Attached:
        registry, repository = self._registry, self.ref.repository
        before = registry.traffic.sent
        known = _digests(self._listed(subject))
        # A list under a tag still names a manifest after the registry deleted it.
        missing = [
            artifact
            for artifact in artifacts
            if artifact.digest not in known or registry.manifest_digest(repository, artifact.digest) is None
        ]
        if not missing:
            return Attached("none", 0)
        for artifact in missing:
            self.put(layout, artifact, ())
        # The list is read, because some registries send the header OCI-Subject and list nothing.
        by_api = self._listed_by_api(subject, missing)
        if not by_api:
            self._add_to_tag(subject, missing)
        return Attached("api" if by_api else "tag", registry.traffic.sent - before)

    def _listed_by_api(self, subject: str, artifacts: Sequence[Descriptor]) -> bool:
        for wait in (0.0, *CALM):
            time.sleep(wait)
            entries = self._by_api(subject)
            if entries is None:
                return False
            if {artifact.digest for artifact in artifacts} <= _digests(entries):
                return True
        return False

    def _by_api(self, subject: str) -> list[Any] | None:
        """Return the list from the referrers API; None if the registry does not have the API."""
        path = f"/v2/{self.ref.repository}/referrers/{check_digest(subject)}"
        pages = self._registry.pages(
            path, self.ref.repository, "referrers", none=_NO_API, kind=media.INDEX, most=_MOST_REFERRERS
        )
        lists = [_entries(page, f"the list of referrers of {self._registry.host}") for page in pages]
        return [entry for entries in lists for entry in entries] if lists else None

    def _read_tag(self, subject: str) -> dict[str, Any] | None:
        """Return the index of referrers under the fallback tag; None if the tag does not exist.

        RegistryError is raised if the tag does not point to an index. The result is also None if the registry, such as
        GitLab's, reads the tag `sha256-HEX` as a digest and returns the subject itself.
        """
        tag, repository = fallback_tag(subject), self.ref.repository
        if self._registry.manifest_digest(repository, tag) in {None, subject}:
            return None
        index = parse_object(self._registry.get_manifest(repository, tag)[1], f"{repository}:{tag}")
        return {**index, "manifests": _entries(index, f"{repository}:{tag}")}

    def _add_to_tag(self, subject: str, artifacts: Sequence[Descriptor]) -> None:
        tag, written, dropping = fallback_tag(subject), False, False

        def read() -> dict[str, Any] | None:
            if written and self._registry.manifest_digest(self.ref.repository, tag) == subject:
                raise RegistryError(
                    "registry-tag-for-digest",
                    f"{self._registry.host} reads the tag {tag} as a digest, so nothing can be attached to an image",
                    why="it has no referrers API, and returns the image instead of the list under that tag",
                    fix="publish to a registry with the referrers API, or to a folder: oci:DIR",
                )
            return self._read_tag(subject)

        def with_them(index: dict[str, Any] | None) -> dict[str, Any] | None:
            nonlocal written
            entries = list((index or {}).get("manifests", ()))
            known = _digests(entries)
            missing = [artifact.as_json() for artifact in artifacts if artifact.digest not in known]
            if not missing:
                return None
            written = True
            if dropping:
                entries = self._without_deleted(entries)
            return {**(index or {}), "schemaVersion": 2, "mediaType": media.INDEX, "manifests": entries + missing}

        shared = SharedTag(self._registry, self.ref.repository, tag, media.INDEX, read, with_them)
        try:
            add_to_all([shared])
        except RegistryError:
            # Some registries refuse an index that lists a manifest which they deleted. Such an entry is dropped.
            entries = (self._read_tag(subject) or {}).get("manifests", [])
            if self._without_deleted(entries) == entries:
                raise
            dropping = True
            add_to_all([shared])

    def _without_deleted(self, entries: Sequence[Any]) -> list[Any]:
        """Return the entries of an index except those whose manifests the registry does not have."""
        registry, repository = self._registry, self.ref.repository
        listed = dict.fromkeys(entry.digest for entry in readable(entries))
        deleted = {digest for digest in listed if registry.manifest_digest(repository, digest) is None}
        return [entry for entry in entries if not deleted & _digests([entry])]

    def attach_layers(self, layout: Layout, additions: Sequence[Tagged]) -> int:
        before = self._registry.traffic.sent
        add_to_all([self._shared(layout, addition) for addition in additions])
        return self._registry.traffic.sent - before

    def _shared(self, layout: Layout, addition: Tagged) -> SharedTag:
        registry, repository, tag = self._registry, self.ref.repository, addition.tag

        def read() -> dict[str, Any] | None:
            if registry.manifest_digest(repository, tag) is None:
                return None
            return read_layers_under(registry.get_manifest(repository, tag)[1], f"{repository}:{tag}")

        def change(value: dict[str, Any] | None) -> dict[str, Any] | None:
            missing = addition.missing(value)
            if not missing:
                return None
            made = manifest_with(value, missing, layout)
            for blob in (*missing, Descriptor.from_json(made["config"])):
                registry.push_blob(repository, blob, layout.blob(blob.digest))
            return made

        return SharedTag(registry, repository, tag, media.MANIFEST, read, change)


def _digests(entries: Sequence[Any]) -> set[str]:
    return {str(entry.get("digest")) for entry in entries if isinstance(entry, dict)}


def _entries(index: Mapping[str, Any], name: str) -> list[Any]:
    entries = index.get("manifests")
    if entries is None and "manifests" in index:
        return []  # Programs in Go write an empty list as null.
    if not isinstance(entries, list):
        raise RegistryError(
            "not-an-index",
            f"{name} is not an index",
            why="it has no list of manifests",
            fix="report it to the registry's operator",
        )
    return entries
