"""Downloads from a server on loopback that misbehaves on purpose."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from tests.refusals import refused
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import DigestError, SourceError, UnreachableError
from toolchain.sources import archive
from toolchain.sources import network as reach
from toolchain.sources.archive import fetch_archive
from toolchain.sources.network import parse_mirrors
from toolchain.sources.resolve import fetch_source, locate
from toolchain.sources.spec import parse_source_spec
from toolchain.sources.store import Store

CONTENT = bytes(range(256)) * 2000
DIGEST = sha256_bytes(CONTENT)


@dataclass
class Server:
    """The behaviour of the server, and the requests that it received."""

    port: int = 0
    mode: str = "good"
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def url(self, path: str = "/a%20b.tar.xz") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


def _handler(server: Server) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_args: object) -> None:
            return

        def answer(
            self, status: int, body: bytes, headers: dict[str, str] | None = None, length: int | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:  # noqa: PLR0912 - one case for each misbehaviour
            wanted = self.headers.get("Range")
            server.asked.append((self.path, wanted))
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            ranged = {"Content-Range": f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"} if wanted else {}
            match server.mode:
                case "cut":  # every connection gives a third, then breaks
                    part = CONTENT[start : start + len(CONTENT) // 3 + 1]
                    self.answer(206 if wanted else 200, part, ranged, len(CONTENT) - start)
                    self.close_connection = True
                case "cut, no ranges":
                    done = len(server.asked) > 1
                    self.answer(200, CONTENT if done else CONTENT[:100], length=len(CONTENT))
                    self.close_connection = True
                case "stops":
                    self.answer(200, CONTENT[:100], length=len(CONTENT))
                    self.close_connection = True
                case "page":
                    self.answer(200, b"<!DOCTYPE html><title>Please log in</title>", {"Content-Type": "text/html"})
                case "wrong range":
                    self.answer(206 if wanted else 200, CONTENT, {"Content-Range": "bytes 0-9/10"} if wanted else {})
                case "no such range" if wanted:
                    self.answer(416, b"")
                case "missing":
                    self.answer(404, b"")
                case "busy":
                    self.answer(503, b"")
                case "busy once" if len(server.asked) == 1:
                    self.answer(429, b"", {"Retry-After": "0"})
                case "redirect" if "/there" not in self.path:
                    self.answer(302, b"", {"Location": "/there?sig=abc&jwt=x"})
                case "redirect with a password":
                    self.answer(302, b"", {"Location": "http://me:hunter2@127.0.0.1/x"})
                case "redirect to http":
                    self.answer(302, b"", {"Location": "http://example.test/x"})
                case "redirect nowhere":
                    self.answer(302, b"", {"Location": "http://[bad"})
                case "redirect round":
                    self.answer(302, b"", {"Location": self.path})
                case _:
                    self.answer(206 if wanted else 200, CONTENT[start:], ranged)

    return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(archive, "BACKOFF", 0.01)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    state = Server()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(state)) as running:
        state.port = running.server_address[1]
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield state
        running.shutdown()
        thread.join()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "st ore")


def fetch(server: Server, store: Store, digest: str = DIGEST) -> Path:
    return fetch_archive(server.url(), digest, store, offline=False)


def leftovers(store: Store) -> list[Path]:
    return list(store.partial.iterdir()) if store.partial.exists() else []


def test_archive_is_fetched_once_and_then_found_in_store(server: Server, store: Store) -> None:
    path = fetch(server, store)
    assert path.name == "a b.tar.xz"
    assert path.read_bytes() == CONTENT
    assert fetch_archive(server.url(), DIGEST.removeprefix("sha256:").upper(), store, offline=True) == path
    assert len(server.asked) == 1


def test_broken_connections_are_resumed(server: Server, store: Store) -> None:
    server.mode = "cut"
    assert fetch(server, store).read_bytes() == CONTENT
    starts = [int(wanted.removeprefix("bytes=").rstrip("-")) for _, wanted in server.asked if wanted]
    assert len(server.asked) == len(starts) + 1 <= archive.ATTEMPTS
    assert starts[0] > len(CONTENT) // 3 - 2 * archive._PIECE, "what came before the break was kept"
    assert starts == sorted(set(starts))


@pytest.mark.parametrize("mode", ["cut, no ranges", "wrong range", "no such range"])
def test_download_restarts_if_server_cannot_resume(server: Server, store: Store, mode: str) -> None:
    server.mode = mode
    store.partial.mkdir(parents=True)
    (store.partial / DIGEST.removeprefix("sha256:")).write_bytes(CONTENT[:1000])
    assert fetch(server, store).read_bytes() == CONTENT


def test_partial_file_of_another_server_is_replaced(server: Server, store: Store) -> None:
    store.partial.mkdir(parents=True)
    (store.partial / DIGEST.removeprefix("sha256:")).write_bytes(b"<html>" * 100)
    assert fetch(server, store).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == ["bytes=600-", None]


def test_download_that_is_always_truncated_is_refused(server: Server, store: Store) -> None:
    server.mode = "stops"
    with refused("download-interrupted"):
        fetch(server, store)
    assert store.file(DIGEST) is None
    assert len(server.asked) == archive.ATTEMPTS


def test_archive_with_another_digest_is_refused(server: Server, store: Store) -> None:
    other = "0" * 64
    with pytest.raises(DigestError) as caught:
        fetch(server, store, other)
    assert (other in caught.value.why, DIGEST in caught.value.why) == (True, True)
    assert not leftovers(store)


def test_html_page_instead_of_file_is_refused(server: Server, store: Store) -> None:
    server.mode = "page"
    with refused("file-digest-mismatch"):
        fetch(server, store)
    assert not leftovers(store)


def test_missing_archive_is_reported_without_the_query_of_its_url(server: Server, store: Store) -> None:
    server.mode = "missing"
    with refused("download-refused", "404") as caught:
        fetch_archive(server.url("/x?a=b"), DIGEST, store, offline=False)
    assert "a=b" not in str(caught.value)


def test_busy_server_is_retried_and_then_reported(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.mode = "busy once"
    assert fetch(server, store).exists()
    server.mode = "busy"
    monkeypatch.setattr(reach, "RETRY_BACKOFF", 0.0)
    with refused("server-failed", "503"):
        fetch(server, store, "1" * 64)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/a%2F..", "file"),
        ("/a%00b%0A.tar", "a_b_.tar"),
        ("/triton-lang/triton/tar.gz/0123abcd", "0123abcd.tar.gz"),
        ("/" + "x" * 300 + ".tar.xz", "x" * 193 + ".tar.xz"),
        ("/" + "%E2%82%AC" * 100 + ".tar", None),
    ],
)
def test_file_name_is_derived_from_url(server: Server, store: Store, path: str, name: str | None) -> None:
    got = fetch_archive(server.url(path), DIGEST, store, offline=False)
    assert got.read_bytes() == CONTENT
    assert got.name == (name or got.name)
    assert got.suffix or name == "file"


def test_redirect_is_followed_and_bad_redirect_is_refused(server: Server, store: Store) -> None:
    server.mode = "redirect"
    assert fetch(server, store).exists()
    for mode in ("redirect to http", "redirect round", "redirect with a password"):
        server.mode = mode
        with pytest.raises(SourceError):
            fetch(server, store, "2" * 64)
    server.mode = "redirect nowhere"
    with pytest.raises(UnreachableError):
        fetch(server, store, "2" * 64)


def test_download_over_size_limit_is_refused(server: Server, store: Store) -> None:
    with refused("download-too-large"):
        fetch_archive(server.url(), DIGEST, store, offline=False, limit_bytes=1000)
    assert not leftovers(store)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.test/x",
        "ftp://example.test/x",
        "file:///etc/passwd",
        "https://",
        "https://user:hunter2@example.test/x",
        "https://hunter2@example.test/x",
        "https://example.test/x?X-Amz-Signature=hunter2",
        "https://example.test/x?auth=hunter2",
        "https://example.test/x?AWSAccessKey=hunter2",
        "https://example.test/x?passwd=hunter2",
        "https://example.test/x?jwt=hunter2",
        "https://exa mple.test/x",
        "https://example.test/\udcff",
        "http://127.0.0.1.example.test/x",
    ],
)
def test_unsafe_url_is_refused_without_showing_its_secret(store: Store, url: str) -> None:
    with pytest.raises(SourceError) as caught:
        fetch_archive(url, DIGEST, store, offline=False)
    assert "hunter2" not in str(caught.value)


def test_loopback_http_is_refused_if_plain_is_not_allowed() -> None:
    with pytest.raises(SourceError):
        reach.check_http_url("http://127.0.0.1/x", plain_allowed=False)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/a.tar.xz", "http://nowhere.invalid/a.tar.xz"])
def test_failure_reason_hides_exception_text_of_requests(url: str) -> None:
    reasons = archive._reason(_failure(url))
    assert reasons
    assert "Error" not in reasons
    assert "Pool" not in reasons


def _failure(url: str) -> Exception:
    try:
        requests.get(url, timeout=60)
    except requests.RequestException as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("scheme", ["", "file://", "file://localhost"])
def test_a_mirror_may_be_a_folder(tmp_path: Path, scheme: str) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "x.whl").write_bytes(CONTENT)
    cache = Cache(tmp_path / "cache")
    spec = parse_source_spec(f"https://example.test/a/x.whl#{DIGEST.replace(':', '=')}")
    source = locate("llvm", spec, cache=cache)

    def fetched(folder: str, *, offline: bool = False) -> bytes:
        mirrors = parse_mirrors([f"https://example.test/a/={scheme}{tmp_path}/{folder}/"])
        return fetch_source(source, cache=cache, offline=offline, mirrors=mirrors).path.read_bytes()

    with refused("offline-missing"):
        fetched("mirror", offline=True)
    with refused("source-unreadable"):
        fetched("nowhere")
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "x.whl").write_bytes(CONTENT[1:])
    with refused("file-digest-mismatch"):
        fetched("wrong")
    assert fetched("mirror") == CONTENT
    assert (tmp_path / "mirror" / "x.whl").read_bytes() == CONTENT
    assert fetched("nowhere") == CONTENT, "the store has it"
    assert not list((cache.store / "partial").glob("*"))


def test_path_with_nul_in_folder_mirror_is_refused(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    spec = parse_source_spec(f"https://example.test/a/%00.whl#{DIGEST.replace(':', '=')}")
    mirrors = parse_mirrors([f"https://example.test/a/=file://{tmp_path}/"])
    with refused("source-unreadable"):
        fetch_source(locate("llvm", spec, cache=cache), cache=cache, offline=False, mirrors=mirrors)
