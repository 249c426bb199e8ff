"""Tests of slow and endless answers: each transfer has a minimum rate."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import urllib3

from tests.refusals import refused
from toolchain.core import pace, web
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import RegistryError, UnreachableError
from toolchain.core.pace import TooSlowError
from toolchain.oci import descriptor as media
from toolchain.oci.auth import Authorizer
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.registry import Registry
from toolchain.oci.transport import Body, Traffic
from toolchain.sources import archive
from toolchain.sources.archive import fetch_archive
from toolchain.sources.store import Store

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
DRIP = 0.02  # seconds between two bytes


class Slow:
    """A server that answers each request with pieces, and counts the requests.

    Args:
        answer: returns the pieces of the answer to a request, by the number of the request.
        pause: the pause before each piece, in seconds.
        greedy: whether the server reads only the head of a request.
    """

    def __init__(self, answer: Callable[[int], Iterator[bytes]], pause: float = DRIP, *, greedy: bool = False) -> None:
        self._answer, self._pause, self._greedy = answer, pause, greedy
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.asked = 0
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._closed = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                there, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(there,), daemon=True).start()

    def _talk(self, there: socket.socket) -> None:
        with contextlib.suppress(OSError), there:
            there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            said = b""
            while b"\r\n\r\n" not in said:
                if not (piece := there.recv(4096 if not self._greedy else 1)):
                    return
                said += piece
            self.asked += 1
            for piece in self._answer(self.asked):
                if self._closed.wait(self._pause):
                    return
                there.sendall(piece)

    def close(self) -> None:
        self._closed.set()
        self._listener.close()


@contextlib.contextmanager
def slow(answer: Callable[[int], Iterator[bytes]], pause: float = DRIP, **more: bool) -> Iterator[Slow]:
    server = Slow(answer, pause, **more)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "WINDOW", 0.3)


def drip(content: bytes) -> Iterator[bytes]:
    return (content[at : at + 1] for at in range(len(content)))


def in_body(_: int) -> Iterator[bytes]:
    yield HEAD + b"Content-Length: 100000\r\n\r\n"
    yield from itertools.repeat(b"x")


def in_chunks(_: int) -> Iterator[bytes]:
    yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    yield from itertools.repeat(b"1\r\nx\r\n")


def in_header(_: int) -> Iterator[bytes]:
    yield HEAD
    yield b"X: "
    yield from itertools.repeat(b"x")


def before_header(_: int) -> Iterator[bytes]:
    yield from drip(b"HTTP/1.1 200 OK" + b" " * 10**6)


def provisional(_: int) -> Iterator[bytes]:
    yield from drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 10**4)


def in_redirect(_: int) -> Iterator[bytes]:
    yield b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 100000\r\n\r\n"
    yield from itertools.repeat(b"x")


EVERYWHERE = [in_body, in_chunks, in_header, before_header, provisional, in_redirect]


@pytest.mark.parametrize("answer", EVERYWHERE)
def test_slow_manifest_is_refused_without_a_retry(answer: Callable[[int], Iterator[bytes]]) -> None:
    began = time.monotonic()
    with slow(answer) as server, Registry(server.host, backoff=0) as registry, pytest.raises(TooSlowError) as caught:
        registry.get_manifest("a/b", "latest")
    assert time.monotonic() - began < 100
    assert (caught.value.code, server.asked) == (18, 1), "slowness is not tried again as a question"
    assert server.host.partition(":")[0] in caught.value.what


@pytest.mark.parametrize("answer", [in_body, in_header])
def test_slow_blob_is_retried_a_limited_number_of_times(
    answer: Callable[[int], Iterator[bytes]], tmp_path: Path
) -> None:
    """An attempt that receives some bytes is not a success."""
    blob = Descriptor(media.LAYER, sha256_bytes(b"x" * 100000), 100000)
    with slow(answer) as server, Registry(server.host, backoff=0, attempts=2) as registry, pytest.raises(TooSlowError):
        registry.pull_blob("a/b", blob, Layout(tmp_path).ensure())
    assert server.asked == 3
    assert not list(tmp_path.rglob("*.partial"))


def test_blob_that_breaks_off_after_each_byte_is_retried_a_limited_number_of_times(tmp_path: Path) -> None:
    def answer(number: int) -> Iterator[bytes]:
        head = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes %d-99999/100000\r\n" % (number - 1)
        yield (HEAD if number == 1 else head) + b"Content-Length: %d\r\n\r\nx" % (100001 - number)

    blob = Descriptor(media.LAYER, sha256_bytes(b"x" * 100000), 100000)
    with slow(answer, 0) as server, Registry(server.host, backoff=0, attempts=3) as registry:
        with pytest.raises(UnreachableError):
            registry.pull_blob("a/b", blob, Layout(tmp_path).ensure())
        assert server.asked == 4


@pytest.mark.parametrize("answer", [in_body, in_redirect])
def test_slow_archive_is_not_retried(
    answer: Callable[[int], Iterator[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "BACKOFF", 0.0)
    with slow(answer) as server, pytest.raises(TooSlowError):
        fetch_archive(f"http://{server.host}/x.tar", sha256_bytes(b""), Store(tmp_path), offline=False)
    assert server.asked == 1


def test_slow_upload_is_ended(tmp_path: Path) -> None:
    def take(body: Body) -> None:
        while body.read(10):
            time.sleep(0.1)

    (tmp_path / "blob").write_bytes(bytes(100))
    with (tmp_path / "blob").open("rb") as stream, pytest.raises(TooSlowError):
        take(Body(stream, 0, 100, Traffic(), "registry.example"))


@pytest.mark.parametrize(
    "read",
    [
        lambda got: got.content,
        lambda got: got.raw.read(100),
        lambda got: got.raw._fp.read(100),
        lambda got: got.raw._fp.read1(100),
        lambda got: got.raw._fp.readinto(bytearray(100)),
    ],
)
def test_chunk_of_a_negative_size_is_refused(read: Callable[[requests.Response], object]) -> None:
    pieces = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc"]
    with (
        slow(lambda _: iter(pieces)) as server,
        web.session(0, 0.0).get(f"http://{server.host}/", stream=True) as got,
        pytest.raises((requests.RequestException, urllib3.exceptions.HTTPError, http.client.IncompleteRead)),
    ):
        read(got)


def test_endless_provisional_answers_are_not_retried() -> None:
    def answer(_: int) -> Iterator[bytes]:
        yield from itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 4096)

    with slow(answer, 0) as server, Registry(server.host, backoff=0) as registry, pytest.raises(UnreachableError):
        registry.tags("a/b")
    assert server.asked == 1


def test_the_body_of_a_redirect_is_not_read_to_its_end() -> None:
    sent = []

    def answer(number: int) -> Iterator[bytes]:
        if number > 1:
            yield HEAD + b"Content-Length: 2\r\n\r\n{}"
            return
        yield b"HTTP/1.1 302 Found\r\nLocation: /other\r\nTransfer-Encoding: chunked\r\n\r\n"
        for _ in range(10_000):
            sent.append(1)
            yield b"10000\r\n" + bytes(1 << 16) + b"\r\n"

    with slow(answer, 0) as server, Registry(server.host, backoff=0) as registry, contextlib.suppress(RegistryError):
        registry.get_manifest("a/b", "latest")
    assert server.asked == 2
    assert len(sent) < 1000


def test_slow_but_steady_server_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    # The server sends 50 bytes a second, and much less on a busy machine.
    monkeypatch.setattr(pace, "RATE", 0.05)

    def answer(_: int) -> Iterator[bytes]:
        yield HEAD + b"Content-Length: 60\r\n\r\n"
        yield from drip(b"x" * 60)

    with slow(answer) as server, web.session(0, 0) as client, client.get(f"http://{server.host}/", timeout=100) as got:
        assert got.content == b"x" * 60


def test_redirect_from_https_to_http_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest of a tag's manifest is not known, so a forged manifest would not be noticed."""
    with web.session(0, 0) as client:
        answer = requests.Response()
        answer.status_code, answer.url = 302, "https://registry.example/v2/a/manifests/latest"
        for there, refused in (("http://registry.example/v2/", True), ("//other.example/", False), ("/x", False)):
            answer.headers["Location"] = there
            answer.raw = _Empty()
            if refused:
                with pytest.raises(requests.exceptions.InvalidURL, match="https"):
                    client.hooks["response"][0](answer)
            else:
                client.hooks["response"][0](answer)


def test_redirect_to_http_has_its_own_error_and_is_not_retried(tmp_path: Path) -> None:
    """An error about the connection or the URL would be wrong, and another attempt cannot help."""
    asked: list[str] = []

    class Redirects(requests.adapters.BaseAdapter):
        def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
            answer = requests.Response()
            asked.append(str(request.url))
            answer.status_code, answer.url, answer.request = 302, asked[-1], request
            answer.headers["Location"] = "http://127.0.0.1:9/x"
            answer.raw = _Empty()
            return answer

        def close(self) -> None:
            pass

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(archive, "BACKOFF", 0.01)
        patched.setattr(requests.Session, "get_adapter", lambda *_, **__: Redirects())
        with refused("insecure-url"):
            fetch_archive("https://server.example/x.tar", f"sha256:{'1' * 64}", Store(tmp_path), offline=False)
        with Registry("registry.example") as registry, refused("redirect-unencrypted"):
            registry.blob_size("ns/name", f"sha256:{'1' * 64}")
        challenge = requests.Response()
        challenge.headers["WWW-Authenticate"] = 'Bearer realm="https://tokens.example/"'
        with web.session(0, 0) as client, refused("redirect-unencrypted"):
            Authorizer("registry.example", client, secure=True, login=None, timeout=(1, 1)).answer(challenge, ())
    assert len(asked) == 3


class _Empty:
    def read(self, *_: int) -> bytes:
        return b""

    def close(self) -> None:
        pass

    release_conn = close
