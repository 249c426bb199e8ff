"""Send HTTP requests to a registry, with authentication, retries of reads, and errors without secrets."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Self
from urllib.parse import urljoin, urlsplit

import requests
from urllib3.exceptions import HTTPError

from toolchain.core import web
from toolchain.core.amounts import tell
from toolchain.core.digest import CHUNK
from toolchain.core.errors import RegistryError, ToolchainError, UnreachableError
from toolchain.core.pace import Pace
from toolchain.core.pages import page
from toolchain.oci import auth, logins
from toolchain.oci.descriptor import check_digest
from toolchain.oci.manifest import parse_object
from toolchain.oci.registry_rules import for_host

LOG = logging.getLogger(__name__)
_WORDS = 16 << 10  # the largest number of bytes that are read from an error response
# A registry sends these error codes temporarily, while another publisher removes or writes the same content.
_GONE = frozenset({"BLOB_UPLOAD_UNKNOWN", "MANIFEST_BLOB_UNKNOWN", "BLOB_UPLOAD_INVALID", "DIGEST_INVALID"})
_PAGE = "docs/registries.md"
QUESTION = 60.0  # the maximum number of seconds to wait for the response to a GET or HEAD


class _Quiet(logging.Filter):
    """A filter that redacts the query parameters of URLs in urllib3's log, because signed URLs are secrets."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = auth.redact(record.getMessage(), ()), None
        return True


_QUIET = _Quiet()


@dataclass
class Traffic:
    """The number of bytes of blobs and manifests that were sent and received, and the number of repeated requests."""

    sent: int = 0
    received: int = 0
    repeated: int = 0


class Body:
    """The body of a request to `host`: a part of a file, which is read while it is sent."""

    def __init__(self, stream: IO[bytes], start: int, end: int, traffic: Traffic, host: str) -> None:
        self._stream = stream
        self._pace = Pace(host)
        self._given, self._last = 0.0, 0  # when the last piece was read (monotonic clock), and its size
        self._size = self._left = end - start
        self._traffic = traffic
        self._what, self._whole = f"sending to {host}", stream.seek(0, os.SEEK_END)
        stream.seek(start)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.read(CHUNK):
            yield piece

    def read(self, count: int = -1) -> bytes:
        """Return at most `count` bytes of the part; raise TooSlowError if the host accepts the body too slowly."""
        now = time.monotonic()
        if self._given:
            self._pace.add(now - self._given, self._last)
        piece = self._stream.read(self._left if count < 0 else min(count, self._left))
        self._left -= len(piece)
        self._traffic.sent += len(piece)
        self._given, self._last = time.monotonic(), len(piece)
        if piece and self._whole > CHUNK:
            tell(self._what, self._stream.tell(), self._whole)
        return piece


class Transport:
    """A connection to a registry. It is a context manager, and it is not thread-safe.

    Args:
        host: the name or address, with an optional port. http is used for `localhost` and loopback addresses, and https
            for all other hosts.
        chunk: the size of a chunk in bytes; blobs up to this size are uploaded as a whole. The default depends on the
            rules of the registry.
        attempts: the maximum number of consecutive retries of a request. An upload that was restarted more often is not
            retried again.
        backoff: the backoff of `web.session` and `web.Retries` in seconds.
        timeout: the timeouts in seconds for connecting and for waiting for a response. The latter is at most `QUESTION`
            for GET and HEAD.
        login: the login in the form that follows `Basic` in a header; None for the user's login
            (`logins.credentials`).
        repository: the repository for which the user's login is looked up.
    """

    def __init__(
        self,
        host: str,
        *,
        chunk: int | None = None,
        attempts: int = 5,
        backoff: float = 0.5,
        timeout: tuple[float, float] = (15.0, 300.0),
        login: str | None = None,
        repository: str = "",
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        loopback = web.is_loopback(urlsplit(f"//{host}").hostname)
        self.host = host
        self.chunk = chunk
        self.rules = for_host(host)
        self.largest = 0  # size of chunks in bytes after the registry refused a larger request; 0 before
        self.attempts = attempts
        self.backoff = backoff
        self.traffic = Traffic()
        self._pause = pause
        self._timeout = timeout
        named = logins.registry_name(host)
        self._base = f"{'http' if loopback else 'https'}://{'registry-1.docker.io' if named == logins.HUB else named}"
        self._session = web.session(attempts, backoff, netrc=False)
        # No proxy is used for a loopback address, because a proxy on another host cannot connect to it.
        self._session.trust_env = not loopback
        logging.getLogger("urllib3.connectionpool").addFilter(_QUIET)
        logging.getLogger("urllib3.util.retry").addFilter(_QUIET)
        known = login if login is not None else logins.credentials(host, repository)
        self._auth = auth.Authorizer(host, self._session, secure=not loopback, login=known, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()

    def url(self, path: str) -> str:
        """Return the URL of a path on the registry; a URL from a `Location` header is also accepted.

        A registry behind a TLS proxy may send http URLs that point to itself. They are changed to https, because a
        token must not be sent without encryption. RegistryError is raised for an invalid URL, and for an http URL on
        another host than the registry's, unless the registry itself is used without encryption.
        """
        try:
            url = urljoin(self._base + "/", path)
            parts = urlsplit(url)
        except ValueError:
            raise self._unreadable() from None
        if parts.scheme != "http" or not self._base.startswith("https:"):
            return url
        encrypted = parts._replace(scheme="https").geturl()
        if not self._is_own(encrypted):
            raise self._unencrypted(f" on {parts.hostname}")
        return encrypted

    @contextlib.contextmanager
    def request(
        self,
        method: str,
        path: str,
        repository: str,
        *,
        actions: str = "pull",
        body: Callable[[], Body | bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[requests.Response]:
        """Send a request, and yield the response before its body is read. GET and HEAD requests are retried.

        RegistryError is raised if the registry refuses access (401 or 403) or redirects to an invalid URL or from https
        to http, and UnreachableError if the token service does not answer. The caller must check all other statuses,
        and catch the exceptions that `requests` raises if the connection fails.

        Args:
            path: a path on the registry, or a URL from one of its responses.
            actions: the required access to the repository: `pull` or `pull,push`.
            body: a function that is called for each attempt and returns the body.
        """
        url = self.url(path)
        scopes = (f"repository:{repository}:{actions}",)
        for last in (False, True):
            # The URL may be on another host, which must not get the token.
            access = self._auth.header(scopes) if self._is_own(url) else {}
            try:
                response = self._session.request(
                    method,
                    url,
                    data=body() if body else None,
                    headers={**(headers or {}), **access},
                    stream=True,
                    timeout=self._patience(method),
                    allow_redirects=method in {"GET", "HEAD"},
                )
            except requests.exceptions.InvalidProxyURL:
                raise
            except ValueError as error:  # requests raises this for a redirect to an invalid URL
                raise self._unencrypted() if web.leaves_https(error) else self._unreadable() from None
            with response:
                if response.raw.retries is not None:
                    self.traffic.repeated += len(response.raw.retries.history)
                # Only a challenge from the registry itself is accepted, because the login is sent to the token service
                # that the challenge names.
                if response.status_code == 401 and self._is_own(response.url) and not last:
                    self._auth.answer(response, scopes)
                    continue
                if response.status_code in {401, 403}:
                    raise self.failed(response, f"{self.host} refused {method} in {repository}")
                yield response
                return

    def blob_size(self, repository: str, digest: str) -> int | None:
        """Return the size of a blob; 0 if the registry does not send the size, None if it does not have the blob."""
        path = f"/v2/{repository}/blobs/{check_digest(digest)}"
        with self.translated(), self.request("HEAD", path, repository) as got:
            if got.status_code == 404:
                return None
            if got.status_code != 200:
                raise self.failed(got, f"cannot find out whether {self.host} has {digest}")
            return web.header_number(got.headers.get("Content-Length")) or 0

    def _is_own(self, url: str) -> bool:
        return _origin(url) == _origin(self._base)

    def _patience(self, method: str) -> tuple[float, float]:
        """Return the timeouts of a request; a write may take longer, because a registry may process it for minutes."""
        connect, read = self._timeout
        return (connect, min(read, QUESTION)) if method in {"GET", "HEAD"} else (connect, read)

    def error_of(self, response: requests.Response) -> tuple[str, str]:
        """Return the code and the text of the error in a response, without secrets; the code may be empty."""
        code = ""
        try:
            # Enough bytes are read for a whole token, because a part of it would not be redacted.
            words = next(response.iter_content(_WORDS), b"").decode("utf-8", "replace")
        except requests.RequestException:
            words = ""
        with contextlib.suppress(ToolchainError, KeyError, IndexError, TypeError, AttributeError):
            first = parse_object(words.encode(), "answer", keys=None)["errors"][0]
            code, words = str(first["code"]), f"{first['code']}: {first.get('message', '')}"
        return code, " ".join(self._auth.redact(words).split())[:300]

    def failed(self, response: requests.Response, what: str, error: tuple[str, str] | None = None) -> RegistryError:
        """Return the error to raise for an unexpected response; `error` is the result of `error_of`, if known."""
        code, text = error or self.error_of(response)
        sending = response.request.method not in {"GET", "HEAD"}
        return RegistryError(
            "registry-refused",
            what,
            why=f"HTTP {response.status_code} {text}".rstrip(),
            fix=_advice(self.host, response.status_code, code, sending=sending),
        )

    def _unencrypted(self, where: str = "") -> RegistryError:
        return RegistryError(
            "redirect-unencrypted",
            f"{self.host} names a URL without encryption",
            why=f"it sends the client from https to http{where}",
            fix="report it to the registry's operator",
        )

    def _unreadable(self) -> RegistryError:
        return RegistryError(
            "redirect-invalid",
            f"{self.host} redirects to an invalid URL",
            why="the Location header of its response is not a valid URL",
            fix="check the name; if it is right, report it to the registry's operator",
        )

    def unreachable(self, error: Exception) -> UnreachableError:
        """Return the error to raise for a failed connection.

        The text of an error of the type HTTPError is written by this package.
        """
        why = str(error) if type(error) is HTTPError else web.reason(error)
        return UnreachableError(
            "registry-unreachable",
            f"{self.host} does not answer",
            why=self._auth.redact(why)[:300],
            fix="check the name, the network and the registry",
        )

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Raise UnreachableError if the block raises an exception of the library `requests`."""
        try:
            yield
        except requests.RequestException as error:
            # The errors are not chained, because the exception of requests contains the request with its token.
            raise self.unreachable(error) from None

    def retries(self) -> web.Retries:
        """Return an object that repeats an operation and counts its failures."""
        return web.Retries(self.attempts, self.backoff, self.host, self._again)

    def _again(self, seconds: float) -> None:
        self.traffic.repeated += 1
        self._pause(seconds)


def _origin(url: str) -> tuple[str, str]:
    """Return the scheme and the host of a URL, with the port unless it is the default."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower().removesuffix({"http": ":80", "https": ":443"}.get(parts.scheme, ""))


def _advice(host: str, status: int, code: str, *, sending: bool) -> str:
    login = auth.login_command(host)
    known = (
        (
            status in {401, 403} or code in {"DENIED", "UNAUTHORIZED"},
            f"log in{' as a user who may push' if sending else ''}: {login}",
        ),
        (
            status == 429 or code == "TOOMANYREQUESTS",
            f"wait and try again, or log in, because the limit may be higher then: {login}",
        ),
        (
            status == 413,
            "raise the limit of the registry, or of its reverse proxy (client_max_body_size in nginx); see "
            + page(_PAGE),
        ),
        (
            code in _GONE or status in web.TRANSIENT or status >= 500,
            "try again later, or report the error to the registry's operator",
        ),
        (
            status == 404 and code == "BLOB_UNKNOWN",
            "publish the image again, or report the error to its publisher, because the image is incomplete",
        ),
        (
            status == 404 or code == "NAME_UNKNOWN",
            f"create the repository or project, or log in as a user who may push: {login}"
            if sending
            else f"check the name and the tag; for a private image log in: {login}",
        ),
        (True, f"report the error to the registry's operator; {page(_PAGE)} describes the requests"),
    )
    return next(text for fits, text in known if fits)
