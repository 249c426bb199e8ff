"""Download files by URL; a file enters the store only if its SHA-256 matches."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

from toolchain.core.amounts import tell
from toolchain.core.digest import CHUNK, sha256_file
from toolchain.core.errors import DigestError, SourceError, ToolchainError, UnreachableError
from toolchain.core.filesystem import open_regular
from toolchain.core.locks import held
from toolchain.core.web import Retries, TryAgainError, header_number, leaves_https, reason
from toolchain.sources.network import check_http_url, refuse_offline, session, without_query
from toolchain.sources.spec import check_sha256
from toolchain.sources.store import Store

if TYPE_CHECKING:
    import requests

LIMIT_BYTES = 20 << 30
ATTEMPTS = 5  # the maximum number of attempts to download a file
BACKOFF = 2.0  # seconds before the first retry; each later wait is twice as long as the wait before it
_TIMEOUT = (15, 60)
_REDIRECTS = 8
_PIECE = 1 << 16  # bytes read at once


def archive_name(url: str) -> str:
    """Return the last part of a URL's path as a valid file name, or `file` if the URL has none.

    For a URL of the form `…/tar.gz/REF` or `…/tarball/REF`, the name ends with `.tar.gz`.
    """
    path = PurePosixPath(unquote(urlsplit(url).path))
    name = re.sub(r"[\x00-\x1f\x7f]", "_", path.name)
    if path.parent.name in {"tar.gz", "tarball"}:  # GitHub's URLs of this form end with a commit or tag
        name += ".tar.gz"
    if len(encoded := name.encode()) > 255:
        name = encoded[-200:].decode(errors="replace")  # keep the end, because the suffix names the format
    return name if name not in {"", ".."} else "file"


def fetch_archive(
    url: str, sha256: str, store: Store, *, offline: bool, name: str = "", limit_bytes: int = LIMIT_BYTES
) -> Path:
    """Return the path of a file in the store, after downloading it if the store lacks it.

    DigestError is raised if `sha256` is malformed or the downloaded file has a different digest, SourceError if the URL
    or the download is refused, and UnreachableError if the connection or the server fails, or if `offline` is set and
    the store lacks the file.

    Args:
        url: an https URL; http is accepted only for a loopback address.
        sha256: the expected digest, with or without the prefix `sha256:`.
        name: the file's name in the store; if it is empty, the result of `archive_name`.
        limit_bytes: the maximum size of the file; SourceError is raised for a larger one.
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
        # Another process may have stored the file while this one waited for the lock.
        if (there := store.file(digest, verify=True)) is not None:
            return there
        download = _Download(url, partial, name, limit_bytes)
        continued = partial.exists()
        download.run()
        if continued and sha256_file(partial) != digest:
            partial.unlink()  # its beginning may come from another server, which sent something else
            download.run()
        page = _looks_like_page(partial, download.content_type)
        try:
            return store.add_file(partial, digest, name=name)
        except DigestError as error:
            error.why += page
            raise


def fetch_mirrored(url: str, sha256: str, store: Store, *, offline: bool, name: str) -> Path:
    """Return the path of a file in the store, after fetching it from a mirror if the store lacks it.

    A mirror may be a folder of this machine, as for git repositories, so `url` may also be an absolute path or a file
    URL. SourceError is raised if there is no such file; see `fetch_archive` for the other errors.
    """
    scheme, _, rest = url.partition("://")
    if scheme != "file" and not url.startswith("/"):
        return fetch_archive(url, sha256, store, offline=offline, name=name)
    path = Path(unquote("/" + rest.partition("/")[2]) if scheme == "file" else url)
    digest = check_sha256(sha256)
    if (there := store.file(digest, verify=True)) is not None:
        return there
    refuse_offline(name, offline=offline)
    try:
        stream = open_regular(Path(os.path.realpath(path)))
    except (OSError, ValueError) as error:  # ValueError: the URL contains %00
        why = (error.strerror or "") if isinstance(error, OSError) else "it is not a valid path"
        raise SourceError(
            "source-unreadable", f"{path} cannot be read", why=why, fix="check the folder in --mirror"
        ) from error
    plain = digest.removeprefix("sha256:")
    copy = store.partial / f"mirror-{plain}"
    store.partial.mkdir(parents=True, exist_ok=True)
    with stream, held(store.root / "locks" / f"fetch-{plain}.lock", what=f"copying {name}"):
        with copy.open("wb") as sink:
            shutil.copyfileobj(stream, sink, CHUNK)
        return store.add_file(copy, digest, name=name)


def _broken() -> tuple[type[Exception], ...]:
    # These imports are slow, and most invocations download nothing.
    import requests  # noqa: PLC0415
    import urllib3  # noqa: PLC0415

    return requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError


class _Download:
    def __init__(self, url: str, partial: Path, name: str, limit_bytes: int) -> None:
        self.url = url
        self.partial = partial
        self.name = name
        self.limit = limit_bytes
        self.content_type = ""
        self.etag = ""

    def run(self) -> None:
        with session() as client:
            Retries(ATTEMPTS - 1, BACKOFF, self.name).run(lambda: self._go_on(client))

    def _go_on(self, client: requests.Session) -> None:
        try:
            self._once(client)
        except _broken() as error:
            if leaves_https(error):
                raise SourceError(
                    "insecure-url",
                    f"the server of {self.name} redirects from https to http",
                    why="without TLS, somebody can change the file during the transfer",
                    fix="use another URL",
                ) from None
            raise TryAgainError(self._unreachable(error)) from error

    def _once(self, client: requests.Session) -> None:
        at = self.partial.stat().st_size if self.partial.exists() else 0
        headers = {"Range": f"bytes={at}-"} if at else {}
        if at and self.etag:
            headers["If-Range"] = self.etag
        with self._get(client, headers) as answer:
            if answer.status_code == 416:
                # The partial file is not shorter than the server's file, so the next attempt starts from the beginning.
                self.partial.unlink(missing_ok=True)
                raise ConnectionError("the server does not have the requested range")
            if answer.status_code not in {200, 206}:
                raise self._refused(answer)
            resumed = answer.status_code == 206
            if resumed and not answer.headers.get("Content-Range", "").startswith(f"bytes {at}-"):
                self.partial.unlink(missing_ok=True)
                raise ConnectionError("the server sent a different range than requested")
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
        """Follow redirects and return the last response; if the first URL is https, redirects to http are refused."""
        url = self.url
        plain = urlsplit(url).scheme == "http"
        for _ in range(_REDIRECTS):
            answer = client.get(url, headers=headers, stream=True, timeout=_TIMEOUT, allow_redirects=False)
            if not answer.is_redirect:
                return answer
            answer.close()
            there = urljoin(url, answer.headers["Location"])
            url = check_http_url(there, plain_allowed=plain, signed_allowed=True)
        raise SourceError(
            "redirects-endless",
            f"the server of {self.name} redirects too often",
            why=without_query(self.url),
            fix="give the URL at which the redirects end",
        )

    def _too_large(self, count: int) -> SourceError:
        self.partial.unlink(missing_ok=True)
        return SourceError(
            "download-too-large",
            f"{self.name} is too large",
            why=f"{count} bytes; at most {self.limit} are allowed",
            fix="check that the URL names a source archive",
        )

    def _refused(self, answer: requests.Response) -> ToolchainError:
        why = f"{without_query(self.url)} answered {answer.status_code} {answer.reason}"
        if answer.status_code == 429 or answer.status_code >= 500:
            return UnreachableError(
                "server-failed", f"the server failed to send {self.name}", why=why, fix="try again later"
            )
        return SourceError(
            "download-refused",
            f"the server refused to send {self.name}",
            why=why,
            fix="check the URL; if it needs a login, put the credentials into ~/.netrc",
        )

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            "download-interrupted",
            f"{self.name} could not be downloaded completely",
            why=f"{without_query(self.url)}: {_reason(error)}",
            fix="run the command again; the download continues where it stopped",
        )


def _looks_like_page(path: Path, content_type: str) -> str:
    with path.open("rb") as stream:
        head = stream.read(4096)
    opening = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not (opening.startswith((b"<!doctype html", b"<html")) or content_type.startswith("text/html")):
        return ""
    title = re.search(rb"<title[^>]*>([^<]{1,80})", head, re.IGNORECASE)
    named = f" titled {title.group(1).decode(errors='replace').strip()!r}" if title else ""
    return f"; the server sent a web page{named} instead of the file"


def _reason(error: Exception) -> str:
    """Return why a transfer failed."""
    if isinstance(error, ConnectionError):
        return error.strerror or str(error)
    return reason(error)
