"""Shared by all HTTP clients: sessions, numbers in headers, retries, and loopback hosts."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urljoin, urlsplit

from toolchain.core.errors import ToolchainError

if TYPE_CHECKING:
    import requests
    from urllib3.response import BaseHTTPResponse

LOG = logging.getLogger(__name__)
T = TypeVar("T")
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})  # statuses that may pass
LONGEST_BACKOFF = 30.0
_REDIRECT_BODY = 64 << 10
PROGRESS = 64 << 10  # bytes after which earlier failures are forgotten
LONGEST_ASKED = 120.0  # seconds that a server may have us wait by Retry-After
# As many digits as any size or time has. Python refuses to read thousands of them, and takes digits of other scripts.
_NUMBER = re.compile(r"[0-9]{1,15}")


def is_loopback(host: str | None) -> bool:
    """Whether a host name or address, without a port, means this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def header_number(value: str | None) -> int | None:
    """The whole number in a header, None if it is something else or missing."""
    text = (value or "").strip(" \t")
    return int(text) if _NUMBER.fullmatch(text) else None


def whole_body(response: requests.Response, most: int) -> bytes | None:
    """The body of an answer, None if it has more than `most` bytes."""
    received = bytearray()
    for piece in response.iter_content(1 << 20):
        received += piece
        if len(received) > most:
            return None
    return bytes(received)


def session(attempts: int, backoff: float, *, netrc: bool = True) -> requests.Session:
    """A session that retries GET and HEAD when a server is busy or a connection fails.

    What breaks off after an answer has begun is not retried: see `Retries`. An answer that comes too slowly ends
    with `pace.TooSlowError`. No redirect leads from https to http.

    Args:
        attempts: how often a request is retried.
        backoff: seconds, doubled for each further attempt.
        netrc: whether a host is sent the login that ~/.netrc has for it, also the host that a redirect leads to.
    """
    import requests  # noqa: PLC0415 - plans connect to nothing and must be quick
    from urllib3.exceptions import HTTPError  # noqa: PLC0415
    from urllib3.util import Retry  # noqa: PLC0415

    from toolchain.core.pace import Adapter  # noqa: PLC0415

    class Bounded(Retry):
        """Waits as long as a server asks, but not for ever."""

        def __repr__(self) -> str:  # urllib3 logs `Retrying (%r) after …`
            return f"{self.total} more"

        def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
            header = response.headers.get("Retry-After", "")
            seconds: float | None = header_number(header)
            # A date, perhaps of no calendar; digits that are not a number of seconds are not a date either.
            if seconds is None and not header.strip().isnumeric():
                with contextlib.suppress(ValueError, OverflowError, HTTPError):
                    seconds = super().get_retry_after(response)
            return None if seconds is None else min(seconds, LONGEST_ASKED)

    class WithoutNetrc(requests.Session):
        """Of a redirect's own accord requests takes the login of ~/.netrc for the host that it leads to."""

        def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
            headers = prepared_request.headers
            elsewhere = self.should_strip_auth(response.request.url, prepared_request.url)  # type: ignore[no-untyped-call]
            if "Authorization" in headers and elsewhere:
                del headers["Authorization"]

    retry = Bounded(
        total=attempts,
        allowed_methods=frozenset({"GET", "HEAD"}),
        status_forcelist=TRANSIENT,
        backoff_factor=backoff,
        backoff_max=LONGEST_BACKOFF,
        raise_on_status=False,
    )
    made = requests.Session() if netrc else WithoutNetrc()

    def check_redirect(answer: requests.Response, **_: object) -> None:
        # requests raises what urllib.parse does, which is not an error of its own, and leaves the connection open.
        try:
            there = made.get_redirect_target(answer)
            plain = urlsplit(urljoin(answer.url, there or "")).scheme == "http"
        except ValueError as error:
            answer.close()
            raise requests.exceptions.InvalidURL(f"a redirect: {error}") from None
        if there is None:
            return
        if plain and urlsplit(answer.url).scheme == "https":
            answer.close()
            raise requests.exceptions.InvalidURL("a redirect leads from https to http")
        # requests would read the whole body, however long.
        with contextlib.suppress(HTTPError):
            if len(answer.raw.read(_REDIRECT_BODY)) < _REDIRECT_BODY:
                return
        answer.raw.close()

    made.hooks["response"] = [check_redirect]
    if not netrc:
        made.auth = lambda request: request  # else requests looks there before it sends
    for scheme in ("http://", "https://"):
        made.mount(scheme, Adapter(max_retries=retry))
    return made


class TryAgainError(Exception):
    """A failure that may pass.

    Args:
        problem: what to raise when it does not.
        retry_after: the server's Retry-After, if it sent one.
    """

    def __init__(self, problem: ToolchainError, retry_after: str | None = None) -> None:
        super().__init__(problem.what)
        self.problem = problem
        self.retry_after = retry_after


@dataclass
class Retries:
    """The attempts at one thing; it fails for good after too many failures without progress between them.

    Args:
        attempts: failures in a row that are survived.
        backoff: seconds of the first wait; each further one is twice as long, at most `LONGEST_BACKOFF`.
        name: of the server, for the log.
        pause: waits so many seconds.
        failures: so far, since it last got further.
        furthest: how far it ever got, e.g. bytes.
    """

    attempts: int
    backoff: float
    name: str = ""
    pause: Callable[[float], None] = time.sleep
    failures: int = 0
    furthest: int = 0

    def run(self, once: Callable[[], T]) -> T:
        """Call `once` until it raises TryAgainError no more.

        Raises:
            ToolchainError: the problem of the last failure.
        """
        while True:
            try:
                return once()
            except TryAgainError as failure:
                self.failed(failure)

    def failed(self, failure: TryAgainError) -> None:
        """Count a failure, and wait before the next attempt."""
        self.failures += 1
        if self.failures > self.attempts:
            # Not chained: what HTTP libraries raise holds the whole request, tokens included.
            raise failure.problem from None
        seconds = min(self.backoff * 2 ** (self.failures - 1), LONGEST_BACKOFF)
        if (wished := header_number(failure.retry_after)) is not None:
            seconds = min(float(wished), LONGEST_ASKED)
        LOG.info("%s: waiting %.1f s before attempt %d", self.name, seconds, self.failures + 1)
        self.pause(seconds)

    def reached(self, position: int) -> None:
        """Progress: failures are counted again, once at least `PROGRESS` bytes more than ever before are over.

        A server that gives a byte and breaks off makes none, nor does the same way gone again after a new start.
        """
        if position >= self.furthest + PROGRESS:
            self.failures, self.furthest = 0, position
