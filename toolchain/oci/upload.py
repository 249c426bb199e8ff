"""Upload a blob: resume after a failure, and send smaller requests if the registry refuses large ones.

`skopeo copy` is not used, because it has no timeout for a connection that stalls, and because some registries refuse
the only kind of request with which it uploads a blob (docs/measurements/tool.md).
"""

from __future__ import annotations

import contextlib
import logging
import re
from functools import partial
from pathlib import Path
from typing import IO, NoReturn
from urllib.parse import quote

import requests

from toolchain.core.digest import sha256_file
from toolchain.core.errors import DigestError, RegistryError, ToolchainError
from toolchain.core.web import TRANSIENT, TryAgainError, header_number
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.registry_rules import CHUNK, UNKNOWN, for_location
from toolchain.oci.transport import Body, Transport

LOG = logging.getLogger(__name__)
# This is the smallest chunk size in bytes that is tried after a request was too large. nginx accepts 1 MiB by default.
LEAST = 256 << 10
_TAKEN = frozenset({200, 201, 202, 204})
_TOO_LARGE = frozenset({413, 416})
# Registries refuse the upload of a whole blob in one request with these statuses.
_NO_WHOLE = frozenset({405, 411, 413, 415, 501})
# These error codes do not depend on the kind or size of the request.
_NOT_THE_WAY = frozenset({"NAME_INVALID", "NAME_UNKNOWN", "DENIED", "UNAUTHORIZED", "TOOMANYREQUESTS"})
# This is the number of retries after the registry answered HTTP 400 although the file has the right digest.
_WRONG_TRIES = 2
# Smaller requests are sent to an unknown registry after this number of broken connections without an accepted chunk.
_BREAKS = 2


class _RefusedError(Exception):
    """An error for a request whose kind or size the registry does not accept."""

    def __init__(self, problem: ToolchainError, status: int) -> None:
        super().__init__(problem.what)
        self.problem = problem
        self.status = status


class Upload:
    """An upload of a blob from its file; `run` may be called once."""

    def __init__(self, registry: Transport, repository: str, blob: Descriptor, path: Path) -> None:
        self._registry = registry
        self._repository = repository
        self._blob = blob
        self._path = path
        self._location = ""
        self._offset = 0
        self._rules = registry.rules
        self._chunk: int | None = None  # size of a chunk in bytes; None to send the whole blob in one request
        self._least = 0  # the smallest size of a chunk in bytes that the registry accepts
        self._largest = registry.largest  # size of chunks in bytes after a larger request failed; 0 before
        self._accepted = False  # whether the registry accepted a chunk of this upload
        self._failed = self._anew = False  # whether the last attempt failed, and whether to start from the beginning
        self._restarts = self._wrong = self._breaks = 0
        self._retries = registry.retries()
        self._request = partial(registry.request, repository=repository, actions="pull,push")

    def run(self) -> int:
        """Upload the blob; return its size, or 0 if the registry already has it."""
        if self._there():
            return 0
        with self._path.open("rb", buffering=0) as stream:
            self._retries.run(lambda: self._go_on(stream))
        return self._blob.size

    def _go_on(self, stream: IO[bytes]) -> None:
        if self._failed:
            self._resume()
            if not self._location and self._there():
                return  # an attempt can succeed although its response is lost
        try:
            while not self._sent(stream):
                pass
        except requests.RequestException as error:
            self._breaks += not self._accepted
            if self._rules is UNKNOWN and self._breaks >= _BREAKS:
                self._shrink()  # a reverse proxy may close the connection when a request is too large
            self._fail(TryAgainError(self._registry.unreachable(error)))
        except TryAgainError as failure:
            self._fail(failure)

    def _sent(self, stream: IO[bytes]) -> bool:
        """Send the rest of the blob; return False if the registry refused the kind or size of a request.

        If False is returned, the next call sends the blob from its beginning in chunks, or in smaller chunks.
        """
        try:
            if not self._location:
                self._start()
            if self._chunk is not None:
                self._send_chunks(stream, self._chunk)
            self._finish(stream)
        except _RefusedError as refusal:
            if refusal.status not in _TOO_LARGE:
                self._largest = CHUNK  # the registry accepts no blob in one request
            elif not self._shrink():
                raise refusal.problem from None
            LOG.info("%s: HTTP %d; sending chunks of %d bytes", self._registry.host, refusal.status, self._largest)
            self._registry.largest = self._largest
            self._location, self._offset = "", 0
            return False
        return True

    def _shrink(self) -> bool:
        """Choose a smaller size for later chunks; return False if the chunks already have the smallest size."""
        tried = self._chunk or self._blob.size
        smaller = min(max(tried // 4, LEAST), CHUNK)
        if max(smaller, self._least) >= tried and self._chunk is not None:
            return False
        self._largest = smaller
        return True

    def _fail(self, failure: TryAgainError) -> NoReturn:
        if self._restarts > self._registry.attempts:
            raise failure.problem from None
        self._failed = True
        raise failure from None

    def _there(self) -> bool:
        size = self._registry.blob_size(self._repository, self._blob.digest)
        if size is not None and size not in {0, self._blob.size}:
            raise RegistryError(
                "registry-size-mismatch",
                f"{self._registry.host} has {self._blob.digest} with a wrong size",
                why=f"expected {self._blob.size} bytes, found {size}",
                fix="report the error to the registry's operator",
            )
        return size is not None

    def _start(self) -> None:
        path = f"/v2/{self._repository}/blobs/uploads/"
        with self._request("POST", path, body=lambda: b"") as got:
            if got.status_code != 202 or "Location" not in got.headers:
                raise self._problem(got, "refused to begin an upload")
            self._location = self._registry.url(got.headers["Location"])
            self._offset, self._accepted = 0, False
            if self._registry.rules is UNKNOWN:
                self._rules = for_location(got.headers["Location"])
            self._chunk = self._choose_chunk(got)

    def _choose_chunk(self, begun: requests.Response) -> int | None:
        """Return the size of a chunk in bytes, or None to send the whole blob in one request.

        The response that began the upload may limit the size.
        """
        least, most = (header_number(begun.headers.get(f"OCI-Chunk-{which}-Length")) or 0 for which in ("Min", "Max"))
        chunk = self._largest or self._registry.chunk or (self._rules.chunk if self._rules.upload == "chunks" else most)
        if not chunk:
            return None
        self._least = least
        chunk = max(chunk, least)
        chunk = min(chunk, most) if most else chunk
        return None if self._blob.size <= chunk and not self._largest else chunk

    def _send_chunks(self, stream: IO[bytes], chunk: int) -> None:
        """Send all chunks, except the last one if the request that ends the upload contains it."""
        while self._offset < self._blob.size:
            start, end = self._offset, min(self._offset + chunk, self._blob.size)
            if end == self._blob.size and self._rules.last == "piece":
                return
            body = partial(self._body, stream, start, end)
            with self._request("PATCH", self._location, headers=_part(start, end), body=body) as got:
                if got.status_code not in _TAKEN:
                    raise self._problem(got, "aborted an upload", frozenset() if self._accepted else _TOO_LARGE)
                self._location = self._registry.url(got.headers.get("Location", self._location))
                reached = end if self._rules.position == "sent" else _reached(got.headers.get("Range"), end)
                self._offset = min(reached, end)
                if self._offset <= start:
                    problem = RegistryError(
                        "upload-stuck",
                        f"an upload to {self._repository} on {self._registry.host} makes no progress",
                        why=f"the registry has {self._offset} of the {end} bytes that were sent",
                        fix="try again later, or report the error to the registry's operator",
                    )
                    raise TryAgainError(problem)
                self._accepted = True
                # Failures are reset only at a position beyond all earlier ones, so a registry that loses bytes cannot
                # cause an endless loop.
                self._retries.reached(self._offset)

    def _body(self, stream: IO[bytes], start: int, end: int) -> Body | bytes:
        return Body(stream, start, end, self._registry.traffic, self._registry.host) if start < end else b""

    def _finish(self, stream: IO[bytes]) -> None:
        joint = "&" if "?" in self._location else "?"
        whole, size = self._chunk is None, self._blob.size
        start = 0 if whole else self._offset
        headers = {"Content-Type": "application/octet-stream"} if whole or start == size else _part(start, size)
        url = f"{self._location}{joint}digest={quote(self._blob.digest, safe='')}"
        with self._request("PUT", url, headers=headers, body=partial(self._body, stream, start, size)) as got:
            if got.status_code not in _TAKEN:
                refusals = _NO_WHOLE if whole and size else frozenset()
                raise self._problem(got, "refused to complete an upload", refusals)

    def _problem(self, got: requests.Response, what: str, refusals: frozenset[int] = frozenset()) -> Exception:
        """Return the exception to raise for a response.

        Args:
            refusals: the statuses that mean that the registry refuses requests of this kind or size.
        """
        code, text = self._registry.error_of(got)
        problem = self._registry.failed(got, f"{self._registry.host} {what} to {self._repository}", (code, text))
        status = got.status_code
        if status == 400 and (actual := sha256_file(self._path)) != self._blob.digest:
            return DigestError(
                "blob-digest-mismatch",
                f"{self._path} is damaged",
                why=f"expected {self._blob.digest}, found {actual}",
                fix="build it again",
            )
        if status in refusals and code not in _NOT_THE_WAY:
            return _RefusedError(problem, status)
        if status in TRANSIENT or status == 416:
            return TryAgainError(problem, got.headers.get("Retry-After"))
        # 404 means that the registry lost the upload, and 400 that it got wrong bytes or a chunk at a wrong position.
        self._wrong += status == 400
        if status in {400, 404} and self._location and code not in _NOT_THE_WAY and self._wrong <= _WRONG_TRIES:
            self._anew = True
            return TryAgainError(problem)
        return problem

    def _resume(self) -> None:
        if self._anew or not self._location or not self._ask():
            self._restarts += bool(self._location)
            self._location, self._offset = "", 0
        self._failed = self._anew = False

    def _ask(self) -> bool:
        """Request the state of the upload from the registry; return whether the upload can continue."""
        with (
            contextlib.suppress(requests.RequestException, RegistryError),
            self._request("GET", self._location) as got,
        ):
            if got.status_code == 204:
                self._location = self._registry.url(got.headers.get("Location", self._location))
                if self._rules.position != "sent":
                    self._offset = min(_reached(got.headers.get("Range"), 0), self._blob.size)
                LOG.info("%s has %d of %d bytes", self._registry.host, self._offset, self._blob.size)
                return self._goes_on()
        return False

    def _goes_on(self) -> bool:
        """Return whether the upload can continue at the current position.

        If a part of a single request arrived, the rest will be sent in chunks.
        """
        if self._offset == 0:
            return self._chunk is not None and self._breaks < _BREAKS
        if self._chunk is None:
            rest = max(self._blob.size - self._offset, 1)
            self._chunk = min(self._largest or self._registry.chunk or self._registry.rules.chunk, rest)
        return True


def _part(start: int, end: int) -> dict[str, str]:
    return {"Content-Type": "application/octet-stream", "Content-Range": f"{start}-{end - 1}"}


def _reached(header: str | None, otherwise: int) -> int:
    """Return the position after the bytes in a `Range: 0-N` header, or `otherwise` if there is no such header.

    `0-0` means that nothing arrived.
    """
    match = re.fullmatch(r"(?:bytes=)?0-([0-9]+)", header.strip()) if header else None
    last = header_number(match[1]) if match else None
    if last is None:
        return otherwise
    return last + 1 if last else 0
