"""Allowed addresses, mirrors of URLs, and the HTTP session of sources."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from toolchain.core import web
from toolchain.core.errors import ConfigError, SourceError, UnreachableError

if TYPE_CHECKING:
    import requests

_ATTEMPTS = 4
RETRY_BACKOFF = 1.0  # seconds before the second try, doubled for each further one
_MIRROR = re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]*://[^\s=]+)=((?:[a-zA-Z][a-zA-Z0-9+.\-]*://|/)\S+)")
# Names of query parameters that may hold secrets.
_SECRET = re.compile(r"token|secret|signature|pass|credential|auth(?!or)|jwt|session|^sig$|key$|^pw$", re.IGNORECASE)


def refuse_offline(what: str, *, offline: bool) -> None:
    """Raise UnreachableError if `offline` is set."""
    if offline:
        raise UnreachableError(
            "offline-missing",
            f"{what} is not in the store and --offline forbids fetching it",
            fix="run `toolchain fetch` once with a network, or import a bundle",
        )


def check_http_url(url: str, *, plain_allowed: bool = True) -> str:
    """Return the URL with its scheme in lower case; refuse all but https, and http on this machine.

    Args:
        plain_allowed: False after an https answer, which must not redirect to http.
    """
    refuse_credentials(url)
    url = check_address(url)
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and plain_allowed and web.is_loopback(parts.hostname)):
        raise SourceError(
            "insecure-url",
            f"refusing {parts.scheme}:// from {parts.hostname}",
            why="what is fetched without TLS can be changed on its way",
            fix="use https",
        )
    return url


def git_protocol(url: str) -> str:
    """Return the value of `GIT_ALLOW_PROTOCOL` for the URL of a repository."""
    if url.startswith("/"):
        return "file"
    refuse_credentials(url)
    check_address(url)
    parts = urlsplit(url)
    if parts.scheme in {"https", "ssh", "file"} and (parts.hostname or parts.scheme == "file"):
        return parts.scheme
    if parts.scheme == "http" and web.is_loopback(parts.hostname):
        return "http"
    raise SourceError(
        "repository-url-refused",
        f"refusing the repository {url[:200]!r}",
        why="only https, ssh, file:// and absolute paths are used",
        fix="use https",
    )


def check_address(url: str) -> str:
    """Return the URL with its scheme in lower case; refuse an invalid host or port."""
    scheme, sign, rest = url.partition("://")
    try:
        parts = urlsplit(f"{scheme.lower()}{sign}{rest}")
        if parts.port == 0:
            raise ValueError("port 0")
    except ValueError as error:
        # The exception's text may repeat a password.
        why = "the port must be a number from 1 to 65535" if "ort" in str(error) else "the host cannot be one"
        raise SourceError(
            "not-a-url",
            f"{without_query(url.rpartition('@')[2])[:200]!r} is not a URL",
            why=why,
            fix="write it as https://HOST/PATH",
        ) from None
    if not parts.hostname and parts.scheme != "file":
        raise SourceError(
            "not-a-url", f"{url[:200]!r} is not a URL", why="it names no host", fix="write it as https://HOST/PATH"
        )
    if parts.scheme != "file" and any(ord(char) <= 32 for char in url):
        raise SourceError(
            "not-a-url", f"{url[:200]!r} is not a URL", why="it holds white space", fix="write %20 for a space"
        )
    return f"{scheme.lower()}{sign}{rest}"


def refuse_credentials(url: str) -> None:
    """Refuse a URL with a password or token, which would end in logs and records; the message does not repeat it."""
    try:
        parts = urlsplit(url)
        secret = any(_SECRET.search(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    except ValueError as error:
        # Neither URL nor cause is shown, because they may hold a password.
        raise SourceError(
            "not-a-url", "the text is not a URL", why=type(error).__name__, fix="give an https:// URL"
        ) from None
    if parts.password or secret or (parts.username and parts.scheme in {"http", "https"}):
        raise SourceError(
            "url-credentials",
            f"the URL for {parts.hostname} holds credentials",
            why="they would end in logs and records",
            fix="put them into ~/.netrc and leave them out of the URL",
        )


def without_query(url: str) -> str:
    """Return a URL without its query, because signed links have secrets there."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))


# Prefixes of URLs, and their replacements.
Mirrors = tuple[tuple[str, str], ...]


def parse_mirrors(values: Sequence[str]) -> Mirrors:
    """Parse `URL=URL` pairs of `--mirror`: what begins with the first is fetched from the second."""
    pairs: list[tuple[str, str]] = []
    for value in values:
        match = _MIRROR.fullmatch(value)
        if not match:
            fix = "e.g. --mirror https://github.com/=https://git.example/github/"
            raise ConfigError(
                "mirror-invalid",
                f"--mirror {value[:200]!r} is not of the form URL=URL",
                why="two URLs with a = between",
                fix=fix,
            )
        for url in match.groups():
            refuse_credentials(url)
        old, new = (url if url.startswith("/") else check_address(url) for url in match.groups())
        if any(old.rstrip("/") == earlier.rstrip("/") for earlier, _ in pairs):
            raise ConfigError("option-twice", f"--mirror names {old} more than once", fix="leave one of them")
        pairs.append((old, new))
    return tuple(pairs)


def mirrored(url: str, mirrors: Mirrors) -> str:
    """Return the mirror's URL for a URL, by the longest matching prefix of whole path parts, or the URL itself."""
    fits = [(old, new) for old, new in mirrors if url == old or url.startswith(old if old[-1] == "/" else f"{old}/")]
    old, new = max(fits, key=lambda pair: len(pair[0]), default=("", ""))
    return new + url[len(old) :]


def session() -> requests.Session:
    """Return a session that retries when a server is busy or a connection fails (see `web.session`)."""
    made = web.session(_ATTEMPTS, RETRY_BACKOFF)
    made.headers["User-Agent"] = "toolchain"
    # Compressed answers would break byte counts and ranges.
    made.headers["Accept-Encoding"] = "identity"
    return made
