"""Check the URLs of sources, replace their prefixes with mirrors, and create the HTTP session that downloads them."""

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
RETRY_BACKOFF = 1.0  # seconds (see `web.session`)
_MIRROR = re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]*://[^\s=]+)=((?:[a-zA-Z][a-zA-Z0-9+.\-]*://|/)\S+)")
# This pattern matches the names of query parameters that may hold secrets.
_SECRET = re.compile(r"token|secret|signature|pass|credential|auth(?!or)|jwt|session|^sig$|key$|^pw$", re.IGNORECASE)


def refuse_offline(what: str, *, offline: bool) -> None:
    """Raise UnreachableError if `offline` is set; the message says that `what` is not in the store."""
    if offline:
        raise UnreachableError(
            "offline-missing",
            f"{what} is not in the store, and --offline forbids fetching it",
            fix="run `toolchain fetch` once without --offline, or import a bundle",
        )


def check_http_url(url: str, *, plain_allowed: bool = True, signed_allowed: bool = False) -> str:
    """Return a URL with its scheme in lower case; raise SourceError if it is invalid or contains credentials.

    SourceError is also raised unless the scheme is https, or http with a loopback address.

    Args:
        plain_allowed: whether http to a loopback address is accepted; False for redirects and links of an https URL.
        signed_allowed: whether the query may contain a signature; True for redirects, because nothing records them.
    """
    refuse_credentials(without_query(url) if signed_allowed else url)
    url = check_address(url)
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and plain_allowed and web.is_loopback(parts.hostname)):
        raise SourceError(
            "insecure-url",
            f"{parts.scheme}:// is not allowed for {parts.hostname}",
            why="without TLS, somebody can change the file during the transfer",
            fix="use https",
        )
    return url


def git_protocol(url: str) -> str:
    """Return the protocol of a repository's URL or absolute path, for `GIT_ALLOW_PROTOCOL`.

    SourceError is raised for an invalid URL and for credentials, and unless the protocol is https, ssh or file, or http
    to a loopback address.
    """
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
        f"the repository {url[:200]!r} is not allowed",
        why="only https, ssh, file:// and absolute paths are allowed",
        fix="use https",
    )


def check_address(url: str) -> str:
    """Return a URL with its scheme in lower case; raise SourceError if the URL is invalid."""
    scheme, sign, rest = url.partition("://")
    try:
        parts = urlsplit(f"{scheme.lower()}{sign}{rest}")
        if parts.port == 0:
            raise ValueError("port 0")
        url.encode()
    except ValueError as error:
        # The exception is not shown, because its text may contain a password.
        why = "the port must be a number from 1 to 65535" if "ort" in str(error) else "the host is invalid"
        if isinstance(error, UnicodeEncodeError):
            why = "it contains bytes that are not UTF-8"
        raise SourceError(
            "not-a-url",
            f"{without_query(url.rpartition('@')[2])[:200]!r} is not a valid URL",
            why=why,
            fix="write it as https://HOST/PATH",
        ) from None
    if not parts.hostname and parts.scheme != "file":
        raise SourceError(
            "not-a-url", f"{url[:200]!r} is not a valid URL", why="it has no host", fix="write it as https://HOST/PATH"
        )
    if parts.scheme != "file" and any(ord(char) <= 32 for char in url):
        raise SourceError(
            "not-a-url", f"{url[:200]!r} is not a valid URL", why="it contains a space", fix="write %20 for a space"
        )
    return f"{scheme.lower()}{sign}{rest}"


def refuse_credentials(url: str) -> None:
    """Raise SourceError for a URL that contains credentials, because URLs are logged and recorded.

    SourceError is also raised for an invalid URL.
    """
    try:
        parts = urlsplit(url)
        secret = any(_SECRET.search(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    except ValueError:
        # The message shows neither the URL nor the exception's text, because both may contain a password.
        raise SourceError(
            "not-a-url", "the text is not a valid URL", why="its host is invalid", fix="write it as https://HOST/PATH"
        ) from None
    if parts.password or secret or (parts.username and parts.scheme in {"http", "https"}):
        raise SourceError(
            "url-credentials",
            f"the URL for {parts.hostname} contains credentials",
            why="URLs are written into logs and records",
            fix="put them into ~/.netrc and leave them out of the URL",
        )


def without_query(url: str) -> str:
    """Return a URL without its query and fragment, because the query of a signed link is a secret."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))


# These are pairs of a URL prefix and its replacement.
Mirrors = tuple[tuple[str, str], ...]


def parse_mirrors(values: Sequence[str]) -> Mirrors:
    """Parse the `URL=URL` values of `--mirror` into pairs; raise ConfigError if a value is invalid.

    A pair is a URL prefix and its replacement.
    """
    pairs: list[tuple[str, str]] = []
    for value in values:
        match = _MIRROR.fullmatch(value)
        if not match:
            fix = "e.g. --mirror https://github.com/=https://git.example/github/"
            raise ConfigError(
                "mirror-invalid",
                f"--mirror {value[:200]!r} is not of the form URL=URL",
                why="it needs two URLs with = between them",
                fix=fix,
            )
        try:
            for url in match.groups():
                refuse_credentials(url)
            old, new = (url if url.startswith("/") else check_address(url) for url in match.groups())
        except SourceError as error:
            raise ConfigError("mirror-invalid", f"--mirror: {error.what}", why=error.why, fix=error.fix) from error
        old = _plain_host(old)
        if any(old.rstrip("/") == earlier.rstrip("/") for earlier, _ in pairs):
            raise ConfigError("option-twice", f"--mirror names {old} more than once", fix="remove all but one of them")
        # The rest of a URL follows the prefix directly, so both must end in the same way.
        pairs.append((old, new.rstrip("/") + "/" * old.endswith("/")))
    return tuple(pairs)


def mirrored(url: str, mirrors: Mirrors) -> str:
    """Return a URL with the longest matching prefix replaced by its mirror; a URL without a mirror is unchanged.

    A prefix matches only whole components of the path, and a host in any case.
    """
    plain = _plain_host(url)
    fits = [pair for pair in mirrors if plain == pair[0] or plain.startswith(pair[0].removesuffix("/") + "/")]
    if not fits:
        return url
    old, new = max(fits, key=lambda pair: len(pair[0]))
    return new + plain[len(old) :]


def _plain_host(url: str) -> str:
    """Return a URL with its host in lower case; a path is unchanged."""
    scheme, sign, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    user, at, host = place.rpartition("@")
    return f"{scheme}{sign}{user}{at}{host.lower()}{slash}{path}"


def session() -> requests.Session:
    """Return an HTTP session that repeats a request if a connection fails or a server is busy (see `web.session`)."""
    made = web.session(_ATTEMPTS, RETRY_BACKOFF)
    made.headers["User-Agent"] = "toolchain"
    # With a compressed response, byte counts and ranges would not match the file.
    made.headers["Accept-Encoding"] = "identity"
    return made
