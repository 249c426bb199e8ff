"""Read and write the blobs, manifests and tags in a registry."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import requests
from urllib3.exceptions import HTTPError

from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import DigestError, RegistryError, ResourceError
from toolchain.core.strict_json import Keys
from toolchain.core.web import TRANSIENT, TryAgainError, whole_body
from toolchain.oci import descriptor as media
from toolchain.oci.blobs import MANIFEST_LIMIT
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.download import Download
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import MANIFEST_KEYS, media_type_of, parse_object
from toolchain.oci.transport import Transport
from toolchain.oci.upload import Upload

_ACCEPT = ", ".join([media.INDEX, media.MANIFEST, media.DOCKER_INDEX, media.DOCKER_MANIFEST])
# The PUT of a manifest is repeated after these statuses, because some registries send them while another publisher
# uploads the same blob.
_UNSETTLED = frozenset({400, 404})
_UNSETTLED_TRIES = 3
_TAGS: Keys = {"name": None, "tags": None}
_TAGS_A_PAGE, _PAGES, _MOST_TAGS = 1000, 1000, 200_000


def _named(repository: str, reference: str) -> str:
    """Return a repository with a tag or digest as users write it."""
    return f"{repository}{'@' if reference.startswith('sha256:') else ':'}{reference}"


class Registry(Transport):
    """A client of a registry (see `Transport` for the arguments)."""

    def push_blob(self, repository: str, blob: Descriptor, path: Path) -> int:
        """Upload a blob; return its size, or 0 if the registry already had it."""
        with self.translated():
            return Upload(self, repository, blob, path).run()

    def pull_blob(self, repository: str, blob: Descriptor, layout: Layout) -> int:
        """Download a blob into a layout; return its size, or 0 if the layout already had it.

        DigestError is raised if the registry sends wrong content twice, and ResourceError if the blob does not fit on
        the disk or cannot be written.
        """
        if layout.holds(blob.digest):
            return 0
        actual = ""
        try:
            for _ in range(2):
                with layout.new(blob.digest) as new:
                    free = shutil.disk_usage(new.path.parent).free
                    if blob.size > free:
                        raise ResourceError(
                            "disk-too-small",
                            f"{blob.digest} from {self.host} does not fit on the disk",
                            why=f"it has {blob.size} bytes, and {free} bytes are free in {new.path.parent}",
                            fix="free disk space, or set TMPDIR to a folder on a larger disk",
                        )
                    actual = Download(self, repository, blob, new.stream).run()
                    if actual == blob.digest:
                        new.finish(actual)
                        return blob.size
                self.traffic.repeated += 1
        except OSError as error:
            raise ResourceError(
                "blob-not-written",
                f"cannot write {blob.digest} to {layout.root}",
                why=error.strerror or "",
                fix="check the free space and the permissions, and try again",
            ) from error
        raise DigestError(
            "registry-blob-mismatch",
            f"{self.host} did not send the requested blob",
            why=f"expected {blob.digest}, got {actual}",
            fix="do not use this image, and report the error to the registry's operator",
        )

    def tags(self, repository: str) -> tuple[str, ...]:
        """Return all tags of a repository, sorted; an empty tuple if the repository does not exist."""
        names: set[str] = set()
        path = f"/v2/{repository}/tags/list?n={_TAGS_A_PAGE}"
        for page in self.pages(path, repository, "tags", none=frozenset({404}), keys=_TAGS, most=_MOST_TAGS):
            value = page.get("tags")
            if not isinstance(value, list | None) or not all(isinstance(tag, str) for tag in value or ()):
                raise RegistryError(
                    "registry-list-malformed",
                    f"{self.host} returned an invalid list of the tags of {repository}",
                    fix="check with `skopeo list-tags` that it is an OCI registry",
                )
            names.update(value or ())
        return tuple(sorted(names))

    def pages(
        self,
        path: str,
        repository: str,
        name: str,
        *,
        none: Set[int],
        most: int,
        kind: str = "",
        keys: Keys = MANIFEST_KEYS,
    ) -> Iterator[dict[str, Any]]:
        """Yield the pages of a list; yield nothing if the registry does not have the list.

        Args:
            path: the path or URL of the first page.
            none: the statuses that mean that the list does not exist.
            most: the maximum number of entries on all pages together; RegistryError is raised if the list has more, or
                if it has more than `_PAGES` pages or `MANIFEST_LIMIT` bytes.
            kind: the expected media type; empty for any type. If the first page has another type, nothing is yielded.
        """
        entries, left = 0, MANIFEST_LIMIT
        for number in range(_PAGES):
            with self.translated(), self.request("GET", path, repository, headers={"Accept": kind or "*/*"}) as got:
                known = not kind or got.headers.get("Content-Type", "").partition(";")[0].strip() == kind
                if number == 0 and (got.status_code in none or (got.status_code == 200 and not known)):
                    return
                if got.status_code != 200 or not known:
                    raise self.failed(got, f"{self.host} cannot list the {name} of {repository}")
                content = whole_body(got, left)
            if content is None:
                raise self._too_long(name, f"{MANIFEST_LIMIT} bytes")
            left -= len(content)
            page = parse_object(content, f"the list of {name}", keys=keys)
            entries += sum(len(value) for value in page.values() if isinstance(value, list))
            if entries > most:
                raise self._too_long(name, f"{most} entries")
            yield page
            further = re.search(r'<([^<>]+)>;\s*rel="?next', got.headers.get("Link", ""))
            if further is None:
                return
            path = further[1]
        raise self._too_long(name, f"{_PAGES} pages")

    def _too_long(self, name: str, limit: str) -> RegistryError:
        return RegistryError(
            "registry-list-too-long",
            f"the list of {name} of {self.host} is too long",
            why=f"it has more than {limit}",
            fix="check the name; if it is right, report it to the registry's operator",
        )

    def manifest_digest(self, repository: str, reference: str) -> str | None:
        """Return the digest of a manifest; None if the registry does not have it."""
        path = f"/v2/{repository}/manifests/{reference}"
        with self.translated(), self.request("HEAD", path, repository, headers={"Accept": _ACCEPT}) as got:
            if got.status_code == 404:
                return None
            if got.status_code != 200:
                raise self.failed(got, f"cannot find out whether {self.host} has {_named(repository, reference)}")
            digest = got.headers.get("Docker-Content-Digest")
        return digest or self.get_manifest(repository, reference)[0].digest

    def get_manifest(self, repository: str, reference: str) -> tuple[Descriptor, bytes]:
        """Return the descriptor and the bytes of a manifest or index.

        DigestError is raised if `reference` is a digest and the registry sends content with another digest.
        """
        content, content_type = self.retries().run(lambda: self._read_manifest(repository, reference))
        if len(content) > MANIFEST_LIMIT:
            raise RegistryError(
                "manifest-too-large",
                f"{_named(repository, reference)} is too large for a manifest",
                why=f"it has more than {MANIFEST_LIMIT} bytes",
                fix="check the name, because it is not an image",
            )
        self.traffic.received += len(content)
        digest = sha256_bytes(content)
        if reference.startswith("sha256:") and digest != reference:
            raise DigestError(
                "registry-manifest-mismatch",
                f"{self.host} did not send the requested manifest",
                why=f"expected {reference}, got {digest}",
                fix="do not use this image, and report the error to the registry's operator",
            )
        value = parse_object(content, _named(repository, reference))
        kind = content_type if content_type in media.MANIFESTS else media_type_of(value)
        return Descriptor(kind, digest, len(content)), content

    def _read_manifest(self, repository: str, reference: str) -> tuple[bytes, str]:
        path = f"/v2/{repository}/manifests/{reference}"
        try:
            with self.request("GET", path, repository, headers={"Accept": _ACCEPT}) as got:
                if got.status_code != 200:
                    raise self.failed(got, f"{self.host} has no {_named(repository, reference)}")
                content = bytes(got.raw.read(MANIFEST_LIMIT + 1, decode_content=True))
                return content, got.headers.get("Content-Type", "").partition(";")[0].strip()
        except requests.RequestException as error:
            raise self.unreachable(error) from None  # `request` has already retried the request
        except HTTPError as error:
            raise TryAgainError(self.unreachable(error)) from None

    def put_manifest(self, repository: str, reference: str, content: bytes, media_type: str) -> None:
        """Upload a manifest or index under a digest or tag; retry after temporary failures."""
        retries = self.retries()
        retries.run(lambda: self.put_once(repository, reference, content, media_type, failures=retries.failures))

    def put_once(self, repository: str, reference: str, content: bytes, media_type: str, *, failures: int) -> None:
        """Upload a manifest without retrying.

        TryAgainError is raised for an error that may be temporary, RegistryError if the registry does not accept the
        manifest, and UnreachableError if the token service does not answer.

        Args:
            failures: the number of earlier failures; with `_UNSETTLED_TRIES` or more, 400 and 404 are permanent errors.
        """
        digest = sha256_bytes(content)
        try:
            with self.request(
                "PUT",
                f"/v2/{repository}/manifests/{reference}",
                repository,
                actions="pull,push",
                body=lambda: content,
                headers={"Content-Type": media_type},
            ) as got:
                self.traffic.sent += len(content)
                stored = got.headers.get("Docker-Content-Digest", digest)
                if got.status_code in {200, 201, 202} and stored == digest:
                    return
                problem = self.failed(got, f"{self.host} did not accept {_named(repository, reference)}")
                if got.status_code in TRANSIENT or (got.status_code in _UNSETTLED and failures < _UNSETTLED_TRIES):
                    raise TryAgainError(problem, got.headers.get("Retry-After"))
                raise problem
        except requests.RequestException as error:
            raise TryAgainError(self.unreachable(error)) from None
