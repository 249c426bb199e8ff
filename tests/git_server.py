"""A git server on loopback: git's `http-backend` behind Python's HTTP server."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar


def git(repository: Path, *words: str) -> str:
    """Run git without configuration files, and return its output."""
    env = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": "t@example.test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    done = subprocess.run(["git", "-C", repository, *words], check=True, env=env, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


@contextmanager
def served(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve all repositories below `root`, and yield the server's URL and the requests so far, as METHOD PATH."""
    asked: list[str] = []

    class Handler(_Backend):
        folder = root
        log = asked

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Backend(BaseHTTPRequestHandler):
    folder: ClassVar[Path]
    log: ClassVar[list[str]]

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server names the argument
        pass

    def _answer(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        self.log.append(f"{self.command} {path}")
        env = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": "uploadpack.allowAnySHA1InWant",
            "GIT_CONFIG_VALUE_0": "true",
            "GIT_CONFIG_KEY_1": "safe.directory",
            "GIT_CONFIG_VALUE_1": "*",
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        # The answer is forwarded as it arrives, because the client waits for keepalives while git packs objects.
        with subprocess.Popen(
            ["git", "http-backend"], env=env, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as backend:
            assert backend.stdin is not None
            assert backend.stdout is not None
            with backend.stdin as request:
                request.write(body)
            fields: list[list[str]] = []
            while (line := backend.stdout.readline()) not in {b"", b"\r\n"}:
                fields.append(line.decode().rstrip("\r\n").split(": ", 1))
            status = next((value for name, value in fields if name == "Status"), "200 OK")
            self.send_response(int(status.split()[0]))
            for name, value in fields:
                if name != "Status":
                    self.send_header(name, value)
            self.end_headers()
            while chunk := os.read(backend.stdout.fileno(), 1 << 16):
                self.wfile.write(chunk)
                self.wfile.flush()


def triton_repository(path: Path, *, version: str, llvm: str, tag: str) -> str:
    """Commit and tag the few files that Triton's stage requires, and return the commit."""
    path.mkdir(parents=True, exist_ok=True)
    if not (path / ".git").exists():
        git(path, "init", "-q", "-b", "main")
    for name in ("third_party/amd", "third_party/nvidia", "python/triton", "cmake"):
        (path / name).mkdir(parents=True, exist_ok=True)
        (path / name / "x").write_text("x\n")
    for name in ("setup.py", "CMakeLists.txt"):
        (path / name).write_text("#\n")
    (path / "python" / "triton" / "__init__.py").write_text(f"__version__ = '{version}'\n")
    (path / "cmake" / "llvm-hash.txt").write_text(f"{llvm}\n")
    git(path, "add", "-A")
    git(path, "commit", "-q", "--allow-empty", "-m", version)
    git(path, "tag", "-f", "-a", "-m", tag, tag)
    return git(path, "rev-parse", "HEAD")
