"""Upload one blob: continue after a failure, and send it another way where the registry refuses the first.

`skopeo copy` was tried instead (docs/measurements/registries.md). It waits for ever without a message when a connection
falls silent, and it has one way to send a blob, which some registries refuse.
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
from toolchain.oci.registry_rules import UNKNOWN, for_location
from toolchain.oci.transport import Body, Transport
from toolchain.oci.ways import NO_CHUNKS, NO_WHOLE, NOT_THE_WAY, choose

LOG = logging.getLogger(__name__)
_TAKEN = frozenset({200, 201, 202, 204})
# A blob that the registry calls wrong, though its file is right, is sent again this often.
_WRONG_TRIES = 2
# After so many connections that broke before the registry took anything, chunks are tried, and smaller ones each time.
_BREAKS = 2


class _RefusedError(Exception):
    """The registry does not take blobs this way; no failure, and nothing to wait for."""

    def __init__(self, problem: ToolchainError, status: int) -> None:
        super().__init__(problem.what)
        self.problem = problem
        self.status = status


class Upload:
    """The upload of one blob from its file; `run` once."""

    def __init__(self, registry: Transport, repository: str, blob: Descriptor, path: Path) -> None:
        self._registry = registry
        self._repository = repository
        self._blob = blob
        self._path = path
        self._location = ""
        self._offset = 0
        self._habits = registry.habits
        self._rules = registry.rules
        self._chunk: int | None = None  # bytes of a chunk; None for one piece
        self._accepted = False  # a chunk of this upload
        self._failed = self._anew = False  # whether the last attempt failed, and what was sent is to be forgotten
        self._restarts = self._wrong = self._breaks = 0
        self._retries = registry.retries()
        self._request = partial(registry.request, repository=repository, actions="pull,push")

    def run(self) -> int:
        """Bring the blob there (see `Registry.push_blob`)."""
        if self._there():
            return 0
        with self._path.open("rb", buffering=0) as stream:
            self._retries.run(lambda: self._go_on(stream))
        return self._blob.size

    def _go_on(self, stream: IO[bytes]) -> None:
        """Send what is missing, from where an attempt before this one failed."""
        if self._failed:
            self._resume()
            if not self._location and self._there():
                return  # only the answer was lost
        try:
            while not self._sent(stream):
                pass
        except requests.RequestException as error:
            self._breaks += not self._accepted
            self._fail(TryAgainError(self._registry.unreachable(error)))
        except TryAgainError as failure:
            self._fail(failure)

    def _sent(self, stream: IO[bytes]) -> bool:
        """Send it in the way that is thought right; False where the registry refused that way, and another is left."""
        try:
            if not self._location:
                self._start()
            if self._chunk is not None:
                self._send_chunks(stream, self._chunk)
            self._finish(stream)
        except _RefusedError as refusal:
            self._take_another_way(refusal)
            return False
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
                f"{self._registry.host} has {self._blob.digest} with another size",
                why=f"{size} bytes there, {self._blob.size} here",
                fix="ask who runs the registry",
            )
        return size is not None

    def _start(self) -> None:
        path = f"/v2/{self._repository}/blobs/uploads/"
        with self._request("POST", path, body=lambda: b"") as got:
            if got.status_code != 202 or "Location" not in got.headers:
                raise self._problem(got, "does not begin an upload")
            self._location = self._registry.url(got.headers["Location"])
            self._offset, self._accepted = 0, False
            if self._registry.rules is UNKNOWN:
                self._rules = for_location(got.headers["Location"])
            wished, broken = self._registry.chunk, max(0, self._breaks - _BREAKS + 1)
            self._chunk = choose(self._rules, self._habits, got, self._blob.size, wished=wished, broken=broken)

    def _send_chunks(self, stream: IO[bytes], chunk: int) -> None:
        """Send all chunks, except the last if it ends the upload."""
        while self._offset < self._blob.size:
            start, end = self._offset, min(self._offset + chunk, self._blob.size)
            if end == self._blob.size and self._rules.last == "piece":
                return
            body = partial(self._body, stream, start, end)
            with self._request("PATCH", self._location, headers=_part(start, end), body=body) as got:
                if got.status_code not in _TAKEN:
                    refusals = frozenset() if self._accepted else NO_CHUNKS
                    raise self._problem(got, "breaks off an upload", refusals)
                self._location = self._registry.url(got.headers.get("Location", self._location))
                reached = end if self._rules.position == "sent" else _reached(got.headers.get("Range"), end)
                self._offset = min(reached, end)
                if self._offset <= start:
                    problem = RegistryError(
                        f"{self._registry.host} keeps {self._offset} of {end} bytes of an upload to {self._repository}",
                        fix="try again; if it stays, ask who runs the registry",
                    )
                    raise TryAgainError(problem)
                self._accepted = True
                # Bytes sent a second time are not progress: a registry that keeps losing them must not loop for ever.
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
                refusals = NO_WHOLE if whole and size else frozenset()
                raise self._problem(got, "does not complete an upload", refusals)

    def _problem(self, got: requests.Response, what: str, refusals: frozenset[int] = frozenset()) -> Exception:
        """The exception for an answer: `refusals` are statuses that mean this way of sending is not supported."""
        code, text = self._registry.error_of(got)
        problem = self._registry.failed(got, f"{self._registry.host} {what} to {self._repository}", (code, text))
        status = got.status_code
        if status == 400 and (actual := sha256_file(self._path)) != self._blob.digest:
            return DigestError(
                f"{self._path} is damaged", why=f"expected {self._blob.digest}, found {actual}", fix="build it again"
            )
        if status in refusals and code not in NOT_THE_WAY:
            return _RefusedError(problem, status)
        if status in TRANSIENT or status == 416:
            return TryAgainError(problem, got.headers.get("Retry-After"))
        # 404: the registry forgot the upload. 400: what arrived has another digest, or the chunk came at a wrong place.
        self._wrong += status == 400
        if status in {400, 404} and self._location and code not in NOT_THE_WAY and self._wrong <= _WRONG_TRIES:
            self._anew = True
            return TryAgainError(problem)
        return problem

    def _take_another_way(self, refusal: _RefusedError) -> None:
        chunk, habits = self._chunk, self._habits
        if not habits.refuse(chunk, refusal.status, self._blob.size):
            raise refusal.problem from None
        LOG.info(
            "%s takes no %s (HTTP %d): %s",
            self._registry.host,
            "blob in one piece" if chunk is None else f"chunk of {chunk} bytes",
            refusal.status,
            "one piece" if habits.whole is None else f"chunks of {habits.chunk} bytes",
        )
        self._location, self._offset = "", 0

    def _resume(self) -> None:
        """Find where to continue; what the registry cannot continue is restarted."""
        if self._anew or not self._location or not self._ask():
            self._restarts += bool(self._location)
            self._location, self._offset = "", 0
        self._failed = self._anew = False

    def _ask(self) -> bool:
        """Ask how much of the blob arrived; whether the upload can continue from there."""
        if self._chunk is None and self._habits.chunks is not None:
            return False
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
        """A blob in one piece that broke off can continue in chunks, once something of it has arrived."""
        if self._offset == 0:
            return self._chunk is not None and self._breaks < _BREAKS
        if self._chunk is None:
            rest = max(self._blob.size - self._offset, 1)
            self._chunk = min(self._registry.chunk or self._registry.rules.chunk, rest)
        return True


def _part(start: int, end: int) -> dict[str, str]:
    return {"Content-Type": "application/octet-stream", "Content-Range": f"{start}-{end - 1}"}


def _reached(header: str | None, otherwise: int) -> int:
    """The offset after a `Range: 0-n`; `0-0` says that nothing came, as registries write it."""
    match = re.fullmatch(r"(?:bytes=)?0-([0-9]+)", header.strip()) if header else None
    last = header_number(match[1]) if match else None
    if last is None:
        return otherwise
    return last + 1 if last else 0
