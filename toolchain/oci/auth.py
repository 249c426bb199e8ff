"""Who we are to a registry: credentials from the user's login, tokens from the registry, neither ever shown."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import requests

from toolchain.errors import RegistryError, UnreachableError

HUB = "docker.io"
_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "registry-1.docker.io")
_PARAMETER = re.compile(r'(\w+)=(?:"([^"]*)"|([^\s,"]+))')


def is_loopback(host: str) -> bool:
    """Whether `host` (a port may follow) is this machine."""
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


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
        if found := getattr(backend, "_basic_auth", None):
            return str(found)
    return None


class NoNetrc(requests.auth.AuthBase):
    """Keeps requests from sending what ~/.netrc holds for a host."""

    def __call__(self, r: requests.PreparedRequest) -> requests.PreparedRequest:
        return r


class Authorizer:
    """The Authorization header of one registry, renewed when the registry asks.

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
        self._timeout = timeout
        self._headers: dict[str, str] = {}

    def header(self, repository: str) -> dict[str, str]:
        """The header to send for `repository`; empty as long as the registry has not asked."""
        value = self._headers.get(repository) or self._headers.get("")
        return {"Authorization": value} if value else {}

    def redact(self, text: str) -> str:
        """`text` without any secret of this registry."""
        return redact(text, [self._login or "", *(value.partition(" ")[2] for value in self._headers.values())])

    def answer(self, response: requests.Response, repository: str, actions: str) -> None:
        """Take the challenge of a 401, so that `header` holds what the registry wants.

        Raises:
            RegistryError: there is no login, or it was refused.
            UnreachableError: the token service does not answer.
        """
        said = response.headers.get("WWW-Authenticate", "")
        at = re.search(r"\bbearer\s", said, re.IGNORECASE)
        if at is None:
            sent = response.request.headers.get("Authorization", "")
            if not said.lower().startswith("basic") or self._login is None or str(sent).startswith("Basic "):
                raise self.refused("it wants a login" if self._login is None else "it refuses the login")
            self._headers[""] = f"Basic {self._login}"
            return
        fields = {name.lower(): quoted or bare for name, quoted, bare in _PARAMETER.findall(said[at.end() :])}
        self._headers[repository] = f"Bearer {self._token(fields, repository, actions)}"

    def _token(self, fields: dict[str, str], repository: str, actions: str) -> str:
        scheme = "https" if self._secure else "http"
        realm = urljoin(f"{scheme}://{self._host}/", fields.get("realm", ""))
        place = urlsplit(realm)
        if place.scheme not in {"http", "https"} or not place.hostname:
            raise self.refused("it names no place to get a token from")
        if self._secure and place.scheme == "http":
            raise self.refused("it wants the login sent without encryption")
        params = {"scope": fields.get("scope") or f"repository:{repository}:{actions}"}
        if service := fields.get("service"):
            params["service"] = service
        headers = {"Authorization": f"Basic {self._login}"} if self._login else {}
        try:
            with self._session.get(realm, params=params, headers=headers, timeout=self._timeout) as got:
                status = got.status_code
                value = got.json() if status == 200 else None
        except requests.JSONDecodeError:
            raise self.refused("the token service answers something else than JSON") from None
        except requests.RequestException as error:
            raise UnreachableError(
                f"the token service of {self._host} does not answer", why=type(error).__name__, fix="try again later"
            ) from None
        if status in {401, 403}:
            raise self.refused("the token service refuses the login" if self._login else "it wants a login")
        token = (value.get("token") or value.get("access_token")) if isinstance(value, dict) else None
        if not isinstance(token, str) or not token:
            raise self.refused(f"the token service answers {status} and no token")
        return token

    def refused(self, why: str) -> RegistryError:
        """The error that says so."""
        return RegistryError(f"{self._host} does not let us in", why=why, fix=f"log in: {login_command(self._host)}")


def login_command(host: str) -> str:
    """What a person runs to log in where `credentials` looks, with a program that builds need too."""
    return f"skopeo login --authfile ~/.docker/config.json {host}"


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` with each of `secrets` replaced, and with the values of all query parameters."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, "[secret]")
    return re.sub(r"([?&][A-Za-z0-9_.-]+=)[^&\s'\")]+", r"\1[…]", text)
