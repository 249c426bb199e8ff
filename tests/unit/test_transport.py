"""Tests that the login for a registry is not sent to another server, and is not printed."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused
from toolchain.core.errors import RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.registry import Registry

DIGEST = f"sha256:{'a' * 64}"


class Server(ThreadingHTTPServer):
    """A server that redirects each request to `elsewhere`, or answers 401 with `realm` as the token service."""

    daemon_threads = True

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"{name}:{self.server_address[1]}"
        self.elsewhere = self.realm = self.token = self.words = ""
        self.seen: list[tuple[str, str]] = []


class Handler(BaseHTTPRequestHandler):
    """The request handler of `Server`."""

    server: Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization", "")))
        if self.server.token and self.path.startswith("/token"):
            self._say(200, f'{{"token": "{self.server.token}"}}')
            return
        if self.server.words and "Bearer" in self.headers.get("Authorization", ""):
            self._say(403, self.server.words)
            return
        self.send_response(307 if self.server.elsewhere else 401)
        if self.server.elsewhere:
            self.send_header("Location", self.server.elsewhere)
        else:
            self.send_header("WWW-Authenticate", f'Bearer realm="{self.server.realm}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def test_store_behind_a_redirect_does_not_get_the_login(tmp_path: Path) -> None:
    """The registry redirects the request to a store, and the store names itself as the token service."""
    with serving(Server("127.0.0.1")) as registry, serving(Server("localhost")) as store:
        registry.elsewhere = f"http://{store.address}/blob"
        store.realm = f"http://{store.address}/token"
        blob = Descriptor(media.LAYER_GZIP, DIGEST, 3)
        with (
            Registry(registry.address, login="dXNlcjpzZWNyZXQ=", attempts=1) as connection,
            refused("registry-refused"),
        ):
            connection.pull_blob("ns/name", blob, Layout(tmp_path / "layout").ensure())
    assert [path for path, _ in store.seen] == ["/blob"]
    assert not any(login for _, login in store.seen)


@pytest.mark.parametrize("form", ["denied: {}", '{{"errors": [{{"code": "DENIED", "message": "denied: {}"}}]}}'])
def test_error_with_the_answer_of_a_registry_shows_no_secret(tmp_path: Path, form: str) -> None:
    """The answer repeats the password of the login, and a token that is longer than the excerpt in the error."""
    token = "Tabc" + "abc123" * 200
    with serving(Server("127.0.0.1")) as registry:
        registry.realm, registry.token = f"http://{registry.address}/token", token
        registry.words = form.format(f"hunter2-very-secret {token}")
        login = base64.b64encode(b"alice:hunter2-very-secret").decode()
        with (
            Registry(registry.address, login=login, attempts=1) as connection,
            pytest.raises(RegistryError) as caught,
        ):
            connection.pull_blob(
                "ns/name", Descriptor(media.LAYER_GZIP, DIGEST, 3), Layout(tmp_path / "layout").ensure()
            )
    assert "denied: [secret] [secret]" in caught.value.why
    assert "abc123" not in f"{caught.value.what}{caught.value.why}{caught.value.fix}"
