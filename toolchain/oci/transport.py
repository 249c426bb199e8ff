"""HTTP to a registry: challenges are answered, errors hold no secrets, reads are retried."""

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
_WORDS = 16 << 10  # bytes of an unexpected answer
# Error codes that pass, for content that another publisher is removing or writing.
_GONE = frozenset({"BLOB_UPLOAD_UNKNOWN", "MANIFEST_BLOB_UNKNOWN", "BLOB_UPLOAD_INVALID", "DIGEST_INVALID"})
_PAGE = "docs/registries.md"
QUESTION = 60.0  # seconds without a byte after which a read is retried


class _Quiet(logging.Filter):
    """Redacts what urllib3 logs, because signed URLs are secrets."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = auth.redact(record.getMessage(), ()), None
        return True


_QUIET = _Quiet()


@dataclass
class Traffic:
    """Bytes of bodies in each direction, and the number of repeated requests."""

    sent: int = 0
    received: int = 0
    repeated: int = 0


class Body:
    """A part of a file as the body of a request to `host`, read while it is sent."""

    def __init__(self, stream: IO[bytes], start: int, end: int, traffic: Traffic, host: str) -> None:
        self._stream = stream
        self._pace = Pace(host)
        self._given, self._last = 0.0, 0  # time on the monotonic clock, and bytes, of the last piece
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
        """Return the next bytes of the part; raise TooSlowError if the host accepts them too slowly."""
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
    """The connection to one registry. A context manager; not for several threads.

    Args:
        host: name or address, with a port if necessary; this machine's loopback is reached by http.
        chunk: bytes of one PATCH; smaller blobs go in one PUT. By default the rules of the registry decide.
        attempts: how often a failed request is retried, and an upload restarted.
        backoff: seconds of the first wait; each further one is twice as long, at most 30.
        timeout: seconds to connect and to wait for an answer; at most `QUESTION` for reads.
        login: the text that follows `Basic`; by default the user's login (see `logins.credentials`).
        repository: whose namespace's login is preferred.
        pause: waits before another attempt at a broken transfer.
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
        self.largest = 0  # bytes of a chunk after the registry refused larger requests; 0 if it did not
        self.attempts = attempts
        self.backoff = backoff
        self.traffic = Traffic()
        self._pause = pause
        self._timeout = timeout
        named = logins.registry_name(host)  # in lower case, because URLs in answers are compared with it
        self._base = f"{'http' if loopback else 'https'}://{'registry-1.docker.io' if named == logins.HUB else named}"
        self._session = web.session(attempts, backoff, netrc=False)
        # A proxy from the environment cannot reach this machine's loopback.
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
        """Close all connections."""
        self._session.close()

    # Requests

    def url(self, path: str) -> str:
        """Return the URL of `path`, which may be a URL already (a `Location`).

        Registries behind a proxy that ends TLS name themselves by http. The scheme is corrected, because a token must
        not be sent unencrypted.
        """
        try:
            url = urljoin(self._base + "/", path)
            parts, base = urlsplit(url), urlsplit(self._base)
        except ValueError:
            raise self._unreadable() from None
        downgraded = parts[:2] == ("http", base.netloc) and base[0] == "https"
        return parts._replace(scheme="https").geturl() if downgraded else url

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
        """Send a request, and yield the answer before its body is read. GET and HEAD are retried.

        Args:
            path: the path of the registry, or a URL that it named.
            actions: the necessary rights in the repository.
            body: makes the body each time that it is sent.
            headers: besides those for access.
        """
        url = self.url(path)
        scopes = (f"repository:{repository}:{actions}",)
        for last in (False, True):
            # The registry may redirect to another host, which must not see the token.
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
            except ValueError:  # requests raises it for a redirect to an invalid URL
                raise self._unreadable() from None
            with response:
                if response.raw.retries is not None:
                    self.traffic.repeated += len(response.raw.retries.history)
                # Only the registry itself may name the token service that gets the login.
                if response.status_code == 401 and self._is_own(response.url) and not last:
                    self._auth.answer(response, scopes)
                    continue
                if response.status_code in {401, 403}:
                    raise self.failed(response, f"{self.host} refuses {method} in {repository}")
                yield response
                return

    def blob_size(self, repository: str, digest: str) -> int | None:
        """Return the size of a blob, 0 if the registry does not tell it; None without the blob."""
        path = f"/v2/{repository}/blobs/{check_digest(digest)}"
        with self.translated(), self.request("HEAD", path, repository) as got:
            if got.status_code == 404:
                return None
            if got.status_code != 200:
                raise self.failed(got, f"{self.host} cannot say whether it has {digest}")
            return web.header_number(got.headers.get("Content-Length")) or 0

    def _is_own(self, url: str) -> bool:
        return urlsplit(url).netloc == urlsplit(self._base).netloc

    def _patience(self, method: str) -> tuple[float, float]:
        """Return the timeouts; shorter for reads, because a registry may process an upload for minutes."""
        connect, read = self._timeout
        return (connect, min(read, QUESTION)) if method in {"GET", "HEAD"} else (connect, read)

    def error_of(self, response: requests.Response) -> tuple[str, str]:
        """Return code (empty without one) and text of the error in an unexpected answer, without secrets."""
        code = ""
        try:
            # Long enough for a whole token, because a part of one cannot be recognised as a secret.
            words = next(response.iter_content(_WORDS), b"").decode("utf-8", "replace")
        except requests.RequestException:
            words = ""
        with contextlib.suppress(ToolchainError, KeyError, IndexError, TypeError, AttributeError):
            first = parse_object(words.encode(), "answer", keys=None)["errors"][0]
            code, words = str(first["code"]), f"{first['code']}: {first.get('message', '')}"
        return code, " ".join(self._auth.redact(words).split())[:300]

    def failed(self, response: requests.Response, what: str, error: tuple[str, str] | None = None) -> RegistryError:
        """Return the exception for an unexpected answer; `error` is the result of `error_of` if it was called."""
        code, text = error or self.error_of(response)
        sending = response.request.method not in {"GET", "HEAD"}
        return RegistryError(
            "registry-refused",
            what,
            why=f"HTTP {response.status_code} {text}".rstrip(),
            fix=_advice(self.host, response.status_code, code, sending=sending),
        )

    def _unreadable(self) -> RegistryError:
        return RegistryError(
            "redirect-invalid",
            f"{self.host} redirects to an address that cannot be used",
            why="the address in its answer is not a valid URL",
            fix="check the name; if it is right, report it to the registry's operator",
        )

    def unreachable(self, error: Exception) -> UnreachableError:
        """Return the error for no answer."""
        return UnreachableError(
            "registry-unreachable",
            f"{self.host} does not answer",
            why=self._auth.redact(getattr(root := _root(error), "strerror", None) or str(root))[:300],
            fix="check the name, the network and whether the registry runs",
        )

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Turn exceptions of requests into the error for no answer."""
        try:
            yield
        except requests.RequestException as error:
            # Not chained, because the exception of requests holds the request with its token.
            raise self.unreachable(error) from None

    def retries(self) -> web.Retries:
        """Return a counter of attempts at one operation."""
        return web.Retries(self.attempts, self.backoff, self.host, self._again)

    def _again(self, seconds: float) -> None:
        self.traffic.repeated += 1
        self._pause(seconds)


def _root(error: BaseException) -> BaseException:
    """Return the innermost reason; requests and urllib3 wrap it in text that names objects and whole URLs."""
    for _ in range(8):
        inner = getattr(error, "reason", None) or next((arg for arg in error.args if isinstance(arg, Exception)), None)
        if not isinstance(inner, BaseException):
            break
        error = inner
    return error


def _advice(host: str, status: int, code: str, *, sending: bool) -> str:
    """Return the remedy for an unexpected answer.

    Args:
        code: the registry's name of the error, e.g. `NAME_UNKNOWN`; empty without one.
        sending: whether it answers a write.
    """
    login = auth.login_command(host)
    known = (
        (
            status in {401, 403} or code in {"DENIED", "UNAUTHORIZED"},
            f"log in{' with the right to push' if sending else ''}: {login}",
        ),
        (
            status == 429 or code == "TOOMANYREQUESTS",
            f"wait, then try again; with a login the limit may be higher: {login}",
        ),
        (
            status == 413,
            "raise the limit of the registry, or of the server in front of it (in nginx client_max_body_size); see "
            + page(_PAGE),
        ),
        (
            code in _GONE or status in web.TRANSIENT or status >= 500,
            "try again later, or report it to the registry's operator",
        ),
        (
            status == 404 and code == "BLOB_UNKNOWN",
            "the image there is incomplete: publish it again, or report it to its publisher",
        ),
        (
            status == 404 or code == "NAME_UNKNOWN",
            f"create the repository or project there, or log in with the right to push: {login}"
            if sending
            else f"check the name and the tag; a private image needs a login: {login}",
        ),
        (True, f"report it to the registry's operator; {page(_PAGE)} describes the requests"),
    )
    return next(text for fits, text in known if fits)
