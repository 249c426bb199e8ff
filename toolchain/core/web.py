"""Sessions, numbers in headers, retries and loopback hosts, for all HTTP clients."""

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
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})  # statuses of failures that may pass
LONGEST_BACKOFF = 30.0
_REDIRECT_BODY = 64 << 10
PROGRESS = 64 << 10  # bytes; earlier failures are then forgotten
LONGEST_ASKED = 120.0  # seconds of Retry-After that are obeyed
# Enough digits for any size or time. Python's int() refuses thousands of digits, and accepts those of other scripts.
_NUMBER = re.compile(r"[0-9]{1,15}")


def is_loopback(host: str | None) -> bool:
    """Return whether a host name or address, without a port, means this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def header_number(value: str | None) -> int | None:
    """Return the whole number in a header; None if it is missing or something else."""
    text = (value or "").strip(" \t")
    return int(text) if _NUMBER.fullmatch(text) else None


def whole_body(response: requests.Response, most: int) -> bytes | None:
    """Return the body of an answer; None if it has more than `most` bytes."""
    received = bytearray()
    for piece in response.iter_content(1 << 20):
        received += piece
        if len(received) > most:
            return None
    return bytes(received)


def session(attempts: int, backoff: float, *, netrc: bool = True) -> requests.Session:
    """Return a session that retries GET and HEAD when a server is busy or a connection fails.

    A body that breaks off is not retried: see `Retries`. An answer that comes too slowly is a `pace.TooSlowError`. A
    redirect from https to http is refused.

    Args:
        attempts: how often a request is retried.
        backoff: seconds, doubled for each further attempt.
        netrc: whether hosts, also those of redirects, get the login that ~/.netrc has for them.
    """
    import requests  # noqa: PLC0415 - plans connect to nothing and must be quick
    from urllib3.exceptions import HTTPError  # noqa: PLC0415
    from urllib3.util import Retry  # noqa: PLC0415

    from toolchain.core.pace import Adapter  # noqa: PLC0415

    class Bounded(Retry):
        """Waits as long as a server asks, up to a limit."""

        def __repr__(self) -> str:  # urllib3 logs `Retrying (%r) after …`
            return f"{self.total} more"

        def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
            header = response.headers.get("Retry-After", "")
            seconds: float | None = header_number(header)
            # Otherwise it may be a date, possibly an invalid one; digits are never a date.
            if seconds is None and not header.strip().isnumeric():
                with contextlib.suppress(ValueError, OverflowError, HTTPError):
                    seconds = super().get_retry_after(response)
            return None if seconds is None else min(seconds, LONGEST_ASKED)

    class WithoutNetrc(requests.Session):
        """Does not read ~/.netrc for the host of a redirect, as requests would."""

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
        # requests would raise the ValueError of urllib.parse, and leave the connection open.
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
        # requests would read the whole body.
        with contextlib.suppress(HTTPError):
            if len(answer.raw.read(_REDIRECT_BODY)) < _REDIRECT_BODY:
                return
        answer.raw.close()

    made.hooks["response"] = [check_redirect]
    if not netrc:
        made.auth = lambda request: request  # otherwise requests reads ~/.netrc before it sends
    for scheme in ("http://", "https://"):
        made.mount(scheme, Adapter(max_retries=retry))
    return made


class TryAgainError(Exception):
    """A failure that may pass.

    Args:
        problem: the error to raise if it does not pass.
        retry_after: the server's Retry-After, if it sent one.
    """

    def __init__(self, problem: ToolchainError, retry_after: str | None = None) -> None:
        super().__init__(problem.what)
        self.problem = problem
        self.retry_after = retry_after


@dataclass
class Retries:
    """The attempts of one operation, which fails after too many failures without progress between them.

    Args:
        attempts: how many consecutive failures are tolerated.
        backoff: seconds of the first wait; each further one is twice as long, at most `LONGEST_BACKOFF`.
        name: the server, for the log.
        pause: waits a number of seconds.
        failures: consecutive failures without progress.
        furthest: the largest position that was reached, such as a number of bytes.
    """

    attempts: int
    backoff: float
    name: str = ""
    pause: Callable[[float], None] = time.sleep
    failures: int = 0
    furthest: int = 0

    def run(self, once: Callable[[], T]) -> T:
        """Call `once` until it no longer raises TryAgainError; the last failure's problem is raised."""
        while True:
            try:
                return once()
            except TryAgainError as failure:
                self.failed(failure)

    def failed(self, failure: TryAgainError) -> None:
        """Count a failure, and wait before the next attempt."""
        self.failures += 1
        if self.failures > self.attempts:
            # Not chained, because errors of HTTP libraries hold the whole request with its tokens.
            raise failure.problem from None
        seconds = min(self.backoff * 2 ** (self.failures - 1), LONGEST_BACKOFF)
        if (wished := header_number(failure.retry_after)) is not None:
            seconds = min(float(wished), LONGEST_ASKED)
        LOG.info("%s: waiting %.1f s before attempt %d", self.name, seconds, self.failures + 1)
        self.pause(seconds)

    def reached(self, position: int) -> None:
        """Forget earlier failures if the position is at least `PROGRESS` bytes further than ever before.

        A server that sends one byte and breaks off makes no progress, and a new start over the same bytes makes none.
        """
        if position >= self.furthest + PROGRESS:
            self.failures, self.furthest = 0, position
