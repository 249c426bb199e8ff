"""One blob on its way into a registry: in chunks, going on after a failure, in one piece where chunks are not taken."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO
from urllib.parse import quote

import requests

from toolchain.digest import sha256_file
from toolchain.errors import DigestError, RegistryError, ToolchainError
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.transport import TRANSIENT, Body, Transport

LOG = logging.getLogger(__name__)
_ACTIONS = "pull,push"
# What registries without chunked uploads answer to the first PATCH.
_NO_CHUNKS = frozenset({400, 405, 411, 413, 415, 501})


class _TryAgainError(Exception):
    """A failure that may pass: wait, ask the registry how far it got, go on; `restart` forgets what was sent."""

    def __init__(self, problem: ToolchainError, *, asked: str | None = None, restart: bool = False) -> None:
        super().__init__(problem.what)
        self.problem = problem
        self.asked = asked
        self.restart = restart


class Upload:
    """The upload of one blob; `run` once.

    Args:
        registry: where to.
        repository: there.
        blob: digest and size (bytes).
        path: its file.
        there: says the size of the blob in the repository, None without it.
    """

    def __init__(
        self, registry: Transport, repository: str, blob: Descriptor, path: Path, there: Callable[[], int | None]
    ) -> None:
        self._size_there = there
        self._registry = registry
        self._repository = repository
        self._blob = blob
        self._path = path
        self._location = ""
        self._offset = self._furthest = 0
        self._chunk = registry.chunk
        self._whole = blob.size <= registry.chunk
        self._failures = 0
        self._restarts = 0

    def run(self, mount_from: Sequence[str]) -> int:
        """Bring the blob there (see `Registry.push_blob`)."""
        if self._there():
            return 0
        for other in mount_from:
            if other != self._repository and self._mount(other):
                return 0
        with self._path.open("rb", buffering=0) as stream:
            while True:
                try:
                    if not self._location:
                        self._start()
                    if not self._whole:
                        self._send_chunks(stream)
                    self._finish(stream)
                except _TryAgainError as failure:
                    self._recover(failure)
                except requests.RequestException as error:
                    self._recover(_TryAgainError(self._registry.unreachable(error)))
                else:
                    return self._blob.size
                if not self._location and self._there():
                    return self._blob.size  # only the answer was lost

    def _there(self) -> bool:
        size = self._size_there()
        if size is not None and size not in {0, self._blob.size}:
            raise RegistryError(
                f"{self._registry.host} has {self._blob.digest} with another size",
                why=f"{size} bytes there, {self._blob.size} here",
                fix="ask who runs the registry",
            )
        return size is not None

    def _mount(self, other: str) -> bool:
        path = f"/v2/{self._repository}/blobs/uploads/"
        params = {"mount": self._blob.digest, "from": other}
        with (
            contextlib.suppress(RegistryError, requests.RequestException),
            self._registry.request(
                "POST", path, self._repository, actions=_ACTIONS, params=params, body=lambda: b""
            ) as got,
        ):
            if got.status_code == 201:
                return True
            if got.status_code == 202:
                self._begun(got)
        return False

    def _start(self) -> None:
        path = f"/v2/{self._repository}/blobs/uploads/"
        with self._registry.request("POST", path, self._repository, actions=_ACTIONS, body=lambda: b"") as got:
            if got.status_code != 202 or "Location" not in got.headers:
                raise self._problem(got, "does not begin an upload")
            self._begun(got)

    def _begun(self, got: requests.Response) -> None:
        self._location = self._registry.url(got.headers.get("Location", ""))
        self._offset = 0
        least = got.headers.get("OCI-Chunk-Min-Length", "")
        if least.isdigit():
            self._chunk = max(self._registry.chunk, int(least))

    def _send_chunks(self, stream: IO[bytes]) -> None:
        while self._offset < self._blob.size:
            start, end = self._offset, min(self._offset + self._chunk, self._blob.size)
            headers = {"Content-Type": "application/octet-stream", "Content-Range": f"{start}-{end - 1}"}
            with self._registry.request(
                "PATCH",
                self._location,
                self._repository,
                actions=_ACTIONS,
                headers=headers,
                body=lambda start=start, end=end: Body(stream, start, end, self._registry.traffic),  # type: ignore[misc]
            ) as got:
                if got.status_code not in {200, 201, 202, 204}:
                    if start == 0 and got.status_code in _NO_CHUNKS and self._restarts == 0:
                        LOG.info("%s takes no chunks (HTTP %d): one piece", self._registry.host, got.status_code)
                        self._whole, self._location = True, ""
                        self._start()
                        return
                    raise self._problem(got, "breaks off an upload")
                self._location = self._registry.url(got.headers.get("Location", self._location))
                self._offset = _reached(got.headers.get("Range"), end)
                if self._offset <= start:
                    raise _TryAgainError(self._problem_with(f"keeps {self._offset} of {end} bytes"))
                # The way that was gone before counts as no progress: a registry that loses it again and again ends.
                self._failures = 0 if self._offset > self._furthest else self._failures
                self._furthest = max(self._furthest, self._offset)

    def _finish(self, stream: IO[bytes]) -> None:
        joint = "&" if "?" in self._location else "?"
        whole = self._whole and self._blob.size > 0
        with self._registry.request(
            "PUT",
            f"{self._location}{joint}digest={quote(self._blob.digest, safe='')}",
            self._repository,
            actions=_ACTIONS,
            headers={"Content-Type": "application/octet-stream"},
            body=lambda: Body(stream, 0, self._blob.size, self._registry.traffic) if whole else b"",
        ) as got:
            if got.status_code not in {200, 201, 202, 204}:
                raise self._problem(got, "does not complete an upload")

    def _problem(self, got: requests.Response, what: str) -> Exception:
        problem = self._registry.failed(got, f"{self._registry.host} {what} to {self._repository}")
        if got.status_code in TRANSIENT or got.status_code == 416:
            return _TryAgainError(problem, asked=got.headers.get("Retry-After"))
        # 404: the registry forgot the upload. 400: what arrived has another digest, or the chunk came at a wrong place.
        if got.status_code == 400 and (found := sha256_file(self._path)) != self._blob.digest:
            return DigestError(
                f"{self._path} is damaged", why=f"expected {self._blob.digest}, found {found}", fix="build it again"
            )
        if got.status_code in {400, 404} and self._location:
            return _TryAgainError(problem, restart=True)
        return problem

    def _problem_with(self, what: str) -> RegistryError:
        return RegistryError(
            f"{self._registry.host} {what} of an upload to {self._repository}",
            fix="try again; if it stays, ask who runs the registry",
        )

    def _recover(self, failure: _TryAgainError) -> None:
        self._failures += 1
        if self._failures > self._registry.attempts or self._restarts > self._registry.attempts:
            raise failure.problem from None
        self._registry.pause(self._failures, failure.asked)
        if failure.restart or self._whole or not self._location or not self._ask():
            self._restarts += bool(self._location)
            self._location, self._offset = "", 0

    def _ask(self) -> bool:
        """Ask how much of the blob arrived."""
        with (
            contextlib.suppress(requests.RequestException),
            self._registry.request("GET", self._location, self._repository, actions=_ACTIONS) as got,
        ):
            if got.status_code == 204:
                self._location = self._registry.url(got.headers.get("Location", self._location))
                self._offset = _reached(got.headers.get("Range"), 0)
                LOG.info("%s has %d of %d bytes", self._registry.host, self._offset, self._blob.size)
                return True
        return False


def _reached(said: str | None, otherwise: int) -> int:
    """The offset after a `Range: 0-n`; `0-0` says that nothing came, as registries write it."""
    found = re.fullmatch(r"(?:bytes=)?0-(\d+)", said.strip()) if said else None
    if found is None:
        return otherwise
    last = int(found[1])
    return last + 1 if last else 0
