"""Tests of the client with invalid answers of registries and token services."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from toolchain.core import web
from toolchain.core.errors import DigestError, RegistryError, ToolchainError, UnreachableError
from toolchain.oci import auth
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.reference import RegistryRef
from toolchain.oci.registry import Registry
from toolchain.oci.repository_place import RepositoryPlace

CONTENT = b"0123456789" * 100
BLOB = Descriptor(media.LAYER, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}", len(CONTENT))
MANY = "9" * 5000
BAD = "http://[bad"


@dataclass
class Said:
    """An answer to requests whose method and path match `to`; `size` replaces the value of Content-Length."""

    to: str
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    times: int = -1
    size: str | None = None


class Odd(ThreadingHTTPServer):
    """A server that sends the first matching answer in `said`, or status 404."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.said: list[Said] = []
        self.seen: list[tuple[str, dict[str, str]]] = []

    @property
    def host(self) -> str:
        """The address of the server, as host:port."""
        return f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Odd

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""

    def _serve(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = f"{self.command} {self.path}"
        self.server.seen.append((asked, dict(self.headers.items())))
        fitting = (one for one in self.server.said if one.times and re.match(one.to, asked))
        said = next(fitting, Said("", 404))
        said.times -= said.times > 0
        head = [f"HTTP/1.1 {said.status} Odd", f"Content-Length: {said.size or len(said.body)}", "Connection: close"]
        head += [f"{name}: {value}" for name, value in said.headers.items()]
        self.wfile.write("\r\n".join([*head, "", ""]).encode("latin-1"))
        if self.command != "HEAD":
            self.wfile.write(said.body)
        self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = _serve  # noqa: N815


@pytest.fixture
def odd() -> Iterator[Odd]:
    with Odd() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def registry(odd: Odd, waits: list[float]) -> Iterator[Registry]:
    with Registry(odd.host, login="dXNlcjpwYXNzLXdvcmQ=", attempts=2, backoff=0.001, pause=waits.append) as made:
        yield made


@pytest.fixture
def blob(tmp_path: Path) -> Path:
    (tmp_path / "blob").write_bytes(CONTENT)
    return tmp_path / "blob"


def push(registry: Registry, blob: Path) -> int:
    return registry.push_blob("ns/name", BLOB, blob)


def pull(registry: Registry, tmp_path: Path) -> bytes:
    layout = Layout(tmp_path / "layout").ensure()
    registry.pull_blob("ns/name", BLOB, layout)
    return layout.blob(BLOB.digest).read_bytes()


def told(act: Callable[[], object], *kinds: type[ToolchainError]) -> str:
    with pytest.raises(kinds or RegistryError) as caught:
        act()
    assert caught.value.what
    assert caught.value.fix
    return f"[{caught.value.id}] {caught.value}"


# Addresses


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_invalid_address_of_an_upload_is_refused_and_its_token_not_shown(
    odd: Odd, registry: Registry, blob: Path, method: str
) -> None:
    registry.chunk = 400
    odd.said = [
        Said(f"{method} ", 202, {"Location": f"{BAD}?token=hidden"}),
        Said("POST ", 202, {"Location": "/v2/ns/name/blobs/uploads/x"}),
    ]
    said = told(lambda: push(registry, blob))
    assert "[redirect-invalid]" in said
    assert "hidden" not in said


def test_redirect_to_an_invalid_address_is_refused(odd: Odd, registry: Registry, tmp_path: Path) -> None:
    odd.said = [Said("GET ", 302, {"Location": "http://\xff[/"})]
    assert "[redirect-invalid]" in told(lambda: pull(registry, tmp_path))


def test_unreachable_token_service_is_reported(odd: Odd, registry: Registry, tmp_path: Path) -> None:
    odd.said = [Said("GET ", 401, {"WWW-Authenticate": 'Bearer realm="http://127.0.0.1:1/t",service="x"'})]
    with pytest.raises(UnreachableError) as caught:
        pull(registry, tmp_path)
    assert (caught.value.id, caught.value.why) == (
        "token-service-unreachable",
        "127.0.0.1:1: the connection was refused",
    )


def test_silent_registry_is_reported_without_names_of_classes(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Registry(f"127.0.0.1:{server.getsockname()[1]}", attempts=0, timeout=(1, 0.1)) as registry,
        pytest.raises(UnreachableError) as caught,
    ):
        pull(registry, tmp_path)
    assert (caught.value.id, caught.value.why) == ("registry-unreachable", "the server did not answer in time")


@pytest.mark.parametrize("link", [f'<{BAD}>; rel="next"', "<" * 60_000 + ">; rel=next"])
def test_invalid_link_to_the_next_page_is_refused_or_ignored(odd: Odd, registry: Registry, link: str) -> None:
    page = json.dumps({"schemaVersion": 2, "manifests": []}).encode()
    odd.said = [Said("GET .*/referrers/", 200, {"Content-Type": media.INDEX, "Link": link}, page, times=1)]
    place = RepositoryPlace(RegistryRef(odd.host, "ns/name"), registry)
    if BAD in link:
        assert "[redirect-invalid]" in told(lambda: place.referrers(BLOB.digest))
    else:
        assert place.referrers(BLOB.digest) == ()


# Numbers


@pytest.mark.parametrize(
    ("said", "number"),
    [("12", 12), (" 12 ", 12), ("0", 0), ("", None), (None, None), ("²", None), ("١٢", None), ("-1", None),
     ("1_0", None), ("+1", None), ("1.5", None), ("abc", None), (MANY, None), ("9" * 15, 10**15 - 1)],
)  # fmt: skip
def test_header_number_accepts_only_1_to_15_digits(said: str | None, number: int | None) -> None:
    assert web.header_number(said) == number


@pytest.mark.parametrize("size", ["²", MANY])
def test_invalid_size_of_a_blob_is_ignored(odd: Odd, registry: Registry, blob: Path, tmp_path: Path, size: str) -> None:
    """The answer shows that the blob exists, and a downloaded blob is checked by its digest."""
    odd.said = [Said("HEAD ", 200, size=size), Said("GET ", 200, body=CONTENT, size=size)]
    assert registry.blob_size("ns/name", BLOB.digest) == 0
    assert push(registry, blob) == 0
    assert pull(registry, tmp_path) == CONTENT


@pytest.mark.parametrize(("method", "said"), [("GET", MANY), ("POST", "Wed, 99 Foo 99999999999 99:99:99 GMT")])
def test_invalid_retry_after_is_ignored(
    odd: Odd, registry: Registry, blob: Path, tmp_path: Path, method: str, said: str
) -> None:
    odd.said = [Said(f"{method} ", 503, {"Retry-After": said}, times=1)]
    odd.said += [
        Said("GET ", 200, body=CONTENT),
        Said("POST ", 202, {"Location": "/up"}),
        Said("PUT ", 201),
    ]
    if method == "GET":
        assert pull(registry, tmp_path) == CONTENT
    else:
        assert push(registry, blob) == len(CONTENT)
    assert sum(asked.startswith(method) for asked, _ in odd.seen) == 2


@pytest.mark.parametrize("said", [f"0-{MANY}", "0-²", "bytes=0-abc"])
def test_invalid_range_of_an_upload_is_ignored(odd: Odd, registry: Registry, blob: Path, said: str) -> None:
    registry.chunk = 400
    odd.said = [
        Said("POST ", 202, {"Location": "/up"}),
        Said("PATCH ", 202, {"Range": said}),
        Said("PUT ", 201),
    ]
    assert push(registry, blob) == len(CONTENT)
    assert [asked.split()[0] for asked, _ in odd.seen] == ["HEAD", "POST", "PATCH", "PATCH", "PATCH", "PUT"]


# Tokens


def challenged(odd: Odd, realm: str = "/token") -> None:
    odd.said.append(Said("GET /v2/", 401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="x"'}))


@pytest.mark.parametrize("realm", [BAD, "not a url: at all", "ftp://x/", "http:///token", "", "\xe9"])
def test_invalid_realm_is_refused(odd: Odd, registry: Registry, tmp_path: Path, realm: str) -> None:
    challenged(odd, realm)
    told(lambda: pull(registry, tmp_path), RegistryError, UnreachableError)


def test_parameter_with_a_long_name_is_ignored() -> None:
    """A search that starts at each letter of a long word takes quadratic time."""
    assert auth._parameters(f'{"a" * 65}="x",realm="y"') == {"realm": "y"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"token":' + b"[" * 100_000, "JSON"),
        (b'{"token":"x","expires_in":' + MANY.encode() + b"}", "JSON"),
        ('{"token":"schlüssel-€"}'.encode(), "header"),
        (b'{"token":"two\\nlines"}', "header"),
        (b'{"token":7}', "token"),
        (b"[]", "JSON"),
        (b"\xff\xfe\x00", "JSON"),
        (b'{"token":"' + b"x" * (2 << 20) + b'"}', "more"),
    ],
    ids=["deep", "long number", "no latin", "two lines", "a number", "a list", "no text", "long"],
)
def test_malformed_token_is_refused(odd: Odd, registry: Registry, tmp_path: Path, body: bytes, why: str) -> None:
    challenged(odd)
    odd.said.append(Said("GET /token", 200, body=body))
    assert why in told(lambda: pull(registry, tmp_path))


def test_endless_answer_of_the_token_service_is_refused(odd: Odd, registry: Registry, tmp_path: Path) -> None:
    challenged(odd)
    odd.said.append(Said("GET /token", 200, body=b" " * (2 << 20), size=MANY[:12]))
    assert "[login-refused]" in told(lambda: pull(registry, tmp_path))


def test_invalid_redirect_of_the_token_service_is_refused(odd: Odd, registry: Registry, tmp_path: Path) -> None:
    challenged(odd)
    odd.said.append(Said("GET /token", 302, {"Location": BAD}))
    assert "[login-refused]" in told(lambda: pull(registry, tmp_path))


# Parts


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (206, {}),
        (206, {"Content-Range": f"bytes 0-999/{len(CONTENT)}"}),
        (206, {"Content-Range": "bytes 400-999/77"}),
        (206, {"Content-Range": f"bytes {MANY}-{MANY}/*"}),
        (416, {"Content-Range": "bytes */1000"}),
        (416, {"Content-Range": "²"}),
    ],
)
def test_range_that_was_not_requested_is_not_appended(
    odd: Odd, registry: Registry, tmp_path: Path, status: int, headers: dict[str, str]
) -> None:
    odd.said = [
        Said("GET ", 200, body=CONTENT[:400], size=str(len(CONTENT)), times=1),
        Said("GET ", status, headers, CONTENT[500:], times=1),
        Said("GET ", 200, body=CONTENT[:600], size=str(len(CONTENT)), times=1),
        Said("GET ", 200, body=CONTENT),
    ]
    registry.attempts = 3
    assert pull(registry, tmp_path) == CONTENT
    ranges = [sent.get("Range") for _, sent in odd.seen]
    assert ranges == [None, "bytes=400-", None, None], "after such an answer no part is asked for"


def test_repeated_ranges_that_were_not_requested_are_an_error(odd: Odd, registry: Registry, tmp_path: Path) -> None:
    odd.said = [Said("GET ", 206, body=CONTENT[400:])]
    assert "206" in told(lambda: pull(registry, tmp_path), RegistryError, UnreachableError, DigestError)
    assert len(odd.seen) == 3


# Logins


def test_login_from_netrc_is_not_sent(
    odd: Odd, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If `trust_env` is set, which proxies need, requests itself would send a login from netrc to each host."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b\nmachine localhost login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("no_proxy", "*")
    registry._session.trust_env = True
    elsewhere = f"http://localhost:{odd.server_address[1]}/store"
    odd.said = [Said("GET /v2/", 307, {"Location": elsewhere}), Said("GET /store", 200, body=CONTENT)]
    assert pull(registry, tmp_path) == CONTENT
    assert [asked for asked, _ in odd.seen] == [f"GET /v2/ns/name/blobs/{BLOB.digest}", "GET /store"]
    assert [sent.get("Authorization") for _, sent in odd.seen] == [None, None]


@pytest.mark.parametrize("form", ["Basic", "Bearer"])
@pytest.mark.parametrize("here", [True, False], ids=["the same host", "another host"])
def test_redirect_keeps_the_login_only_on_the_same_host(
    odd: Odd, registry: Registry, tmp_path: Path, form: str, *, here: bool
) -> None:
    name = "127.0.0.1" if here else "localhost"
    challenge = 'Bearer realm="/token",service="x"' if form == "Bearer" else 'Basic realm="x"'
    odd.said = [
        Said("GET /v2/", 401, {"WWW-Authenticate": challenge}, times=1),
        Said("GET /token", 307, {"Location": f"http://{name}:{odd.server_address[1]}/elsewhere"}),
        Said("GET /elsewhere", 200, body=b'{"token": "a-token"}'),
        Said("GET /v2/", 307, {"Location": f"http://{name}:{odd.server_address[1]}/store"}),
        Said("GET /store", 200, body=CONTENT),
    ]
    assert pull(registry, tmp_path) == CONTENT
    after = [sent.get("Authorization") for asked, sent in odd.seen if asked in {"GET /elsewhere", "GET /store"}]
    assert len(after) == (2 if form == "Bearer" else 1)
    assert all((one is not None) is here for one in after)


# Fixes in errors


def error(code: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": "no"}]}).encode()


@pytest.mark.parametrize(
    ("status", "code", "fix"),
    [
        (404, "", "create the repository"),
        (400, "NAME_UNKNOWN", "create the repository"),
        (413, "", "client_max_body_size"),
        (403, "DENIED", "skopeo login"),
        (422, "NAME_INVALID", "operator"),
    ],
)
def test_permanent_error_is_not_retried_and_has_another_fix(
    odd: Odd, registry: Registry, blob: Path, waits: list[float], status: int, code: str, fix: str
) -> None:
    odd.said = [Said("POST ", status, body=error(code) if code else b"")]
    with pytest.raises(RegistryError) as caught:
        push(registry, blob)
    assert fix in caught.value.fix
    assert "again" not in caught.value.fix
    assert waits == [], "and it is not tried again"
    odd.said = [Said("PUT ", status, body=error(code) if code else b"")]
    with pytest.raises(RegistryError) as caught:
        registry.put_manifest("ns/name", "t", b"{}", media.MANIFEST)
    assert fix in caught.value.fix
