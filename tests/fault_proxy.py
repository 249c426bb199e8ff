"""A proxy in front of a registry that fails on demand, requires a login, or imitates another registry."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from tests.registry_manners import INDEX, TOO_MANY, Desk, Manners
from tests.scoped_login import ScopedLogin

Kind = Literal["status", "reset", "lose-answer", "truncate", "flip", "digest", "header", "stall"]
_HOP = {"connection", "transfer-encoding", "keep-alive", "te", "upgrade"}


@dataclass
class Fault:
    """A fault of the proxy.

    Args:
        kind: `status` answers with `status` without a request to the registry; `reset` breaks the connection after
            `after` bytes of the request's body were forwarded; `lose-answer` breaks it after the registry received the
            whole body; `truncate` ends the answer after `after` bytes; `flip` changes one bit there; `digest` replaces
            Docker-Content-Digest; `header` puts `headers` into the answer; `stall` stops sending after `after` bytes of
            the request's body, or of the answer to a request without a body.
        method: a pattern for the verb.
        path: a pattern for the path.
        times: how often the fault occurs; -1 for always.
        skip: the number of matching requests that are forwarded before the first fault.
    """

    kind: Kind
    method: str = ".*"
    path: str = ".*"
    times: int = 1
    skip: int = 0
    status: int = 500
    after: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    hits: int = 0


@dataclass
class Seen:
    """A request: its verb, its path with the query, the number of forwarded body bytes, and the answer's status."""

    method: str
    path: str
    body: int = 0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)


class FaultProxy(ThreadingHTTPServer):
    """A proxy that forwards requests to `upstream` (host:port).

    `login` is the user:password that the proxy requires, and `uses` the number of requests for which a token is valid;
    if `uses` is 0, there are no tokens. `desk` imitates another registry, and `guard` requires a login with scopes.
    """

    daemon_threads = True

    def __init__(self, upstream: str, *, login: str = "", uses: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.login = login
        self.uses = uses
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.tokens: dict[str, int] = {}
        self.desk: Desk | None = None
        self.guard: ScopedLogin | None = None
        self.lock = threading.Lock()
        self.over = threading.Event()

    @property
    def host(self) -> str:
        """The host:port at which the proxy listens."""
        return f"127.0.0.1:{self.server_address[1]}"

    def fault_for(self, method: str, path: str) -> Fault | None:
        """Return the fault for this request, or None."""
        with self.lock:
            for fault in self.faults:
                if fault.times == 0 or not re.search(fault.path, path) or not re.fullmatch(fault.method, method):
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= fault.times > 0
                fault.hits += 1
                return fault
        return None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing, because broken connections are expected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer waits 40 ms for a delayed acknowledgement
    server: FaultProxy

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""

    def _break(self, *, orderly: bool = False) -> None:
        if not orderly:  # with a linger of 0, the peer gets a reset and loses unread data
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.rfile.close()
            self.connection.close()

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _drain(self) -> int:
        left = size = int(self.headers.get("Content-Length") or 0)
        while left:
            left -= len(self.rfile.read(min(left, 1 << 16)))
        return size

    def _allowed(self) -> bool:
        proxy = self.server
        if not proxy.login:
            return True
        basic = "Basic " + base64.b64encode(proxy.login.encode()).decode()
        said = self.headers.get("Authorization", "")
        if self.path.startswith("/token"):
            with proxy.lock:
                token = f"token-number-{len(proxy.tokens)}"
                if said == basic:
                    proxy.tokens[token] = proxy.uses
            self._answer(200 if said == basic else 401, json.dumps({"token": token} if said == basic else {}).encode())
            return False
        if not proxy.uses and said == basic:
            return True
        if not proxy.uses:
            self._drain()
            self._answer(401, said.encode(), {"WWW-Authenticate": 'Basic realm="here"'})
            return False
        with proxy.lock:
            token = said.removeprefix("Bearer ")
            left = proxy.tokens.get(token, 0)
            proxy.tokens.update({token: left - 1} if left else {})
        if left:
            return True
        self._drain()
        realm = f'Bearer realm="http://{proxy.host}/token",service="test",scope="repository:x:pull,push"'
        self._answer(401, said.encode(), {"WWW-Authenticate": realm})
        return False

    def _guarded(self, guard: ScopedLogin) -> bool:
        form = self.path.startswith("/token") and self.command == "POST"
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if form else b""
        said = guard.ask(self.command, self.path, dict(self.headers.items()), body, self.server.host)
        if said is None:
            return True
        if not form:
            self._drain()
        status, value, headers = said
        self._answer(status, json.dumps(value).encode(), headers)
        return False

    def _refused(self, desk: Desk, seen: Seen) -> bool:
        seen.status = desk.refusal(self.command, self.path, int(self.headers.get("Content-Length") or 0))
        if not seen.status:
            return False
        if not desk.manners.hangs_up:
            self._drain()
        body = json.dumps({"errors": [{"code": desk.manners.code, "message": "not this way"}]}).encode()
        self._answer(seen.status, body, TOO_MANY if seen.status == 429 else {})
        if desk.manners.hangs_up:
            self.wfile.flush()
            self._break()
        return True

    def _serve(self) -> None:
        proxy = self.server
        seen = Seen(self.command, self.path, headers=dict(self.headers.items()))
        proxy.seen.append(seen)
        allowed = self._guarded(proxy.guard) if proxy.guard is not None else self._allowed()
        if not allowed:
            seen.status = 401
            return
        if proxy.desk is not None and self._refused(proxy.desk, seen):
            return
        if proxy.desk is not None and (listed := proxy.desk.referrers(self.path)) is not None:
            self._answer(200, listed, {"Content-Type": INDEX})
            return
        fault = proxy.fault_for(self.command, self.path)
        if fault is not None and fault.kind == "status":
            seen.status = fault.status
            self._drain()
            # A careless server repeats the credentials, which the client must not show.
            said = f"as asked, {self.headers.get('Authorization', '')}"
            body = json.dumps({"errors": [{"code": "TEST", "message": said}]}).encode()
            self._answer(fault.status, body, fault.headers)
            return
        upstream = http.client.HTTPConnection(proxy.upstream, timeout=300)
        try:
            if fault is not None and fault.kind == "reset" and proxy.desk is not None and proxy.desk.manners.keeps:
                self._keep(upstream, proxy.desk, fault, seen)
            else:
                self._forward(upstream, fault, seen)
        finally:
            upstream.close()

    def _keep(self, upstream: http.client.HTTPConnection, desk: Desk, fault: Fault, seen: Seen) -> None:
        """Forward the received bytes as a chunk, which the registry keeps, and break the connection as `reset` does."""
        body = self.rfile.read(fault.after)
        seen.body = len(body)
        path = desk.upstream("PATCH", self.path.partition("?")[0])
        upstream.request("PATCH", path, body, {"Content-Type": "application/octet-stream"})
        got = upstream.getresponse()
        got.read()
        desk.answered("PATCH", self.path, len(body), got.status, dict(got.getheaders()))
        self._break()

    def _forward(self, upstream: http.client.HTTPConnection, fault: Fault | None, seen: Seen) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        kind = fault.kind if fault is not None else ""
        desk = self.server.desk
        path = desk.upstream(self.command, self.path) if desk is not None else self.path
        upstream.putrequest(self.command, path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP | {"authorization"}:
                upstream.putheader(name, value)
        upstream.endheaders()
        taken = bytearray()
        while seen.body < size:
            piece = self.rfile.read(min(size - seen.body, 1 << 16))
            if fault is not None and kind in {"reset", "stall"} and seen.body + len(piece) > fault.after:
                upstream.send(piece[: fault.after - seen.body])
                self._fall_silent(kind)
                self._break()
                return
            upstream.send(piece)
            seen.body += len(piece)
            taken += piece if "/manifests/" in path else b""
        if kind == "reset":
            self._break()
            return
        got = upstream.getresponse()
        seen.status = got.status
        if kind == "lose-answer":
            got.read()
            self._break()
            return
        headers = dict(got.getheaders())
        if desk is not None:
            seen.status = desk.answered(self.command, self.path, seen.body, got.status, headers)
            if self.command == "PUT" and taken and got.status == 201:
                desk.took(self.path, bytes(taken), headers)
        self.send_response(seen.status)
        said = fault.headers if fault is not None and kind == "header" else {}
        for name, value in said.items():
            self.send_header(name, value)
        for name, value in headers.items():
            if name.lower() not in _HOP | {"date", "server"} | {one.lower() for one in said}:
                lie = kind == "digest" and name.lower() == "docker-content-digest"
                self.send_header(name, f"sha256:{'0' * 64}" if lie else value)
        self.end_headers()
        if self.command != "HEAD":
            self._pass_on(got, fault)

    def _pass_on(self, got: http.client.HTTPResponse, fault: Fault | None) -> None:
        done = 0
        kinds = {"truncate", "flip", "stall"}
        while part := got.read(1 << 16):
            if fault is not None and fault.kind in kinds and done <= fault.after < done + len(part):
                at = fault.after - done
                if fault.kind != "flip":
                    self.wfile.write(part[:at])
                    self.wfile.flush()
                    self._fall_silent(fault.kind)
                    self._break(orderly=True)
                    return
                part = part[:at] + bytes([part[at] ^ 1]) + part[at + 1 :]
            self.wfile.write(part)
            done += len(part)

    def _fall_silent(self, kind: str) -> None:
        if kind == "stall":
            self.server.over.wait(60)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815


@contextlib.contextmanager
def fault_proxy(
    upstream: str, *, login: str = "", uses: int = 0, manners: Manners | None = None
) -> Iterator[FaultProxy]:
    """Run a proxy in front of `upstream` in a thread, and yield it."""
    with FaultProxy(upstream, login=login, uses=uses) as proxy:
        proxy.desk = Desk(manners) if manners is not None else None
        proxy.guard = manners.login() if manners is not None and manners.login is not None else None
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.over.set()
            proxy.shutdown()
            thread.join(10)
