"""Authenticate to a registry, with the user's login and with tokens that the registry's token service issues."""

from __future__ import annotations

import base64
import logging
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests

from toolchain.core.errors import DocumentError, RegistryError, UnreachableError
from toolchain.core.strict_json import Keys
from toolchain.core.web import leaves_https, reason, whole_body
from toolchain.oci.logins import IDENTITY
from toolchain.oci.manifest import parse_object

LOG = logging.getLogger(__name__)
_TOKEN_SECONDS = 60.0  # seconds; the lifetime that the token specification prescribes if a response states none
_LONG = 10 * 365 * 86400  # seconds; a lifetime of this length or more is ignored
_ANSWER = 1 << 20  # bytes; the largest accepted response of a token service
_TOKEN: Keys = dict.fromkeys(("token", "access_token", "expires_in", "issued_at", "refresh_token"))
_SENDABLE = re.compile(r"[\x21-\x7e]+")  # printable ASCII except the space; safe in a header
_PARAMETER = re.compile(r'(?<!\w)(\w{1,64})=(?:"([^"]*)"|([^\s,"]+))')


def user_and_password(login: str | None) -> tuple[str, str]:
    """Return the user and the password of a login; both are empty if the login is None or not base64 of UTF-8 text.

    For an identity token, the user is `IDENTITY` and the password is the token.
    """
    try:
        user, _, password = base64.b64decode(login or "", validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return user, password


@dataclass(frozen=True)
class _Token:
    value: str
    stale: float  # time on the monotonic clock after which the token is renewed


class Authorizer:
    """An object that makes the Authorization header for requests to a registry, and renews tokens before they expire.

    Args:
        login: the login in the form that `logins.credentials` returns; None for an anonymous client.
        timeout: the timeouts for connecting and for reading, in seconds.
    """

    def __init__(
        self, host: str, session: requests.Session, *, secure: bool, login: str | None, timeout: tuple[float, float]
    ) -> None:
        self._host = host
        self._session = session
        self._secure = secure
        self._login = login
        user, password = user_and_password(login)
        self._identity = password if user == IDENTITY else ""
        self._timeout = timeout
        self._basic = ""
        self._service: tuple[str, str] | None = None  # the URL and the name of the token service
        self._tokens: dict[tuple[str, ...], _Token] = {}
        self._secrets: set[str] = {login or "", password}

    def header(self, scopes: Sequence[str]) -> dict[str, str]:
        """Return the header for a request that needs `scopes` (`repository:NAME:ACTIONS`).

        The result is empty until `answer` has been called. If the registry has a token service, a token that is missing
        or about to expire is requested first. The request can raise the errors of `answer`.
        """
        if self._basic and self._service is None:
            return {"Authorization": self._basic}
        wanted = tuple(scopes)
        token = self._tokens.get(wanted)
        if self._service is not None and (token is None or token.stale < time.monotonic()):
            token = self._fetch(wanted, wanted)
        return {"Authorization": f"Bearer {token.value}"} if token else {}

    def redact(self, text: str) -> str:
        """Return `text` without the login and the tokens for this registry (see the function `redact`)."""
        return redact(text, self._secrets)

    def answer(self, response: requests.Response, scopes: Sequence[str]) -> None:
        """Read the challenge in a 401 response, and get the token or login that `header` uses from then on.

        RegistryError is raised if the registry or its token service refuses access or sends something invalid, and
        UnreachableError if the token service does not answer.
        """
        challenge = response.headers.get("WWW-Authenticate", "")
        at = re.search(r"\bbearer\s", challenge, re.IGNORECASE)
        if at is None:
            sent = response.request.headers.get("Authorization", "")
            basic = re.search(r"\bbasic\b", challenge, re.IGNORECASE)
            if not basic or not self._login or str(sent).startswith("Basic "):
                raise self.refused("the registry rejected the login" if self._login else "the registry needs a login")
            self._basic = f"Basic {self._login}"
            return
        fields = _parameters(challenge[at.end() :])
        self._service = (self._realm(fields.get("realm", "")), fields.get("service", ""))
        wanted = tuple(scopes)
        # The scopes in the challenge are requested too, because the registry may name the repository differently than
        # this client.
        self._fetch(wanted, tuple(dict.fromkeys([*fields.get("scope", "").split(), *wanted])))

    def _realm(self, text: str) -> str:
        scheme = "https" if self._secure else "http"
        try:
            realm = urljoin(f"{scheme}://{self._host}/", text)
            place = urlsplit(realm)
            if place.scheme not in {"http", "https"} or not place.hostname:
                raise ValueError
        except ValueError:
            raise self.refused("the registry does not name a valid token service") from None
        if self._secure and place.scheme == "http":
            raise self.refused("the registry names a token service without encryption")
        return realm

    def _fetch(self, wanted: tuple[str, ...], scopes: tuple[str, ...]) -> _Token:
        since = time.monotonic()
        value = self._ask(scopes)
        token = value.get("token") or value.get("access_token")
        if not isinstance(token, str) or not token:
            raise self.refused("the token service sent no token")
        if not _SENDABLE.fullmatch(token):
            raise self.refused("the token has characters that are not allowed in a header")
        lasts = value.get("expires_in")
        seconds = lasts if isinstance(lasts, (int, float)) and 0 < lasts < _LONG else _TOKEN_SECONDS
        self._secrets.add(token)
        self._tokens[wanted] = _Token(token, since + 0.8 * seconds)
        return self._tokens[wanted]

    def _ask(self, scopes: tuple[str, ...]) -> dict[str, Any]:
        try:
            with self._token_request(scopes) as got:
                status = got.status_code
                content = whole_body(got, _ANSWER) if status == 200 else b""
        except ValueError as error:  # requests raises this for an invalid URL
            if leaves_https(error):
                raise RegistryError(
                    "redirect-unencrypted",
                    f"the token service of {self._host} names a URL without encryption",
                    why="it sends the client from https to http",
                    fix="report it to the registry's operator",
                ) from None
            raise self.refused("the URL of the token service, or a redirect of it, is invalid") from None
        except requests.RequestException as error:
            raise UnreachableError(
                "token-service-unreachable",
                f"the token service of {self._host} does not answer",
                why=reason(error),
                fix="try again later",
            ) from None
        if status in {401, 403}:
            raise self.refused(
                "the token service rejected the login" if self._login else "the token service needs a login"
            )
        if status != 200:
            raise self.refused(f"the token service answered with HTTP {status}")
        if content is None:
            raise self.refused(f"the token service sent more than {_ANSWER} bytes")
        try:
            return parse_object(content, "the answer", keys=_TOKEN)
        except (RegistryError, DocumentError):
            raise self.refused("the response of the token service is not valid JSON") from None

    def _token_request(self, scopes: tuple[str, ...]) -> requests.Response:
        assert self._service is not None  # noqa: S101 - `answer` sets it
        realm, service = self._service
        named = [("service", service)] if service else []
        if self._identity:
            form = [("grant_type", "refresh_token"), ("refresh_token", self._identity), ("client_id", "toolchain")]
            data = [*form, *named, ("scope", " ".join(scopes))]
            return self._session.post(realm, data=data, timeout=self._timeout, allow_redirects=False, stream=True)
        headers = {"Authorization": f"Basic {self._login}"} if self._login else {}
        params = [*(("scope", scope) for scope in scopes), *named]
        return self._session.get(realm, params=params, headers=headers, timeout=self._timeout, stream=True)

    def refused(self, why: str) -> RegistryError:
        """Return the error to raise if access to the registry fails; `why` is the reason."""
        return RegistryError(
            "login-refused", f"access to {self._host} was refused", why=why, fix=f"log in: {login_command(self._host)}"
        )


def _parameters(text: str) -> dict[str, str]:
    """Return the parameters in a part of a `WWW-Authenticate` header, by name in lower case.

    If a parameter is repeated, its first value is returned.
    """
    fields: dict[str, str] = {}
    for name, quoted, bare in _PARAMETER.findall(text):
        fields.setdefault(name.lower(), quoted or bare)
    return fields


def login_command(host: str) -> str:
    """Return a skopeo command that logs in to a registry, and writes the login to a file that `logins` reads."""
    return f"skopeo login --authfile ~/.docker/config.json {host}"


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with placeholders for `secrets` and for the values of query parameters in URLs.

    Secrets of fewer than four characters are not replaced, because other words could contain them.
    """
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, "[secret]")
    return re.sub(r"([?&][A-Za-z0-9_.-]+=)[^&\s'\")]+", r"\1[…]", text)
