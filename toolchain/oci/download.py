"""Download a blob from a registry, and resume the download when a connection breaks."""

from __future__ import annotations

import hashlib
import re
from typing import IO

import requests
from urllib3.exceptions import HTTPError

from toolchain.core.amounts import tell
from toolchain.core.digest import CHUNK
from toolchain.core.pace import TooSlowError
from toolchain.core.web import TryAgainError, header_number
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.transport import Transport

_PART = re.compile(r"bytes ([0-9]+)-[0-9]+/([0-9]+|\*)")


class Download:
    """A download of a blob into an empty file; `run` may be called once."""

    def __init__(self, registry: Transport, repository: str, blob: Descriptor, sink: IO[bytes]) -> None:
        self._registry = registry
        self._repository = repository
        self._blob = blob
        self._sink = sink
        self._hasher = hashlib.sha256()
        self._done = 0
        self._parts = True  # whether Range requests are sent
        self._retries = registry.retries()

    def run(self) -> str:
        """Download the blob; return the digest of the received bytes, or a description of their size if it is wrong."""
        return self._retries.run(self._go_on)

    def _go_on(self) -> str:
        headers = {"Accept-Encoding": "identity"}
        if self._done and not self._parts:
            self._begin_anew()
        if self._done:
            headers["Range"] = f"bytes={self._done}-"
        path = f"/v2/{self._repository}/blobs/{self._blob.digest}"
        try:
            with self._registry.request("GET", path, self._repository, headers=headers) as got:
                if wrong := self._begins(got) or self._copy(got):
                    return wrong
        except requests.RequestException as error:
            raise self._registry.unreachable(error) from None  # `request` has already retried the request
        except HTTPError as error:
            raise TryAgainError(self._registry.unreachable(error)) from None
        except TooSlowError as error:
            raise TryAgainError(error) from None
        if self._done < self._blob.size:
            broken = HTTPError(f"the response ended after {self._done} of {self._blob.size} bytes")
            raise TryAgainError(self._registry.unreachable(broken))
        return f"sha256:{self._hasher.hexdigest()}"

    def _begins(self, got: requests.Response) -> str:
        """Check the status and headers of a response; return a description of a wrong size, or an empty string.

        TryAgainError is raised if the download must begin anew without Range requests, and RegistryError if it failed.
        """
        status = got.status_code
        if (status == 206 and not self._fits(got)) or (status == 416 and self._done):
            # The response is not the requested part, so it must not be appended to the file.
            self._begin_anew()
            self._parts = False
            strange = HTTPError(f"HTTP {status}, {self._range(got)!r}, instead of the requested part")
            raise TryAgainError(self._registry.unreachable(strange))
        if status not in {200, 206}:
            raise self._registry.failed(
                got, f"cannot download {self._blob.digest} of {self._repository} from {self._registry.host}"
            )
        if status == 206:
            return ""
        self._begin_anew()
        length = header_number(got.headers.get("Content-Length"))
        return f"{length} bytes instead of {self._blob.size}" if length not in {None, self._blob.size} else ""

    def _fits(self, got: requests.Response) -> bool:
        """Return whether a partial response begins at the current position and does not contradict the blob's size."""
        match = _PART.fullmatch(self._range(got))
        return (
            match is not None
            and header_number(match[1]) == self._done
            and (match[2] == "*" or header_number(match[2]) == self._blob.size)
        )

    @staticmethod
    def _range(got: requests.Response) -> str:
        return got.headers.get("Content-Range", "").strip()[:80]

    def _begin_anew(self) -> None:
        if self._done:
            self._sink.seek(0)
            self._sink.truncate()
            self._hasher, self._done = hashlib.sha256(), 0

    def _copy(self, got: requests.Response) -> str:
        while piece := got.raw.read(CHUNK):
            self._hasher.update(piece)
            self._sink.write(piece)
            self._done += len(piece)
            self._registry.traffic.received += len(piece)
            self._retries.reached(self._done)
            if self._blob.size > CHUNK:
                tell(f"receiving from {self._registry.host}", self._done, self._blob.size)
            if self._done > self._blob.size:
                return f"more than {self._blob.size} bytes"
        return ""
