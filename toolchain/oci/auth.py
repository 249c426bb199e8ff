"""Who we are to a registry: credentials from the user's login, tokens from the registry, neither ever shown."""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests

from toolchain.errors import RegistryError, UnreachableError

HUB = "docker.io"
IDENTITY = "<token>"
# How long a token lasts that does not say so, by the token specification; and what no token service means.
_TOKEN_SECONDS = 60.0
_LONG = 10 * 365 * 86400
_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "registry-1.docker.io")
_PARAMETER = re.compile(r'(\w+)=(?:"([^"]*)"|([^\s,"]+))')


def credentials(host: str) -> str | None:
    """The user's login for `host` as the text that follows `Basic`, from oras: docker's config file, credential
    helpers and stores; also from `DOCKER_CONFIG` and `REGISTRY_AUTH_FILE`. None without one.
    """
    from oras.auth.base import AuthBackend  # noqa: PLC0415 - takes a while, and plan needs none of it
    from oras.container import Container  # noqa: PLC0415

    named = [os.environ.get("REGISTRY_AUTH_FILE", "")]
    if folder := os.environ.get("DOCKER_CONFIG"):
        named.append(str(Path(folder) / "config.json"))
    files = [name for name in named if name and Path(name).is_file()]
    for key in (host, f"https://{host}", *(_HUB_KEYS if host == HUB else ())):
        backend = AuthBackend()
        try:
            backend.load_configs(Container("any/name", registry=key), configs=list(files))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RegistryError(
                "the login file of docker cannot be read", why=type(error).__name__, fix=f"log in again to {host}"
            ) from None
        if token := _identity_token(backend, key):
            return base64.b64encode(f"{IDENTITY}:{token}".encode()).decode()
        if found := getattr(backend, "_basic_auth", None):
            return str(found)
    return None


def _identity_token(backend: object, key: str) -> str:
    """What docker keeps beside an empty password where the registry gave it a token to be known by (ACR does)."""
    config = getattr(backend, "_auth_config", None)
    entry = (config.get("auths") or {}).get(key) if isinstance(config, dict) else None
    said = entry.get("identitytoken") if isinstance(entry, dict) else None
    return said if isinstance(said, str) else ""


def identity_of(login: str | None) -> str:
    """The identity token in a login, as credential helpers write it: its user is `<token>`. Empty without one."""
    user, word = _word_of(login)
    return word if user == IDENTITY else ""


def _word_of(login: str | None) -> tuple[str, str]:
    """User and password of a login; both empty where it is none."""
    try:
        user, _, word = base64.b64decode(login or "", validate=True).decode().partition(":")
    except ValueError:  # no base64, no ASCII, no UTF-8
        return "", ""
    return user, word


class NoNetrc(requests.auth.AuthBase):
    """Keeps requests from sending what ~/.netrc holds for a host."""

    def __call__(self, r: requests.PreparedRequest) -> requests.PreparedRequest:
        return r


@dataclass(frozen=True)
class _Token:
    value: str
    stale: float  # on the monotonic clock


class Authorizer:
    """The Authorization header of one registry, renewed before it runs out and when the registry asks.

    Args:
        host: registry.
        session: for token requests.
        secure: whether the registry is spoken to by https.
        login: what `credentials` gives.
        timeout: connect and read, seconds.
    """

    def __init__(
        self, host: str, session: requests.Session, *, secure: bool, login: str | None, timeout: tuple[float, float]
    ) -> None:
        self._host = host
        self._session = session
        self._secure = secure
        self._login = login
        self._identity = identity_of(login)
        self._timeout = timeout
        self._basic = ""
        self._service: tuple[str, str] | None = None  # realm and name of who gives tokens
        self._tokens: dict[tuple[str, ...], _Token] = {}
        self._secrets: set[str] = {login or "", self._identity, _word_of(login)[1]}

    def header(self, scopes: Sequence[str]) -> dict[str, str]:
        """The header for a request that needs `scopes` (`repository:NAME:ACTIONS`); empty until the registry has asked.

        A token that is about to run out is renewed first: a gigabyte is not sent to learn that it has.
        """
        if self._basic and self._service is None:
            return {"Authorization": self._basic}
        wanted = tuple(scopes)
        token = self._tokens.get(wanted)
        if self._service is not None and (token is None or token.stale < time.monotonic()):
            token = self._fetch(wanted, wanted)
        return {"Authorization": f"Bearer {token.value}"} if token else {}

    def redact(self, text: str) -> str:
        """`text` without any secret of this registry."""
        return redact(text, self._secrets)

    def answer(self, response: requests.Response, scopes: Sequence[str]) -> None:
        """Take the challenge of a 401, so that `header` holds what the registry wants.

        Raises:
            RegistryError: there is no login, or it was refused.
            UnreachableError: the token service does not answer.
        """
        said = response.headers.get("WWW-Authenticate", "")
        at = re.search(r"\bbearer\s", said, re.IGNORECASE)
        if at is None:
            sent = response.request.headers.get("Authorization", "")
            if not re.search(r"\bbasic\b", said, re.IGNORECASE) or not self._login or str(sent).startswith("Basic "):
                raise self.refused("it refuses the login" if self._login else "it wants a login")
            self._basic = f"Basic {self._login}"
            return
        fields = _parameters(said[at.end() :])
        self._service = (self._realm(fields.get("realm", "")), fields.get("service", ""))
        wanted = tuple(scopes)
        # The registry may call the repository otherwise than we do: both are asked for.
        self._fetch(wanted, tuple(dict.fromkeys([*fields.get("scope", "").split(), *wanted])))

    def _realm(self, said: str) -> str:
        scheme = "https" if self._secure else "http"
        realm = urljoin(f"{scheme}://{self._host}/", said)
        place = urlsplit(realm)
        if place.scheme not in {"http", "https"} or not place.hostname:
            raise self.refused("it names no place to get a token from")
        if self._secure and place.scheme == "http":
            raise self.refused("it wants the login sent without encryption")
        return realm

    def _fetch(self, wanted: tuple[str, ...], scopes: tuple[str, ...]) -> _Token:
        asked = time.monotonic()
        value = self._ask(scopes)
        token = value.get("token") or value.get("access_token")
        if not isinstance(token, str) or not token:
            raise self.refused("the token service answers without a token")
        lasts = value.get("expires_in")
        seconds = lasts if isinstance(lasts, (int, float)) and 0 < lasts < _LONG else _TOKEN_SECONDS
        self._secrets.add(token)
        self._tokens[wanted] = _Token(token, asked + 0.8 * seconds)
        return self._tokens[wanted]

    def _ask(self, scopes: tuple[str, ...]) -> dict[str, Any]:
        try:
            with self._token_request(scopes) as got:
                status = got.status_code
                value = got.json() if status == 200 else {}
        except requests.JSONDecodeError:
            raise self.refused("the token service answers something else than JSON") from None
        except requests.RequestException as error:
            raise UnreachableError(
                f"the token service of {self._host} does not answer", why=type(error).__name__, fix="try again later"
            ) from None
        if status in {401, 403}:
            raise self.refused("the token service refuses the login" if self._login else "it wants a login")
        if status != 200 or not isinstance(value, dict):
            raise self.refused(f"the token service answers {status} and no token")
        return value

    def _token_request(self, scopes: tuple[str, ...]) -> requests.Response:
        assert self._service is not None  # noqa: S101 - there was a challenge
        realm, service = self._service
        named = [("service", service)] if service else []
        if self._identity:
            form = [("grant_type", "refresh_token"), ("refresh_token", self._identity), ("client_id", "toolchain")]
            data = [*form, *named, ("scope", " ".join(scopes))]
            return self._session.post(realm, data=data, timeout=self._timeout, allow_redirects=False)
        headers = {"Authorization": f"Basic {self._login}"} if self._login else {}
        params = [*(("scope", scope) for scope in scopes), *named]
        return self._session.get(realm, params=params, headers=headers, timeout=self._timeout)

    def refused(self, why: str) -> RegistryError:
        """The error that says so."""
        return RegistryError(f"{self._host} does not let us in", why=why, fix=f"log in: {login_command(self._host)}")


def _parameters(text: str) -> dict[str, str]:
    """What a challenge says; a second challenge in the same header does not replace the first one's words."""
    fields: dict[str, str] = {}
    for name, quoted, bare in _PARAMETER.findall(text):
        fields.setdefault(name.lower(), quoted or bare)
    return fields


def login_command(host: str) -> str:
    """What a person runs to log in where `credentials` looks, with a program that builds need too."""
    return f"skopeo login --authfile ~/.docker/config.json {host}"


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` with each of `secrets` replaced, and with the values of all query parameters."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, "[secret]")
    return re.sub(r"([?&][A-Za-z0-9_.-]+=)[^&\s'\")]+", r"\1[…]", text)
