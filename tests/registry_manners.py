"""Properties of registries, from their documentation and issue threads, that the fault proxy imitates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal
from urllib.parse import urlsplit

from tests.scoped_login import ScopedLogin

INDEX = "application/vnd.oci.image.index.v1+json"
# These are Docker Hub's headers for its limits, from issues 2464 and 1907 of https://github.com/docker/hub-feedback.
# Docker Hub asks for a wait of 60 seconds; the tests do not wait.
TOO_MANY = {"ratelimit-limit": "100;w=21600", "ratelimit-remaining": "0;w=21600", "Retry-After": "0"}
_DIGEST_TAG = re.compile(r"(/manifests/sha256)-([0-9a-f]{64})$")
_UPLOAD = re.compile(r"^/v2/.+/blobs/uploads/")


@dataclass(frozen=True)
class Manners:
    """Differences of a registry from the one behind the proxy. Numbers are bytes or HTTP statuses; 0 means none.

    Args:
        no_chunks: status of the answer to every PATCH.
        code: error code of refusals.
        patch_limit: size above which a PATCH is answered with 416, as GHCR does.
        limit: size above which a body is answered with 413.
        whole_limit: size above which a PUT with a whole blob is answered with 413, as ACR does.
        hangs_up: whether a refusal is sent before the body is read, and the connection is closed.
        no_whole: status of the answer to a PUT with a whole blob.
        stuck: whether the `Range` of answers always ends at the first chunk, as ECR's does.
        no_empty_end: status of the answer to an empty PUT after chunks.
        taken: status of the answer to an accepted chunk.
        least, most: values of OCI-Chunk-Min-Length and OCI-Chunk-Max-Length; a chunk above the maximum is refused, and
            so is a chunk after one below the minimum.
        no_status: status of the answer to a GET for the progress of an upload.
        keeps: whether the bytes of an interrupted PUT are kept (docker-registry forgets the whole upload).
        marked: whether uploads keep the addresses of docker-registry, by which the tool recognizes it.
        referrers: `api` if the registry lists manifests with a subject.
        digest_tags: whether a request for the tag `sha256-HEX` is answered with the manifest of that digest, as GitLab
            does: https://github.com/oras-project/oras-go/issues/1396
        too_many: number of requests for manifests that are first answered with 429, as Docker Hub does.
        login: makes the `ScopedLogin` that asks for a login and issues tokens.
    """

    no_chunks: int = 0
    code: str = "UNSUPPORTED"
    patch_limit: int = 0
    limit: int = 0
    whole_limit: int = 0
    hangs_up: bool = False
    no_whole: int = 0
    stuck: bool = False
    no_empty_end: int = 0
    taken: int = 0
    least: int = 0
    most: int = 0
    no_status: int = 0
    keeps: bool = False
    marked: bool = False
    referrers: Literal["", "api"] = ""
    digest_tags: bool = False
    too_many: int = 0
    login: Callable[[], ScopedLogin] | None = None


def _login(**options: Any) -> Callable[[], ScopedLogin]:
    return lambda: ScopedLogin(private=True, **options)


QUAY = Manners(referrers="api", login=_login(path="/v2/auth", service="quay.io", word="token", says=False))
_HUB = _login(name="localhost", service="registry.docker.io", word="token")
DOCKER_HUB = Manners(marked=True, referrers="api", too_many=2, code="TOOMANYREQUESTS", login=_HUB)
GITLAB = Manners(
    marked=True,
    digest_tags=True,
    login=_login(name="localhost", path="/jwt/auth", service="container_registry", word="token", says=False),
)
HARBOR = Manners(
    marked=True,
    referrers="api",
    login=_login(
        login="robot$ns+publisher:pass-word",
        path="/service/token",
        service="harbor-registry",
        posts=False,
        word="token",
    ),
)


@dataclass
class _Session:
    path: str
    chunks: list[int] = field(default_factory=list)


class Desk:
    """The open uploads and the listed referrers of a registry with manners."""

    def __init__(self, manners: Manners) -> None:
        self.manners = manners
        self._sessions: dict[str, _Session] = {}
        self._too_many = manners.too_many
        self._shelf: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def referrers(self, path: str) -> bytes | None:
        """Return the index of referrers if `path` asks for one; None lets the registry behind the proxy answer."""
        found = re.fullmatch(r"/v2/(.+)/referrers/(.+)", path)
        if found is None or self.manners.referrers != "api":
            return None
        listed = self._shelf.get((found[1], found[2]), [])
        return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed}).encode()

    def took(self, path: str, content: bytes, headers: dict[str, str]) -> None:
        """List an accepted manifest with a subject, and name the subject in `headers`."""
        value = json.loads(content)
        subject = (value.get("subject") or {}).get("digest")
        if not subject or not self.manners.referrers:
            return
        entry = {
            "mediaType": value["mediaType"],
            "digest": f"sha256:{sha256(content).hexdigest()}",
            "size": len(content),
        }
        entry |= {"artifactType": value.get("artifactType", ""), "annotations": value.get("annotations", {})}
        shelf = self._shelf.setdefault((path.removeprefix("/v2/").partition("/manifests/")[0], subject), [])
        shelf += [] if entry in shelf else [entry]
        headers["OCI-Subject"] = subject

    def refusal(self, method: str, path: str, size: int) -> int:
        """Return the status with which a request is refused, or 0."""
        if self._too_many and "/manifests/" in path:
            self._too_many -= 1
            return 429
        found = self._session(path)
        if found is None:
            return 0
        if 0 < self.manners.limit < size:
            return 413
        if method == "PATCH":
            return self._chunk_refusal(found, size)
        if method == "PUT":
            return self._end_refusal(found, size)
        return self.manners.no_status if method == "GET" else 0

    def _chunk_refusal(self, found: _Session, size: int) -> int:
        manners = self.manners
        if 0 < manners.patch_limit < size or 0 < manners.most < size:
            return 416
        short = bool(manners.least and found.chunks and found.chunks[-1] < manners.least)
        return 416 if short else manners.no_chunks

    def _end_refusal(self, found: _Session, size: int) -> int:
        manners = self.manners
        if size and not found.chunks:
            return manners.no_whole or (413 if 0 < manners.whole_limit < size else 0)
        return manners.no_empty_end if not size and found.chunks else 0

    def upstream(self, method: str, path: str) -> str:
        """Return the path of a request to the registry behind the proxy."""
        if self.manners.digest_tags and method in {"GET", "HEAD"}:
            path = _DIGEST_TAG.sub(r"\1:\2", path)
        found = None if self.manners.marked else self._session(path)
        query = urlsplit(path).query
        if found is None:
            return path
        return f"{found.path}&{query}" if query else found.path

    def answered(self, method: str, path: str, size: int, status: int, headers: dict[str, str]) -> int:
        """Change the headers of an answer to those of this registry, and return its status."""
        if not _UPLOAD.match(path) or status >= 300:
            return status
        found = self._session(path)
        if method == "PATCH" and found is not None:
            found.chunks.append(size)
            self._say_range(found, headers)
        if "Location" in headers and method in {"POST", "PATCH", "GET"}:
            renamed = self._renamed(headers["Location"], found)
            headers["Location"] = headers["Location"] if self.manners.marked else renamed
        if method == "POST":
            for word, length in (("Min", self.manners.least), ("Max", self.manners.most)):
                headers.update({f"OCI-Chunk-{word}-Length": str(length)} if length else {})
        return self.manners.taken or status if method == "PATCH" else status

    def _session(self, path: str) -> _Session | None:
        return self._sessions.get(urlsplit(path).path)

    def _renamed(self, location: str, known: _Session | None) -> str:
        parts = urlsplit(location)
        found = known or self._sessions.setdefault(parts.path, _Session(""))
        found.path = f"{parts.path}?{parts.query}"
        return parts.path

    def _say_range(self, found: _Session, headers: dict[str, str]) -> None:
        if self.manners.stuck:
            headers["Range"] = f"0-{found.chunks[0] - 1}"
