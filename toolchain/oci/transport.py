"""HTTP to a registry: challenges answered, errors without secrets, reads retried."""

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
# What registries call a thing that was there a moment ago, or that another publisher is about to bring.
_GONE = frozenset({"BLOB_UPLOAD_UNKNOWN", "MANIFEST_BLOB_UNKNOWN", "BLOB_UPLOAD_INVALID", "DIGEST_INVALID"})
_PAGE = "docs/registries.md"
QUESTION = 60.0  # seconds without a byte after which a read is retried


class _Quiet(logging.Filter):
    """urllib3 logs whole URLs; a signed one is a secret."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = auth.redact(record.getMessage(), ()), None
        return True


_QUIET = _Quiet()


@dataclass
class Traffic:
    """Traffic: bytes of bodies in each direction, and the number of repeated requests."""

    sent: int = 0
    received: int = 0
    repeated: int = 0


class Body:
    """A part of a file as the body of a request to `host`, read while it is sent."""

    def __init__(self, stream: IO[bytes], start: int, end: int, traffic: Traffic, host: str) -> None:
        self._stream = stream
        self._pace = Pace(host)
        self._given, self._last = 0.0, 0  # when the last piece went out, on the monotonic clock, and its bytes
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
        """The next bytes of the part.

        Raises:
            TooSlowError: the host takes what it was given too slowly.
        """
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
    """The connection to one registry. A context manager; not for several threads at a time.

    Args:
        host: name or address, with a port if need be; one of this machine's loopback is reached by http.
        chunk: bytes of one PATCH; smaller blobs go in one PUT. None: as the rules and the answers of the registry say.
        attempts: how often a failed request is retried, and an upload restarted.
        backoff: seconds of the first wait; each further one is twice as long, at most 30.
        timeout: seconds to connect and to wait for an answer; at most `QUESTION` for reads.
        login: instead of the user's (see `logins.credentials`): what follows `Basic`.
        repository: a login for its namespace counts before the one for the whole registry.
        pause: waits so many seconds before another attempt at what broke off.
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
        named = logins.registry_name(host)  # in lower case, as addresses in answers are compared with it
        self._base = f"{'http' if loopback else 'https'}://{'registry-1.docker.io' if named == logins.HUB else named}"
        self._session = web.session(attempts, backoff, netrc=False)
        # A proxy of the environment cannot reach this machine's loopback.
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
        """End all connections."""
        self._session.close()

    # Requests

    def url(self, path: str) -> str:
        """The address of `path`, which may be an address already (a `Location`).

        Registries behind a proxy that ends TLS name themselves by http; a token must not go there in the clear.
        """
        try:
            url = urljoin(self._base + "/", path)
            parts, base = urlsplit(url), urlsplit(self._base)
        except ValueError as error:
            raise self._unreadable(error) from None
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
        """One answer, its body not yet read; a challenge is met once. GET and HEAD are tried again, others are not.

        Args:
            path: of the registry, or an address that it named.
            actions: what has to be allowed in the repository.
            body: makes the body, once for each time that it is sent.
            headers: besides those for access.
        """
        url = self.url(path)
        scopes = (f"repository:{repository}:{actions}",)
        for last in (False, True):
            # The registry may send us to a store elsewhere, which must not see our token.
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
            except ValueError as error:  # also what requests raises for a redirect to what is not an address
                raise self._unreadable(error) from None
            with response:
                if response.raw.retries is not None:
                    self.traffic.repeated += len(response.raw.retries.history)
                # Only the registry itself may say where our login is to be sent.
                if response.status_code == 401 and self._is_own(response.url) and not last:
                    self._auth.answer(response, scopes)
                    continue
                if response.status_code in {401, 403}:
                    raise self.failed(response, f"{self.host} refuses {method} in {repository}")
                yield response
                return

    def blob_size(self, repository: str, digest: str) -> int | None:
        """The size of a blob that is there, 0 where the registry does not say it; None without the blob."""
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
        """A registry may process an upload for minutes; one that does not answer a read hangs."""
        connect, read = self._timeout
        return (connect, min(read, QUESTION)) if method in {"GET", "HEAD"} else (connect, read)

    def error_of(self, response: requests.Response) -> tuple[str, str]:
        """The error in an unexpected answer: its code (empty without one), and its words without any secret."""
        code = ""
        try:
            # Enough for a whole token: a part of one could not be recognised as a secret.
            words = next(response.iter_content(_WORDS), b"").decode("utf-8", "replace")
        except requests.RequestException:
            words = ""
        with contextlib.suppress(ToolchainError, KeyError, IndexError, TypeError, AttributeError):
            first = parse_object(words.encode(), "answer", keys=None)["errors"][0]
            code, words = str(first["code"]), f"{first['code']}: {first.get('message', '')}"
        return code, " ".join(self._auth.redact(words).split())[:300]

    def failed(self, response: requests.Response, what: str, error: tuple[str, str] | None = None) -> RegistryError:
        """The exception for an unexpected answer; `error` is what `error_of` gave, where that was called already."""
        code, text = error or self.error_of(response)
        sending = response.request.method not in {"GET", "HEAD"}
        return RegistryError(
            what,
            why=f"HTTP {response.status_code} {text}".rstrip(),
            fix=_advice(self.host, response.status_code, code, sending=sending),
        )

    def _unreadable(self, error: ValueError) -> RegistryError:
        return RegistryError(
            f"{self.host} redirects to an address that cannot be used",
            why=self._auth.redact(str(error))[:300],
            fix="check the name; if it is right, ask who runs the registry or the server in front of it",
        )

    def unreachable(self, error: Exception) -> UnreachableError:
        """The error for no answer at all."""
        return UnreachableError(
            f"{self.host} does not answer",
            why=self._auth.redact(str(_root(error)))[:300],
            fix="check the name, the network and whether the registry runs",
        )

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Turns what requests raises into the error for no answer."""
        try:
            yield
        except requests.RequestException as error:
            # Not chained: the exception of requests holds the whole request, token included.
            raise self.unreachable(error) from None

    def retries(self) -> web.Retries:
        """The attempts at one thing here."""
        return web.Retries(self.attempts, self.backoff, self.host, self._again)

    def _again(self, seconds: float) -> None:
        self.traffic.repeated += 1
        self._pause(seconds)


def _root(error: BaseException) -> BaseException:
    """The innermost reason: requests and urllib3 wrap it in text that names objects and whole URLs."""
    for _ in range(8):
        inner = getattr(error, "reason", None) or next((arg for arg in error.args if isinstance(arg, Exception)), None)
        if not isinstance(inner, BaseException):
            break
        error = inner
    return error


def _advice(host: str, status: int, code: str, *, sending: bool) -> str:
    """The remedy for an unexpected answer.

    Args:
        code: what the registry calls it, e.g. `NAME_UNKNOWN`; empty if it does not say.
        sending: whether something was to be brought there, rather than read.
    """
    login = auth.login_command(host)
    known = (
        (
            status in {401, 403} or code in {"DENIED", "UNAUTHORIZED"},
            f"log in{' as somebody who may push there' if sending else ''}: {login}",
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
            "try again; if it stays, ask who runs the registry",
        ),
        (status == 404 and code == "BLOB_UNKNOWN", "the image there is not whole: publish it again, or ask who did"),
        (
            status == 404 or code == "NAME_UNKNOWN",
            f"create the repository or project there, or log in as somebody who may push to it: {login}"
            if sending
            else f"check the name and the tag; what is private there needs a login: {login}",
        ),
        (True, f"ask who runs the registry: it would answer the same again ({page(_PAGE)} says how it is asked)"),
    )
    return next(text for fits, text in known if fits)
