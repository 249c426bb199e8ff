"""The parts that HTTP clients share: sessions, retries, bodies, headers, and the test for loopback hosts."""

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
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})  # HTTP status codes of temporary failures
LONGEST_BACKOFF = 30.0
_REDIRECT_BODY = 64 << 10
# These are words in the texts of exceptions, whose types do not show the cause.
_REASONS = {
    "socks": "the proxy is a SOCKS proxy, which this tool does not support",
    "resolve": "its host could not be resolved",
    "certificate": "its certificate is not trusted",
    "proxy": "the connection through the proxy failed",
    "refused": "the connection was refused",
    "timed out": "the server did not answer in time",
    "unreachable": "the network of the server cannot be reached",
}
_ADDRESS = re.compile(r"\S+:[0-9]+: ")
_LEAVES_HTTPS = "a redirect leads from https to http"
PROGRESS = 64 << 10  # bytes of progress after which earlier failures are forgotten
LONGEST_ASKED = 120.0  # seconds; the limit for a server's Retry-After

# The pattern is stricter than Python's int(), which accepts digits of other scripts and fails for thousands of digits.
_NUMBER = re.compile(r"[0-9]{1,15}")


def is_loopback(host: str | None) -> bool:
    """Return whether a host name or address (without a port) is `localhost` or a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def leaves_https(error: Exception) -> bool:
    """Return whether a session refused a redirect from https to http with this error."""
    return str(error) == _LEAVES_HTTPS


def reason(error: BaseException) -> str:
    """Return why a connection failed; the texts of the libraries are not returned, because they name Python's classes.

    If the text names the address of the failed connection, the result begins with it.
    """
    for _ in range(8):  # the outer exceptions contain whole URLs
        inner = getattr(error, "reason", None) or next((arg for arg in error.args if isinstance(arg, Exception)), None)
        if not isinstance(inner, BaseException):
            break
        error = inner
    text = str(error)
    address = _ADDRESS.match(text)
    known = next((why for word, why in _REASONS.items() if word in text.lower()), "")
    why = known or getattr(error, "strerror", None) or "the connection broke"
    flaw = getattr(error, "verify_message", "")  # of a certificate
    return f"{address[0] if address else ''}{why}{f': {flaw}' if flaw else ''}"


def header_number(value: str | None) -> int | None:
    """Return the value of a header as a number; None if the header is missing or is not a number of 1 to 15 digits."""
    text = (value or "").strip(" \t")
    return int(text) if _NUMBER.fullmatch(text) else None


def whole_body(response: requests.Response, most: int) -> bytes | None:
    """Return the body of a response; None if it has more than `most` bytes."""
    received = bytearray()
    for piece in response.iter_content(1 << 20):
        received += piece
        if len(received) > most:
            return None
    return bytes(received)


def session(attempts: int, backoff: float, *, netrc: bool = True) -> requests.Session:
    """Return a session that retries GET and HEAD requests after a temporary failure of a server or a connection.

    The session does not retry when a connection breaks in the middle of a body; use `Retries` for that. It raises a
    `pace.TooSlowError` for slow responses, and refuses redirects from https to http.

    Args:
        attempts: the maximum number of retries of a request.
        backoff: half the wait before the second retry, in seconds; the first retry is immediate. Each later wait is
            twice as long as the wait before it, up to `LONGEST_BACKOFF`.
        netrc: whether each host, including the host of a redirect, gets its own login from ~/.netrc.
    """
    import requests  # noqa: PLC0415 - the import is slow
    from urllib3.exceptions import HTTPError  # noqa: PLC0415
    from urllib3.util import Retry  # noqa: PLC0415

    from toolchain.core.pace import Adapter  # noqa: PLC0415

    class Bounded(Retry):
        """A retry policy that obeys a server's Retry-After header, but waits at most `LONGEST_ASKED` seconds."""

        def __repr__(self) -> str:  # urllib3 logs `Retrying (%r) after …`
            return f"{self.total} more"

        def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
            header = response.headers.get("Retry-After", "")
            seconds: float | None = header_number(header)
            # The header may be a date, which urllib3 parses. A string of digits is never a date, so a number that
            # `header_number` rejects is ignored.
            if seconds is None and not header.strip().isnumeric():
                with contextlib.suppress(ValueError, OverflowError, HTTPError):
                    seconds = super().get_retry_after(response)
            return None if seconds is None else min(seconds, LONGEST_ASKED)

    class WithoutNetrc(requests.Session):
        """A session that, unlike `requests.Session`, sends no login from ~/.netrc to the host of a redirect."""

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
        # For an invalid URL, requests would raise a plain ValueError and leave the connection open.
        try:
            there = made.get_redirect_target(answer)
            plain = urlsplit(urljoin(answer.url, there or "")).scheme == "http"
        except ValueError as error:
            answer.close()
            raise requests.exceptions.InvalidURL(f"invalid redirect: {error}") from None
        if there is None:
            return
        if plain and urlsplit(answer.url).scheme == "https":
            answer.close()
            raise requests.exceptions.InvalidURL(_LEAVES_HTTPS)
        # Before requests follows a redirect, it reads the whole body, which may be endless. So the connection is closed
        # if the body is too long.
        with contextlib.suppress(HTTPError):
            if len(answer.raw.read(_REDIRECT_BODY)) < _REDIRECT_BODY:
                return
        answer.raw.close()

    made.hooks["response"] = [check_redirect]
    if not netrc:
        made.auth = lambda request: request  # requests reads ~/.netrc only if `auth` is not set
    for scheme in ("http://", "https://"):
        made.mount(scheme, Adapter(max_retries=retry))
    return made


class TryAgainError(Exception):
    """A temporary failure, after which the operation can be tried again.

    Args:
        problem: the error to raise if all attempts fail.
        retry_after: the Retry-After header of the server; None if it sent none.
    """

    def __init__(self, problem: ToolchainError, retry_after: str | None = None) -> None:
        super().__init__(problem.what)
        self.problem = problem
        self.retry_after = retry_after


@dataclass
class Retries:
    """Repeat an operation until it succeeds, or until it fails too often without progress.

    Args:
        attempts: the maximum number of consecutive retries without progress.
        backoff: the seconds before the second attempt; each later wait is twice as long as the wait before it, up to
            `LONGEST_BACKOFF`. A server's Retry-After header takes precedence.
        failures: the number of consecutive failures without progress.
        furthest: the position, in bytes, at which the failures were last reset.
    """

    attempts: int
    backoff: float
    name: str = ""
    pause: Callable[[float], None] = time.sleep
    failures: int = 0
    furthest: int = 0

    def run(self, once: Callable[[], T]) -> T:
        """Call `once` until it raises no TryAgainError, and return its result.

        After too many failures without progress, raise the `problem` of the last one.
        """
        while True:
            try:
                return once()
            except TryAgainError as failure:
                self.failed(failure)

    def failed(self, failure: TryAgainError) -> None:
        """Count a failure and wait before the next attempt; after too many failures, raise the failure's problem."""
        self.failures += 1
        if self.failures > self.attempts:
            # The cause is dropped, because errors of HTTP libraries contain the whole request with its tokens.
            raise failure.problem from None
        seconds = min(self.backoff * 2 ** (self.failures - 1), LONGEST_BACKOFF)
        if (wished := header_number(failure.retry_after)) is not None:
            seconds = min(float(wished), LONGEST_ASKED)
        LOG.info("%s: waiting %.1f s before attempt %d", self.name, seconds, self.failures + 1)
        self.pause(seconds)

    def reached(self, position: int) -> None:
        """Reset the number of failures if the position is at least `PROGRESS` bytes beyond that of the last reset."""
        if position >= self.furthest + PROGRESS:
            self.failures, self.furthest = 0, position
