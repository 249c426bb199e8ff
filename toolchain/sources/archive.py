"""Files by URL and SHA-256: streamed, resumed, and kept only if the digest is right."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

from toolchain.core.amounts import tell
from toolchain.core.errors import DigestError, SourceError, ToolchainError, UnreachableError
from toolchain.core.locks import held
from toolchain.core.web import Retries, TryAgainError, header_number
from toolchain.sources.network import check_http_url, refuse_offline, session, without_query
from toolchain.sources.spec import check_sha256
from toolchain.sources.store import Store

if TYPE_CHECKING:
    import requests

LIMIT_BYTES = 20 << 30
ATTEMPTS = 5  # connections for one file; each continues where the last one broke
BACKOFF = 2.0  # seconds before the second connection, doubled for each further one
_TIMEOUT = (15, 60)
_REDIRECTS = 8
_PIECE = 1 << 16  # bytes that a broken connection may lose


def archive_name(url: str) -> str:
    """Return a valid file name for a URL: the last part of its path."""
    path = PurePosixPath(unquote(urlsplit(url).path))
    name = re.sub(r"[\x00-\x1f\x7f]", "_", path.name)
    if path.parent.name in {"tar.gz", "tarball"}:  # GitHub's URLs, which end with the commit
        name += ".tar.gz"
    if len(encoded := name.encode()) > 255:
        name = encoded[-200:].decode(errors="replace")  # the suffix is needed
    return name if name not in {"", ".."} else "file"


def fetch_archive(
    url: str,
    sha256: str,
    store: Store,
    *,
    offline: bool,
    name: str = "",
    limit_bytes: int = LIMIT_BYTES,
) -> Path:
    """Return a file in the store, fetched if it is not there.

    Args:
        url: https, or http on this machine.
        sha256: the digest, with or without `sha256:` in front.
        name: its name in the store; by default the last part of the URL.
        limit_bytes: largest size.
    """
    digest = check_sha256(sha256)
    if (there := store.file(digest, verify=True)) is not None:
        return there
    check_http_url(url)
    name = name or archive_name(url)
    refuse_offline(name, offline=offline)
    partial = store.partial / digest.removeprefix("sha256:")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with held(store.root / "locks" / f"fetch-{partial.name}.lock", what=f"fetching {name}"):
        # Another process may have stored it meanwhile; a damaged file is still not accepted.
        if (there := store.file(digest, verify=True)) is not None:
            return there
        download = _Download(url, partial, name, limit_bytes)
        download.run()
        page = _looks_like_page(partial, download.content_type)
        try:
            return store.add_file(partial, digest, name=name)
        except DigestError as error:
            error.why += page
            raise


def _broken() -> tuple[type[Exception], ...]:
    # Plans fetch nothing and must be quick, so the HTTP library is loaded when a connection is made.
    import requests  # noqa: PLC0415
    import urllib3  # noqa: PLC0415

    return requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError


class _Download:
    """A download of one file over several connections."""

    def __init__(self, url: str, partial: Path, name: str, limit_bytes: int) -> None:
        self.url = url
        self.partial = partial
        self.name = name
        self.limit = limit_bytes
        self.content_type = ""
        self.etag = ""

    def run(self) -> None:
        """Fetch until the file has the size that the server names."""
        with session() as client:
            Retries(ATTEMPTS - 1, BACKOFF, self.name).run(lambda: self._go_on(client))

    def _go_on(self, client: requests.Session) -> None:
        try:
            self._once(client)
        except _broken() as error:
            raise TryAgainError(self._unreachable(error)) from error

    def _once(self, client: requests.Session) -> None:
        at = self.partial.stat().st_size if self.partial.exists() else 0
        headers = {"Range": f"bytes={at}-"} if at else {}
        if at and self.etag:
            headers["If-Range"] = self.etag
        with self._get(client, headers) as answer:
            if answer.status_code == 416:
                # The partial file is as long as the file, or longer, so it is fetched again.
                self.partial.unlink(missing_ok=True)
                raise ConnectionError("the server has no such range")
            if answer.status_code not in {200, 206}:
                raise self._refused(answer)
            resumed = answer.status_code == 206
            if resumed and not answer.headers.get("Content-Range", "").startswith(f"bytes {at}-"):
                self.partial.unlink(missing_ok=True)
                raise ConnectionError("the server sent another range than requested")
            self.content_type = answer.headers.get("Content-Type", "")
            self.etag = tag if not (tag := answer.headers.get("ETag", "")).startswith("W/") else ""
            start = at if resumed else 0
            length = header_number(answer.headers.get("Content-Length"))
            total = start + length if length is not None else None
            if total is not None and total > self.limit:
                raise self._too_large(total)
            with self.partial.open("ab" if resumed else "wb") as sink:
                done = self._copy(answer, sink, start, total or 0)
            if total is not None and done < total:
                raise ConnectionError(f"the connection ended after {done} of {total} bytes")

    def _copy(self, answer: requests.Response, sink: IO[bytes], done: int, total: int) -> int:
        for chunk in answer.iter_content(_PIECE):
            done += len(chunk)
            tell(f"fetching {self.name}", done, total)
            if done > self.limit:
                raise self._too_large(done)
            sink.write(chunk)
        return done

    def _get(self, client: requests.Session, headers: dict[str, str]) -> requests.Response:
        """Return the answer after all redirects; an https URL leads only to https."""
        url = self.url
        plain = urlsplit(url).scheme == "http"
        for _ in range(_REDIRECTS):
            answer = client.get(url, headers=headers, stream=True, timeout=_TIMEOUT, allow_redirects=False)
            if not answer.is_redirect:
                return answer
            answer.close()
            url = check_http_url(urljoin(url, answer.headers["Location"]), plain_allowed=plain)
        raise SourceError(
            "redirects-endless",
            f"the server of {self.name} redirects too often",
            why=without_query(self.url),
            fix="give the URL that the redirects end at",
        )

    def _too_large(self, count: int) -> SourceError:
        self.partial.unlink(missing_ok=True)
        return SourceError(
            "download-too-large",
            f"{self.name} is too large",
            why=f"{count} bytes; at most {self.limit} are allowed",
            fix="check the URL: it gives something else than a source",
        )

    def _refused(self, answer: requests.Response) -> ToolchainError:
        why = f"{without_query(self.url)} answered {answer.status_code} {answer.reason}"
        if answer.status_code == 429 or answer.status_code >= 500:
            return UnreachableError("server-failed", f"the server of {self.name} fails", why=why, fix="try again later")
        return SourceError(
            "download-refused",
            f"the server does not give {self.name}",
            why=why,
            fix="check the URL; for access use ~/.netrc",
        )

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            "download-interrupted",
            f"{self.name} could not be fetched whole",
            why=f"{without_query(self.url)}: {_reason(error)}",
            fix="run the command again; it continues",
        )


def _looks_like_page(path: Path, content_type: str) -> str:
    with path.open("rb") as stream:
        head = stream.read(4096)
    opening = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not (opening.startswith((b"<!doctype html", b"<html")) or content_type.startswith("text/html")):
        return ""
    title = re.search(rb"<title[^>]*>([^<]{1,80})", head, re.IGNORECASE)
    named = f" titled {title.group(1).decode(errors='replace').strip()!r}" if title else ""
    return f"; the server sent a web page{named} in place of the file"


def _reason(error: BaseException) -> str:
    """Return why a transfer failed. Libraries wrap the reason, and only their text names it."""
    if isinstance(error, ConnectionError):
        return error.strerror or str(error)
    text = str(error).lower()
    for word, why in _REASONS.items():
        if word in text:
            return why
    return "the connection broke"


_REASONS = {
    "resolve": "its host could not be resolved",
    "certificate": "its certificate is not trusted",
    "proxy": "the proxy did not connect",
    "refused": "the connection was refused",
    "timed out": "no answer in time",
    "unreachable": "its network cannot be reached",
}
