"""How registries treat uploads, each from its documentation or issue threads, for the fault proxy to imitate."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_UPLOAD = re.compile(r"^/v2/.+/blobs/uploads/")


@dataclass(frozen=True)
class Manners:
    """What a registry does otherwise than the one behind the proxy. Numbers are bytes or HTTP statuses; 0: nothing.

    Args:
        no_chunks: status of the answer to every PATCH, with `code`.
        code: of refusals.
        patch_limit: a larger PATCH is answered with 416, as GHCR does.
        limit: a larger body is answered with 413.
        whole_limit: a larger PUT that brings a whole blob is answered with 413, as ACR does.
        hangs_up: refusals come before the body is read, and the connection is closed.
        no_whole: status of the answer to a PUT that brings a whole blob.
        stuck: the `Range` of answers stays at the first chunk, as ECR's does.
        of_the_chunk: the `Range` of answers speaks of the last chunk alone, as zot's did.
        no_empty_end: status of the answer to an empty PUT behind chunks.
        taken: status of the answer to a chunk that was taken.
        least, most: what OCI-Chunk-Min-Length and OCI-Chunk-Max-Length say; a chunk behind a shorter one is refused.
        no_status: status of the answer to the question how far an upload is.
        keeps: what a PUT brought before it broke off is kept (docker-registry forgets the whole upload).
        marked: uploads keep the addresses of docker-registry, by which it is known.
    """

    no_chunks: int = 0
    code: str = "UNSUPPORTED"
    patch_limit: int = 0
    limit: int = 0
    whole_limit: int = 0
    hangs_up: bool = False
    no_whole: int = 0
    stuck: bool = False
    of_the_chunk: bool = False
    no_empty_end: int = 0
    taken: int = 0
    least: int = 0
    most: int = 0
    no_status: int = 0
    keeps: bool = False
    marked: bool = False


@dataclass
class _Session:
    path: str
    chunks: list[int] = field(default_factory=list)


class Desk:
    """The uploads that are under way at a registry with manners."""

    def __init__(self, manners: Manners) -> None:
        self.manners = manners
        self._sessions: dict[str, _Session] = {}

    def refusal(self, method: str, path: str, size: int) -> int:
        """The status with which a request is refused, 0 if it is not."""
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

    def upstream(self, path: str) -> str:
        """Where a request goes behind the proxy."""
        found = None if self.manners.marked else self._session(path)
        query = urlsplit(path).query
        if found is None:
            return path
        return f"{found.path}&{query}" if query else found.path

    def answered(self, method: str, path: str, size: int, status: int, headers: dict[str, str]) -> int:
        """Change the headers of an answer to what this registry says; its status."""
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
        if self.manners.of_the_chunk:
            headers["Range"] = f"0-{found.chunks[-1] - 1}"
