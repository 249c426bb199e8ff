"""HTTP connections with a minimum speed.

A socket's timeout limits only the longest pause, so a server could keep a connection open forever by sending a single
byte now and then.
"""

from __future__ import annotations

import functools
import http.client
import io
import time
from collections.abc import Callable
from typing import Any

from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidProxyURL, InvalidSchema
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.poolmanager import PoolManager, ProxyManager

from toolchain.core.errors import ConfigError, UnreachableError

RATE = 1000.0  # bytes per second; sources/git.py sets git's http.lowSpeedLimit to the same value
WINDOW = 60.0  # seconds over which the speed is averaged
HEAD = 1 << 20  # bytes; the limit for status lines and headers, including those of 1xx responses


class TooSlowError(UnreachableError):
    """A transfer was slower than the minimum speed."""


class Pace:
    """Measure the speed of one transfer, and end the transfer if it is too slow."""

    def __init__(self, host: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._clock = clock
        self._began = False
        self._waited = 0.0
        self._moved = 0

    def wait(self, move: Callable[[], int]) -> int:
        """Call `move`, which transfers bytes and returns their number, and return that number.

        The first call is not timed, because a server may need a long time to begin its response. Raise a TooSlowError
        if fewer than `RATE` bytes per second arrive over at least `WINDOW` seconds.
        """
        since = self._clock()
        count = move()
        if self._began:
            self.add(self._clock() - since, count)
        self._began = True
        return count

    def add(self, seconds: float, count: int) -> None:
        """Count transferred bytes and the seconds that they took; raise a TooSlowError if the transfer is too slow."""
        self._waited += seconds
        self._moved += count
        if self._waited < WINDOW:
            return
        if self._moved < RATE * self._waited:
            raise TooSlowError(
                "server-too-slow",
                f"{self._host} is too slow",
                why=f"it sent {self._moved} bytes in {self._waited:.0f} s; the minimum is {RATE:.0f} bytes per second",
                fix="try again later, or from another network",
            )
        self._waited, self._moved = 0.0, 0


class _Reader(io.RawIOBase):
    """A stream that measures the speed of received bytes and limits the size of headers."""

    def __init__(self, raw: io.RawIOBase, host: str) -> None:
        self._raw = raw
        self._host = host
        self._pace = Pace(host)
        self.head: int | None = HEAD

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any, /) -> int:
        count = self._pace.wait(lambda: self._raw.readinto(into) or 0)
        if self.head is not None:
            self.head -= count
            if self.head < 0:
                raise UnreachableError(
                    "headers-endless",
                    f"{self._host} sends too many headers",
                    why=f"the headers of one response have more than {HEAD} bytes",
                    fix="check the address; if it is right, report this to the server's operator",
                )
        return count

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, host: str, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self._reader = _Reader(self.fp.detach(), host)
        self.fp = io.BufferedReader(self._reader)

    def begin(self) -> None:
        super().begin()
        self._reader.head = None

    # urllib3 and http.client both accept a negative chunk size, and would then read to the end of the connection.

    def _safe_read(self, amt: int) -> bytes:
        if amt < 0:
            raise http.client.IncompleteRead(b"")
        content: bytes = super()._safe_read(amt)  # type: ignore[misc]
        return content

    def _read_next_chunk_size(self) -> int:
        size: int = super()._read_next_chunk_size()  # type: ignore[misc]
        if size < 0:
            raise ValueError  # http.client converts it to an IncompleteRead
        return size


class _Timed:
    host: str
    port: int

    def __str__(self) -> str:
        """Return `host:port`, which urllib3 puts at the start of its error messages."""
        return f"{self.host}:{self.port}"

    @property
    def response_class(self) -> Callable[..., http.client.HTTPResponse]:
        """Return the function that `http.client` calls to create a response."""
        return functools.partial(_Response, host=self.host)


class _Connection(_Timed, HTTPConnection):  # type: ignore[misc] # `response_class` is an attribute in the base
    pass


class _TLSConnection(_Timed, HTTPSConnection):  # type: ignore[misc] # `response_class` is an attribute in the base
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


class Adapter(HTTPAdapter):
    """A transport adapter of `requests` that raises a TooSlowError for slow responses.

    It does not measure connections through a SOCKS proxy.
    """

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        super().init_poolmanager(*args, **more)
        _time(self.poolmanager)

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Set up certificates as requests does; raise a ConfigError if the certificate authorities are missing."""
        try:
            super().cert_verify(conn, url, verify, cert)  # type: ignore[no-untyped-call]
        except OSError:
            fix = "correct REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE, or unset it"
            raise ConfigError(
                "certificates-unreadable",
                "the certificate authorities cannot be read",
                why=f"{verify} does not exist",
                fix=fix,
            ) from None

    def proxy_manager_for(self, proxy: str, **more: Any) -> ProxyManager:
        try:
            manager: ProxyManager = super().proxy_manager_for(proxy, **more)
        except InvalidSchema:  # requests raises the same exception for a redirect to an unknown scheme
            raise InvalidProxyURL("the proxy is a SOCKS proxy, which this tool does not support") from None
        if type(manager) is ProxyManager:
            _time(manager)
        return manager


def _time(manager: PoolManager) -> None:
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _TLSPool}
