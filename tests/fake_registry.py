"""A registry in memory that can misbehave, and that has the referrers API, which docker-registry lacks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

INDEX = "application/vnd.oci.image.index.v1+json"


class FakeRegistry(ThreadingHTTPServer):
    """A registry in which every repository exists.

    Args:
        api: whether the registry has the API `/referrers/`.
        page: the number of referrers in a page.
        blind: whether the registry sends OCI-Subject, but answers the API with an empty list.
        silent: whether the registry lists referrers, but does not send OCI-Subject.
        digest_tags: whether the tag `sha256-HEX` means the digest `sha256:HEX`, as in GitLab's registry.
    """

    daemon_threads = True

    def __init__(
        self,
        *,
        api: bool = True,
        page: int = 1000,
        blind: bool = False,
        silent: bool = False,
        digest_tags: bool = False,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api, self.page, self.blind, self.silent = api, page, blind, silent
        self.digest_tags = digest_tags
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[str, bytes]] = {}  # by tag and by digest
        self.seen: list[str] = []
        self.before_put: Callable[[str], None] | None = None
        self.statuses: dict[str, list[int]] = {}  # statuses to answer with, by a pattern of "VERB PATH"
        self.instead: dict[str, list[bytes]] = {}  # manifests to answer with first, by "VERB reference"
        self.lock = threading.Lock()

    @property
    def host(self) -> str:
        """The host:port at which the registry listens."""
        return f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing."""

    def referrers(self, subject: str) -> list[dict[str, Any]]:
        """Return the referrers of a digest."""
        found = []
        for name, (kind, content) in sorted(self.manifests.items()):
            value = json.loads(content)
            if name.startswith("sha256:") and (value.get("subject") or {}).get("digest") == subject:
                entry = {"mediaType": kind, "digest": name, "size": len(content)}
                found.append(
                    {**entry, "artifactType": value["artifactType"], "annotations": value.get("annotations", {})}
                )
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer waits 40 ms for a delayed acknowledgement
    server: FakeRegistry

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _serve(self) -> None:
        registry = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        registry.seen.append(f"{self.command} {self.path}")
        for pattern, statuses in registry.statuses.items():
            if statuses and re.search(pattern, f"{self.command} {self.path}"):
                self._answer(statuses.pop(0))
                return
        path = urlsplit(self.path).path
        query = parse_qs(urlsplit(self.path).query)
        if found := re.search(r"/referrers/(.*)$", path):
            self._referrers(found[1], int(query.get("after", ["0"])[0]))
        elif path.endswith("/tags/list"):
            tags = sorted(name for name in registry.manifests if ":" not in name)
            self._answer(200, json.dumps({"name": path.split("/")[2], "tags": tags}).encode())
        elif "/blobs/uploads/" in path:
            self._upload(path, query, body)
        elif found := re.search(r"/blobs/(.*)$", path):
            content = registry.blobs.get(found[1])
            self._answer(404 if content is None else 200, content or b"")
        elif found := re.search(r"/manifests/(.*)$", path):
            self._manifest(found[1], body)
        else:
            self._answer(404)

    def _referrers(self, subject: str, after: int) -> None:
        registry = self.server
        if not registry.api:
            self._answer(404, b"404 page not found\n", Content_Type="text/plain")
            return
        with registry.lock:
            found = [] if registry.blind else registry.referrers(subject)
        value = {"schemaVersion": 2, "mediaType": INDEX, "manifests": found[after : after + registry.page]}
        more = {}
        if len(found) > after + registry.page:
            more["Link"] = f'<{urlsplit(self.path).path}?after={after + registry.page}>; rel="next"'
        self._answer(200, json.dumps(value).encode(), Content_Type=INDEX, **more)

    def _upload(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        if self.command == "POST":
            self._answer(202, Location=f"{path}x")
            return
        digest = query["digest"][0]
        if f"sha256:{hashlib.sha256(body).hexdigest()}" != digest:
            self._answer(400)
            return
        self.server.blobs[digest] = body
        self._answer(201)

    def _manifest(self, name: str, body: bytes) -> None:
        registry = self.server
        if registry.digest_tags and self.command != "PUT" and re.fullmatch(r"sha256-[0-9a-f]{64}", name):
            name = name.replace("-", ":", 1)
        if self.command != "PUT":
            with registry.lock:
                kind, content = registry.manifests.get(name, ("", b""))
                if other := registry.instead.get(f"{self.command} {name}"):
                    content = other.pop(0)
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            self._answer(200 if kind else 404, content, Content_Type=kind, Docker_Content_Digest=digest)
            return
        if registry.before_put is not None:
            registry.before_put(name)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        subject = (json.loads(body).get("subject") or {}).get("digest")
        with registry.lock:
            registry.manifests[name] = registry.manifests[digest] = (self.headers["Content-Type"], body)
        more = {"OCI_Subject": subject} if subject and registry.api and not registry.silent else {}
        self._answer(201, Docker_Content_Digest=digest, **more)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = _serve  # noqa: N815


@contextlib.contextmanager
def fake_registry(**options: Any) -> Iterator[FakeRegistry]:
    """Run a registry in a thread, and yield it."""
    with FakeRegistry(**options) as registry:
        thread = threading.Thread(target=registry.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield registry
        finally:
            registry.shutdown()
            thread.join(10)
